"""From tiles of logits in memory to lists of a row's best tokens; path-exact.

The hooks are those of `kernels.stream.pipeline`. A program keeps the largest packed (score, token)
keys of its tiles, at most `LONGEST`, and replaces the least of them while a tile has a larger one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch import noise
from fsresearch.kernels.flags import LOG_MASS, SAMPLED
from fsresearch.kernels.merge.mass import leave_mass
from fsresearch.kernels.merge.packed import key
from fsresearch.kernels.philox import REFINE_STREAM, gumbel, leaf_unit, philox
from fsresearch.kernels.pieces import fill, maximum
from fsresearch.kernels.stream.units import (
    add_units,
    first_tokens,
    open_race,
    peak_units,
    transform_units,
)

__all__ = ["LONGEST", "close_row", "lift", "open_row"]

LONGEST = tl.constexpr(64)
_LEAF_STREAM = tl.constexpr(noise.LEAF << 24)


@triton.jit
def open_row(source, race, draws, unit, args, FLAGS: tl.constexpr):
    """Return (rows, state): what the row's tokens share, and the neutral summary.

    A list starts with different keys of no token; what is past its end is never the least.
    """
    rows = open_race(source, race, draws, args, _LEAF_STREAM, FLAGS)
    like = unit[None, :]
    place = tl.arange(0, LONGEST)
    listed = tl.where(place < args[4][2], place, -1).to(tl.int64).to(tl.uint64, bitcast=True)
    return rows, (listed, fill(like, float("-inf")), fill(like, 0.0))


@triton.jit
def lift(raw, unit, early, rows, state, args, FLAGS: tl.constexpr):
    """Merge a tile into the state (list, mass maximum, mass)."""
    listed, top, mass = state
    x = transform_units(raw, unit, rows, args, FLAGS)
    high = peak_units(x)
    if LOG_MASS & FLAGS:
        mass = add_units(x, high, top, mass)
    k0, k1, k2, k3 = _keys(x, first_tokens(unit)[None, :] + args[3][1], rows, FLAGS)
    best, least = _largest(k0, k1, k2, k3), tl.min(listed, 0)
    while best > least:
        listed = tl.where(listed == least, best, listed)
        k0, k1 = tl.where(k0 == best, 0, k0), tl.where(k1 == best, 0, k1)
        k2, k3 = tl.where(k2 == best, 0, k2), tl.where(k3 == best, 0, k3)
        best, least = _largest(k0, k1, k2, k3), tl.min(listed, 0)
    return listed, maximum(top, high), mass


@triton.jit
def close_row(slot, slots, rows, state, args, FLAGS: tl.constexpr):
    """Write a program's mass and its list."""
    listed, top, mass = state
    lists, left, k = args[4]
    num_rows, race = args[3][3], rows[3]
    if LOG_MASS & FLAGS:
        here = race + tl.arange(0, 1)
        leave_mass(top, mass, rows[0], here == race, slot, left, num_rows)
    place = tl.arange(0, LONGEST)
    at = (slot.to(tl.int64) * num_rows + race) * k + place
    tl.store(lists + at, listed, mask=place < k)


@triton.jit
def _keys(x, first, rows, FLAGS: tl.constexpr):
    """Return the packed (score, token) keys of a tile, by the definition of scores."""
    _, _, _, _, greedy, k0, k1, c1, c2, c3, _ = rows
    x0, x1, x2, x3 = x
    if SAMPLED & FLAGS:
        unit = leaf_unit(first)
        w0, w1, w2, w3 = philox(k0, k1, unit, c1, c2, c3)
        r0, r1, r2, r3 = philox(k0, k1, unit, c1, c2, c3 | REFINE_STREAM)
        x0 += tl.where(greedy, 0.0, gumbel(w0, r0))
        x1 += tl.where(greedy, 0.0, gumbel(w1, r1))
        x2 += tl.where(greedy, 0.0, gumbel(w2, r2))
        x3 += tl.where(greedy, 0.0, gumbel(w3, r3))
    return _key(x0, first), _key(x1, first + 16), _key(x2, first + 32), _key(x3, first + 48)


@triton.jit
def _key(score, token):
    """Pack scores and tokens; every NaN becomes the one that is above all."""
    return key(tl.where(score == score, score, float("nan")), token)


@triton.jit
def _largest(k0, k1, k2, k3):
    return tl.max(tl.max(tl.maximum(tl.maximum(k0, k1), tl.maximum(k2, k3)), 1), 0)
