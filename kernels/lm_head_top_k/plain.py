"""The plain form: every tile is scored, and the rows' k best tokens stay in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch.kernels.lm_head_top_k.tile import (
    add_tile,
    close_sums,
    open_scored,
    open_sums,
    score_tile,
    take_best,
)
from fsresearch.kernels.merge.packed import key
from fsresearch.kernels.pieces import fill, first_piece

__all__ = ["LONGEST", "close_rows", "lift", "open_rows", "peek"]

LONGEST = tl.constexpr(64)


@triton.jit
def open_rows(row, column, args, FLAGS: tl.constexpr):
    """Return (rows, state) as the Hopper form does; the state has keys uint64 [rows, LONGEST].

    The first k start at different numbers below those of any token, the rest above.
    """
    rows = open_scored(row, column, args, FLAGS)
    place = tl.arange(0, LONGEST)[None, :].to(tl.uint64)
    kept = tl.where(place < args[3][2], place, ~place) + fill(row, 0)[:, None].to(tl.uint64)
    return rows, (kept, open_sums(rows))


@triton.jit
def peek(start, rows, args, FLAGS: tl.constexpr):
    """Load nothing."""
    return 0


@triton.jit
def lift(logits, column, early, rows, state, args, FLAGS: tl.constexpr):
    """Merge a tile into the running summaries; arguments are the Hopper form's."""
    kept, sums = state
    logits, _, sums = add_tile(logits, column, rows, sums, args, FLAGS)
    first = first_piece(tl.broadcast_to(column[None, :], logits.shape)) + args[3][1]
    zero = fill(first, args[3][3] >> 30).to(tl.uint32)
    scored = score_tile(logits, rows, first, zero, 0, FLAGS)
    for _ in range(args[3][2]):
        best, token, scored = take_best(scored, first)
        mine = tl.where(best > float("-inf"), key(best, token), 0)
        low = tl.min(kept, 1)
        worse = (kept == low[:, None]) & (mine > low)[:, None]
        kept = tl.where(worse, mine[:, None], kept)
    return kept, sums


@triton.jit
def close_rows(slot, slots, band, rows, state, args, FLAGS: tl.constexpr):
    """Write a program's lists [slots, rows, k] and its masses [slots, rows]."""
    kept, sums = state
    k, num_rows = args[3][2], args[3][3]
    place = tl.arange(0, LONGEST)[None, :]
    at = (slot.to(tl.int64) * num_rows + rows[0])[:, None] * k + place
    tl.store(args[4][0] + at, kept, mask=(rows[0] < num_rows)[:, None] & (place < k))
    close_sums(slot, slot.to(tl.int64), rows, sums, args, FLAGS)
