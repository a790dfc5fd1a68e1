"""From tiles of raw logits to the rows' winners, in registers; path-exact.

A matmul pipeline calls `open_rows` once, `peek` before and `lift` after the matmul of every tile,
and `close_rows` at the end. Each thread keeps its rows' best tokens from tile to tile (see
`kernels.pieces` and `lm_head_max.scan`).

Programs share, for every row, a lower bound of the winning score, which is what makes scans cheap
after the first tile. It decides nothing: only tokens that lose to a token seen elsewhere are
dropped. The winner of a row is the largest of packed (score, token) keys, by one atomic a program;
the last program unpacks them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch import noise
from fsresearch.kernels.flags import LOG_MASS, MANY_DRAWS, PTX, SAMPLED, TEMPERATURE
from fsresearch.kernels.lm_head_max.scan import limit, race, scan_defined, scan_greedy
from fsresearch.kernels.merge.mass import add_mass, leave_mass
from fsresearch.kernels.merge.packed import deliver, ordered, poison, score_of, submit
from fsresearch.kernels.philox import (
    REFINE_BELOW,
    REFINE_STREAM,
    ROUGH_ERROR,
    gumbel,
    leaf_unit,
    philox,
    pick_lane,
)
from fsresearch.kernels.pieces import fill, first_piece, maximum, peak
from fsresearch.kernels.rows import open_row_block
from fsresearch.kernels.transform import transform

__all__ = ["close_rows", "lift", "open_rows", "peek"]

_LEAF_STREAM = tl.constexpr(noise.LEAF << 24)
_ROUGH_SCALE = tl.constexpr(-0.6931471805599453)


@triton.jit
def open_rows(row, column, args, FLAGS: tl.constexpr):
    """Return (rows, state): what a row's tokens share, and the neutral summary.

    ``row`` is int32 [rows]; those past the batch are computed and not written. ``column`` is int32
    [columns]. ``args`` is what the launcher passes.
    """
    row, factor, wide, live, greedy, k0, k1, c2, c3 = open_row_block(
        row, column, args, _LEAF_STREAM, FLAGS
    )
    scale = fill(wide, _ROUGH_SCALE)
    if TEMPERATURE & FLAGS:
        scale = tl.where(greedy, 0.0, scale)
    lowest = fill(wide, float("-inf"))
    rows = (row, factor, wide, live, scale, k0, k1, c2, c3)
    return rows, (_nobody(wide, FLAGS), lowest, lowest, fill(wide, 0.0))


@triton.jit
def peek(rows, args, FLAGS: tl.constexpr):
    """Load the shared bounds, early enough that nobody waits for them."""
    return tl.load(args[4][1] + tl.minimum(rows[2], args[3][3] - 1), cache_modifier=".cg")


@triton.jit
def lift(logits, column, bound, rows, state, args, FLAGS: tl.constexpr):
    """Merge a tile into the running summaries.

    Args:
        logits: float32 [rows, columns], raw.
        column: int32 [columns], local ids; the first is a multiple of 64.
        bound: from `peek`.
        rows: from `open_rows`.
        state: (leader, floor, top, mass) so far.
        args: from the launcher.
        FLAGS: the options that are on.
    """
    leader, floor, top, mass = state
    logits = transform(logits, column, rows[0], rows[1], args, FLAGS)
    high = peak(logits)
    if LOG_MASS & FLAGS:
        mass = add_mass(logits, high, top, mass)
    top = maximum(top, high)
    first = first_piece(tl.broadcast_to(column[None, :], logits.shape)) + args[3][1]
    if MANY_DRAWS & FLAGS:
        for draw in range(args[3][2]):
            _draw_one(logits, high, first, draw, rows, args, FLAGS)
    else:
        floor = tl.maximum(floor, score_of(bound))
        leader = _follow(logits, high, first, 0, rows, leader, floor, args, FLAGS)
        if PTX & FLAGS:
            known = floor
            floor = tl.maximum(floor, tl.max(_least_score(leader), 1)[:, None])
            _share(floor, known, rows, args)
    return leader, floor, top, mass


@triton.jit
def close_rows(slot, slots, block, rows, state, args, FLAGS: tl.constexpr):
    """Write a program's masses [slots, rows] and add its winners to those of all programs."""
    leader, _, top, mass = state
    draws, num_rows = args[3][2], args[3][3]
    keys, _, arrived, perturbed, token, left = args[4]
    row = tl.max(rows[2], 1)
    live = tl.max(rows[3].to(tl.int32), 1) > 0
    if LOG_MASS & FLAGS:
        leave_mass(top, mass, row, live, slot, left, num_rows)
    if not MANY_DRAWS & FLAGS:
        _submit(leader, 0, rows, args)
    broken = live & ~(tl.reduce(top, 1, maximum) < float("inf"))
    poison(row, broken, keys, draws, num_rows)
    tl.debug_barrier()
    if tl.atomic_add(arrived + block, 1) == slots - 1:
        deliver(row, live, keys, perturbed, token, draws, num_rows)


@triton.jit
def _draw_one(logits, high, first, draw, rows, args, FLAGS: tl.constexpr):
    """One of several draws of a tile, settled at once and added to those of other programs."""
    wide, num_rows = rows[2], args[3][3]
    held = tl.minimum(wide, num_rows - 1)
    seen = tl.load(args[4][0] + draw * num_rows + held, cache_modifier=".cg")
    lowest = fill(wide, float("-inf"))
    floor = tl.maximum(lowest, score_of((seen >> 32).to(tl.uint32)))
    leader = _follow(logits, high, first, draw, rows, _nobody(wide, FLAGS), floor, args, FLAGS)
    _submit(leader, draw, rows, args)


@triton.jit
def _nobody(like, FLAGS: tl.constexpr):
    """Return the leader of a strand without tokens.

    It is (score, token), or where tokens race by rough scores (rough score, logit, token, word, and
    what else its score depends on: draw).
    """
    lowest = fill(like, float("-inf"))
    if PTX & FLAGS and SAMPLED & FLAGS:
        return lowest, fill(like, 0.0), fill(like, -1), fill(like, -1).to(tl.uint32)
    else:
        return lowest, fill(like, -1)


@triton.jit
def _follow(logits, high, first, draw, rows, leader, floor, args, FLAGS: tl.constexpr):
    """Return the leaders of the strands after a tile; those below the floor may be missed."""
    _, _, _, _, scale, k0, k1, c2, c3 = rows
    c1 = fill(k0, 0).to(tl.uint32)
    if MANY_DRAWS & FLAGS:
        c1 = c1 + draw
    address = (first, k0, k1, c1, c2, c3)
    zero = fill(first, args[3][3] >> 30).to(tl.uint32)
    if not SAMPLED & FLAGS:
        return scan_greedy(logits, leader, floor, first, 0, (PTX & FLAGS) != 0)
    elif PTX & FLAGS:
        return race(logits, leader, limit(high, floor, scale), scale, zero, address, 0)
    else:
        return scan_defined(logits, leader, zero, scale != 0.0, address, 0)


@triton.jit
def _least_score(leader):
    """Return a bound of the leaders' scores from below."""
    score = leader[0]
    if len(leader) > 2:
        loss = tl.where(leader[3] < REFINE_BELOW, 1.0 / leader[3].to(tl.float32), 0.0)
        score = score - (ROUGH_ERROR + tl.abs(score) * 5e-7) - loss
    return score


@triton.jit
def _submit(leader, draw, rows, args):
    """Score the leaders of strands by the definition and add them to those of all programs."""
    score = leader[0]
    token = leader[1]
    if len(leader) > 2:
        _, _, _, _, scale, k0, k1, c2, c3 = rows
        token = leader[2]
        unit = leaf_unit(token)
        c1 = fill(k0, draw).to(tl.uint32)
        w0, w1, w2, w3 = philox(k0, k1, unit, c1, c2, c3)
        r0, r1, r2, r3 = philox(k0, k1, unit, c1, c2, c3 | REFINE_STREAM)
        noise = gumbel(pick_lane(token, w0, w1, w2, w3), pick_lane(token, r0, r1, r2, r3))
        score = leader[1] + tl.where(scale == 0.0, 0.0, noise)
    submit(score, token, rows[2], rows[3], args[4][0], draw, args[3][3])


@triton.jit
def _share(floor, known, rows, args):
    """Raise the shared bounds of the rows whose floor rose above what was known."""
    higher = tl.max((rows[3] & (floor > known)).to(tl.int32), 1) > 0
    bound = args[4][1] + tl.max(rows[2], 1)
    tl.atomic_max(bound, ordered(tl.max(floor, 1)), mask=higher, sem="relaxed")
