"""Sizes keep both error rates that they were computed from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fsresearch.theory.numerics import tail_probability as exact_tail
from fsresearch.verify.sizes import (
    Sequential,
    binomial_size,
    certain_size,
    chi_square_size,
    fit_size,
    grid_tail_probability,
    pooled_classes,
    tail_probability,
)
from proofs_tests.statistics_policy import false_fail


@pytest.mark.parametrize("null, other", [(0.5, 0.25), (0.02, 0.06), (0.9, 0.8), (0.1, 0.0)])
def test_binomial_size(null: float, other: float) -> None:
    n = binomial_size(null, other, 1e-6, 1e-4)
    hits = np.arange(n + 1)
    law = stats.binom(n, null)
    rejected = 2 * np.minimum(law.cdf(hits), law.sf(hits - 1)) < 1e-6
    assert law.pmf(hits)[rejected].sum() <= 1e-6
    assert stats.binom(n, other).pmf(hits)[~rejected].sum() <= 1e-4


def test_chi_square_size() -> None:
    n = chi_square_size(20, 0.02, 1e-6, 1e-4)
    critical = stats.chi2.isf(1e-6, 20)
    assert stats.ncx2.cdf(critical, 20, 0.02 * n) <= 1e-4
    assert stats.ncx2.cdf(critical, 20, 0.02 * n * 0.97) > 1e-4


def test_fit_size_lets_common_tokens_expect_five_hits() -> None:
    law = np.array([0.5, 0.3, 0.1, 0.0999, 1e-4, 0.0])
    finest = 0.05
    draws = fit_size(law, finest, 0.5, 1e-8, 1e-5)
    assert draws * finest >= 5
    assert pooled_classes(law, finest).tolist() == [0, 1, 2, 3, 4, -1]


def test_certain_size() -> None:
    n = certain_size(1e-3, 1e-8)
    assert (1 - 1e-3) ** n <= 1e-8 < (1 - 1e-3) ** (n - 2)


@pytest.mark.parametrize("depth, exact", [(18.0, 1.99223e-3), (20.0, 2.70085e-4)])
def test_tail_probability(depth: float, exact: float) -> None:
    assert tail_probability(depth, 1 << 17) == pytest.approx(exact, rel=1e-5)


def test_the_tail_of_a_grid_against_bisection_on_words() -> None:
    def of_24_bits(word: Any, refinement: Any) -> Any:
        k = np.minimum((word >> 8) + 1, (1 << 24) - 1)
        return -np.log(-np.log1p(-k * 2.0**-24))

    exact = exact_tail(of_24_bits, -18.0)
    assert grid_tail_probability(24, 18.0, 1 << 17) == pytest.approx(exact, rel=0.02)


@false_fail(1e-6, seeds_vary=False)
def test_sequential_error_rates() -> None:
    """At rates of 0.05 both are kept, and the test stops sooner than a fixed one would."""
    random = np.random.default_rng(7)
    fixed = binomial_size(0.1, 0.05, 0.05, 0.05)
    wrong, draws = {0.1: 0, 0.05: 0}, 0
    for truth in wrong:
        for _ in range(1000):
            test = Sequential(0.1, 0.05, 0.05, 0.05)
            decided = None
            while decided is None:
                decided = test.update(int(random.binomial(10, truth)), 10)
            wrong[truth] += decided is (truth == 0.05)
            draws += test.draws
    for errors in wrong.values():
        assert stats.binom(1000, 0.05).sf(errors - 1) > 5e-7
    assert draws / 2000 < fixed


def test_the_p_value_of_a_sequential_test_bounds_what_was_seen() -> None:
    test = Sequential(0.5, 0.1, 1e-8, 1e-5)
    assert test.update(0, 10) is None
    assert test.p_value == pytest.approx((0.5 / 0.9) ** 10)
    assert test.update(40, 40) is True
    assert math.isclose(test.p_value, (0.5 / 0.9) ** 10)
