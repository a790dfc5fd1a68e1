"""A tile's logits on their way from the matmul to the epilogue, in the library's order."""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch.kernels.flags import (
    BIAS,
    BIAS_BY_ROW,
    EVEN_VOCAB,
    INVERSE,
    MASK,
    MASK_BY_ROW,
    PACKED,
    SCALE,
    SOFTCAP,
    TEMPERATURE,
)
from fsresearch.kernels.pieces import fill, first_piece, halves, pieces, united, united_pieces

__all__ = ["MIN_TEMPERATURE", "foresee", "inverse_temperature", "settled", "transform"]

MIN_TEMPERATURE = tl.constexpr(1e-6)


@triton.jit
def inverse_temperature(t):
    """Return 1 / T, 1 for a greedy row, NaN where T is no temperature."""
    usable = (t >= MIN_TEMPERATURE) & (t < float("inf"))
    factor = tl.where(usable, tl.math.div_rn(1.0, tl.where(usable, t, 1.0)), float("nan"))
    return tl.where(t == 0.0, 1.0, factor)


@triton.jit
def foresee(start, wide, args, FLAGS: tl.constexpr):
    """Bring into the L1 what the columns of a tile have in memory; return uint32 like ``wide``.

    What is returned means nothing. But `settled` must use it after the tile, or the loads are left
    out. A tile with a bias took 12 us more at 128 x 256 without them, for there are no registers to
    load more than a few columns at a time.

    Args:
        start: the first column.
        wide: int32 [rows, 4], the rows.
        args: from the launcher.
        FLAGS: the options that are on.
    """
    bias, _, mask, _ = args[2]
    last = args[3][0] - 1
    seen = fill(wide, 0).to(tl.uint32)
    if (BIAS & FLAGS) and not BIAS_BY_ROW & FLAGS:
        value = tl.load(bias + tl.minimum(start + wide % 32 * 8, last))
        seen |= value.to(tl.float32).to(tl.uint32, bitcast=True)
    if (MASK & FLAGS) and not MASK_BY_ROW & FLAGS:
        if PACKED & FLAGS:
            value = tl.load(mask + (tl.minimum(start + wide % 8 * 32, last) >> 5))
        else:
            value = tl.load(mask + tl.minimum(start + wide % 16 * 16, last))
        seen |= value.to(tl.uint32)
    return seen


@triton.jit
def settled(bound, args):
    """Return what was loaded early of (bound, what `foresee` returned)."""
    return bound[0] | bound[1] & fill(bound[1], args[3][3] >> 30).to(tl.uint32)


@triton.jit
def transform(logits, column, row, factor, args, FLAGS: tl.constexpr):
    """Logit scale, softcap, bias, mask, temperature, in this order; padding is -inf.

    Args:
        logits: float32 [rows, columns], raw.
        column: int32 [columns], local ids.
        row: int32 [rows]; those past the batch read the last one's bias and mask.
        factor: float32 [rows], multiplies last.
        args: from the launcher.
        FLAGS: the options that are on.
    """
    row = tl.minimum(row, args[3][3] - 1).to(tl.int64)
    row = tl.broadcast_to(row[:, None], logits.shape)
    column = tl.broadcast_to(column[None, :], logits.shape)
    factor = tl.broadcast_to(factor[:, None], logits.shape)
    if ((BIAS | MASK) & FLAGS) and logits.shape[0] > 1:
        turn = fill(first_piece(column), 0)
        logits, _ = _sixteen_at_a_time(logits, column, row, factor, turn, args, FLAGS)
        return logits
    else:
        logits, low = _before_mask(logits, column, row, factor, args, FLAGS)
        return _keep(logits, low, column, row, args, FLAGS)


@triton.jit
def _sixteen_at_a_time(logits, column, row, factor, turn, args, FLAGS: tl.constexpr):
    """Transform a tile that has values in memory; to load all at once takes too many registers.

    ``turn`` is 0, which only the caller knows: it makes 16 columns wait for those before.
    """
    if logits.shape[1] > 16:
        left, right = halves(logits)
        first, second = halves(column)
        row, _ = halves(row)
        factor, _ = halves(factor)
        left, turn = _sixteen_at_a_time(left, first, row, factor, turn, args, FLAGS)
        right, turn = _sixteen_at_a_time(right, second, row, factor, turn, args, FLAGS)
        return united(left, right), turn
    else:
        logits, low = _before_mask(logits, column, row, factor, args, FLAGS)
        if PACKED & FLAGS:
            logits, turn = _keep_bits(logits, low, column, row, turn, args, FLAGS)
        else:
            logits = _keep(logits, low, column, row, args, FLAGS)
        return logits, turn


@triton.jit
def _before_mask(logits, column, row, factor, args, FLAGS: tl.constexpr):
    """Return (logits, what the masked ones become); the temperature applies to both."""
    scale, softcap = args[1]
    bias, bias_stride, _, _ = args[2]
    if SCALE & FLAGS:
        logits = logits * scale
    if SOFTCAP & FLAGS:
        logits = _tanh(logits / softcap) * softcap
    if BIAS & FLAGS:
        at = bias + column
        if BIAS_BY_ROW & FLAGS:
            at += row * bias_stride
        logits += tl.load(at, mask=column < args[3][0], other=0.0).to(tl.float32)
    low = fill(logits, float("-inf"))
    if (TEMPERATURE | INVERSE) & FLAGS:
        logits *= factor
        low *= factor
    return logits, low


@triton.jit
def _keep(logits, low, column, row, args, FLAGS: tl.constexpr):
    """Keep what the mask and the vocabulary hold."""
    inside = column < args[3][0]
    if MASK & FLAGS:
        mask = args[2][2]
        if MASK_BY_ROW & FLAGS:
            mask += row * args[2][3]
        if PACKED & FLAGS:
            word = tl.load(mask + (column >> 5), mask=inside, other=0)
            kept = inside & ((word >> (column & 31)) & 1 != 0)
        else:
            kept = tl.load(mask + column, mask=inside, other=0) != 0
        logits = tl.where(kept, logits, low)
    elif not EVEN_VOCAB & FLAGS:
        logits = tl.where(inside, logits, low)
    return logits


@triton.jit
def _keep_bits(logits, low, column, row, turn, args, FLAGS: tl.constexpr):
    """Keep 16 columns whose bits are set, one word for all; words end with the vocabulary."""
    words = args[2][2]
    if MASK_BY_ROW & FLAGS:
        row, _, _, _ = pieces(row)
        words += row * args[2][3]
    x0, x1, x8, x9 = pieces(logits)
    low, _, _, _ = pieces(low)
    first, _, _, _ = pieces(column)
    first += turn
    vocab = args[3][0]
    word = tl.load(words + (first >> 5), mask=first < vocab, other=0)
    left = vocab - (first & -32)
    word = tl.where(left < 32, word & ((1 << (left & 31)) - 1), word) >> (first & 31)
    x0 = tl.where((word & 1) != 0, x0, low)
    x1 = tl.where((word & 2) != 0, x1, low)
    x8 = tl.where((word & 256) != 0, x8, low)
    x9 = tl.where((word & 512) != 0, x9, low)
    turn = x9.to(tl.int32, bitcast=True) & (args[3][3] >> 30)
    return united_pieces(x0, x1, x8, x9), turn


@triton.jit
def _tanh(x):
    """Hyperbolic tangent in float32, by a series near 0 and by an exponential elsewhere."""
    y = tl.abs(x)
    e = tl.exp2(y * -2.8853900817779268)
    far = (1.0 - e) / (1.0 + e)
    z = x * x
    p = tl.fma(z, 0.021869488536155203, -0.05396825396825397)
    p = tl.fma(z, p, 0.13333333333333333)
    p = tl.fma(z, p, -0.3333333333333333)
    near = tl.fma(y * z, p, y)
    magnitude = tl.where(y < 0.25, near, far)
    magnitude = tl.where(x == x, magnitude, x)
    return tl.where(x < 0.0, -magnitude, magnitude)
