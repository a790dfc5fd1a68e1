"""Tiles in pieces: which tokens of a matrix accumulator lie together in one thread.

With the vocabulary along the columns of an accumulator a thread holds, of every 64 tokens, those
whose ids agree in bits 1 and 2. A piece [rows, 4] is one token of each such strand, so a value a
row and strand is one register a row, and no function here moves data between threads there.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "fill",
    "first_group",
    "first_piece",
    "halves",
    "maximum",
    "peak",
    "pieces",
    "spread",
    "united",
    "united_pieces",
    "words_apart",
]


@triton.jit
def halves(x):
    """Split [rows, columns] into its left and right halves."""
    x = tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2))
    return tl.split(tl.permute(x, (0, 2, 1)))


@triton.jit
def united(left, right):
    """Undo `halves`."""
    x = tl.permute(tl.join(left, right), (0, 2, 1))
    return tl.reshape(x, (x.shape[0], 2 * x.shape[2]))


@triton.jit
def words_apart(x):
    """Split 64 columns into four [rows, 16], the tokens that one Philox call serves."""
    x = tl.permute(tl.reshape(x, (x.shape[0], 2, 2, 16)), (0, 3, 2, 1))
    low, high = tl.split(x)
    x0, x1 = tl.split(low)
    x2, x3 = tl.split(high)
    return x0, x1, x2, x3


@triton.jit
def pieces(x):
    """Split 16 columns into four [rows, 4], which start at columns 0, 1, 8 and 9."""
    x = tl.permute(tl.reshape(x, (x.shape[0], 2, 4, 2)), (0, 2, 3, 1))
    low, high = tl.split(x)
    p0, p1 = tl.split(low)
    p8, p9 = tl.split(high)
    return p0, p1, p8, p9


@triton.jit
def united_pieces(p0, p1, p8, p9):
    """Undo `pieces`."""
    x = tl.permute(tl.join(tl.join(p0, p1), tl.join(p8, p9)), (0, 3, 1, 2))
    return tl.reshape(x, (x.shape[0], 16))


@triton.jit
def first_group(x):
    """Return the first 64 columns."""
    if x.shape[1] > 64:
        left, _ = halves(x)
        return first_group(left)
    else:
        return x


@triton.jit
def first_piece(x):
    """Return the first piece of [rows, columns]."""
    part, _, _, _ = words_apart(first_group(x))
    piece, _, _, _ = pieces(part)
    return piece


@triton.jit
def spread(value, columns):
    """Lay a row's value [rows] beside its strands, [rows, 4]."""
    return first_piece(tl.broadcast_to(value[:, None], (value.shape[0], columns.shape[0])))


@triton.jit
def fill(like, value):
    """Return a value laid out as another tensor."""
    return tl.where(like == like, value, value)


@triton.jit
def maximum(a, b):
    """The larger, where a NaN stays."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def peak(x):
    """Return the strands' largest values [rows, 4] of [rows, columns]; a NaN stays."""
    if x.shape[1] > 64:
        left, right = halves(x)
        return maximum(peak(left), peak(right))
    else:
        x0, x1, x2, x3 = words_apart(x)
        p0, p1, p8, p9 = pieces(maximum(maximum(x0, x1), maximum(x2, x3)))
        return maximum(maximum(p0, p1), maximum(p8, p9))
