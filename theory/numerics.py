"""How far the law of finite words and float32 scores is from softmax, without sampling.

A token's score is fl(l + g): a float32 logit plus the float32 Gumbel of a random word, and the
largest score wins, the lowest id on ties. With F_j(c) = P(score_j < c), and c+ the float32 value
after c, token i wins with probability

    sum over c of  (F_i(c+) - F_i(c))  prod_{j < i} F_j(c)  prod_{j > i} F_j(c+),

since a token before i must stay below c and one after i may equal it. ``token_law_distance``
takes this sum over the float32 values c; every F_j is a count of words. It leaves out scores so
low that the best of all is there with probability about exp(-28), and where winners are rare
(one in 400), or scores are within 1/2 of zero, it takes cells wider than one float32 value, which
costs at most the probability that two tokens share the winning cell. Both are in the remainder
that it returns, typically 1e-10.

``tail_probability`` asks the same of any conversion from words to Gumbels, handed in as a
function, by inverting it on the integers.

Source: the law of noise version 1; ``total_variation_bound`` says where the bound comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsresearch.theory.categorical import log_normalizer
from fsresearch.theory.gumbel import REFINE_BELOW

__all__ = [
    "Distance",
    "score_spacing",
    "survival",
    "tail_probability",
    "token_law_distance",
    "total_variation_bound",
]

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Integers = NDArray[np.int64]
Conversion = Callable[[Integers, Integers], "Singles | Floats"]
Blocks = Sequence[tuple[float, int]]

_LAST = (1 << 32) - 1
_BELOW_ALL = -1e4
_DEPTH, _HEIGHT = 28.0, 6.0
_COARSE, _FINEST = 2.0**-14, 2.0**-24


class Distance(NamedTuple):
    """A total variation distance, exact to within plus or minus the remainder."""

    value: float
    remainder: float


def token_law_distance(blocks: Blocks, *, refine_below: int = REFINE_BELOW) -> Distance:
    """Return the total variation between the law of version-1 words and softmax.

    The float32 Gumbel of a word is the correctly rounded one, and so is the float32 sum.

    Within a block the winning probability falls with the id, since ties go to the lowest; so the
    ids that win too often are the first M of the block, and their excess A(M) - M p is concave in
    M. A(M) telescopes into one sum over the scores, and the distance is the sum over blocks of
    the largest excess.

    Args:
        blocks: (logit, count) runs of equal finite float32 logits, in the order of the ids.
        refine_below: words under it take 32 more bits.

    Raises:
        ValueError: If a logit is not a finite float32 value or a count is not positive.

    >>> distance = token_law_distance([(100.0, 4096)])
    >>> bound = total_variation_bound(4096, score_spacing(110.0))
    >>> distance.value <= bound and distance.remainder < 1e-9
    True
    """
    logits = np.array([logit for logit, _ in blocks], dtype=np.float64)
    counts = np.array([count for _, count in blocks], dtype=np.float64)
    if not np.array_equal(logits.astype(np.float32).astype(np.float64), logits):
        raise ValueError("logits must be finite float32 values")
    if not (len(blocks) and np.isfinite(logits).all() and (counts > 0).all()):
        raise ValueError("blocks must be some finite logits with positive counts")
    location = log_normalizer(logits + np.log(counts))
    grid = _Grid(logits, counts, location, refine_below)
    excess, slack = zip(
        *(_largest_excess(grid, k, math.exp(logits[k] - location)) for k in range(len(blocks))),
        strict=True,
    )
    return Distance(math.fsum(excess), math.fsum(slack) + grid.remainder)


def total_variation_bound(vocab: int, spacing: float, *, refine_below: int = REFINE_BELOW) -> float:
    """Return (L / 8) exp(-L T) + u / 8 with L = V / 2**32, T the threshold, u the spacing.

    The two best of V equal tokens share an unrefined word with probability (L / 2) exp(-L T):
    arrivals come at rate L a word, and the first must lie past the threshold. Their scores share
    a float32 value with probability u / 2, the gap of the two largest Gumbels being Exp(1). A tie
    gives the lower id, and the minimum of two ids is 1/4 from uniform.

    The second term takes all rounding cells to be equally wide and to favour no logit. Both fail
    a little where scores are spaced about as the Gumbels are, w near log V. Ties to even make
    cells alternate, which turns u / 8 into (1 + (w / u)**2) u / 8 for w < u; and a logit off the
    grid can lose up to u / 2 at every word where w = u, which costs another u / 8 (two halves at
    0 and just under u / 2 do it). So u is to be doubled where scores and Gumbels have about the
    same spacing; the distance is 4e-7 there at V = 2**18, far under the 2e-6 and 8.4e-6 that hold
    while scores stay under 128 and 1024.

    >>> f"{total_variation_bound(1 << 18, score_spacing(100.0)):.2e}"
    '1.09e-06'
    """
    rate = vocab / 2.0**32
    return rate / 8 * math.exp(-rate * refine_below) + spacing / 8


def score_spacing(score: float) -> float:
    """Return the spacing of float32 at a score.

    >>> score_spacing(100.0) == 2.0**-17
    True
    """
    return float(np.spacing(np.float32(abs(score))))


def tail_probability(
    conversion: Conversion, tail: float, *, vocab: int = 131_072, breakpoints: int = 20_000
) -> float:
    """Return P(not token 0) when token 0 has logit 0 and every other token the tail's logit.

    Nothing is sampled: the conversion decreases in (word, refinement), so the number of pairs
    whose score exceeds a value is found by bisection on the integers. Token 0's score is cut at
    breakpoints; in each cell the chance that some other score exceeds token 0's lies between its
    values at the two ends, and their mean is taken. The first words of the tail are breakpoints
    too, from both sides, because the chance jumps there. The relative error is below 1e-5.

    Args:
        conversion: takes int64 arrays (word, refinement) with values in [0, 2**32) and returns
            Gumbels of their shape, which are rounded to float32 if they are not.
        tail: the logit of tokens 1 .. vocab - 1.
        vocab: number of tokens.
        breakpoints: number of even cuts of token 0's score.

    >>> from fsresearch.theory.gumbel import from_words
    >>> f"{tail_probability(from_words, -18.0, breakpoints=2000):.4e}"
    '1.9922e-03'
    """
    words = np.arange(1024, dtype=np.int64)
    jumps = [_scores(conversion, words, np.full_like(words, end), tail) for end in (0, _LAST)]
    even = np.linspace(-3.5, 46.0, breakpoints).astype(np.float32)
    at = np.concatenate(jumps)
    at = at[(at > even[0]) & (at < even[-1])]
    cuts = np.unique(np.concatenate([even, at, np.nextafter(at, np.float32(-np.inf))]))
    head_above = survival(conversion, cuts, 0.0)
    tail_above = survival(conversion, cuts, tail)
    beaten = -np.expm1((vocab - 1) * np.log1p(-np.minimum(tail_above, 1 - 2.0**-53)))
    inside = head_above[:-1] - head_above[1:]
    return math.fsum(inside * (beaten[:-1] + beaten[1:]) / 2)


def survival(conversion: Conversion, values: Singles, logit: float) -> Floats:
    """Return P(fl(logit + g) > value) for each value, by bisection on words and refinements.

    >>> from fsresearch.theory.gumbel import from_words
    >>> survival(from_words, np.array([-4.0, 46.0], np.float32), 0.0).tolist()
    [1.0, 0.0]
    """
    whole = _count(lambda n: _scores(conversion, n, np.full_like(n, _LAST), logit) > values, values)
    at = np.minimum(whole, _LAST)
    part = _count(lambda n: _scores(conversion, at, n, logit) > values, values)
    part[whole > _LAST] = 0
    return np.asarray(whole * 2.0**-32 + part * 2.0**-64)


def _count(holds: Callable[[Integers], NDArray[np.bool_]], like: Singles) -> Integers:
    """Return how many n in [0, 2**32) satisfy a predicate that holds up to some n, elementwise."""
    low = np.zeros(like.shape, np.int64)
    high = np.full(like.shape, _LAST + 1, np.int64)
    for _ in range(33):
        middle = (low + high) // 2
        yes = (low < high) & holds(np.minimum(middle, _LAST))
        low, high = np.where(yes, middle + 1, low), np.where(yes, high, np.minimum(middle, high))
    return low


def _scores(conversion: Conversion, word: Integers, refinement: Integers, logit: float) -> Singles:
    noise = np.asarray(conversion(word, refinement)).astype(np.float32)
    return np.asarray(np.float32(logit) + noise, dtype=np.float32)


class _Grid:
    """The logarithms of F_j at the edges of the score cells, and what the cells leave out."""

    def __init__(self, logits: Floats, counts: Floats, location: float, refine_below: int) -> None:
        self.counts = counts
        levels, self.level = np.unique(logits, return_inverse=True)
        per_level = np.bincount(self.level, counts)
        self.chunks: list[Floats] = []
        self.remainder = 0.0
        last: Floats | None = None
        for edges, lumped in _edges(location, float(logits.max())):
            log_below = np.stack([_log_below(edges, x, refine_below) for x in levels])
            if last is None:
                self.remainder += math.exp(float(per_level @ log_below[:, 0]))
            else:
                log_below = np.concatenate([last, log_below], axis=1)
            if lumped:
                inside = per_level @ np.diff(np.exp(log_below), axis=1)
                unbeaten = np.exp(per_level @ log_below[:, 1:])
                self.remainder += float(np.sum(inside**2 / 2 * unbeaten))
            moves = np.ones(log_below.shape[1], dtype=bool)
            moves[1:] = (np.diff(log_below, axis=1) > 0).any(axis=0)
            self.chunks.append(np.ascontiguousarray(log_below[:, moves]))
            last = log_below[:, -1:]

    def first_wins(self, block: int, tokens: int) -> tuple[float, float]:
        """Return P(one of the first tokens of the block wins) and P(the next one wins)."""
        together, single = [], []
        for log_below in self.chunks:
            low, high = log_below[:, :-1], log_below[:, 1:]
            others = np.zeros(low.shape[1])
            for other, (level, count) in enumerate(zip(self.level, self.counts, strict=True)):
                others += count * (low if other < block else high)[level]
            step = low[self.level[block]] - high[self.level[block]]
            together.append(float(np.sum(np.exp(others) * -np.expm1(tokens * step))))
            single.append(float(np.sum(np.exp(others + tokens * step) * -np.expm1(step))))
        return math.fsum(together), math.fsum(single)


def _largest_excess(grid: _Grid, block: int, chance: float) -> tuple[float, float]:
    """Return max over M of A(M) - M p in a block, and by how much it may be larger.

    The excess is concave, so its slope at any M bounds what other M could add; the slope is all
    but linear, so the secant finds its zero at once.
    """
    count = int(grid.counts[block])
    ends = {m: grid.first_wins(block, m)[1] - chance for m in {0, count - 1}}
    if ends[0] <= 0:
        return 0.0, 0.0
    if ends[count - 1] >= 0:
        return grid.first_wins(block, count)[0] - count * chance, 0.0
    low, high = 0, count - 1
    slope_low, slope_high = ends[0], ends[count - 1]
    best, slack = 0.0, math.inf
    while high - low > 1 and slack > 1e-11:
        middle = low + round((high - low) * slope_low / (slope_low - slope_high))
        middle = min(max(middle, low + 1), high - 1)
        together, single = grid.first_wins(block, middle)
        value, slope = together - middle * chance, single - chance
        best = max(best, value)
        slack = value + max(slope * (count - middle), -slope * middle) - best
        if slope > 0:
            low, slope_low = middle, slope
        else:
            high, slope_high = middle, slope
    if slack > 1e-11:
        best, slack = grid.first_wins(block, high)[0] - high * chance, 0.0
    return best, slack


def _edges(location: float, top_logit: float) -> Iterator[tuple[Floats, bool]]:
    """Yield ascending float32 values in chunks, and whether cells hold more than one value."""
    low, fine = location - math.log(_DEPTH), location + _HEIGHT
    end = max(top_logit + 46.0, fine + 1.0)
    for start, stop, wanted in ((low, fine, _FINEST), (fine, end, _COARSE)):
        for left, right, natural in _binades(start, stop):
            step = max(natural, wanted)
            first, final = math.ceil(left / step), math.ceil(right / step)
            for chunk in range(first, final, 1 << 20):
                numbers = np.arange(chunk, min(chunk + (1 << 20), final), dtype=np.float64)
                yield numbers * step, step > natural
    yield np.array([math.inf]), True


def _binades(start: float, stop: float) -> Iterator[tuple[float, float, float]]:
    """Cut an interval where the spacing of float32 changes; near zero it counts as 2**-24."""
    powers = [2.0**e for e in range(-1, 24)]
    cuts = sorted({start, stop, *(s for p in powers for s in (-p, p) if start < s < stop)})
    for left, right in pairwise(cuts):
        middle = abs(left + right) / 2
        yield left, right, score_spacing(middle) if middle >= 0.5 else 2.0**-25


def _log_below(edges: Floats, logit: float, refine_below: int) -> Floats:
    """Return log P(fl(logit + g) < edge): one minus the share of words that reach the edge."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log1p(-_share(_least_gumbel(edges, logit), refine_below))
    return np.asarray(np.maximum(logs, _BELOW_ALL))


def _least_gumbel(edges: Floats, logit: float) -> Singles:
    """Return the least float32 g with fl(logit + g) >= edge, in round-to-nearest-even."""
    edge = edges.astype(np.float32)
    half = (np.nextafter(edge, np.float32(-np.inf)).astype(np.float64) + edges) / 2
    wanted = half - logit
    noise = wanted.astype(np.float32)
    odd = (edge.view(np.int32) & 1).astype(bool)
    short = (noise < wanted) | ((noise == wanted) & odd)
    return np.where(short, np.nextafter(noise, np.float32(np.inf)), noise)


def _share(noise: Singles, refine_below: int) -> Floats:
    """Return the share of (word, refinement) whose correctly rounded Gumbel is at least noise."""
    below = np.nextafter(noise, np.float32(-np.inf)).astype(np.float64)
    fraction = -np.expm1(-np.exp(-(below + noise.astype(np.float64)) / 2))
    words = np.floor(fraction * 2.0**32 + 0.5)
    refined = np.floor(fraction * 2.0**64 + 0.5) * 2.0**-64
    return np.where(fraction * 2.0**32 < refine_below, refined, words * 2.0**-32)
