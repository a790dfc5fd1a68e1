"""A whole tile, scored by the definition and emptied best first: simple, and slow.

The pieces of a tile (`kernels.pieces`) lie side by side in a tuple: four tokens 16 apart, then the
next four of every strand.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch import noise
from fsresearch.kernels.flags import LOG_MASS, PTX, SAMPLED
from fsresearch.kernels.merge.mass import add_mass, leave_mass
from fsresearch.kernels.merge.packed import poison
from fsresearch.kernels.philox import REFINE_STREAM, gumbel, gumbel_ptx, leaf_unit, philox
from fsresearch.kernels.pieces import fill, halves, maximum, peak, pieces, words_apart
from fsresearch.kernels.rows import open_row_block
from fsresearch.kernels.transform import transform

__all__ = ["add_tile", "close_sums", "open_scored", "open_sums", "score_tile", "take_best"]


def _scores_ptx() -> str:
    """Outputs: four scores. Inputs: first id, k0, k1, c2, c3, scale, four words, four logits."""
    return f"""{{
    .reg .f32 x, x1, x2, x3, g; .reg .b32 w, w1, w2, w3, n, token; .reg .pred p;
    mov.b32 w, $10; mov.b32 w1, $11; mov.b32 w2, $12; mov.b32 w3, $13;
    mov.f32 x, $14; mov.f32 x1, $15; mov.f32 x2, $16; mov.f32 x3, $17;
    setp.eq.f32 p, $9, 0f00000000;
    @p bra STILL;
    mov.b32 n, 0;
TOKEN:
    .pragma "nounroll";
    mad.lo.u32 token, n, 16, $4;
    {gumbel_ptx("w", "token", ["$5", "$6"], ["0", "$7", "$8"])}
    add.f32 g, x, g; mov.f32 x, x1; mov.f32 x1, x2; mov.f32 x2, x3; mov.f32 x3, g;
    mov.b32 w, w1; mov.b32 w1, w2; mov.b32 w2, w3;
    add.u32 n, n, 1; setp.lt.u32 p, n, 4;
    @p bra TOKEN;
STILL:
    mov.f32 $0, x; mov.f32 $1, x1; mov.f32 $2, x2; mov.f32 $3, x3;
}}"""


_SCORES_PTX = tl.constexpr(_scores_ptx())
_LEAF_STREAM = tl.constexpr(noise.LEAF << 24)
_NOWHERE = tl.constexpr(1 << 30)


@triton.jit
def open_scored(row, column, args, FLAGS: tl.constexpr):
    """Return rows: (row, factor, wide, live, scale, k0, k1, c2, c3), see `open_row_block`.

    ``scale`` is 1, or 0 for greedy rows.
    """
    row, factor, wide, live, greedy, k0, k1, c2, c3 = open_row_block(
        row, column, args, _LEAF_STREAM, FLAGS
    )
    scale = tl.where(greedy, 0.0, 1.0)
    if not SAMPLED & FLAGS:
        scale = fill(scale, 0.0)
    return row, factor, wide, live, scale, k0, k1, c2, c3


@triton.jit
def open_sums(rows):
    """Return (largest logits, masses) of nothing."""
    return fill(rows[2], float("-inf")), fill(rows[2], 0.0)


@triton.jit
def add_tile(logits, column, rows, sums, args, FLAGS: tl.constexpr):
    """Return (transformed logits, the strands' largest ones, the sums with the tile)."""
    top, mass = sums
    logits = transform(logits, column, rows[0], rows[1], args, FLAGS)
    high = peak(logits)
    if LOG_MASS & FLAGS:
        mass = add_mass(logits, high, top, mass)
    return logits, high, (maximum(top, high), mass)


@triton.jit
def close_sums(slot, lists, rows, sums, args, FLAGS: tl.constexpr):
    """Write a program's masses [slots, rows], and break lists of rows with NaN or +inf.

    ``lists`` says which, in lists [lists, rows, k].
    """
    top, mass = sums
    k, num_rows = args[3][2], args[3][3]
    row = tl.max(rows[2], 1)
    live = tl.max(rows[3].to(tl.int32), 1) > 0
    if LOG_MASS & FLAGS:
        leave_mass(top, mass, row, live, slot, args[4][1], num_rows)
    tl.debug_barrier()
    broken = live & ~(tl.reduce(top, 1, maximum) < float("inf"))
    poison((row.to(tl.int64) + lists * num_rows) * k, broken, args[4][0], 1, 0)


@triton.jit
def score_tile(logits, rows, first, zero, GROUP: tl.constexpr, FLAGS: tl.constexpr):
    """Return the scores of a tile in pieces.

    Args:
        logits: float32 [rows, columns].
        rows: from `open_rows`.
        first: int32 [rows, 4], the first token of each strand.
        zero: uint32 0, which only the caller knows (see `philox`).
        GROUP: 0; which 64 columns, inside.
        FLAGS: the options that are on.
    """
    if logits.shape[1] > 64:
        left, right = halves(logits)
        scored = score_tile(left, rows, first, zero, GROUP, FLAGS)
        zero = scored[len(scored) - 1].to(tl.uint32, bitcast=True) & zero
        SKIPPED: tl.constexpr = left.shape[1] // 64
        return scored + score_tile(right, rows, first, zero, GROUP + SKIPPED, FLAGS)
    else:
        x0, x1, x2, x3 = words_apart(logits)
        a0, a1, a8, a9 = pieces(x0)
        b0, b1, b8, b9 = pieces(x1)
        c0, c1, c8, c9 = pieces(x2)
        d0, d1, d8, d9 = pieces(x3)
        first = first + GROUP * 64
        p0 = _score_part(rows, first, zero, a0, b0, c0, d0, FLAGS)
        zero = p0[0].to(tl.uint32, bitcast=True) & zero
        p1 = _score_part(rows, first + 1, zero, a1, b1, c1, d1, FLAGS)
        zero = p1[0].to(tl.uint32, bitcast=True) & zero
        p8 = _score_part(rows, first + 8, zero, a8, b8, c8, d8, FLAGS)
        zero = p8[0].to(tl.uint32, bitcast=True) & zero
        return p0 + p1 + p8 + _score_part(rows, first + 9, zero, a9, b9, c9, d9, FLAGS)


@triton.jit
def _score_part(rows, first, zero, x0, x1, x2, x3, FLAGS: tl.constexpr):
    """Return the scores of the four tokens of one Philox call, of draw 0."""
    _, _, _, _, scale, k0, k1, c2, c3 = rows
    unit = leaf_unit(first)
    w0, w1, w2, w3 = philox(k0, k1, unit, zero, c2, c3, zero)
    if PTX & FLAGS:
        return tl.inline_asm_elementwise(
            _SCORES_PTX,
            "=&f,=&f,=&f,=&f,r,r,r,r,r,f,r,r,r,r,f,f,f,f",
            [first, k0, k1, c2, c3, scale, w0, w1, w2, w3, x0, x1, x2, x3],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    else:
        r0, r1, r2, r3 = philox(k0, k1, unit, zero, c2, c3 | REFINE_STREAM, zero)
        x0 = x0 + tl.where(scale != 0.0, gumbel(w0, r0), 0.0)
        x1 = x1 + tl.where(scale != 0.0, gumbel(w1, r1), 0.0)
        x2 = x2 + tl.where(scale != 0.0, gumbel(w2, r2), 0.0)
        x3 = x3 + tl.where(scale != 0.0, gumbel(w3, r3), 0.0)
        return x0, x1, x2, x3


@triton.jit
def take_best(scored, first):
    """Return (the best score of each row, its token, the tile without it); lowest id on ties.

    The first two are [rows]; where no score is above -inf the token is any number.
    """
    PIECES: tl.constexpr = len(scored)
    best = scored[0]
    for i in tl.static_range(1, PIECES):
        best = tl.maximum(best, scored[i])
    best = tl.max(best, 1)
    at = fill(first, _NOWHERE)
    for i in tl.static_range(PIECES):
        last = scored[_falling(PIECES, i)]
        at = tl.where(last == best[:, None], _offset(_falling(PIECES, i)), at)
    token = tl.min(first + at, 1)
    at = token[:, None] - first
    rest = ()
    for i in tl.static_range(PIECES):
        rest = rest + (tl.where(at == _offset(i), float("-inf"), scored[i]),)  # noqa: RUF005
    return best, token, rest


@triton.constexpr_function
def _falling(pieces, i):
    """Return the place in a tuple of a strand's tokens, the last id first."""
    i = pieces - 1 - i
    return i // 16 * 16 + i % 4 * 4 + i % 16 // 4


@triton.constexpr_function
def _offset(place):
    """Return the distance of a place's token from the strand's first."""
    part = place // 4
    return part // 4 * 64 + part % 2 + part % 4 // 2 * 8 + place % 4 * 16
