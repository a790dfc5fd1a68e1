"""From tiles of logits in memory to the rows' winners; path-exact.

The hooks are those of `kernels.stream.pipeline`. The winner of a row is the largest of packed
(score, token) keys, and the key is also a lower bound of the winning score, which makes scans
cheap: a program starts from a bound of its own first tile. A greedy row keeps its largest logits in
registers instead. The last program of a row unpacks its key.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch import noise
from fsresearch.kernels.flags import LOG_MASS, PTX, SAMPLED, TEMPERATURE
from fsresearch.kernels.lm_head_max.scan import absorb_defined
from fsresearch.kernels.logits_max.scan import floor_of, scan
from fsresearch.kernels.merge.mass import leave_mass
from fsresearch.kernels.merge.packed import deliver, larger, ordered, poison, score_of, submit
from fsresearch.kernels.philox import leaf_unit, philox
from fsresearch.kernels.pieces import fill, maximum
from fsresearch.kernels.stream.units import (
    add_units,
    first_tokens,
    open_race,
    peak_units,
    transform_units,
)

__all__ = ["close_row", "lift", "open_row", "peek"]

_LEAF_STREAM = tl.constexpr(noise.LEAF << 24)


@triton.jit
def open_row(source, race, draws, unit, args, FLAGS: tl.constexpr):
    """Return (rows, state): what the row's tokens share, and the neutral summary."""
    rows = open_race(source, race, draws, args, _LEAF_STREAM, FLAGS)
    like = unit[None, :]
    lowest = fill(like, float("-inf"))
    return rows, (lowest, fill(like, -1), float("-inf") + fill(race, 0.0), lowest, fill(like, 0.0))


@triton.jit
def peek(rows, args, FLAGS: tl.constexpr):
    """Load the row's key, early enough that nobody waits for it."""
    return tl.load(args[4][0] + rows[3], cache_modifier=".cg")


@triton.jit
def lift(raw, unit, early, rows, state, args, FLAGS: tl.constexpr):
    """Merge a tile into the state (best, token, floor, mass maximum, mass)."""
    best, token, floor, top, mass = state
    greedy = rows[4]
    x = transform_units(raw, unit, rows, args, FLAGS)
    high = peak_units(x)
    if LOG_MASS & FLAGS:
        mass = add_units(x, high, top, mass)
    top = maximum(top, high)
    first = first_tokens(unit)[None, :] + args[3][1]
    if not SAMPLED & FLAGS:
        best, token = _argmax(x, first, best, token)
    elif not TEMPERATURE & FLAGS:
        best, token, floor = _race(x, high, first, early, best, token, floor, rows, args, FLAGS)
    elif greedy:
        best, token = _argmax(x, first, best, token)
    else:
        best, token, floor = _race(x, high, first, early, best, token, floor, rows, args, FLAGS)
    return best, token, floor, top, mass


@triton.jit
def close_row(slot, slots, rows, state, args, FLAGS: tl.constexpr):
    """Write a program's mass and add its winner to those of all programs."""
    best, token, _, top, mass = state
    keys, arrived, perturbed, chosen, left, races = args[4]
    row, draw, race = rows[0], rows[2], rows[3]
    here = race + tl.arange(0, 1)
    live = here == race
    if LOG_MASS & FLAGS:
        leave_mass(top, mass, row, here == race - draw, slot, left, args[3][3])
    if TEMPERATURE & FLAGS or not (SAMPLED & FLAGS and PTX & FLAGS):
        submit(best, token, here[:, None], live[:, None], keys, 0, races)
    broken = live & ~(tl.reduce(top, 1, maximum) < float("inf"))
    poison(here, broken, keys, 1, races)
    tl.debug_barrier()
    if tl.atomic_add(arrived + race, 1) == slots - 1:
        deliver(here, live, keys, perturbed, chosen, 1, races)


@triton.jit
def _argmax(x, first, best, token):
    """Keep the largest logits, the lowest ids on ties."""
    best, token = larger(best, token, x[0], first)
    best, token = larger(best, token, x[1], first + 16)
    best, token = larger(best, token, x[2], first + 32)
    return larger(best, token, x[3], first + 48)


@triton.jit
def _race(x, high, first, early, best, token, floor, rows, args, FLAGS: tl.constexpr):
    """Let a tile's tokens race; return (best, token, floor)."""
    _, _, _, race, _, k0, k1, c1, c2, c3, _ = rows
    if PTX & FLAGS:
        key = args[4][0] + race
        words = philox(k0, k1, leaf_unit(first), c1, c2, c3)
        if floor == float("-inf"):
            floor = floor_of(x, words)
            tl.atomic_max(key, ordered(floor).to(tl.uint64) << 32, sem="relaxed")
        floor = tl.maximum(floor, score_of((early >> 32).to(tl.uint32)))
        scan(x, high, words, first, floor, key, (k0, k1, c1, c2, c3))
    else:
        address = first, k0, k1, c1, c2, c3
        zero = fill(first, 0).to(tl.uint32)
        best, token = absorb_defined(
            (best, token), zero, first >= 0, address, x[0], x[1], x[2], x[3]
        )
    return best, token, floor
