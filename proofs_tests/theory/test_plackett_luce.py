"""The laws of sampling without replacement, against sums, quadrature and published figures."""

from __future__ import annotations

import math
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from fsresearch.theory import plackett_luce as pl

ORACLE = np.log([0.5, 0.3, 0.15, 0.05])
LOGITS = st.lists(st.floats(-6, 6), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("k", "figures"),
    [
        (1, [0.5, 0.3, 0.15, 0.05]),
        (2, [0.828837, 0.668731, 0.372180, 0.130252]),
        (3, [0.974485, 0.930079, 0.791922, 0.303514]),
        (4, [1, 1, 1, 1]),
    ],
)
def test_inclusion_of_the_worked_example(k: int, figures: list[float]) -> None:
    np.testing.assert_allclose(pl.inclusion_probabilities(ORACLE, k), figures, atol=6e-7)


@given(LOGITS, st.data())
def test_laws_sum_to_one_and_inclusion_to_k(logits: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(logits)))
    assert math.fsum(pl.ordered_law(logits, k).values()) == pytest.approx(1, abs=1e-12)
    assert math.fsum(pl.unordered_law(logits, k).values()) == pytest.approx(1, abs=1e-12)
    assert math.fsum(pl.inclusion_probabilities(logits, k)) == pytest.approx(k, abs=1e-11)


@given(LOGITS, st.data())
def test_a_set_is_the_sum_of_its_orders(logits: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(logits)))
    for ids, chance in pl.unordered_law(logits, k).items():
        orders = math.fsum(math.exp(pl.ordered_log_prob(logits, o)) for o in permutations(ids))
        assert chance == pytest.approx(orders, rel=1e-11)


@given(LOGITS, st.data())
def test_a_prefix_of_a_sample_is_a_sample(logits: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(logits) - 1))
    longer = pl.ordered_law(logits, k + 1)
    for order, chance in pl.ordered_law(logits, k).items():
        total = math.fsum(c for o, c in longer.items() if o[:k] == order)
        assert chance == pytest.approx(total, rel=1e-11)


def test_mass_far_below_rounding_of_one_is_kept() -> None:
    logits = [0.0, -50.0, -51.0]
    got = pl.ordered_log_prob(logits, [0, 2, 1])
    tail = math.log(math.exp(-50) + math.exp(-51))
    assert got == pytest.approx(-51 - tail, rel=1e-12)


def test_tokens_without_mass_never_appear() -> None:
    logits = [0.0, -math.inf, 0.0]
    assert pl.ordered_log_prob(logits, [1]) == -math.inf
    assert set(pl.ordered_law(logits, 2)) == {(0, 2), (2, 0)}
    assert pl.inclusion_probabilities(logits, 2).tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match="k must be"):
        pl.ordered_law(logits, 3)
    with pytest.raises(ValueError, match="repeat"):
        pl.ordered_log_prob(logits, [0, 0])


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("x", [-2.0, -0.5, 0.3, 2.0])
def test_the_threshold_law_is_the_sum_over_sets(k: int, x: float) -> None:
    sets = combinations(range(4), k)
    total = math.fsum(pl.set_and_threshold_cdf(ORACLE, ids, x) for ids in sets)
    assert pl.threshold_cdf(ORACLE, k, x) == pytest.approx(total, abs=1e-14)


@pytest.mark.parametrize("ids", [(0,), (3,), (0, 2), (1, 3), (0, 1, 2)])
def test_a_set_without_a_threshold_is_the_unordered_law(ids: tuple[int, ...]) -> None:
    whole = pl.set_and_threshold_cdf(ORACLE, ids, math.inf)
    assert whole == pytest.approx(pl.unordered_law(ORACLE, len(ids))[ids], rel=1e-12)


def test_a_set_with_all_the_mass_has_no_threshold() -> None:
    with pytest.raises(ValueError, match="kappa"):
        pl.set_and_threshold_cdf([0.0, 0.0, -math.inf], [0, 1], 0.0)


@pytest.mark.parametrize("token", range(4))
@pytest.mark.parametrize("k", [2, 3])
def test_weights_by_conditional_inclusion_are_unbiased(token: int, k: int) -> None:
    """E[1 / q(kappa); token in the sample] = 1, integrated over sets and thresholds."""
    others = np.exp(ORACLE)
    total = 0.0
    for ids in combinations(range(4), k):
        if token in ids:
            rest = 1 - others[list(ids)].sum()

            def weighted(v: float, ids: tuple[int, ...] = ids, rest: float = rest) -> float:
                density = rest * v ** (rest - 1) * math.prod(1 - v ** others[s] for s in ids)
                kappa = -math.log(-math.log(v))
                return float(density / pl.inclusion_given_threshold(ORACLE, kappa)[token])

            total += integrate.quad(weighted, 0, 1, epsabs=1e-11, limit=200)[0]
    assert total == pytest.approx(1, abs=1e-6)


def test_inclusion_given_the_threshold_is_accurate_for_tiny_probabilities() -> None:
    q = pl.inclusion_given_threshold([0.0, -60.0], 10.0)
    assert q[1] == pytest.approx(math.exp(-70), rel=1e-12)
    assert pl.inclusion_given_threshold([0.0, -math.inf], -math.inf).tolist() == [1, 0]
