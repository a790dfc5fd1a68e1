"""The Hopper form: from tiles of raw logits to lists of the rows' k best tokens; path-exact.

A row has one list of packed (score, token) keys in memory, the k largest that any program has seen,
where a key displaces a smaller one (`lm_head_top_k.scan`). The smallest of the list is a bound that
all programs share: of a tile only the tokens above it are scored. So after a row's first n tokens
about k in n of the next are, and nothing is left to merge.

In its first tile a program knows nothing, and almost every token would be above its bound. So it
posts the best of each strand (`kernels.pieces`) to k other cells of the row first, by a score that
is surely not too large. Each cell is the largest of tokens that no other cell was given, so k
different tokens are at least as good as the smallest cell, which is the bound of the first tile.

Stale bounds cost time and decide nothing. A tile with too many tokens for them looks at them again.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch.kernels.lm_head_max.scan import scan_rough
from fsresearch.kernels.lm_head_top_k.scan import NOTED, note, settle
from fsresearch.kernels.lm_head_top_k.tile import add_tile, close_sums, open_scored, open_sums
from fsresearch.kernels.merge.packed import key, score_of
from fsresearch.kernels.merge.ranked import NOTHING
from fsresearch.kernels.philox import REFINE_BELOW, ROUGH_ERROR
from fsresearch.kernels.pieces import fill, first_piece

__all__ = ["close_rows", "lift", "open_rows", "peek"]

_LOG2_E = tl.constexpr(1.4426950408889634)
_ROUGH_SCALE = tl.constexpr(-0.6931471805599453)
_ALL = tl.constexpr(1 << 30)
_LOOKS = tl.constexpr(8)


@triton.jit
def open_rows(row, column, args, FLAGS: tl.constexpr):
    """Return (rows, state): what a row's tokens share, and the neutral summary.

    ``row`` is int32 [rows]; those past the batch are computed and not written. ``column`` is int32
    [columns]. ``args`` is what the launcher passes.
    """
    rows = open_scored(row, column, args, FLAGS)
    return rows, (tl.program_id(0) * 0, open_sums(rows))


@triton.jit
def peek(start, rows, args, FLAGS: tl.constexpr):
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
        state: (tiles, sums) so far.
        args: from the launcher.
        FLAGS: the options that are on.
    """
    tiles, sums = state
    logits, high, sums = add_tile(logits, column, rows, sums, args, FLAGS)
    first = first_piece(tl.broadcast_to(column[None, :], logits.shape)) + args[3][1]
    zero = fill(first, args[3][3] >> 30).to(tl.uint32)
    if tiles == 0:
        _post(logits, first, zero, rows, args)
    bound, place = _bound(first, tiles, rows, args)
    quota = fill(first, _ALL)
    looks = tiles * 0 + _LOOKS
    most = looks
    while most > 0:
        x1, t1, x2, t2, count = _note(logits, quota, high, first, zero, bound, rows)
        count += quota
        most = tl.max(tl.max(count, 1), 0)
        again = (most > NOTED) & (looks > 0)
        if again:
            # Perhaps other programs have raised the bound, or are about to.
            newer, place = _bound(first, tiles, rows, args)
            risen = rows[3] & ((newer > bound) | (newer == NOTHING))
            again = tl.max(tl.max(risen.to(tl.int32), 1), 0) > 0
            bound = tl.maximum(newer, bound)
            looks -= 1
        if not again:
            known = bound, place, _entries(rows[2], args).to(tl.int64), args[3][2]
            settle(x1, t1, known, rows, zero)
            if most > 1:
                settle(x2, t2, known, rows, zero)
            # Those before the ones that were settled, which the same bound finds again.
            quota = count - NOTED
            most -= NOTED
            looks = 0
    return tiles + 1, sums


@triton.jit
def close_rows(slot, slots, band, rows, state, args, FLAGS: tl.constexpr):
    """Write a program's masses [slots, rows], and break the lists of broken rows."""
    close_sums(slot, 0, rows, state[1], args, FLAGS)


@triton.jit
def _entries(row, args):
    """Return where the lists of rows begin, in cells [2, rows, k]: lists, then first bounds."""
    return args[4][0] + tl.minimum(row, args[3][3] - 1).to(tl.int64) * args[3][2]


@triton.jit
def _own(first, rows, args):
    """Return a cell of each strand, so that programs and strands are spread evenly."""
    slot = tl.program_id(0) // tl.cdiv(args[3][3], rows[0].shape[0])
    return (slot * 4 + (first >> 1 & 3)) % args[3][2]


@triton.jit
def _post(logits, first, zero, rows, args):
    """Post the best of each strand of a first tile, by a lower bound of its score."""
    _, _, _, live, scale, k0, k1, c2, c3 = rows
    lowest = fill(first, float("-inf"))
    state = (lowest, lowest, lowest, fill(first, -1), zero, zero)
    address = (first, k0, k1, zero, c2, c3)
    best, _, _, token, word, _ = scan_rough(logits, state, ~zero, scale * _ROUGH_SCALE, address, 0)
    loss = tl.where(word < REFINE_BELOW, 1.0 / word.to(tl.float32), 0.0)
    lower = best - (ROUGH_ERROR + tl.abs(best) * 5e-7) - loss
    cell = (
        _entries(rows[2], args)
        + tl.cast(args[3][3], tl.int64) * args[3][2]
        + _own(first, rows, args)
    )
    usable = live & (lower > float("-inf")) & (lower < float("inf"))
    tl.atomic_max(cell, key(lower, token), mask=usable, sem="relaxed")


@triton.jit
def _bound(first, tiles, rows, args):
    """Return (the bound of each row, the place in its list where a key should begin)."""
    entries, place = _entries(rows[2], args), _own(first, rows, args)
    if tiles == 0:
        bound, _ = _smallest(entries + tl.cast(args[3][3], tl.int64) * args[3][2], first, args)
    else:
        bound, place = _smallest(entries, first, args)
    bound = tl.maximum(bound, NOTHING)
    return tl.where(rows[3], bound, 0xFFFFFFFFFFFFFFFF), place


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
def _note(logits, quota, high, first, zero, bound, rows):
    """Note up to a quota of the tokens of a tile that may be above the bound, the last two of them.

    The quota changes while a tile is looked at. Tokens that would not depend on it would have the
    first steps of Philox taken before, into more registers than there are.
    """
    scale = rows[4]
    first += quota & zero.to(tl.int32)
    floor = score_of((bound >> 32).to(tl.uint32))
    reach = (2.4e-5 + tl.abs(floor) * 6e-7 - floor) * _LOG2_E + tl.where(scale == 0.0, 0.0, 32.0)
    mask = tl.where(scale == 0.0, 0, 0xFFFFFFFF).to(tl.uint32)
    limit = tl.where(quota > 0, _largest_word(high, floor, scale), 0)
    none = (fill(first, 0).to(tl.float32), fill(first, -1))
    return note(logits, none + none + (-quota,), (limit, reach, mask), rows, first, zero, 0)


@triton.jit
def _smallest(cells, first, args):
    """Return the smallest of each row's k cells, and its place; the strands share the reading."""
    k, strand = args[3][2], first >> 1 & 3
    low = fill(strand, 0).to(tl.uint64) + 0xFFFFFFFFFFFFFFFF
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
    smallest = fill(low, 0) + tl.min(low, 1)[:, None]
    return smallest, fill(at, 0) + tl.max(tl.where(low == smallest, at, 0), 1)[:, None]


@triton.jit
def _smaller(low, at, other, place):
    return tl.minimum(low, other), tl.where(other < low, place, at)
