"""Softmax in float64, and its factorisation over any partition (Lemma D.2)."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsresearch.theory import categorical


@st.composite
def rows_with_groups(draw: st.DrawFn) -> tuple[list[float], list[list[int]]]:
    """Logits with at least one finite value, and a partition that may hold empty groups."""
    logit = st.one_of(st.floats(-60, 60), st.just(-math.inf))
    logits = draw(st.lists(logit, min_size=1, max_size=12))
    logits[draw(st.integers(0, len(logits) - 1))] = draw(st.floats(-60, 60))
    owner = draw(st.lists(st.integers(0, 4), min_size=len(logits), max_size=len(logits)))
    return logits, [[v for v, k in enumerate(owner) if k == group] for group in range(5)]


@given(rows_with_groups())
def test_choosing_a_group_and_then_a_token_is_softmax(
    case: tuple[list[float], list[list[int]]],
) -> None:
    logits, groups = case
    direct = categorical.probabilities(logits)
    staged = categorical.factorised_probabilities(logits, groups)
    np.testing.assert_allclose(staged, direct, rtol=1e-12, atol=1e-300)
    assert math.fsum(direct) == pytest.approx(1, abs=1e-15)


@given(rows_with_groups())
def test_log_masses_of_groups_add_up_to_the_normaliser(
    case: tuple[list[float], list[list[int]]],
) -> None:
    logits, groups = case
    masses = categorical.group_log_masses(logits, groups)
    whole = categorical.log_normalizer(logits)
    assert categorical.log_normalizer(masses) == pytest.approx(whole, abs=1e-13)


def test_powers_of_two_give_exact_probabilities() -> None:
    weights = [1, 2, 4, 8, 1]
    exact = [float(Fraction(w, 16)) for w in weights]
    law = categorical.probabilities([math.log(w) for w in weights])
    np.testing.assert_allclose(law, exact, rtol=1e-15)


def test_a_long_flat_tail_keeps_its_mass() -> None:
    logits = np.full(1 << 20, -17.3)
    logits[0] = 0.0
    tail = (len(logits) - 1) * math.exp(-17.3)
    law = categorical.probabilities(logits)
    assert math.fsum(law) == pytest.approx(1, abs=1e-15)
    assert law[0] == pytest.approx(1 / (1 + tail), rel=1e-14)
    assert categorical.log_normalizer(logits) == pytest.approx(math.log1p(tail), rel=1e-14)


def test_a_shift_moves_the_normaliser_and_nothing_else() -> None:
    logits = np.array([0.0, -1.0, 2.5, -math.inf])
    np.testing.assert_array_equal(
        categorical.log_probabilities(logits + 1024.0), categorical.log_probabilities(logits)
    )
    assert categorical.log_normalizer(logits + 1024.0) == 1024 + categorical.log_normalizer(logits)


def test_total_variation_of_disjoint_laws_is_one() -> None:
    assert categorical.total_variation([1, 0], [0, 1]) == 1


@pytest.mark.parametrize("logits", [[], [-math.inf], [0.0, math.nan], [0.0, math.inf], [[0.0]]])
def test_what_is_no_distribution_is_refused(logits: list[float]) -> None:
    with pytest.raises(ValueError):
        categorical.probabilities(logits)


@pytest.mark.parametrize("groups", [[[0, 1]], [[0, 1], [1, 2]], [[0, 1, 2, 3]]])
def test_what_is_no_partition_is_refused(groups: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="partition"):
        categorical.group_log_masses([0.0, 0.0, 0.0], groups)
