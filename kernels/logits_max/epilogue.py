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
from fsresearch.kernels.merge.packed import deliver, ordered, poison, score_of, submit
from fsresearch.kernels.philox import leaf_unit, philox
from fsresearch.kernels.pieces import fill, maximum
from fsresearch.kernels.stream.units import (
    add_units,
    beside,
    open_race,
    peak_units,
    transform_units,
)

__all__ = ["close_row", "lift", "open_row"]

_LEAF_STREAM = tl.constexpr(noise.LEAF << 24)


@triton.jit
def open_row(source, race, draws, first, args, FLAGS: tl.constexpr):
    """Return (rows, state): what the row's tokens share, and the neutral summary."""
    rows = open_race(source, race, draws, args, _LEAF_STREAM, FLAGS)
    like = first[None, :]
    lowest = fill(like, float("-inf"))
    return rows, (lowest, fill(like, -1), float("-inf") + fill(race, 0.0), lowest, fill(like, 0.0))


@triton.jit
def lift(raw, first, rows, state, args, FLAGS: tl.constexpr):
    """Merge a tile into the state (best, token, floor, mass maximum, mass)."""
    best, token, floor, top, mass = state
    x = transform_units(raw, first, rows, args, FLAGS)
    high = peak_units(x)
    if LOG_MASS & FLAGS:
        mass = add_units(x, high, top, mass)
    top = maximum(top, high)
    first = first[None, :] + args[3][1]
    if not SAMPLED & FLAGS:
        best, token = _argmax(x, high, first, best, token)
    elif not TEMPERATURE & FLAGS:
        best, token, floor = _race(x, high, first, best, token, floor, rows, args, FLAGS)
    elif rows[4]:
        best, token = _argmax(x, high, first, best, token)
    else:
        best, token, floor = _race(x, high, first, best, token, floor, rows, args, FLAGS)
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
def _argmax(x, high, first, best, token):
    """Keep the largest logits, the lowest ids on ties: tokens come in ascending order."""
    last = tl.where(x[2] == high, 32, 48)
    place = tl.where(x[0] == high, 0, tl.where(x[1] == high, 16, last))
    take = high > best
    return tl.where(take, high, best), tl.where(take, first + place, token)


@triton.jit
def _race(x, high, first, best, token, floor, rows, args, FLAGS: tl.constexpr):
    """Let a tile's tokens race; return (best, token, floor)."""
    _, _, _, race, _, k0, k1, c1, c2, c3, _ = rows
    if PTX & FLAGS:
        key = args[4][0] + race
        early = _peek(key)
        first = beside(first, high)
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


@triton.jit
def _peek(key):
    """Load a row's key as it is now: the pipeline would have loaded it some tiles ago."""
    return tl.inline_asm_elementwise(
        "ld.relaxed.gpu.global.b64 $0, [$1];",
        "=l,l",
        (key.to(tl.uint64),),
        dtype=tl.uint64,
        is_pure=False,
        pack=1,
    )
