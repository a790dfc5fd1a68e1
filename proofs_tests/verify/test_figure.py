"""The figure's points hold every draw once, and each bin enough of them."""

from __future__ import annotations

import numpy as np
import pytest

from fsresearch.verify.figure import points
from proofs_tests.statistics_policy import FIXED_SIGMA, false_fail

DRAWS = 2000
RNG = np.random.default_rng(7)
LAW = np.stack([RNG.dirichlet(np.arange(1, 3001) ** -1.0) for _ in range(4)])
LAW[0, 17] = 0.0
LAW /= LAW.sum(1, keepdims=True)
COUNTS = RNG.multinomial(DRAWS, LAW)


def test_no_hit_and_no_mass_is_lost() -> None:
    made = points("mine", COUNTS, LAW)
    assert sum(point.hits for point in made) == COUNTS.sum()
    assert sum(point.expected_hits for point in made) == pytest.approx(COUNTS.sum())
    assert sum(point.tokens for point in made) == (LAW > 0).sum()


def test_every_point_expects_5_hits() -> None:
    made = points("mine", COUNTS, LAW)
    assert min(point.expected_hits for point in made) >= 5
    tail = [point for point in made if point.row < 0]
    head = [point for point in made if point.row >= 0]
    assert len(tail) > 3
    assert max(p.exact_probability for p in tail) < min(p.exact_probability for p in head)
    assert [p.exact_probability for p in tail] == sorted(p.exact_probability for p in tail)


def test_a_tail_too_light_for_5_hits_is_one_bin() -> None:
    made = points("mine", np.array([[99, 1, 0]]), np.array([[0.99, 0.009, 0.001]]))
    assert [(point.row, point.tokens, point.hits) for point in made] == [(0, 1, 99), (-1, 2, 1)]


@false_fail(1e-3, seeds_vary=False)
def test_deviations_are_in_sigma() -> None:
    made = points("mine", COUNTS, LAW)
    assert max(abs(point.sigma) for point in made) < FIXED_SIGMA
    shifted = COUNTS.copy()
    shifted[:, ::2] *= 2
    assert max(abs(point.sigma) for point in points("mine", shifted, LAW)) > FIXED_SIGMA
