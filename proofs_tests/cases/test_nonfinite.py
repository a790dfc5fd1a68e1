"""Rows that are no distributions, and tokens without mass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fsresearch import (
    sample,
    sample_logits,
    sample_logits_without_replacement,
    sample_without_replacement,
)
from fsresearch.hierarchy import LogMassTree
from fsresearch.noise import LEAF, RowNoise
from fsresearch.results import Sample
from fsresearch.schedules.online import online
from fsresearch.schedules.tiled import tiled
from fsresearch.sources import Logits
from fsresearch.summaries import (
    CoinFlip,
    GumbelMax,
    GumbelTopK,
    LogNormalizer,
    PerturbedMass,
    Reducer,
)
from proofs_tests.cases.helpers import (
    INF,
    NAMES,
    NAN,
    assert_law,
    assert_uniform,
    exact_head,
    over_shards,
    row_noise,
    shards_of,
)


def assert_only_row_is_invalid(drawn: Sample, clean: Sample, row: int) -> None:
    """The row gives -1 and NaN, and the others are bitwise those of a clean batch."""
    others = [r for r in range(len(clean.token)) if r != row]
    assert (drawn.token[row] == -1).all()
    assert drawn.valid.tolist() == [r != row for r in range(len(clean.token))]
    for got, expected in zip(drawn, clean, strict=True):
        if got is not None and expected is not None:
            assert got[others].equal(expected[others])
    for scores in drawn[2:]:
        assert scores is None or scores[row].isnan().all()


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("vocab", [100, 128, 300])
def test_b24_a_row_of_nan_is_invalid_alone(vocab: int, method: str, temperature: float) -> None:
    """A row of NaN keeps a stale best index; it gives -1 and valid False, others their tokens."""
    clean, logits = torch.zeros(4, vocab), torch.zeros(4, vocab)
    logits[2] = NAN
    options: dict[str, Any] = {"seed": 24, "method": method, "temperature": temperature}
    options["num_samples"] = 3
    drawn, expected = (sample_logits(x, **options, log_prob=True) for x in (logits, clean))
    assert_only_row_is_invalid(drawn, expected, 2)
    hidden, weight = exact_head(torch.zeros(vocab), rows=4)
    expected = sample(hidden, weight, **options, log_prob=True)
    hidden[2] = NAN
    drawn = sample(hidden, weight, **options, log_prob=True)
    assert_only_row_is_invalid(drawn, expected, 2)
    with pytest.raises(ValueError, match=r"^row 2 is not a distribution"):
        sample_logits(logits, **options, check=True)
    with pytest.raises(ValueError, match=r"^row 2 is not a distribution"):
        sample(hidden, weight, **options, check=True)


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_b24_without_replacement(bad: float, temperature: float) -> None:
    """Without replacement the row has no valid token, and the others keep theirs."""
    hidden, weight = exact_head(torch.zeros(300), rows=4)
    logits = torch.zeros(4, 300)
    options: dict[str, Any] = {"seed": 24, "temperature": temperature}
    expected = sample_logits_without_replacement(logits, 3, **options)
    logits[2] = bad
    hidden[2, 0] = NAN
    for drawn in (
        sample_logits_without_replacement(logits, 3, **options),
        sample_without_replacement(hidden, weight, 3, **options),
    ):
        assert drawn.token[2].tolist() == [-1, -1, -1]
        assert drawn.num_valid.tolist() == [3, 3, 0, 3]
        assert drawn.token[[0, 1, 3]].equal(expected.token[[0, 1, 3]])
        assert drawn.log_prob[2].isnan().all()
        assert drawn.log_normalizer[2].isnan()
    with pytest.raises(ValueError, match=r"^row 2 is not a distribution"):
        sample_logits_without_replacement(logits, 3, **options, check=True)


def reducers(rows: int, draws: int = 1) -> dict[str, Reducer[Any]]:
    noise = row_noise(draws, seed=25, rows=rows)
    return {
        "GumbelMax": GumbelMax(noise),
        "argmax": GumbelMax(None),
        "GumbelTopK": GumbelTopK(noise._replace(draws=noise.draws[:1]), 3),
        "CoinFlip": CoinFlip(noise),
        "PerturbedMass": PerturbedMass(noise),
    }


@pytest.mark.parametrize("name", reducers(1))
@pytest.mark.parametrize("shard", [0, 1, None])
def test_b24_nan_on_one_rank_reaches_all(name: str, shard: int | None) -> None:
    """A NaN on one of two ranks makes the merged row invalid; the others are as on clean ranks."""
    clean, logits, sampler = torch.zeros(4, 256), torch.zeros(4, 256), reducers(4)[name]
    logits[2, slice(None) if shard is None else slice(128 * shard, 128 * shard + 128)] = NAN
    drawn, expected = (over_shards(sampler, (0, 128, 256), shards_of(x)) for x in (logits, clean))
    assert (drawn.token[2] == -1).all()
    assert drawn.token[[0, 1, 3]].equal(expected.token[[0, 1, 3]])


@pytest.mark.parametrize("place", [0, 1, 127, 128, 129, 299])
def test_b25_one_nan_makes_the_row_invalid_anywhere(place: int) -> None:
    """The answer to a NaN must not hang on its position: the row is invalid at every tile width."""
    logits = torch.zeros(1, 300)
    logits[0, 200] = 30
    logits[0, place] = NAN
    for method in NAMES:
        for temperature in (1.0, 0.0):
            drawn = sample_logits(logits, seed=25, method=method, temperature=temperature)
            assert drawn.token.item() == -1
            assert not drawn.valid.item()
    for sampler in reducers(1).values():
        for width in (64, 128, 256):
            for schedule in (online, tiled):
                state = schedule(sampler, Logits(logits), width=width)
                assert (state.token == -1).all()
    total = LogNormalizer()
    assert total.draw(online(total, Logits(logits), width=128)).isnan().all()


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_b27_a_row_without_finite_logit_is_invalid_alone(method: str, temperature: float) -> None:
    """Masks that leave nothing return some fixed id; that row is invalid, the others are fine."""
    clean, mask = torch.zeros(4, 130), torch.ones(4, 130, dtype=torch.bool)
    mask[1] = False
    options: dict[str, Any] = {"seed": 27, "method": method, "temperature": temperature}
    options["log_prob"] = True
    expected = sample_logits(clean, **options)
    assert_only_row_is_invalid(sample_logits(clean, mask=mask, **options), expected, 1)
    masked = clean.masked_fill(~mask, -INF)
    assert_only_row_is_invalid(sample_logits(masked, **options), expected, 1)
    with pytest.raises(ValueError, match=r"^row 1 is not a distribution"):
        sample_logits(masked, **options, check=True)
    assert sample_logits_without_replacement(masked, 1, seed=27).num_valid.tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("name", reducers(1))
def test_b27_parts_without_mass(name: str) -> None:
    """In parts or over ranks, a row without mass stays invalid and spoils no other."""
    clean, logits, sampler = torch.zeros(4, 192), torch.zeros(4, 192), reducers(4)[name]
    logits[1] = -INF
    width = max(32, sampler.granularity)
    drawn, expected = (tiled(sampler, Logits(x), width=width) for x in (logits, clean))
    assert (drawn.token[1] == -1).all()
    assert drawn.token[[0, 2, 3]].equal(expected.token[[0, 2, 3]])
    assert (over_shards(sampler, (0, 64, 192), shards_of(logits)).token[1] == -1).all()
    tree = LogMassTree(Logits(logits), fan_out=32)
    assert tree.draw(row_noise(2, rows=4))[1].tolist() == [-1, -1]
    assert tree.log_normalizer[1].isnan()


def test_b27_a_rank_without_mass_never_wins() -> None:
    """With only the first of two ranks empty of mass, tokens are uniform over the second."""
    logits = torch.zeros(1, 128)
    logits[0, :64] = -INF
    for name, sampler in reducers(1, 5000).items():
        if name not in ("argmax", "GumbelTopK"):
            token = over_shards(sampler, (0, 64, 128), shards_of(logits)).token
            assert_uniform(token - 64, 64)


def masked_fifty() -> Tensor:
    """Return 50 logits of which 40 are -inf, the first and the last among them."""
    order = torch.randperm(48, generator=torch.Generator().manual_seed(28)) + 1
    logits = torch.linspace(-3, 3, 50)
    logits[order[:38]] = -INF
    logits[[0, 49]] = -INF
    return logits


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize(
    "logits", [torch.tensor([0.33, 0.34, 0.0, 0.33]).log(), masked_fifty()], ids=["four", "fifty"]
)
def test_b28_ids_without_mass_are_never_drawn(logits: Tensor, method: str) -> None:
    """Boundaries of zero-width bins are hit now and then; an id of probability 0 never is."""
    token = sample_logits(logits[None], seed=28, method=method, num_samples=50_000).token
    assert_law(token, logits.double().softmax(0))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("method", "steps"),
    [("gumbel-max", 100), ("grouped", 100), ("online", 100), ("hierarchical", 5)],
)
def test_b28_full_draws(method: str, steps: int) -> None:
    """As above, by 2e8 draws, or 1e7 where a draw of so few tokens costs most."""
    logits = torch.tensor([0.33, 0.34, 0.0, 0.33]).log().expand(2000, -1)
    counts = torch.zeros(4, dtype=torch.int64)
    for position in range(steps):
        drawn = sample_logits(logits, seed=28, position=position, method=method, num_samples=1000)
        counts += drawn.token.flatten().bincount(minlength=4)
    assert_law(torch.arange(4).repeat_interleave(counts), [0.33, 0.34, 0.0, 0.33])


def forced_noise(word: int, rows: int) -> RowNoise:
    """Return noise whose every word that decides between parts is the given one."""

    class Forced(RowNoise):
        def words(self, units: Tensor, kind: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            drawn = super().words(units, kind)
            if kind == LEAF:
                return drawn
            a, b, c, d = (torch.full_like(w, word) for w in drawn)
            return a, b, c, d

    return Forced(*row_noise(1, rows=rows))


def few_with_mass(rows: int) -> Tensor:
    """Return rows [B, 64] of few tokens with masses many magnitudes apart."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(rows, 64, generator=generator) * 30
    kept = torch.rand(rows, 64, generator=generator) < 0.2
    kept[torch.arange(rows), torch.randint(64, (rows,), generator=generator)] = True
    return logits.masked_fill(~kept, -INF)


@pytest.mark.parametrize("word", [0, 1, 2**31, 2**32 - 1])
def test_b28_uniforms_at_their_ends(word: int) -> None:
    """Uniforms forced to their ends in groups, coins and nodes still pick tokens with mass."""
    logits = few_with_mass(200)
    noise, source = forced_noise(word, len(logits)), Logits(logits)
    for token in (
        online(PerturbedMass(noise), source).token,
        online(CoinFlip(noise), source, width=8).token,
        tiled(CoinFlip(noise), source, width=8).token,
        LogMassTree(source, fan_out=4).draw(noise),
    ):
        assert (logits.gather(1, token) > -INF).all()
