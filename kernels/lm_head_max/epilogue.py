"""From tiles of raw logits to the rows' winners, in registers; path-exact.

A matmul pipeline calls `open_rows` once, `peek` before and `lift` after the matmul of every tile,
and `close_rows` at the end. Each thread keeps its rows' best tokens from tile to tile (see
`kernels.pieces` and `lm_head_max.scan`) and scores them by the definition once, at the end. Where
rough scores cannot tell the best of a tile from the second, the tile is scored by the definition at
once.

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
from fsresearch.kernels.lm_head_max.scan import (
    park,
    scan_defined,
    scan_greedy,
    scan_parked,
    scan_rough,
)
from fsresearch.kernels.merge.mass import add_mass, leave_mass
from fsresearch.kernels.merge.packed import deliver, larger, ordered, poison, score_of, submit
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
from fsresearch.kernels.transform import foresee, settled, transform

__all__ = ["close_rows", "lift", "open_rows", "peek"]

_ROUGH_SCALE = tl.constexpr(-0.6931471805599453)
_LOG2_E = tl.constexpr(1.4426950408889634)
_NO_WORD = tl.constexpr(0xFFFFFFFF)
_LEAF_STREAM = tl.constexpr(noise.LEAF << 24)


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
    winner = (lowest, fill(wide, -1))
    rows = (row, factor, wide, live, scale, k0, k1, c2, c3)
    return rows, (winner, _no_pending(wide), lowest, lowest, fill(wide, 0.0))


@triton.jit
def peek(start, rows, args, FLAGS: tl.constexpr):
    """Load the shared bounds, and what columns have, early enough that nobody waits for them."""
    bound = tl.load(args[4][1] + tl.minimum(rows[2], args[3][3] - 1), cache_modifier=".cg")
    return bound, foresee(start, rows[2], args, FLAGS)


@triton.jit
def lift(logits, column, bound, rows, state, args, FLAGS: tl.constexpr):
    """Merge a tile into the running summaries.

    Args:
        logits: float32 [rows, columns], raw.
        column: int32 [columns], local ids; the first is a multiple of 64.
        bound: from `peek`.
        rows: from `open_rows`.
        state: (winner, pending, top, mass maximum, mass) so far.
        args: from the launcher.
        FLAGS: the options that are on.
    """
    winner, pending, floor, top, mass = state
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
        floor = tl.maximum(floor, score_of(settled(bound, args)))
        known = floor
        if SAMPLED & FLAGS:
            winner, pending, floor = _race(
                logits, high, first, 0, rows, winner, pending, floor, args, FLAGS
            )
        else:
            winner = scan_greedy(logits, winner, floor, first, 0, (PTX & FLAGS) != 0)
            floor = tl.maximum(floor, winner[0])
        if PTX & FLAGS:
            _share(floor, known, rows, args)
    return winner, pending, floor, top, mass


@triton.jit
def close_rows(slot, slots, band, rows, state, args, FLAGS: tl.constexpr):
    """Write a program's masses [slots, rows] and add its winners to those of all programs."""
    winner, pending, _, top, mass = state
    draws, num_rows = args[3][2], args[3][3]
    keys, _, arrived, perturbed, token, left, _, _ = args[4]
    row = tl.max(rows[2], 1)
    live = tl.max(rows[3].to(tl.int32), 1) > 0
    if LOG_MASS & FLAGS:
        leave_mass(top, mass, row, live, slot, left, num_rows)
    if not MANY_DRAWS & FLAGS:
        if SAMPLED & FLAGS:
            winner = _settle(winner, pending, 0, rows, FLAGS)
        _submit(winner, 0, rows, args)
    broken = live & ~(tl.reduce(top, 1, maximum) < float("inf"))
    poison(row, broken, keys, draws, num_rows)
    tl.debug_barrier()
    if tl.atomic_add(arrived + band, 1) == slots - 1:
        deliver(row, live, keys, perturbed, token, draws, num_rows)


@triton.jit
def _draw_one(logits, high, first, draw, rows, args, FLAGS: tl.constexpr):
    """One of several draws of a tile, settled at once and added to those of other programs."""
    wide, num_rows = rows[2], args[3][3]
    held = tl.minimum(wide, num_rows - 1)
    seen = tl.load(args[4][0] + draw * num_rows + held, cache_modifier=".cg")
    lowest = fill(wide, float("-inf"))
    floor = tl.maximum(lowest, score_of((seen >> 32).to(tl.uint32)))
    winner, pending, _ = _race(
        logits,
        high,
        first,
        draw,
        rows,
        (lowest, fill(wide, -1)),
        _no_pending(wide),
        floor,
        args,
        FLAGS,
    )
    _submit(_settle(winner, pending, draw, rows, FLAGS), draw, rows, args)


@triton.jit
def _submit(winner, draw, rows, args):
    """Add the winners of strands to those of all programs."""
    submit(winner[0], winner[1], rows[2], rows[3], args[4][0], draw, args[3][3])


@triton.jit
def _race(logits, high, first, draw, rows, winner, pending, floor, args, FLAGS: tl.constexpr):
    """Let a tile's tokens race; return (winner, pending, floor).

    Afterwards only a strand's winner and its pending token can still win the row, and the floor is
    at most the row's best score.
    """
    _, _, _, live, scale, k0, k1, c2, c3 = rows
    c1 = fill(k0, 0).to(tl.uint32)
    if MANY_DRAWS & FLAGS:
        c1 = c1 + draw
    address = (first, k0, k1, c1, c2, c3)
    turn = fill(first, args[3][3] >> 30).to(tl.uint32)
    if PTX & FLAGS:
        limit = _limit(high, floor, scale)
        best, logit, token, word = pending
        second = fill(first, float("-inf"))
        state = (best, second, logit, token, word, turn)
        state = scan_rough(logits, state, limit, scale, address, 0)
        best, second, logit, token, word, _ = state
        loss = tl.where(word < REFINE_BELOW, 1.0 / word.to(tl.float32), 0.0)
        lower = tl.max(tl.maximum(floor, best - _error(best) - loss), 1)
        floor = tl.maximum(floor, lower[:, None])
        doubt = (second + _error(second) >= floor) & (second > float("-inf")) & live
        pending = (best, logit, token, word)
        if tl.max(tl.max(doubt.to(tl.int32), 1), 0) > 0:
            _submit(
                _score_all(logits, turn, address, pending, draw, rows, args, FLAGS),
                draw,
                rows,
                args,
            )
            pending = _no_pending(first)
    else:
        winner = scan_defined(logits, winner, turn, scale != 0.0, address, 0)
    return winner, pending, floor


@triton.jit
def _score_all(logits, turn, address, pending, draw, rows, args, FLAGS: tl.constexpr):
    """Score a tile and what is pending by the definition; return the winners of the strands.

    It is rare, and registers are dear: one tile of memory serves all programs, one by one.
    """
    ROWS: tl.constexpr = logits.shape[0]
    first, lock = address[0], args[4][6]
    cell = args[4][7] + (rows[2] % ROWS * 4 + (first >> 1 & 3))
    while tl.atomic_cas(lock, 0, 1) != 0:
        pass
    park(logits, cell, 0)
    tl.debug_barrier()
    winner = _settle((fill(first, float("-inf")), fill(first, -1)), pending, draw, rows, FLAGS)
    winner = scan_parked(cell, winner, turn, rows[4] != 0.0, address, ROWS, logits.shape[1])
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)
    return winner


@triton.jit
def _limit(high, floor, scale):
    """Return the largest word uint32 with which a strand's largest logit may reach the floor."""
    slack = 1.6e-5 + tl.abs(floor) * 6e-7
    limit = tl.exp2((high - floor + slack) * _LOG2_E) * 4294967296.0
    limit = tl.where(scale == 0.0, tl.where(high >= floor, 4294967296.0, 0.0), limit)
    return tl.inline_asm_elementwise(
        "cvt.rzi.sat.u32.f32 $0, $1;", "=r,f", [limit], dtype=tl.uint32, is_pure=True, pack=1
    )


@triton.jit
def _error(score):
    """How far a rough score may lie from the defined one."""
    return ROUGH_ERROR + tl.abs(score) * 5e-7


@triton.jit
def _no_pending(like):
    """Return a pending token (rough score, logit, token, word) that is none."""
    return (
        fill(like, float("-inf")),
        fill(like, 0.0),
        fill(like, -1),
        fill(like, _NO_WORD).to(tl.uint32),
    )


@triton.jit
def _settle(winner, pending, draw, rows, FLAGS: tl.constexpr):
    """Score the pending token by the definition and return the winner of both."""
    _, logit, token, _ = pending
    _, _, _, _, scale, k0, k1, c2, c3 = rows
    unit = leaf_unit(token)
    c1 = fill(k0, 0).to(tl.uint32)
    if MANY_DRAWS & FLAGS:
        c1 = c1 + draw
    w0, w1, w2, w3 = philox(k0, k1, unit, c1, c2, c3)
    r0, r1, r2, r3 = philox(k0, k1, unit, c1, c2, c3 | REFINE_STREAM)
    noise = gumbel(pick_lane(token, w0, w1, w2, w3), pick_lane(token, r0, r1, r2, r3))
    score = logit + tl.where(scale == 0.0, 0.0, noise)
    score = tl.where(token < 0, float("-inf"), score)
    return larger(winner[0], winner[1], score, token)


@triton.jit
def _share(floor, known, rows, args):
    """Raise the shared bounds of the rows whose floor rose above what was known."""
    higher = tl.max((rows[3] & (floor > known)).to(tl.int32), 1) > 0
    bound = args[4][1] + tl.max(rows[2], 1)
    tl.atomic_max(bound, ordered(tl.max(floor, 1)), mask=higher, sem="relaxed")
