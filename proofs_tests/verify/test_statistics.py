"""The tests of law are calibrated under their null hypotheses and reject planted faults."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fsresearch.verify import (
    ChiSquare,
    binomial,
    combine,
    expected_total_variation,
    goodness_of_fit,
    independence,
    total_variation,
)
from proofs_tests.statistics_policy import FIXED_P, FIXED_SIGMA, VARYING_P, false_fail

SEED = 20250
REPEATS = 2000


def zipf(vocab: int, exponent: float = 1.0) -> NDArray[np.float64]:
    """Return probabilities proportional to rank ** -exponent: a head and a long tail."""
    weights = np.arange(1, vocab + 1) ** -exponent
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def uniformity(p_values: list[float]) -> float:
    return float(stats.kstest(p_values, "uniform").pvalue)


@false_fail(FIXED_P, seeds_vary=False)
@pytest.mark.parametrize("vocab, exponent, draws", [(10, 0.0, 2000), (500, 1.0, 3000)])
def test_goodness_of_fit_is_calibrated(vocab: int, exponent: float, draws: int) -> None:
    law = zipf(vocab, exponent)
    counts = np.random.default_rng(SEED).multinomial(draws, law, size=REPEATS)
    assert uniformity([goodness_of_fit(row, law).p_value for row in counts]) > FIXED_P


@false_fail(FIXED_P, seeds_vary=False)
@pytest.mark.parametrize("rows", [2, 5])
def test_independence_is_calibrated(rows: int) -> None:
    law = zipf(200)
    tables = np.random.default_rng(SEED).multinomial(1500, law, size=(REPEATS, rows))
    assert uniformity([independence(table).p_value for table in tables]) > FIXED_P


@false_fail(FIXED_P, seeds_vary=False)
def test_combined_tests_are_calibrated() -> None:
    rng = np.random.default_rng(SEED)
    laws = [zipf(50, exponent) for exponent in (0.0, 1.0, 2.0)]
    p_values = [
        combine(goodness_of_fit(rng.multinomial(1000, law), law) for law in laws).p_value
        for _ in range(REPEATS)
    ]
    assert uniformity(p_values) > FIXED_P


@pytest.mark.parametrize("draws, probability", [(1, 0.3), (20, 0.5), (200, 0.01), (1000, 1e-4)])
def test_the_binomial_never_rejects_more_often_than_it_says(draws: int, probability: float) -> None:
    hits = np.arange(draws + 1)
    chance = stats.binom.pmf(hits, draws, probability)
    p_values = np.array([binomial(int(h), draws, probability).p_value for h in hits])
    for alpha in (0.5, 0.1, 0.01, 1e-4, 1e-9):
        assert chance[p_values <= alpha].sum() <= alpha * (1 + 1e-9)


def test_a_shifted_class_is_rejected() -> None:
    law, shifted = zipf(100), zipf(100)
    shifted[0], shifted[1] = law[0] * 1.05, law[1] - law[0] * 0.05
    counts = np.random.default_rng(SEED).multinomial(100_000, shifted)
    assert goodness_of_fit(counts, law).p_value < VARYING_P


def test_a_tail_that_is_never_drawn_is_rejected() -> None:
    law = np.concatenate([[0.98], np.full(100_000, 0.02 / 100_000)])
    counts = np.zeros(len(law))
    counts[0] = 2000
    outcome = goodness_of_fit(counts, law)
    assert outcome.dof == 1
    assert outcome.p_value < VARYING_P


def test_a_class_without_mass_is_rejected_at_once() -> None:
    outcome = goodness_of_fit([1000, 1000, 1], [0.5, 0.5, 0.0])
    assert outcome.p_value == 0
    assert combine([outcome, ChiSquare(1.0, 1, 0.3)]).p_value == 0


def test_two_samples_of_different_laws_are_rejected() -> None:
    rng = np.random.default_rng(SEED)
    table = [rng.multinomial(20_000, zipf(300, exponent)) for exponent in (1.0, 1.1)]
    assert independence(table).p_value < VARYING_P


def test_a_draw_that_follows_the_previous_one_is_rejected() -> None:
    rng = np.random.default_rng(SEED)
    first = rng.integers(0, 8, 20_000)
    repeated = np.where(rng.random(20_000) < 0.05, first, rng.integers(0, 8, 20_000))
    table = np.zeros((8, 8))
    np.add.at(table, (first, repeated), 1)
    assert independence(table).p_value < VARYING_P


def test_a_truncated_tail_is_rejected_by_the_binomial() -> None:
    truncated = binomial(round(20_000 * 1.6e-4), 20_000, 1.99e-3)
    assert truncated.p_value < 1e-8
    assert truncated.sigma < -FIXED_SIGMA


def test_rare_classes_are_merged_and_none_is_dropped() -> None:
    assert goodness_of_fit([900, 60, 40], [0.9, 0.06, 0.04]).dof == 2
    assert goodness_of_fit([96, 3, 1], [0.96, 0.03, 0.01]).dof == 0
    assert goodness_of_fit([60, 36, 3, 1], [0.6, 0.36, 0.03, 0.01]).dof == 1
    assert goodness_of_fit([1, 0], [0.5, 0.5]) == (0.0, 0, 1.0)
    merged = goodness_of_fit([0, 80, 10, 5, 3, 2], [0.0, 0.8, 0.1, 0.05, 0.03, 0.02])
    assert merged.dof == 3
    assert merged.statistic == 0
    assert independence([[50, 40, 1, 0, 2], [50, 40, 3, 9, 0]]).dof == 2


def test_ends_of_the_binomial() -> None:
    assert binomial(0, 10, 0.0) == (0.0, 1.0)
    assert binomial(10, 10, 1.0) == (0.0, 1.0)
    assert binomial(9, 10, 1.0) == (-math.inf, 0.0)
    assert binomial(5, 10, 0.5) == (0.0, 1.0)


@pytest.mark.parametrize("draws", [1, 7, 40])
def test_the_expected_distance_agrees_with_enumeration(draws: int) -> None:
    law = np.array([0.0, 0.25, 0.3, 0.45])
    hits = np.arange(draws + 1)[:, None]
    deviations = stats.binom.pmf(hits, draws, law) * np.abs(hits / draws - law)
    expected = expected_total_variation(law, draws)
    assert expected == pytest.approx(deviations.sum() / 2, rel=1e-12)
    assert expected_total_variation([1.0, 0.0], draws) == 0


@false_fail(6e-7, seeds_vary=False)
def test_the_expected_distance_is_the_mean_of_observed_ones() -> None:
    law = zipf(5000)
    counts = np.random.default_rng(SEED).multinomial(3000, law, size=200)
    observed = np.array([total_variation(row, law) for row in counts])
    error = observed.std(ddof=1) / math.sqrt(len(observed))
    assert abs(observed.mean() - expected_total_variation(law, 3000)) < FIXED_SIGMA * error


def test_the_distance_of_known_laws() -> None:
    assert total_variation([1, 1, 2], [0.25, 0.25, 0.5]) == 0
    assert total_variation([0, 0, 9], [0.5, 0.5, 0.0]) == 1


@pytest.mark.parametrize(
    "counts, law, word",
    [
        ([1, 2], [0.5, 0.25, 0.25], "one shape"),
        ([0, 0], [0.5, 0.5], "not all 0"),
        ([-1, 2], [0.5, 0.5], "at least 0"),
        ([1, 1], [0.5, 0.6], "sum to 1"),
        ([1, 1], [math.nan, 1.0], "sum to 1"),
        ([[1, 1]], [[0.5, 0.5]], "vector"),
    ],
)
def test_errors_say_what_is_accepted(counts: list[int], law: list[float], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        goodness_of_fit(counts, law)
    with pytest.raises(ValueError, match=word):
        total_variation(counts, law)


def test_errors_of_the_other_tests() -> None:
    with pytest.raises(ValueError, match="draw in every row"):
        independence([[1, 2], [0, 0]])
    with pytest.raises(ValueError, match="matrix"):
        independence([1, 2])
    with pytest.raises(ValueError, match="hits"):
        binomial(3, 2, 0.5)
    with pytest.raises(ValueError, match="probability"):
        binomial(1, 2, 1.5)
    with pytest.raises(ValueError, match="draws"):
        expected_total_variation([1.0], 0)
