"""Gumbel-top-k as a path: the same ids whatever the cuts, the schedule, the batch and k."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fsresearch import (
    sample_logits,
    sample_logits_without_replacement,
    sample_without_replacement,
)
from fsresearch.noise import RowNoise
from fsresearch.results import OrderedSample
from fsresearch.schedules.online import online
from fsresearch.schedules.tiled import tiled
from fsresearch.sources import Logits
from fsresearch.summaries import GumbelTopK
from fsresearch.tiles import Tile
from fsresearch.without_replacement import gumbel_top_k as module
from fsresearch.without_replacement.estimators import horvitz_thompson
from fsresearch.without_replacement.gumbel_top_k import gumbel_top_k
from proofs_tests.cases.helpers import exact_head
from proofs_tests.conformance import oracles
from proofs_tests.strategies import Case, cases

INF, NAN = torch.inf, torch.nan
some = settings(max_examples=40, suppress_health_check=list(HealthCheck))
draw = sample_logits_without_replacement


def first_draw(noise: RowNoise) -> RowNoise:
    return noise._replace(draws=noise.draws[:1])


@some
@given(case=cases(max_vocab=3000), data=st.data())
def test_many_are_collected_to_what_few_merge(case: Case, data: st.DataObject) -> None:
    """The two ways, and the oracle on whole rows, agree to the bit on every kind of row."""
    vocab = case.logits.shape[1]
    k = data.draw(st.integers(1, vocab + 1))
    noise = first_draw(case.noise)
    greedy: Any = data.draw(st.sampled_from([False, True, "mixed"]))
    if greedy == "mixed":
        greedy = torch.arange(len(case.logits))[:, None] % 2 == 0
    source = Narrow(case.logits, case.width)
    few, few_mass = module._few(source, noise, k, greedy)
    many, many_mass = module._many(source, noise, k, greedy)
    assert few.token.equal(many.token)
    assert torch.equal(few.perturbed.nan_to_num(9.5), many.perturbed.nan_to_num(9.5))
    assert torch.equal(few_mass.nan_to_num(9.5), many_mass.nan_to_num(9.5))
    if greedy is False:
        assert many.token.equal(torch.from_numpy(oracles.top_k(case.logits, noise, k)))


class Narrow(Logits):
    """Logits in tiles of a given width."""

    def __init__(self, logits: Tensor, width: int) -> None:
        super().__init__(logits)
        self.narrow = width

    @property
    def width(self) -> int:
        return self.narrow


@pytest.mark.parametrize("k", [1, 2, 63, 254, 255, 256, 257, 700, 999, 1000])
def test_a_sample_is_a_prefix_of_a_larger_one(k: int) -> None:
    """Also across the change from few to many; kappa is the next score."""
    logits = torch.randn(3, 1001, generator=torch.Generator().manual_seed(k))
    fewer, more = draw(logits, k, seed=4), draw(logits, k + 1, seed=4)
    assert fewer.token.equal(more.token[:, :k])
    assert fewer.perturbed.equal(more.perturbed[:, :k])
    assert fewer.kappa.equal(more.perturbed[:, k])
    assert fewer.log_prob.equal(more.log_prob[:, :k])


def test_noise_by_rank_would_not_nest() -> None:
    """The control: with another draw for every k, prefixes differ."""
    logits = torch.zeros(50, 100)
    fewer, more = draw(logits, 3, seed=4, position=3), draw(logits, 4, seed=4, position=4)
    assert not fewer.token.equal(more.token[:, :3])


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_one_is_the_token_of_sample(temperature: float) -> None:
    logits = torch.randn(64, 300, generator=torch.Generator().manual_seed(0)) * 3
    one = draw(logits, 1, seed=9, position=5, role=2, temperature=temperature)
    options: dict[str, Any] = {"seed": 9, "position": 5, "temperature": temperature}
    assert one.token.equal(sample_logits(logits, role=2, **options).token)
    if temperature:
        assert not one.token.equal(sample_logits(logits, role=1, **options).token)


@some
@given(case=cases(max_vocab=600), k=st.integers(1, 40))
def test_any_cut_and_schedule_gives_the_same_ids(case: Case, k: int) -> None:
    """Tiles merged backwards and in a tree too: merging has no order."""
    reducer = GumbelTopK(first_draw(case.noise), k)
    source = Logits(case.logits)
    whole = reducer.lift(source.tile(0, source.stop))
    at = [0, *case.cuts, source.stop]
    parts = [reducer.lift(source.tile(a, b)) for a, b in pairwise(at) if a < b]
    backwards = reducer.empty(source.rows, source.device)
    for part in reversed(parts):
        backwards = reducer.merge(part, backwards)
    for state in (
        backwards,
        online(reducer, source, width=case.width),
        tiled(reducer, source, cuts=case.cuts),
    ):
        assert state.token.equal(whole.token)
    kept = gumbel_top_k(source, first_draw(case.noise), k)
    assert kept.token.equal(whole.token)


@some
@given(case=cases(max_vocab=600), k=st.integers(1, 40))
def test_what_both_parts_hold_counts_once(case: Case, k: int) -> None:
    reducer = GumbelTopK(first_draw(case.noise), k)
    source = Logits(case.logits)
    whole = reducer.lift(source.tile(0, source.stop))
    part = reducer.lift(source.tile(0, (source.stop + 1) // 2))
    for merged in (
        reducer.merge(whole, whole),
        reducer.merge(part, whole),
        reducer.merge(reducer.merge(whole, part), part),
    ):
        assert merged.token.equal(whole.token)
        assert merged.perturbed.nan_to_num(9e9).equal(whole.perturbed.nan_to_num(9e9))


def test_lists_shorter_than_k_lose_ids() -> None:
    """The control: k / 4 ids a tile of a quarter of the vocabulary are not enough."""
    rows, vocab, k = 20, 400, 16
    noise = RowNoise(torch.arange(rows), torch.tensor(0), torch.tensor([0]))
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1))
    whole = GumbelTopK(noise, k).lift(Tile(logits, 0)).token
    short = GumbelTopK(noise, k // 4)
    parts = [short.lift(Tile(logits[:, a : a + 100], a)) for a in range(0, vocab, 100)]
    scores = torch.cat([part.perturbed for part in parts], 1)
    tokens = torch.cat([part.token for part in parts], 1)
    assert not tokens.gather(1, scores.argsort(1, descending=True)).equal(whole)


@pytest.mark.parametrize("k", [5, 400])
def test_a_row_does_not_depend_on_its_batch(k: int) -> None:
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(1))
    seeds = torch.arange(6) * 7
    together = draw(logits, k, seed=seeds)
    for row in range(6):
        alone = draw(logits[row : row + 1], k, seed=seeds[row : row + 1])
        assert alone.token[0].equal(together.token[row])
    turned = draw(logits.flip(0), k, seed=seeds.flip(0))
    assert turned.token.flip(0).equal(together.token)


@pytest.mark.parametrize("k", [7, 300])
def test_adding_a_constant_and_dividing_by_a_power_of_two(k: int) -> None:
    """On a grid where all sums are exact up to the last rounding: ids stay, kappa moves along."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randint(-8, 8, (20, 400), generator=generator) / 4.0
    plain, moved = draw(logits, k, seed=3), draw(logits + 4.0, k, seed=3)
    gaps = torch.cat([plain.perturbed, plain.kappa[:, None]], 1).diff(dim=1).abs().amin(1)
    clear = gaps > 1e-5
    assert clear.sum() >= 1
    assert moved.token[clear].equal(plain.token[clear])
    assert (moved.kappa - plain.kappa - 4.0).abs().max() < 2e-6
    cooled = draw(logits, k, seed=3, temperature=0.5)
    scaled = draw(logits * 2, k, seed=3)
    assert cooled.token.equal(scaled.token)
    assert cooled.kappa.equal(scaled.kappa)


@pytest.mark.parametrize("k", [4, 9, 300])
def test_support_below_k(k: int) -> None:
    """The m ids with mass come once, then padding; weights are the probabilities themselves."""
    logits = torch.full((50, 300), -INF)
    ids = [3, 64, 255]
    logits[:, ids] = torch.tensor([0.0, -1.0, 1.5])
    drawn = draw(logits, k, seed=8)
    assert drawn.token[:, :3].sort(1).values.equal(torch.tensor(ids).expand(50, -1))
    assert (drawn.token[:, 3:] == -1).all()
    assert drawn.perturbed[:, 3:].isneginf().all()
    assert drawn.log_prob[:, 3:].isneginf().all()
    assert drawn.kappa.isneginf().all()
    assert (drawn.num_valid == 3).all()
    values = torch.where(drawn.token < 0, NAN, drawn.token.double() ** 2)
    p = torch.softmax(logits[0, ids].double(), 0)
    exact = (p * torch.tensor(ids).double() ** 2).sum()
    torch.testing.assert_close(horvitz_thompson(drawn, values), exact.expand(50), rtol=1e-6, atol=0)


@pytest.mark.parametrize("k", [3, 300])
def test_rows_that_are_not_distributions(k: int) -> None:
    logits = torch.zeros(4, 400)
    logits[0] = -INF
    logits[1, 399] = NAN
    logits[2, 0] = INF
    drawn = draw(logits, k, seed=1)
    assert (drawn.token[:3] == -1).all()
    assert drawn.num_valid.tolist() == [0, 0, 0, k]
    assert drawn.perturbed[1:3].isnan().all()
    assert drawn.log_prob[:3].isnan().all()
    assert drawn.token[3].unique().numel() == k
    with pytest.raises(ValueError, match="row 0 is not a distribution"):
        draw(logits, k, seed=1, check=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("k", [10, 400])
def test_ties_go_to_the_lowest_id(dtype: torch.dtype, k: int) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randint(-2, 3, (5, 500), generator=generator).to(dtype)
    drawn = draw(logits, k, temperature=0.0)
    for row, tokens in zip(logits.tolist(), drawn.token, strict=True):
        ranked = sorted((-logit, v) for v, logit in enumerate(row))
        assert tokens.tolist() == [v for _, v in ranked[:k]]
    noisy = draw(logits, k, seed=2)
    assert noisy.token.equal(draw(logits.float(), k, seed=2).token)


SIZES = [1, 3, 300, 2, 299]


@pytest.mark.parametrize(
    "sizes", [SIZES, tuple(SIZES), torch.tensor(SIZES), torch.tensor(SIZES).int()], ids=repr
)
def test_a_number_for_every_row(sizes: Any) -> None:
    """A row is what it is alone with its own k, filled up with -1."""
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(6))
    logits[4, 0] = -INF
    drawn = draw(logits, sizes, seed=3)
    widest = draw(logits, 300, seed=3)
    assert drawn.token.shape == (5, 300)
    assert drawn.num_valid.tolist() == SIZES
    for row, k in enumerate(SIZES):
        assert_prefix(drawn, widest, row, k)
    checked = draw(logits, sizes, seed=3, check=True)
    assert checked.token.equal(drawn.token)
    hidden, weight = exact_head(torch.tensor([0.0, 1.0, 2.0, 3.0]), rows=2)
    through_head = sample_without_replacement(hidden, weight, [1, 4], seed=3)
    assert through_head.num_valid.tolist() == [1, 4]


def assert_prefix(drawn: OrderedSample, widest: OrderedSample, row: int, k: int) -> None:
    assert drawn.token[row, :k].equal(widest.token[row, :k])
    assert (drawn.token[row, k:] == -1).all()
    assert drawn.perturbed[row, :k].equal(widest.perturbed[row, :k])
    assert drawn.perturbed[row, k:].isneginf().all()
    assert drawn.log_prob[row, k:].isneginf().all()
    scores = torch.cat([widest.perturbed, widest.kappa[:, None]], 1)
    assert drawn.kappa[row] == scores[row, k]


def test_rows_without_mass_keep_their_nan_where_k_is_smaller() -> None:
    logits = torch.zeros(2, 10)
    logits[0, 3] = NAN
    drawn = draw(logits, [2, 4], seed=1)
    assert drawn.perturbed[0].isnan().all()
    assert drawn.kappa[0].isnan()
    assert drawn.num_valid.tolist() == [0, 4]
    assert draw(torch.zeros(0, 10), [], seed=1).token.shape == (0, 1)


@pytest.mark.parametrize(
    "sizes, error, says",
    [
        ([1, 0], ValueError, "k must be at least 1, got 0"),
        ([1, 301], ValueError, r"k must be in \[1, 300\], got 301 in row 1"),
        ([1, 2**70], ValueError, r"k must be in \[1, 300\]"),
        (torch.tensor([-1, 3]), ValueError, r"k must be in \[1, 300\], got -1 in row 0"),
        ([1, 2, 3], ValueError, r"k must be a number or \[2\], got shape \[3\]"),
        (torch.ones(1, 2).long(), ValueError, r"got shape \[1, 2\]"),
        ([1, 2.0], TypeError, "k must be an integer"),
        (torch.tensor([1.0, 2.0]), TypeError, "k must be an integer"),
        (torch.tensor(3), TypeError, "k must be an integer"),
        ("12", TypeError, "k must be an integer"),
        (torch.ones(2, device="meta").long(), ValueError, "k must be on the CPU"),
    ],
)
def test_other_numbers_are_refused(sizes: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        draw(torch.zeros(2, 300), sizes)


def test_a_row_short_of_its_own_k_is_named() -> None:
    logits = torch.zeros(2, 5)
    logits[1, 2:] = -INF
    assert draw(logits, [5, 2], check=True).num_valid.tolist() == [5, 2]
    with pytest.raises(ValueError, match="tokens with mass, got 3 with 2 in row 1"):
        draw(logits, [5, 3], check=True)
