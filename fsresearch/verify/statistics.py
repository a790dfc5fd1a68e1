"""Tests of law and distances between counts and probabilities, in float64.

Every test states its null hypothesis. Its p-value is the probability, if that hypothesis holds, of
a result at least as far from it as the one observed: uniform on [0, 1] up to the discreteness of
counts, so that a test which rejects at ``p < alpha`` fails a correct sampler with probability about
``alpha``. Classes too rare for a chi-square are merged, never dropped: what a sampler does in the
tail still counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

__all__ = [
    "Binomial",
    "ChiSquare",
    "binomial",
    "combine",
    "expected_total_variation",
    "goodness_of_fit",
    "independence",
    "total_variation",
]

Floats = NDArray[np.float64]

MIN_EXPECTED = 5.0
_SUM_TOLERANCE = 1e-9


class ChiSquare(NamedTuple):
    """The outcome of a chi-square test.

    Attributes:
        statistic: inf where something impossible was observed.
        dof: degrees of freedom; 0 where merging left a single class, which tests nothing.
        p_value: chance of a statistic at least this large under the null hypothesis.
    """

    statistic: float
    dof: int
    p_value: float


class Binomial(NamedTuple):
    """The outcome of a binomial test.

    Attributes:
        sigma: (hits - expected) / standard deviation, signed.
        p_value: exact and two-sided, twice the smaller tail and at most 1.
    """

    sigma: float
    p_value: float


def goodness_of_fit(counts: ArrayLike, probabilities: ArrayLike) -> ChiSquare:
    """Test by Pearson's chi-square whether counts come from given probabilities.

    Null hypothesis: the draws are independent, each with exactly these probabilities. A small
    p-value says that the counts differ from them by more than chance. All classes whose expected
    count is below 5 form one class (joined by the rarest others until it expects 5 as well);
    a class of probability zero that was drawn gives p = 0.

    Args:
        counts: int [V], how often each class was drawn.
        probabilities: float64 [V], summing to 1.

    Raises:
        ValueError: If the shapes differ, counts are negative or all zero, or the probabilities
            are none.

    Source: Pearson 1900.

    >>> outcome = goodness_of_fit([480, 520], [0.5, 0.5])
    >>> outcome.statistic, outcome.dof, round(outcome.p_value, 4)
    (1.6, 1, 0.2059)
    >>> goodness_of_fit([99, 1, 0], [1.0, 0.0, 0.0]).p_value
    0.0
    """
    seen, law = _counts_and_law(counts, probabilities)
    if seen[law == 0].any():
        return ChiSquare(math.inf, max(int((law > 0).sum()) - 1, 1), 0.0)
    expected = law * (seen.sum() / law.sum())
    merged_seen, merged_expected = _merged(seen, expected)
    statistic = float(((merged_seen - merged_expected) ** 2 / merged_expected).sum())
    return _chi_square(statistic, len(merged_seen) - 1)


def independence(table: ArrayLike) -> ChiSquare:
    """Test by Pearson's chi-square whether the rows and columns of a contingency table are related.

    Null hypothesis: row and column of a draw are independent; equivalently, all rows are samples
    from one law (with two rows, the two-sample test). A small p-value says that the rows' laws
    differ, or that one coordinate tells something of the other. Columns are merged until every
    cell expects at least 5; rows are not, so a row must have draws enough for that.

    Args:
        table: int [R, C], how often each pair was drawn.

    Raises:
        ValueError: If the table is not a matrix of counts with a draw in every row.

    >>> outcome = independence([[30, 20], [20, 30]])
    >>> outcome.statistic, outcome.dof, round(outcome.p_value, 4)
    (4.0, 1, 0.0455)
    >>> independence([[50, 0], [0, 50]]).p_value < 1e-20
    True
    """
    cells = np.asarray(table, dtype=np.float64)
    if cells.ndim != 2 or (cells < 0).any() or not (cells.sum(1) > 0).all():
        raise ValueError(
            f"table must be a matrix of counts with a draw in every row, got shape {cells.shape}"
        )
    share = cells.sum(1, keepdims=True) / cells.sum()
    rarest_row = cells.sum(0) * share.min()
    columns = _classes(rarest_row)
    merged = np.stack([_sums(row, columns) for row in cells])
    expected = share * merged.sum(0)
    statistic = float(((merged - expected) ** 2 / expected).sum())
    return _chi_square(statistic, (merged.shape[0] - 1) * (merged.shape[1] - 1))


def combine(outcomes: Iterable[ChiSquare]) -> ChiSquare:
    """Add up chi-square tests of independent draws into one.

    Null hypothesis: those of all the tests hold. The sum of independent chi-square variables is
    one whose degrees of freedom are the sum.

    >>> outcome = combine([ChiSquare(1.0, 1, 0.317), ChiSquare(3.0, 3, 0.392)])
    >>> outcome.statistic, outcome.dof, round(outcome.p_value, 4)
    (4.0, 4, 0.406)
    """
    parts = list(outcomes)
    return _chi_square(math.fsum(p.statistic for p in parts), sum(p.dof for p in parts))


def binomial(hits: int, draws: int, probability: float) -> Binomial:
    """Test exactly whether an event of known probability happened too often or too seldom.

    Null hypothesis: the draws are independent and each hits with exactly this probability. A small
    p-value says that the number of hits is far from its expectation, in either direction; the true
    false-fail rate of ``p < alpha`` is at most alpha, whatever the expected count.

    Raises:
        ValueError: If hits is not in [0, draws], or probability not in [0, 1].

    >>> outcome = binomial(60, 100, 0.5)
    >>> outcome.sigma, round(outcome.p_value, 4)
    (2.0, 0.0569)
    >>> binomial(1, 100, 0.0)
    Binomial(sigma=inf, p_value=0.0)
    """
    if not 0 <= hits <= draws or draws == 0:
        raise ValueError(f"hits must be in [0, draws] with draws >= 1, got {hits} of {draws}")
    if not 0 <= probability <= 1:
        raise ValueError(f"probability must be in [0, 1], got {probability}")
    law = stats.binom(draws, probability)
    tails = float(law.cdf(hits)), float(law.sf(hits - 1))
    excess = hits - draws * probability
    deviation = math.sqrt(draws * probability * (1 - probability))
    if deviation == 0:
        sigma = math.copysign(math.inf, excess) if excess else 0.0
    else:
        sigma = excess / deviation
    return Binomial(sigma, min(1.0, 2 * min(tails)))


def total_variation(counts: ArrayLike, probabilities: ArrayLike) -> float:
    """Return half the summed absolute differences of observed frequencies and probabilities.

    Never zero for finite draws: compare it with `expected_total_variation`.

    Raises:
        ValueError: As for `goodness_of_fit`.

    >>> total_variation([3, 1], [0.5, 0.5])
    0.25
    """
    seen, law = _counts_and_law(counts, probabilities)
    return math.fsum(np.abs(seen / seen.sum() - law)) / 2


def expected_total_variation(probabilities: ArrayLike, draws: int) -> float:
    """Return the mean of `total_variation` over samples of an exact sampler, exactly.

    A class's count is binomial, and its mean absolute deviation has the closed form
    2 k (1 - p) P(count = k) with k = floor(draws p) + 1; half their sum is the mean distance.

    Args:
        probabilities: float64 [V], summing to 1.
        draws: how many independent draws, at least 1.

    Raises:
        ValueError: If draws is below 1 or the probabilities are none.

    Source: de Moivre 1730; Diaconis and Zabell, "Closed form summation for classical
    distributions", Statistical Science 1991.

    >>> expected_total_variation([0.5, 0.5], 1)
    0.5
    """
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")
    law = _law(probabilities)
    k = np.floor(draws * law) + 1
    deviations = 2 * k * (1 - law) * stats.binom.pmf(k, draws, law)
    return math.fsum(deviations) / draws / 2


def _chi_square(statistic: float, dof: int) -> ChiSquare:
    if dof == 0:
        return ChiSquare(statistic, 0, 0.0 if statistic == math.inf else 1.0)
    return ChiSquare(statistic, dof, float(stats.chi2.sf(statistic, dof)))


def _merged(seen: Floats, expected: Floats) -> tuple[Floats, Floats]:
    """Add up counts and expectations over the merged classes."""
    classes = _classes(expected)
    return _sums(seen, classes), _sums(expected, classes)


def _classes(expected: Floats) -> NDArray[np.int64]:
    """Return every class's place after merging; all that expect less than 5 share place 0."""
    order = np.argsort(expected, kind="stable")
    rising = expected[order]
    rare = int(np.searchsorted(rising, MIN_EXPECTED))
    if rare:
        rare = max(rare, int(np.searchsorted(np.cumsum(rising), MIN_EXPECTED)) + 1)
    places = np.empty(len(expected), dtype=np.int64)
    places[order] = np.maximum(np.arange(len(expected)) - max(rare - 1, 0), 0)
    return places


def _sums(values: Floats, places: NDArray[np.int64]) -> Floats:
    return np.asarray(np.bincount(places, values), dtype=np.float64)


def _counts_and_law(counts: ArrayLike, probabilities: ArrayLike) -> tuple[Floats, Floats]:
    seen, law = np.asarray(counts, dtype=np.float64), _law(probabilities)
    if seen.shape != law.shape:
        raise ValueError(
            f"counts and probabilities must have one shape, got {seen.shape} and {law.shape}"
        )
    if (seen < 0).any() or not 0 < seen.sum() < math.inf:
        raise ValueError(f"counts must be at least 0 and not all 0, got the sum {seen.sum()}")
    return seen, law


def _law(probabilities: ArrayLike) -> Floats:
    law = np.asarray(probabilities, dtype=np.float64)
    if law.ndim != 1 or not (law >= 0).all() or abs(math.fsum(law) - 1) > _SUM_TOLERANCE:
        raise ValueError("probabilities must be a vector of numbers at least 0 that sum to 1")
    return law
