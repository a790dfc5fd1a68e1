"""The Hopper form: from tiles of raw logits to lists of the rows' k best tokens; path-exact.

A program keeps, for each of its rows, a list in memory of the k largest packed (score, token) keys
that it has seen. It fills it from its first tile, best first (`lm_head_top_k.tile`). Of later tiles
only tokens above a bound are scored (`lm_head_top_k.scan`); a tile with too many of them is emptied
as the first was.

All programs share the bound. A row has k cells, each the largest of keys that no other cell was
given, so k different tokens are at least as good as the smallest cell, and what is below it is not
among the k best. Cells decide nothing; they live where the tokens will be returned.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch.kernels.lm_head_top_k.scan import NOTED, insert, note, settle
from fsresearch.kernels.lm_head_top_k.tile import (
    add_tile,
    close_sums,
    open_scored,
    open_sums,
    score_tile,
    take_best,
)
from fsresearch.kernels.merge.packed import key, score_of
from fsresearch.kernels.merge.ranked import NOTHING
from fsresearch.kernels.pieces import fill, first_piece

__all__ = ["close_rows", "lift", "open_rows", "peek"]

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def open_rows(row, column, args, FLAGS: tl.constexpr):
    """Return (rows, state): what a row's tokens share, and the neutral summary.

    ``row`` is int32 [rows]; those past the batch are computed and not written. ``column`` is int32
    [columns]. ``args`` is what the launcher passes.
    """
    rows = open_scored(row, column, args, FLAGS)
    none = fill(rows[2], 0).to(tl.uint64)
    # Two keys that wait, the tiles so far, and those of `open_sums`.
    return rows, (none, none, tl.program_id(0) * 0, open_sums(rows))


@triton.jit
def peek(rows, args, FLAGS: tl.constexpr):
    """Load nothing: bounds are better where they are used."""
    return 0


@triton.jit
def lift(logits, column, early, rows, state, args, FLAGS: tl.constexpr):
    """Merge a tile into the running summaries.

    Args:
        logits: float32 [rows, columns], raw.
        column: int32 [columns], local ids; the first is a multiple of 64.
        early: from `peek`.
        rows: from `open_rows`.
        state: so far.
        args: from the launcher.
        FLAGS: the options that are on.
    """
    younger, older, tiles, sums = state
    logits, high, sums = add_tile(logits, column, rows, sums, args, FLAGS)
    first = first_piece(tl.broadcast_to(column[None, :], logits.shape)) + args[3][1]
    zero = fill(first, args[3][3] >> 30).to(tl.uint32)
    bound, cell = _bound(first, rows, args)
    noted = _nothing(first, zero)
    if tiles > 0:
        noted = _note(logits, noted, high, first, zero, bound, rows)
    if (tiles == 0) | (tl.max(tl.max(noted[9], 1), 0) > NOTED):
        _empty(score_tile(logits, rows, first, zero, 0, FLAGS), first, tiles, rows, args)
    else:
        x1, t1, w1, x2, t2, w2, x3, t3, w3, _ = noted
        known = bound, cell, _entries(rows[2], rows, args).to(tl.int64), args[3][2]
        younger, older = settle((younger, older), (x3, t3, w3), known, rows)
        younger, older = settle((younger, older), (x2, t2, w2), known, rows)
        younger, older = settle((younger, older), (x1, t1, w1), known, rows)
    return younger, older, tiles + 1, sums


@triton.jit
def close_rows(slot, slots, block, rows, state, args, FLAGS: tl.constexpr):
    """Complete a program's lists and write its masses [slots, rows]."""
    younger, older, _, sums = state
    entries = _entries(rows[2], rows, args).to(tl.int64)
    insert(younger, entries, args[3][2])
    insert(older, entries, args[3][2])
    close_sums(slot, rows, sums, args, FLAGS)


@triton.jit
def _entries(row, rows, args):
    """Return where the lists of rows begin, in lists [slots, rows, k]; programs are slot-major."""
    k, num_rows = args[3][2], args[3][3]
    slot = tl.program_id(0) // tl.cdiv(num_rows, rows[0].shape[0])
    held = tl.minimum(row, num_rows - 1)
    return args[4][0] + (slot.to(tl.int64) * num_rows + held) * k


@triton.jit
def _empty(scored, first, tiles, rows, args):
    """Move the best of a tile to the lists, one of each row at a time, and to the cells.

    Only what is above the bound moves, which other programs raise meanwhile. The first tile fills
    the lists.
    """
    k, num_rows = args[3][2], args[3][3]
    row = tl.max(rows[2], 1)
    live = tl.max(rows[3].to(tl.int32), 1) > 0
    slot = tl.program_id(0) // tl.cdiv(num_rows, row.shape[0])
    list_of_row = _entries(row, rows, args)
    entries = _entries(rows[2], rows, args).to(tl.int64)
    cells = args[4][1] + tl.minimum(row, num_rows - 1).to(tl.int64) * k
    nothing = fill(row, 0).to(tl.uint64)
    rank = tiles * 0
    some = rank + 1
    while (rank < k) & (some > 0):
        bound, _ = _bound(first, rows, args)
        best, token, scored = take_best(scored, first)
        mine = tl.where(live & (best > float("-inf")), key(best, token), 0)
        above = mine > tl.max(bound, 1)
        tl.atomic_max(cells + (slot + rank) % k, mine, mask=above, sem="relaxed")
        some = tl.max(above.to(tl.int32), 0)
        mine = tl.where(above, mine, 0)
        if tiles == 0:
            tl.store(list_of_row + rank, mine, mask=live)
        else:
            insert(tl.where((first >> 1 & 3) == 0, mine[:, None], 0), entries, k)
        rank += 1
    if tiles == 0:
        for rest in range(rank, k):
            tl.store(list_of_row + rest, nothing, mask=live)
    tl.debug_barrier()


@triton.jit
def _bound(first, rows, args):
    """Return (the smallest cell of each row, of each strand's share of them, its place)."""
    k, num_rows = args[3][2], args[3][3]
    cells = args[4][1] + tl.minimum(rows[2], num_rows - 1).to(tl.int64) * k
    low, at = _smallest(cells, first >> 1 & 3, k)
    bound = tl.maximum(tl.min(low, 1), NOTHING)[:, None]
    return tl.where(rows[3], bound, 0xFFFFFFFFFFFFFFFF), (cells + at).to(tl.int64)


@triton.jit
def _largest_word(high, floor, scale):
    """Return the largest word uint32 with which a strand's largest logit may reach the floor."""
    slack = 2.4e-5 + tl.abs(floor) * 6e-7
    word = tl.exp2((high - floor + slack) * _LOG2_E) * 4294967296.0
    word = tl.where(scale == 0.0, tl.where(high >= floor, 4294967296.0, 0.0), word)
    return tl.inline_asm_elementwise(
        "cvt.rzi.sat.u32.f32 $0, $1;", "=r,f", [word], dtype=tl.uint32, is_pure=True, pack=1
    )


@triton.jit
def _nothing(first, zero):
    """Return three tokens that are none (logit, token, word), and their number."""
    none = (fill(first, 0).to(tl.float32), fill(first, -1), zero)
    return none + none + none + (fill(first, 0),)


@triton.jit
def _note(logits, noted, high, first, zero, bound, rows):
    """Note the tokens of a tile that may be above the bound."""
    scale = rows[4]
    floor = score_of((bound >> 32).to(tl.uint32))
    reach = (2.4e-5 + tl.abs(floor) * 6e-7 - floor) * _LOG2_E + tl.where(scale == 0.0, 0.0, 32.0)
    mask = tl.where(scale == 0.0, 0, 0xFFFFFFFF).to(tl.uint32)
    known = _largest_word(high, floor, scale), reach, mask
    return note(logits, noted, known, rows, first, zero, 0)


@triton.jit
def _smallest(cells, strand, k):
    """Return the smallest key of each strand's share of a row's k cells, and its place."""
    low = fill(strand, 0).to(tl.uint64) - 1
    at = strand
    for start in range(0, k, 16):
        i0 = tl.minimum(start + strand, k - 1)
        i1 = tl.minimum(start + 4 + strand, k - 1)
        i2 = tl.minimum(start + 8 + strand, k - 1)
        i3 = tl.minimum(start + 12 + strand, k - 1)
        c0 = tl.load(cells + i0, cache_modifier=".cg")
        c1 = tl.load(cells + i1, cache_modifier=".cg")
        c2 = tl.load(cells + i2, cache_modifier=".cg")
        c3 = tl.load(cells + i3, cache_modifier=".cg")
        low, at = _smaller(low, at, c0, i0)
        low, at = _smaller(low, at, c1, i1)
        low, at = _smaller(low, at, c2, i2)
        low, at = _smaller(low, at, c3, i3)
    return low, at


@triton.jit
def _smaller(low, at, other, place):
    return tl.minimum(low, other), tl.where(other < low, place, at)
