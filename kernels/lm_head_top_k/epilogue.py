"""From tiles of raw logits to lists of the rows' k best tokens; path-exact.

A program keeps, for each of its rows, a list in memory of the k largest packed (score, token) keys
that it has seen. It fills it from its first tile, best first (`lm_head_top_k.tile`). Of later tiles
only tokens above a bound are scored (`lm_head_top_k.scan`).

All programs share the bound. A row has k cells, each the largest of keys that no other cell was
given, so k different tokens are at least as good as the smallest cell, and what is below it is not
among the k best. Cells decide nothing; they live where the tokens will be returned.

Without PTX every tile is scored and emptied, and the list stays in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch import noise
from fsresearch.kernels.flags import LOG_MASS, PTX, SAMPLED
from fsresearch.kernels.lm_head_max.scan import limit
from fsresearch.kernels.lm_head_top_k.scan import insert, scan
from fsresearch.kernels.lm_head_top_k.tile import score_tile, take_best
from fsresearch.kernels.merge.mass import add_mass, leave_mass
from fsresearch.kernels.merge.packed import key, poison, score_of
from fsresearch.kernels.merge.ranked import NOTHING
from fsresearch.kernels.pieces import fill, first_piece, maximum, peak
from fsresearch.kernels.rows import open_row_block
from fsresearch.kernels.transform import transform

__all__ = ["LONGEST", "close_rows", "lift", "open_rows", "peek"]

LONGEST = tl.constexpr(64)
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
    scale = tl.where(greedy, 0.0, 1.0)
    if not SAMPLED & FLAGS:
        scale = fill(wide, 0.0)
    if PTX & FLAGS:
        none = fill(wide, 0).to(tl.uint64)
        # The two keys that wait, and how many tiles there were.
        kept = (none, none, tl.program_id(0) * 0)
    else:
        place = tl.arange(0, LONGEST)[None, :].to(tl.uint64)
        kept = tl.where(place < args[3][2], place, ~place) + fill(row, 0)[:, None].to(tl.uint64)
    rows = (row, factor, wide, live, scale, k0, k1, c2, c3)
    return rows, (kept, fill(wide, float("-inf")), fill(wide, 0.0))


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
        state: (kept, mass maximum, mass) so far.
        args: from the launcher.
        FLAGS: the options that are on.
    """
    kept, top, mass = state
    logits = transform(logits, column, rows[0], rows[1], args, FLAGS)
    high = peak(logits)
    if LOG_MASS & FLAGS:
        mass = add_mass(logits, high, top, mass)
    top = maximum(top, high)
    first = first_piece(tl.broadcast_to(column[None, :], logits.shape)) + args[3][1]
    zero = fill(first, args[3][3] >> 30).to(tl.uint32)
    if PTX & FLAGS:
        younger, older, tiles = kept
        if tiles == 0:
            _fill_list(score_tile(logits, rows, first, zero, 0, FLAGS), first, rows, args)
        else:
            younger, older = _scan(logits, high, first, zero, (younger, older), rows, args)
        kept = (younger, older, tiles + 1)
    else:
        kept = _keep(score_tile(logits, rows, first, zero, 0, FLAGS), first, kept, args)
    return kept, top, mass


@triton.jit
def close_rows(slot, slots, block, rows, state, args, FLAGS: tl.constexpr):
    """Complete a program's lists and write its masses [slots, rows]."""
    kept, top, mass = state
    lists, _, left = args[4]
    k, num_rows = args[3][2], args[3][3]
    row = tl.max(rows[2], 1)
    live = tl.max(rows[3].to(tl.int32), 1) > 0
    if LOG_MASS & FLAGS:
        leave_mass(top, mass, row, live, slot, left, num_rows)
    if PTX & FLAGS:
        younger, older, _ = kept
        entries = _entries(rows[2], rows, args).to(tl.int64)
        insert(younger, entries, k)
        insert(older, entries, k)
    else:
        place = tl.arange(0, LONGEST)
        entries = _entries(rows[0], rows, args)
        held = (rows[0] < num_rows)[:, None] & (place < k)[None, :]
        tl.store(entries[:, None] + place[None, :], kept, mask=held)
    tl.debug_barrier()
    broken = live & ~(tl.reduce(top, 1, maximum) < float("inf"))
    poison((slot.to(tl.int64) * num_rows + row) * k, broken, lists, 1, 0)


@triton.jit
def _entries(row, rows, args):
    """Return where the lists of rows begin, in lists [slots, rows, k]; programs are slot-major."""
    k, num_rows = args[3][2], args[3][3]
    slot = tl.program_id(0) // tl.cdiv(num_rows, rows[0].shape[0])
    held = tl.minimum(row, num_rows - 1)
    return args[4][0] + (slot.to(tl.int64) * num_rows + held) * k


@triton.jit
def _fill_list(scored, first, rows, args):
    """Fill empty lists with the best of a tile, which also go to the cells."""
    k, num_rows = args[3][2], args[3][3]
    row = tl.max(rows[2], 1)
    live = tl.max(rows[3].to(tl.int32), 1) > 0
    slot = tl.program_id(0) // tl.cdiv(num_rows, row.shape[0])
    entries = _entries(row, rows, args)
    cells = args[4][1] + tl.minimum(row, num_rows - 1).to(tl.int64) * k
    for rank in range(k):
        best, token, scored = take_best(scored, first)
        found = best > float("-inf")
        mine = tl.where(found, key(best, token), 0)
        tl.store(entries + rank, mine, mask=live)
        tl.atomic_max(cells + (slot + rank) % k, mine, mask=live & found, sem="relaxed")
    tl.debug_barrier()


@triton.jit
def _scan(logits, high, first, zero, waiting, rows, args):
    """Scan a tile for tokens above the bound; return the keys that wait."""
    _, _, wide, live, scale, _, _, _, _ = rows
    k, num_rows = args[3][2], args[3][3]
    cells = args[4][1] + tl.minimum(wide, num_rows - 1).to(tl.int64) * k
    low, at = _smallest(cells, first >> 1 & 3, k)
    bound = tl.maximum(tl.min(low, 1), NOTHING)[:, None]
    bound = tl.where(live, bound, 0xFFFFFFFFFFFFFFFF)
    word = limit(high, score_of((bound >> 32).to(tl.uint32)), scale)
    entries = _entries(wide, rows, args).to(tl.int64)
    known = word, bound, (cells + at).to(tl.int64), entries, k
    return scan(logits, waiting, known, rows, first, zero, 0)


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


@triton.jit
def _keep(scored, first, kept, args):
    """Keep the best of a tile and of what was kept [rows, LONGEST], where there is no PTX."""
    for _ in range(args[3][2]):
        best, token, scored = take_best(scored, first)
        mine = tl.where(best > float("-inf"), key(best, token), 0)
        low = tl.min(kept, 1)
        worse = (kept == low[:, None]) & (mine > low)[:, None]
        kept = tl.where(worse, mine[:, None], kept)
    return kept
