"""The target law: softmax of logits, and the same law drawn as a group and then a token in it.

Logits are float64 [V] with values in R or -inf; a token at -inf has probability zero. Sums are
correctly rounded (``math.fsum``), so a result is off by a few units in the last place, whatever V.

Source: FlashSampling, Theorem 2.1 and Lemma D.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "factorised_probabilities",
    "group_log_masses",
    "log_normalizer",
    "log_probabilities",
    "probabilities",
    "total_variation",
]

Floats = NDArray[np.float64]
Groups = Sequence[Sequence[int]]


def probabilities(logits: ArrayLike) -> Floats:
    """Return softmax of the logits, float64 [V].

    Raises:
        ValueError: If a logit is NaN or +inf, or none is finite.

    Source: FlashSampling, Theorem 2.1.

    >>> probabilities([0.0, math.log(3.0), -math.inf]).round(12).tolist()
    [0.25, 0.75, 0.0]
    """
    values = _checked(logits)
    top = _finite_top(values)
    weights = np.exp(values - top)
    return np.asarray(weights / math.fsum(weights), dtype=np.float64)


def log_probabilities(logits: ArrayLike) -> Floats:
    """Return the logarithms of softmax, float64 [V], exact far below the smallest probability.

    Raises:
        ValueError: If a logit is NaN or +inf, or none is finite.

    >>> log_probabilities([0.0, -2000.0]).tolist()
    [0.0, -2000.0]
    """
    values = _checked(logits)
    top = _finite_top(values)
    return np.asarray((values - top) - log_normalizer(values - top), dtype=np.float64)


def log_normalizer(logits: ArrayLike) -> float:
    """Return log sum exp of the logits; -inf where the sum is empty or has no finite logit.

    Raises:
        ValueError: If a logit is NaN or +inf.

    >>> log_normalizer([1000.0, 1000.0]) == 1000.0 + math.log(2.0)
    True
    >>> log_normalizer([-math.inf])
    -inf
    """
    values = _checked(logits)
    if not np.isfinite(values).any():
        return -math.inf
    top = int(values.argmax())
    rest = np.exp(np.delete(values, top) - values[top])
    return float(values[top]) + math.log1p(math.fsum(rest))


def group_log_masses(logits: ArrayLike, groups: Groups) -> Floats:
    """Return every group's log-mass L_k = log sum exp over the group, float64 [number of groups].

    Args:
        logits: float64 [V].
        groups: a partition of range(V); groups may be empty and may interleave.

    Raises:
        ValueError: If the groups are no partition, or a logit is NaN or +inf.

    >>> group_log_masses([0.0, 0.0, -math.inf], [[0, 1], [2], []]).tolist()
    [0.6931471805599453, -inf, -inf]
    """
    values = _checked(logits)
    check_partition(groups, len(values))
    return np.array([log_normalizer(values[list(group)]) for group in groups], dtype=np.float64)


def factorised_probabilities(logits: ArrayLike, groups: Groups) -> Floats:
    """Return the law of drawing a group by its mass and then a token inside it, float64 [V].

    It is computed as the two stages are drawn, so that its agreement with ``probabilities`` is
    the lemma and no tautology.

    Raises:
        ValueError: If the groups are no partition, or the logits are no distribution.

    Source: FlashSampling, Lemma D.2.

    >>> factorised_probabilities([0.0, 0.0, 0.0, 0.0], [[3, 0, 1], [2]]).round(12).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    values = _checked(logits)
    of_group = probabilities(group_log_masses(values, groups))
    law = np.zeros(len(values))
    for chance, group in zip(of_group, groups, strict=True):
        if chance > 0:
            law[list(group)] = chance * probabilities(values[list(group)])
    return law


def total_variation(left: ArrayLike, right: ArrayLike) -> float:
    """Return half the sum of the absolute differences of two laws on the same tokens.

    >>> total_variation([0.5, 0.5, 0.0], [0.25, 0.5, 0.25])
    0.25
    """
    return math.fsum(np.abs(np.asarray(left, np.float64) - np.asarray(right, np.float64))) / 2


def check_partition(groups: Groups, vocab: int) -> None:
    """Raise a ValueError unless every id in range(vocab) stands in exactly one group.

    >>> check_partition([[1], [0, 2]], 3)
    """
    ids = sorted(token for group in groups for token in group)
    if ids != list(range(vocab)):
        raise ValueError(f"groups must partition range({vocab}), got the ids {ids}")


def _checked(logits: ArrayLike) -> Floats:
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"logits must have one axis, got shape {values.shape}")
    if np.isnan(values).any() or np.isposinf(values).any():
        raise ValueError("logits must be finite or -inf, got NaN or +inf")
    return values


def _finite_top(values: Floats) -> float:
    top = float(values.max(initial=-math.inf))
    if top == -math.inf:
        raise ValueError("no logit is finite: this is not a distribution")
    return top
