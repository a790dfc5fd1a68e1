"""From tiles of logits in memory to lists of a row's best tokens; path-exact.

The hooks are those of `kernels.stream.pipeline`. A program keeps the largest packed (score, token)
keys of its tiles, at most `LONGEST`, and replaces the least of them while a tile has a larger one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch import noise
from fsresearch.kernels.flags import LOG_MASS, PTX, SAMPLED
from fsresearch.kernels.merge.mass import leave_mass
from fsresearch.kernels.merge.packed import key, score_of
from fsresearch.kernels.philox import (
    REFINE_BELOW,
    REFINE_STREAM,
    gumbel,
    leaf_unit,
    philox,
    pick_lane,
)
from fsresearch.kernels.pieces import fill, maximum
from fsresearch.kernels.stream.units import (
    add_units,
    beside,
    open_race,
    peak_units,
    transform_units,
)

__all__ = ["LONGEST", "close_row", "lift", "open_row"]

LONGEST = tl.constexpr(64)
_LOG2_E = tl.constexpr(1.4426950408889634)
_LEAF_STREAM = tl.constexpr(noise.LEAF << 24)


@triton.jit
def open_row(source, race, draws, first, args, FLAGS: tl.constexpr):
    """Return (rows, state): what the row's tokens share, and the neutral summary.

    A list starts with different keys of no token; what is past its end is never the least.
    """
    rows = open_race(source, race, draws, args, _LEAF_STREAM, FLAGS)
    like = first[None, :]
    place = tl.arange(0, LONGEST)
    listed = tl.where(place < args[4][2], place, -1).to(tl.int64).to(tl.uint64, bitcast=True)
    floor = float("nan") + fill(race, 0.0)
    return rows, (listed, floor, fill(like, float("-inf")), fill(like, 0.0))


@triton.jit
def lift(raw, first, rows, state, args, FLAGS: tl.constexpr):
    """Merge a tile into the state (list, floor, mass maximum, mass).

    A Gumbel is at most ``-log(word / 2**32)``, so one comparison tells which units may have a token
    that reaches the floor, the least score of the list. Only they go on.
    """
    listed, floor, top, mass = state
    x = transform_units(raw, first, rows, args, FLAGS)
    high = peak_units(x)
    if LOG_MASS & FLAGS:
        mass = add_units(x, high, top, mass)
    first = first[None, :] + args[3][1]
    if PTX & FLAGS:
        first = beside(first, high)
    words = _words(first, rows, FLAGS)
    ranks = _ranks(words, high, rows, FLAGS)
    slack = 1.6e-5 + tl.abs(floor) * 6e-7
    limit = tl.exp2((high - floor + slack) * _LOG2_E + 32.0)
    if _some(_least(ranks), limit):
        listed = _absorb(listed, x, words, ranks, limit, first, rows, FLAGS)
        floor = score_of((tl.min(listed, 0) >> 32).to(tl.uint32))
    return listed, floor, maximum(top, high), mass


@triton.jit
def close_row(slot, slots, rows, state, args, FLAGS: tl.constexpr):
    """Write a program's mass and its list."""
    listed, _, top, mass = state
    lists, left, k = args[4]
    num_rows, race = args[3][3], rows[3]
    if LOG_MASS & FLAGS:
        here = race + tl.arange(0, 1)
        leave_mass(top, mass, rows[0], here == race, slot, left, num_rows)
    place = tl.arange(0, LONGEST)
    at = (slot.to(tl.int64) * num_rows + race) * k + place
    tl.store(lists + at, listed, mask=place < k)


@triton.jit
def _words(first, rows, FLAGS: tl.constexpr):
    """Return the words of every unit."""
    _, _, _, _, _, k0, k1, c1, c2, c3, _ = rows
    if SAMPLED & FLAGS:
        return philox(k0, k1, leaf_unit(first), c1, c2, c3)
    else:
        zero = fill(first, 0).to(tl.uint32)
        return zero, zero, zero, zero


@triton.jit
def _ranks(words, high, rows, FLAGS: tl.constexpr):
    """Return the words as float32; all are 2**32, which is no noise, in greedy rows."""
    none = fill(high, 4294967296.0)
    if SAMPLED & FLAGS:
        r0 = tl.where(rows[4], none, words[0].to(tl.float32))
        r1 = tl.where(rows[4], none, words[1].to(tl.float32))
        r2 = tl.where(rows[4], none, words[2].to(tl.float32))
        return r0, r1, r2, tl.where(rows[4], none, words[3].to(tl.float32))
    else:
        return none, none, none, none


@triton.jit
def _least(ranks):
    return tl.minimum(tl.minimum(ranks[0], ranks[1]), tl.minimum(ranks[2], ranks[3]))


@triton.jit
def _some(rank, limit):
    """Return whether a rank that is left is not above its limit; a NaN is no limit."""
    reaches = tl.where((rank > limit) | (rank == float("inf")), 0, 1)
    return tl.max(tl.max(reaches, 1), 0) > 0


@triton.jit
def _absorb(listed, x, words, ranks, limit, first, rows, FLAGS: tl.constexpr):
    """Add a tile's tokens to a list, of every unit the one of least rank, while some may reach."""
    r0, r1, r2, r3 = ranks
    rank = _least(ranks)
    while _some(rank, limit):
        lane = tl.where(r0 == rank, 0, tl.where(r1 == rank, 1, tl.where(r2 == rank, 2, 3)))
        token = first + lane * 16
        score = _score(_pick(lane, x), _pick(lane, words), token, rows, FLAGS)
        listed = _insert(listed, key(tl.where(score == score, score, float("nan")), token))
        r0 = tl.where(lane == 0, float("inf"), r0)
        r1 = tl.where(lane == 1, float("inf"), r1)
        r2 = tl.where(lane == 2, float("inf"), r2)
        r3 = tl.where(lane == 3, float("inf"), r3)
        rank = _least((r0, r1, r2, r3))
    return listed


@triton.jit
def _pick(lane, x):
    """Return of every unit the value in a lane."""
    return tl.where(lane == 0, x[0], tl.where(lane == 1, x[1], tl.where(lane == 2, x[2], x[3])))


@triton.jit
def _score(x, word, token, rows, FLAGS: tl.constexpr):
    """Return the scores of tokens by their definition; few tiles have a word to be refined."""
    _, _, _, _, greedy, k0, k1, c1, c2, c3, _ = rows
    if SAMPLED & FLAGS:
        more = word
        if tl.min(tl.min(word, 1), 0) < REFINE_BELOW:
            w0, w1, w2, w3 = philox(k0, k1, leaf_unit(token), c1, c2, c3 | REFINE_STREAM)
            more = pick_lane(token, w0, w1, w2, w3)
        x += tl.where(greedy, 0.0, gumbel(word, more))
    return x


@triton.jit
def _insert(listed, keys):
    """Replace the least keys of a list by larger ones."""
    best, least = tl.max(tl.max(keys, 1), 0), tl.min(listed, 0)
    while best > least:
        listed = tl.where(listed == least, best, listed)
        keys = tl.where(keys == best, 0, keys)
        best, least = tl.max(tl.max(keys, 1), 0), tl.min(listed, 0)
    return listed
