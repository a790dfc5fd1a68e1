"""The tail, without sampling: P(not token 0) by inverting the sampler's own conversion of words."""

from __future__ import annotations

import math

import pytest

from fsresearch.theory.numerics import tail_probability
from proofs_tests.conversions import of_24_bits, specified, unrefined

VOCAB = 131_072
POINTS = [(-18.0, 1.99223e-3), (-20.0, 2.70085e-4), (-24.0, 4.948e-6)]


def exact(tail: float) -> float:
    mass = (VOCAB - 1) * math.exp(tail)
    return mass / (1 + mass)


@pytest.mark.parametrize("tail, value", POINTS)
def test_the_tail_is_exact_to_a_thousandth(tail: float, value: float) -> None:
    assert exact(tail) == pytest.approx(value, rel=1e-4)
    assert tail_probability(specified, tail, vocab=VOCAB) == pytest.approx(exact(tail), rel=1e-3)


@pytest.mark.parametrize("tail", [-8.0, -12.0, -28.0, -30.0])
def test_nearer_and_deeper_tails(tail: float) -> None:
    assert tail_probability(specified, tail, vocab=VOCAB) == pytest.approx(exact(tail), rel=1e-3)


def test_words_without_refinement_lose_the_tail() -> None:
    assert tail_probability(unrefined, -24.0, vocab=VOCAB) == pytest.approx(1.40e-6, rel=0.01)
    assert tail_probability(unrefined, -18.0, vocab=VOCAB) == pytest.approx(exact(-18.0), rel=0.01)


def test_24_bits_lose_the_tail() -> None:
    assert tail_probability(of_24_bits, -18.0, vocab=VOCAB) == pytest.approx(1.6e-4, rel=0.1)
