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

__all__ = ["MIN_TEMPERATURE", "inverse_temperature", "transform"]

MIN_TEMPERATURE = tl.constexpr(1e-6)


@triton.jit
def inverse_temperature(t):
    """Return 1 / T, 1 for a greedy row, NaN where T is no temperature."""
    usable = (t >= MIN_TEMPERATURE) & (t < float("inf"))
    factor = tl.where(usable, tl.math.div_rn(1.0, tl.where(usable, t, 1.0)), float("nan"))
    return tl.where(t == 0.0, 1.0, factor)


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
    scale, softcap = args[1]
    bias, bias_stride, mask, mask_stride = args[2]
    inside = (column < args[3][0])[None, :]
    row = tl.minimum(row, args[3][3] - 1).to(tl.int64)[:, None]
    if SCALE & FLAGS:
        logits = logits * scale
    if SOFTCAP & FLAGS:
        logits = _tanh(logits / softcap) * softcap
    if BIAS & FLAGS:
        at = bias + column[None, :]
        if BIAS_BY_ROW & FLAGS:
            value = tl.load(at + row * bias_stride, mask=inside & (row >= 0), other=0.0)
        else:
            value = tl.load(at, mask=inside, other=0.0)
        logits = logits + value.to(tl.float32)
    if MASK & FLAGS:
        if PACKED & FLAGS:
            at = mask + (column >> 5)[None, :]
        else:
            at = mask + column[None, :]
        if MASK_BY_ROW & FLAGS:
            value = tl.load(at + row * mask_stride, mask=inside & (row >= 0), other=0)
        else:
            value = tl.load(at, mask=inside, other=0)
        if PACKED & FLAGS:
            value = (value >> (column & 31)[None, :]) & 1
        logits = tl.where(inside & (value != 0), logits, float("-inf"))
    elif not EVEN_VOCAB & FLAGS:
        logits = tl.where(inside, logits, float("-inf"))
    if (TEMPERATURE | INVERSE) & FLAGS:
        logits = logits * factor[:, None]
    return logits


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
