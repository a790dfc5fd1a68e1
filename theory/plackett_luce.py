"""Sampling without replacement: the law of the k largest perturbed scores.

The ids of the keys phi_i + g_i in decreasing order have the Plackett-Luce law: each place is drawn
from softmax over what is left. Seen as clocks E_i = exp(-key) ~ Exp(p_i), the largest key is the
earliest arrival, which makes every statement below elementary. All of it is exact by enumeration
over orders or subsets, so V stays small.

The threshold kappa is the (k+1)-th largest key, -inf where fewer than k + 1 tokens have mass.

Source: Kool, van Hoof and Welling, "Stochastic Beams and Where to Find Them", ICML 2019; Yellott,
"The relationship between Luce's choice axiom, Thurstone's theory ...", 1977.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, permutations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fsresearch.theory.categorical import log_normalizer, log_probabilities, probabilities

__all__ = [
    "first_given_set",
    "inclusion_given_threshold",
    "inclusion_probabilities",
    "ordered_law",
    "ordered_log_prob",
    "set_and_threshold_cdf",
    "threshold_cdf",
    "unordered_law",
]

Floats = NDArray[np.float64]


def ordered_log_prob(logits: ArrayLike, order: Sequence[int]) -> float:
    """Return the log-probability that the largest keys are these tokens in this order.

    Each place divides by the mass that is left, summed from what is left: a difference from one
    would lose it.

    Raises:
        ValueError: If the order repeats a token or the logits are no distribution.

    >>> round(math.exp(ordered_log_prob(np.log([0.5, 0.3, 0.2]), [1, 0])), 12)
    0.214285714286
    """
    values = log_probabilities(logits)
    if len(set(order)) != len(order):
        raise ValueError(f"order must not repeat a token, got {list(order)}")
    left = np.ones(len(values), dtype=bool)
    terms = []
    for token in order:
        if values[token] == -math.inf:
            return -math.inf
        terms.append(float(values[token]) - log_normalizer(values[left]))
        left[token] = False
    return math.fsum(terms)


def ordered_law(logits: ArrayLike, k: int) -> dict[tuple[int, ...], float]:
    """Return the probability of every ordered sample of k tokens with mass.

    Raises:
        ValueError: If k exceeds the number of tokens with mass.

    >>> law = ordered_law(np.log([0.5, 0.5]), 2)
    >>> {order: round(chance, 12) for order, chance in law.items()}
    {(0, 1): 0.5, (1, 0): 0.5}
    """
    support = _support(logits, k)
    return {order: math.exp(ordered_log_prob(logits, order)) for order in permutations(support, k)}


def unordered_law(logits: ArrayLike, k: int) -> dict[tuple[int, ...], float]:
    """Return the probability of every set of k tokens, keyed by ascending ids.

    The last arrival s of a set S came after S without s had filled the first k - 1 places:
    P(S) = sum over s in S of P(S - s) p_s / (1 - p(S - s)).

    Raises:
        ValueError: If k exceeds the number of tokens with mass.

    >>> law = unordered_law(np.log([0.5, 0.3, 0.2]), 2)
    >>> {ids: round(chance, 6) for ids, chance in law.items()}
    {(0, 1): 0.514286, (0, 2): 0.325, (1, 2): 0.160714}
    """
    support = _support(logits, k)
    p = probabilities(logits)
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for size in range(1, k + 1):
        smaller, law = law, {}
        for ids in combinations(support, size):
            shorter = [(token, tuple(v for v in ids if v != token)) for token in ids]
            law[ids] = math.fsum(
                smaller[rest] * p[token] / _mass(p, support, rest) for token, rest in shorter
            )
    return law


def first_given_set(logits: ArrayLike, chosen: Sequence[int]) -> Floats:
    """Return the probability that each token of a set came first, given the set; float64 [k].

    It is p_s R(S, s), summed here over the k! orders of the set.

    >>> first_given_set(np.log([0.3, 0.5, 0.2]), [0, 1]).round(6).tolist()
    [0.416667, 0.583333]
    """
    by_first = [
        math.fsum(
            math.exp(ordered_log_prob(logits, [token, *others]))
            for others in permutations([v for v in chosen if v != token])
        )
        for token in chosen
    ]
    return np.array(by_first) / math.fsum(by_first)


def inclusion_probabilities(logits: ArrayLike, k: int) -> Floats:
    """Return each token's probability to be among the k largest keys, float64 [V].

    Raises:
        ValueError: If k exceeds the number of tokens with mass.

    >>> inclusion_probabilities(np.log([0.5, 0.3, 0.15, 0.05]), 2).round(6).tolist()
    [0.828837, 0.668731, 0.37218, 0.130252]
    """
    law = unordered_law(logits, k)
    vocab = len(np.asarray(logits))
    return np.array(
        [math.fsum(chance for ids, chance in law.items() if v in ids) for v in range(vocab)],
        dtype=np.float64,
    )


def threshold_cdf(logits: ArrayLike, k: int, x: float) -> float:
    """Return P(kappa <= x): the probability that at most k keys exceed x.

    Keys are log-probabilities plus Gumbels. The number of keys above x is a sum of independent
    indicators, whose law is built token by token.

    >>> round(threshold_cdf([0.0], 0, 0.0), 12) == round(math.exp(-1.0), 12)
    True
    """
    above = inclusion_given_threshold(logits, x)
    below = np.exp(-np.exp(log_probabilities(logits) - x))
    count = np.zeros(len(above) + 1)
    count[0] = 1.0
    for high, low in zip(above, below, strict=True):
        count[1:] = count[1:] * low + count[:-1] * high
        count[0] *= low
    return math.fsum(count[: k + 1])


def set_and_threshold_cdf(logits: ArrayLike, chosen: Sequence[int], x: float) -> float:
    """Return P(the k largest keys are this set, and kappa <= x).

    With v = exp(-exp(-kappa)) and R the mass outside S, the joint density is
    R v**(R - 1) prod over S of (1 - v**p_s); the product is expanded over the subsets of S, so
    this suits sets of up to about ten tokens whose masses are not tiny. Divided by P(S) it is the
    threshold's law given the set.

    Raises:
        ValueError: If no token outside the set has mass (kappa is -inf then).

    >>> everywhere = set_and_threshold_cdf(np.log([0.5, 0.3, 0.2]), [0, 2], math.inf)
    >>> round(everywhere, 6)
    0.325
    """
    p = probabilities(logits)
    outside = _mass(p, range(len(p)), chosen)
    if outside == 0:
        raise ValueError("no token outside the set has mass: kappa is -inf")
    log_v = -math.exp(-x)
    terms = []
    for size in range(len(chosen) + 1):
        for subset in combinations(chosen, size):
            power = math.fsum([outside, *(p[v] for v in subset)])
            terms.append((-1) ** size * outside / power * math.exp(power * log_v))
    return math.fsum(terms)


def inclusion_given_threshold(logits: ArrayLike, kappa: float) -> Floats:
    """Return q_i(kappa) = P(key_i > kappa) = 1 - exp(-exp(phi_i - kappa)), float64 [V].

    At kappa = -inf every token with mass is included.

    >>> inclusion_given_threshold(np.log([0.75, 0.25]), -math.inf).tolist()
    [1.0, 1.0]
    """
    phi = log_probabilities(logits)
    if kappa == -math.inf:
        return np.asarray(np.isfinite(phi), dtype=np.float64)
    return np.asarray(-np.expm1(-np.exp(phi - kappa)))


def _support(logits: ArrayLike, k: int) -> list[int]:
    support = np.flatnonzero(np.isfinite(np.asarray(logits, np.float64))).tolist()
    if not 0 <= k <= len(support):
        raise ValueError(f"k must be in [0, {len(support)}], the tokens with mass, got {k}")
    return list(support)


def _mass(p: Floats, ids: Sequence[int], without: Sequence[int]) -> float:
    return math.fsum(p[v] for v in ids if v not in without)
