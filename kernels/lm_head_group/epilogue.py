"""From tiles of raw logits to the rows' winning groups, in registers; law-exact.

A matmul pipeline calls `open_rows` once, `peek` before and a lift after the matmul of every tile,
and `close_rows` at the end. A group's score is its log-mass plus one Gumbel. Each row keeps its
best score and a token that the group's own uniform chooses at the moment it takes the lead: of the
threads that hold the row, the one that holds the token knows it, and the others keep -1.

Programs share, for every row, a lower bound of the winning score. It decides nothing: only groups
that lose to a group seen elsewhere are dropped. The winner of a row is the largest of packed
(score, token) keys, by one atomic a program; the last program unpacks them.

A greedy row's score of a group is its largest logit, and its token the first that attains it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch import noise
from fsresearch.kernels.flags import LOG_MASS, MANY_DRAWS, TEMPERATURE
from fsresearch.kernels.lm_head_group.quads import race_quads
from fsresearch.kernels.lm_head_group.race import race
from fsresearch.kernels.merge.mass import add_mass, leave_mass
from fsresearch.kernels.merge.packed import LOWEST, deliver, ordered, poison, score_of, submit
from fsresearch.kernels.pieces import fill, first_piece, maximum, peak
from fsresearch.kernels.rows import open_row_block
from fsresearch.kernels.transform import foresee, settled, transform

__all__ = ["close_rows", "lift", "lift_quads", "open_rows", "peek"]

_GROUP_STREAM = tl.constexpr(noise.GROUP << 24)


@triton.jit
def open_rows(row, column, args, FLAGS: tl.constexpr):
    """Return (rows, state): what a row's tokens share, and the neutral summary."""
    rows = open_row_block(row, column, args, _GROUP_STREAM, FLAGS)
    lowest = fill(rows[2], float("-inf"))
    return rows, (lowest, fill(rows[2], -1), lowest, fill(rows[2], 0.0))


@triton.jit
def peek(start, rows, args, FLAGS: tl.constexpr):
    """Load the shared bounds, and what columns have, early enough that nobody waits for them."""
    held = tl.minimum(rows[2], args[3][3] - 1)
    bound = tl.load(args[4][1] + held, cache_modifier=".cg")
    return bound, foresee(start, rows[2], args, FLAGS)


@triton.jit
def lift(logits, column, bound, rows, state, args, FLAGS: tl.constexpr):
    """Merge a tile into the running summaries, wherever Triton runs.

    Args:
        logits: float32 [rows, columns], raw.
        column: int32 [columns], local ids; the first is a multiple of 64.
        bound: from `peek`.
        rows: from `open_rows`.
        state: (best score, token, mass maximum, mass) so far.
        args: from the launcher.
        FLAGS: the options that are on.
    """
    return _lift(logits, column, bound, rows, state, args, False, FLAGS)


@triton.jit
def lift_quads(logits, column, bound, rows, state, args, FLAGS: tl.constexpr):
    """Merge a tile as `lift` does, where four neighbouring lanes hold a row."""
    return _lift(logits, column, bound, rows, state, args, True, FLAGS)


@triton.jit
def close_rows(slot, slots, band, rows, state, args, FLAGS: tl.constexpr):
    """Write a program's masses [slots, rows] and add its winners to those of all programs."""
    best, token, top, mass = state
    draws, num_rows = args[3][2], args[3][3]
    row, live = tl.max(rows[2], 1), tl.max(rows[3].to(tl.int32), 1) > 0
    if LOG_MASS & FLAGS:
        leave_mass(top, mass, row, live, slot, args[4][5], num_rows)
    if not MANY_DRAWS & FLAGS:
        _submit(best, token, 0, rows, args)
    sound = tl.reduce(top, 1, maximum) < float("inf")
    poison(row, live & ~sound, args[4][0], draws, num_rows)
    tl.debug_barrier()
    if tl.atomic_add(args[4][2] + band, 1) == slots - 1:
        deliver(row, live, args[4][0], args[4][3], args[4][4], draws, num_rows)


@triton.jit
def _lift(logits, column, bound, rows, state, args, QUADS: tl.constexpr, FLAGS: tl.constexpr):
    best, token, top, mass = state
    logits = transform(logits, column, rows[0], rows[1], args, FLAGS)
    high = peak(logits)
    if LOG_MASS & FLAGS:
        mass = add_mass(logits, high, top, mass)
    top = maximum(top, high)
    first = first_piece(tl.broadcast_to(column[None, :], logits.shape)) + args[3][1]
    if MANY_DRAWS & FLAGS:
        for draw in range(args[3][2]):
            _draw_one(logits, first, draw, rows, args, QUADS, FLAGS)
    else:
        known = _known(settled(bound, args), rows)
        best, token = _race(logits, best, token, known, first, 0, rows, QUADS, FLAGS)
        higher = tl.max((rows[3] & (best > known)).to(tl.int32), 1) > 0
        shared = args[4][1] + tl.max(rows[2], 1)
        tl.atomic_max(shared, ordered(tl.max(best, 1)), mask=higher, sem="relaxed")
    return best, token, top, mass


@triton.jit
def _draw_one(logits, first, draw, rows, args, QUADS: tl.constexpr, FLAGS: tl.constexpr):
    """One of several draws of a tile, added at once to those of other programs."""
    num_rows = args[3][3]
    seen = args[4][0] + draw * num_rows + tl.minimum(rows[2], num_rows - 1)
    seen = (tl.load(seen, cache_modifier=".cg") >> 32).to(tl.uint32)
    known = _known(seen, rows)
    lowest, token = fill(known, float("-inf")), fill(rows[2], -1)
    best, token = _race(logits, lowest, token, known, first, draw, rows, QUADS, FLAGS)
    _submit(best, token, draw, rows, args)


@triton.jit
def _known(seen, rows):
    """Return the score that a group must reach: none can in rows past the batch."""
    return tl.where(rows[3], score_of(tl.maximum(seen, LOWEST)), float("inf"))


@triton.jit
def _submit(best, token, draw, rows, args):
    """Add the winners of rows, each known to one strand, to those of all programs."""
    best = tl.where(token < 0, float("-inf"), best)
    submit(best, token, rows[2], rows[3], args[4][0], draw, args[3][3])


@triton.jit
def _race(logits, best, token, bound, first, draw, rows, QUADS: tl.constexpr, FLAGS: tl.constexpr):
    """Let a tile's groups race; return the rows' (best score, token)."""
    if QUADS:
        return race_quads(logits, best, token, bound, first, draw, rows, (TEMPERATURE & FLAGS) != 0)
    else:
        return race(logits, best, token, bound, first, draw, rows, 0)
