"""The tail, without sampling: P(not token 0) by inverting the sampler's own conversion of words."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fsresearch.noise import gumbel_from_words
from fsresearch.theory.numerics import tail_probability

VOCAB = 131_072


def converted(word: NDArray[np.int64], refinement: NDArray[np.int64]) -> NDArray[np.float32]:
    """The library's conversion, as it runs in tensors."""
    gumbels: NDArray[np.float32] = gumbel_from_words(
        torch.from_numpy(word), torch.from_numpy(refinement)
    ).numpy()
    return gumbels


def unrefined(word: NDArray[np.int64], refinement: NDArray[np.int64]) -> NDArray[np.float64]:
    """Midpoints of 32 bits."""
    return np.asarray(-np.log(-np.log1p(-(word + 0.5) * 2.0**-32)))


def of_24_bits(word: NDArray[np.int64], refinement: NDArray[np.int64]) -> NDArray[np.float64]:
    """-log(-log(u)) of the float32 uniforms u = 1 - k / 2**24, the nearest to 1 at k = 1."""
    step = np.minimum((word >> 8) + 1, (1 << 24) - 1)
    return np.asarray(-np.log(-np.log1p(-step * 2.0**-24)))


def exact(tail: float) -> float:
    mass = (VOCAB - 1) * math.exp(tail)
    return mass / (1 + mass)


@pytest.mark.parametrize(
    "tail, value", [(-18.0, 1.99223e-3), (-20.0, 2.70085e-4), (-24.0, 4.948e-6)]
)
def test_the_tail_is_exact_to_a_thousandth(tail: float, value: float) -> None:
    assert exact(tail) == pytest.approx(value, rel=1e-4)
    assert tail_probability(converted, tail) == pytest.approx(exact(tail), rel=1e-3)


@pytest.mark.parametrize("tail", [-8.0, -12.0, -28.0, -30.0])
def test_nearer_and_deeper_tails(tail: float) -> None:
    assert tail_probability(converted, tail) == pytest.approx(exact(tail), rel=1e-3)


def test_words_without_refinement_lose_the_tail() -> None:
    assert tail_probability(unrefined, -24.0) == pytest.approx(1.40e-6, rel=0.01)
    assert tail_probability(unrefined, -18.0) == pytest.approx(exact(-18.0), rel=0.01)


def test_24_bits_lose_the_tail() -> None:
    assert tail_probability(of_24_bits, -18.0) == pytest.approx(1.6e-4, rel=0.1)
