"""PerturbedMass follows its specified order to the bit, and its scores are Gumbel(L)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fsresearch.noise import GROUP_SIZE, RowNoise
from fsresearch.sampling import sample_logits
from fsresearch.schedules.online import online
from fsresearch.schedules.tiled import tiled
from fsresearch.sources import Logits
from fsresearch.summaries import GumbelMax, LogNormalizer, PerturbedMass
from fsresearch.theory.categorical import log_normalizer, probabilities, total_variation
from fsresearch.theory.gumbel import log_cdf
from fsresearch.tiles import Tile
from fsresearch.verify import independence
from proofs_tests.conformance import oracles
from proofs_tests.conformance.checks import rows_of_one_law
from proofs_tests.conformance.forced import forced
from proofs_tests.logit_rows import DISTRIBUTIONS, ROW_KINDS, stack
from proofs_tests.statistics_policy import FIXED_P, false_fail

LAST = 2**32 - 1
STRANDS = [v for s in range(4) for v in range(GROUP_SIZE) if v % 8 // 2 == s]


@pytest.mark.parametrize("vocab", [1, 63, 64, 65, 200, 1000])
@pytest.mark.parametrize("kind", ROW_KINDS)
def test_scores_and_tokens_are_those_of_the_specified_order(kind: str, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = stack([kind] * 3, vocab, rng)
    noise = RowNoise(torch.arange(3), torch.tensor([0, 5, 2**40]), torch.arange(8), 2)
    state = PerturbedMass(noise).lift(Tile(logits, 0))
    perturbed, token = oracles.grouped(logits, noise)
    np.testing.assert_array_equal(state.token.numpy(), token)
    np.testing.assert_array_equal(state.perturbed.numpy(), perturbed)


def test_groups_take_their_noise_by_number() -> None:
    noise = RowNoise(torch.arange(3), torch.tensor(0), torch.arange(8))
    logits = torch.full((3, 640), -torch.inf)
    logits[:, 448:560] = torch.linspace(0, 2, 112)
    perturbed, token = oracles.grouped(logits, noise)
    state = PerturbedMass(noise).lift(Tile(logits[:, 448:], 448))
    np.testing.assert_array_equal(state.token.numpy(), token)
    np.testing.assert_array_equal(state.perturbed.numpy(), perturbed)


def choice(logits: Tensor, high: Tensor, low: Tensor | int = 0) -> Tensor:
    """Return the tokens int64 [n] chosen in one group [64] by the inner words int64 [n]."""
    reducer = PerturbedMass(forced([LAST // 2, high, LAST // 2, low]))
    return reducer.lift(Tile(logits[None], 0)).token[0]


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_the_choice_inside_a_group_is_within_its_distance_of_softmax(kind: str) -> None:
    """The law by enumeration: the strand order makes tokens rise with the word, so bisect.

    Each of the 63 boundaries between tokens is off by at most one rounding of x and one of a sum,
    2**-24 of the mass together.
    """
    logits = stack([kind], GROUP_SIZE, np.random.default_rng(1))[0]
    place = torch.empty(GROUP_SIZE, dtype=torch.int64)
    place[torch.tensor(STRANDS)] = torch.arange(GROUP_SIZE)
    low = torch.zeros(GROUP_SIZE, dtype=torch.int64)
    high = torch.full((GROUP_SIZE,), LAST + 1)
    upto = torch.arange(GROUP_SIZE)
    for _ in range(33):
        middle = (low + high) // 2
        inside = place[choice(logits, middle.clamp(max=LAST), LAST // 2)] <= upto
        goes_up = inside & (middle <= LAST)
        low = torch.where((low < high) & goes_up, middle + 1, low)
        high = torch.where((low <= high) & ~goes_up, middle, high)
    cumulative = low.double() / 2.0**32
    law = torch.zeros(GROUP_SIZE, dtype=torch.float64)
    law[torch.tensor(STRANDS)] = cumulative.diff(prepend=torch.zeros(1, dtype=torch.float64))
    exact = probabilities(logits.double().numpy())
    assert total_variation(law.numpy(), exact) < 2.0**-18
    assert (law[torch.from_numpy(exact == 0)] == 0).all()


def test_the_choice_rises_along_the_strands() -> None:
    words = torch.arange(0, LAST, LAST // 4000)
    tokens = choice(torch.linspace(0, 2, GROUP_SIZE), words)
    place = torch.tensor([STRANDS.index(int(token)) for token in tokens])
    assert (place.diff() >= 0).all()
    assert place.unique().tolist() == list(range(GROUP_SIZE))


@pytest.mark.parametrize("size", [1, 2, 7, 33])
def test_parts_without_mass_are_never_entered(size: int) -> None:
    """Uniforms at both ends of (0, 1), where rounding leads a walk past the last mass."""
    rng = np.random.default_rng(size)
    ends = torch.tensor([0, 1, LAST // 2, LAST - 1, LAST])
    for _ in range(60):
        logits = torch.full((GROUP_SIZE,), -torch.inf)
        kept = torch.from_numpy(rng.choice(GROUP_SIZE, size, replace=False))
        logits[kept] = torch.from_numpy(rng.normal(size=size) * 20).float()
        for low in (0, LAST):
            tokens = choice(logits, ends, low)
            assert torch.isin(tokens, kept[(logits[kept] - logits.max()).exp() > 0]).all()
    whole = torch.zeros(GROUP_SIZE)
    assert choice(whole, torch.tensor([0, LAST]), torch.tensor([0, LAST])).tolist() == [0, 63]


@pytest.mark.parametrize("place", range(4))
def test_a_strand_without_mass_is_never_entered(place: int) -> None:
    logits = torch.zeros(GROUP_SIZE)
    empty = torch.tensor(STRANDS[16 * place : 16 * place + 16])
    logits[empty] = -torch.inf
    words = torch.cat([torch.arange(0, LAST, LAST // 999), torch.tensor([0, LAST])])
    assert not torch.isin(choice(logits, words, LAST), empty).any()


@pytest.mark.parametrize("empty", [(0,), (1,), (3,), (0, 1), (2, 3), (0, 2, 3)], ids=str)
def test_groups_without_mass_never_win(empty: tuple[int, ...]) -> None:
    logits = torch.zeros(1, 4 * GROUP_SIZE - 5)
    for group in empty:
        logits[:, group * GROUP_SIZE : (group + 1) * GROUP_SIZE] = -torch.inf
    noise = rows_of_one_law(1, 1, draws=2000)
    state = tiled(PerturbedMass(noise), Logits(logits), width=GROUP_SIZE)
    assert not torch.isin(state.token // GROUP_SIZE, torch.tensor(empty)).any()


def scores(vocab: int, rows: int) -> tuple[Tensor, Tensor, float]:
    """Return (perturbed, token) of many rows of one law, and its log-normaliser."""
    logits = torch.linspace(-3, 3, vocab)
    reducer = PerturbedMass(rows_of_one_law(vocab, rows))
    state = online(reducer, Logits(logits.expand(rows, -1)), width=GROUP_SIZE)
    return state.perturbed[:, 0], state.token[:, 0], log_normalizer(logits.double().numpy())


@false_fail(FIXED_P, seeds_vary=False)
@pytest.mark.parametrize("vocab", [20, 64, 300])
def test_the_winning_score_is_gumbel_at_the_log_normaliser(vocab: int) -> None:
    """Null hypothesis: the score has the law Gumbel(L) (D.1)."""
    perturbed, _, location = scores(vocab, 20_000)
    outcome = stats.kstest(perturbed.double().numpy(), lambda x: np.exp(log_cdf(x, location)))
    assert outcome.pvalue > FIXED_P


@false_fail(FIXED_P, seeds_vary=False)
def test_the_score_and_the_token_are_independent() -> None:
    """Null hypothesis: the score says nothing of the token (D.1)."""
    perturbed, token, location = scores(300, 20_000)
    decile = np.floor(np.exp(log_cdf(perturbed.double().numpy(), location)) * 10).astype(int)
    table = np.zeros((10, 300))
    np.add.at(table, (decile, token.numpy()), 1)
    assert independence(table).p_value > FIXED_P


@false_fail(FIXED_P, seeds_vary=False)
def test_grouped_and_ungrouped_maxima_have_one_law() -> None:
    """Null hypothesis: both winning scores have one law (D.1)."""
    logits = torch.linspace(-3, 3, 200).expand(20_000, -1)
    pair = [
        make(rows_of_one_law(seed, 20_000)).lift(Tile(logits, 0)).perturbed[:, 0].numpy()
        for seed, make in enumerate((PerturbedMass, GumbelMax))
    ]
    assert stats.ks_2samp(*pair).pvalue > FIXED_P


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_the_log_mass_is_the_log_normaliser(kind: str) -> None:
    logits = stack([kind] * 2, 700, np.random.default_rng(2))
    noise = RowNoise(torch.arange(2), torch.tensor(0), torch.arange(3))
    state = tiled(PerturbedMass(noise), Logits(logits), width=128)
    exact = [log_normalizer(row.double().numpy()) for row in logits]
    np.testing.assert_allclose(state.log_mass[:, 0].numpy(), exact, rtol=3e-7, atol=1e-6)
    normalised = LogNormalizer().draw(tiled(LogNormalizer(), Logits(logits), width=128))
    np.testing.assert_allclose(normalised.numpy(), exact, rtol=3e-7, atol=1e-6)


def test_the_log_mass_may_be_left_out() -> None:
    noise = RowNoise(torch.arange(2), torch.tensor(0), torch.arange(3))
    logits = torch.linspace(0, 3, 300).expand(2, -1)
    without = tiled(PerturbedMass(noise, keep_log_mass=False), Logits(logits), width=64)
    assert without.log_mass.shape == (2, 0)
    assert torch.equal(without.token, online(PerturbedMass(noise), Logits(logits)).token)


def test_a_tile_off_the_groups_is_refused() -> None:
    noise = RowNoise(torch.arange(1), torch.tensor(0), torch.arange(1))
    with pytest.raises(ValueError, match="multiple of 64, got 32"):
        PerturbedMass(noise).lift(Tile(torch.zeros(1, 64), 32))


def test_a_score_is_never_beyond_its_bits() -> None:
    """64 bits of noise a group: scores end 45 above the mass, not 16.6 or 22."""
    top = PerturbedMass(forced([0, 0, 0, 0])).lift(Tile(torch.zeros(1, GROUP_SIZE), 0))
    assert top.perturbed.item() == pytest.approx(math.log(64) + math.log(2.0**65), rel=1e-6)


@pytest.mark.parametrize("vocab", [64, 128, 640, 40_000])
def test_the_memory_layout_of_logits_changes_nothing(vocab: int) -> None:
    """Whole groups that are not row-major: no padding makes a contiguous copy of them."""
    logits = torch.randn(5, vocab, generator=torch.Generator().manual_seed(vocab)) * 4
    transposed = logits.T.contiguous().T
    one, other = (
        sample_logits(rows, seed=1, method="grouped", num_samples=200, log_prob=True)
        for rows in (logits, transposed)
    )
    for a, b in zip(one, other, strict=True):
        assert a is not None and b is not None and torch.equal(a, b)
