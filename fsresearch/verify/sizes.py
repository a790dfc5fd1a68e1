"""How many draws a test needs, from both of its error rates, and the test that stops early.

A fixed-size test rejects a correct sampler with probability at most ``false_fail`` and misses the
named alternative with probability at most ``false_pass``; the number of draws follows from both.
A sequential one bounds both rates as well (Wald's likelihood ratio with the bounds of Ville's
inequality, which hold wherever one stops) and needs, for a correct sampler, a part of the draws.

Source: Wald, "Sequential tests of statistical hypotheses", 1945.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fsresearch.verify.statistics import MIN_EXPECTED

__all__ = [
    "Sequential",
    "binomial_size",
    "certain_size",
    "chi_square_size",
    "fit_size",
    "grid_tail_probability",
    "kolmogorov_size",
    "pooled_classes",
    "tail_probability",
]

Floats = NDArray[np.float64]
_BINS_PER_DECADE = 4


def binomial_size(null: float, alternative: float, false_fail: float, false_pass: float) -> int:
    """Return draws for the exact two-sided binomial test of ``null`` against ``alternative``.

    >>> n = binomial_size(0.5, 0.25, 1e-8, 1e-5)
    >>> critical = stats.binom(n, 0.5).ppf(1e-8 / 2) - 1
    >>> bool(stats.binom(n, 0.25).sf(critical) < 1e-5)
    True
    """

    def enough(n: int) -> bool:
        law, other = stats.binom(n, null), stats.binom(n, alternative)
        if alternative < null:
            return bool(other.sf(law.ppf(false_fail / 2) - 1) <= false_pass)
        return bool(other.cdf(law.isf(false_fail / 2) + 1) <= false_pass)

    return _least(enough)


def chi_square_size(dof: int, effect: float, false_fail: float, false_pass: float) -> int:
    """Return draws for Pearson's chi-square, where effect = sum (p1 - p0)**2 / p0.

    >>> chi_square_size(10, 0.01, 1e-8, 1e-5)
    12992
    """
    critical = stats.chi2.isf(false_fail, dof)
    return _least(lambda n: bool(stats.ncx2.cdf(critical, dof, n * effect) <= false_pass))


def fit_size(
    probabilities: Floats, finest: float, distance: float, false_fail: float, false_pass: float
) -> int:
    """Return draws for a chi-square over pooled classes against a total variation of ``distance``.

    By Cauchy's inequality a law that far away has an effect of at least 4 distance**2. Every
    token of ``finest`` or more expects 5 hits, so that the classes are those of `pooled_classes`.

    >>> fit_size(np.full(100, 0.01), 0.01, 0.1, 1e-8, 1e-5)
    5664
    """
    dof = max(int(pooled_classes(probabilities, finest).max()), 1)
    needed = chi_square_size(dof, 4 * distance**2, false_fail, false_pass)
    return max(needed, math.ceil(MIN_EXPECTED / finest))


def pooled_classes(probabilities: Floats, finest: float) -> NDArray[np.int64]:
    """Return a class for every token: its own from ``finest`` on, below it one by its size.

    Rare tokens share a class with those of the same quarter decade, so that their loss shows;
    tokens without mass have class -1.

    >>> pooled_classes(np.array([0.9, 0.0, 0.06, 0.02, 0.02]), 0.05).tolist()
    [0, -1, 1, 2, 2]
    """
    common = probabilities >= finest
    places = np.full(len(probabilities), -1, dtype=np.int64)
    places[common] = np.arange(common.sum())
    rare = (probabilities > 0) & ~common
    decade = np.floor(_BINS_PER_DECADE * np.log10(probabilities[rare]))
    places[rare] = common.sum() + np.unique(-decade, return_inverse=True)[1]
    return places


def kolmogorov_size(distance: float, false_fail: float, false_pass: float) -> int:
    """Return draws for Kolmogorov's test against any law at sup-distance ``distance``.

    Both rates by the inequality of Dvoretzky, Kiefer, Wolfowitz and Massart.

    >>> kolmogorov_size(0.05, 1e-8, 1e-5)
    12374
    """
    reach = math.sqrt(math.log(2 / false_fail) / 2) + math.sqrt(math.log(2 / false_pass) / 2)
    return math.ceil((reach / distance) ** 2)


def certain_size(probability: float, miss: float) -> int:
    """Return draws after which an event of this probability is missing with chance ``miss``.

    >>> certain_size(0.5, 1 / 1024)
    10
    """
    return math.ceil(math.log(miss) / math.log1p(-probability))


def tail_probability(depth: float, vocab: int) -> float:
    """Return the mass of vocab - 1 tokens that lie ``depth`` below one head.

    >>> round(tail_probability(18.0, 1 << 17), 8)
    0.00199223
    """
    mass = (vocab - 1) * math.exp(-depth)
    return mass / (1 + mass)


def grid_tail_probability(bits: int, depth: float, vocab: int) -> float:
    """Return what is left of that mass where uniforms 1 - k / 2**bits, k >= 1, make the Gumbels.

    >>> round(grid_tail_probability(24, 18.0, 1 << 17), 6)
    0.000159
    """
    chance = (np.arange(1 << 16) + 0.5) / (1 << 16)
    head = np.concatenate([-np.log(-np.log(part)) for part in (chance * 1e-2, chance)])
    weight = np.concatenate([np.full(1 << 16, 1e-2), np.where(chance > 1e-2, 1.0, 0.0)])
    reach = np.floor(-np.expm1(-np.exp(-(depth + head))) * 2.0**bits) / 2.0**bits
    beaten = -np.expm1((vocab - 1) * np.log1p(-reach))
    return float((weight * beaten).sum() / (1 << 16))


class Sequential:
    """Wald's test of one probability against another, fed as draws come in.

    Args:
        null: the probability of a hit under the null hypothesis.
        alternative: that of the alternative.
        false_fail: bounds the chance to reject the null hypothesis where it holds.
        false_pass: bounds the chance to accept it where the alternative holds.

    Attributes:
        hits: so far.
        draws: so far.

    >>> test = Sequential(0.5, 0.01, 1e-8, 1e-5)
    >>> test.update(0, 20), test.update(0, 20)
    (None, False)
    """

    def __init__(
        self, null: float, alternative: float, false_fail: float, false_pass: float
    ) -> None:
        self.null, self.alternative = null, alternative
        self.reject, self.accept = -math.log(false_fail), math.log(false_pass)
        self.hits = self.draws = 0
        self.largest = 0.0
        self._hit = math.log(alternative / null)
        self._miss = math.log1p(-alternative) - math.log1p(-null)

    @property
    def log_ratio(self) -> float:
        """The log-likelihood ratio of the alternative to the null hypothesis."""
        return self.hits * self._hit + (self.draws - self.hits) * self._miss

    @property
    def p_value(self) -> float:
        """A bound on the chance, under the null hypothesis, of ever getting so far from it."""
        return min(1.0, math.exp(-self.largest))

    def update(self, hits: int, draws: int) -> bool | None:
        """Add draws; return True if the null hypothesis is accepted, False if rejected."""
        self.hits += hits
        self.draws += draws
        self.largest = max(self.largest, self.log_ratio)
        if self.log_ratio >= self.reject:
            return False
        return True if self.log_ratio <= self.accept else None


def _least(enough: Callable[[int], bool]) -> int:
    """Return a size that suffices, at most a percent above the least of those tried."""
    high = 16
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > max(high // 128, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
