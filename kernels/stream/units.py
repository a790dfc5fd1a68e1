"""A tile of logits in memory on its way to an epilogue: what every epilogue does first.

A tile is four tensors [1, units] (`kernels.stream.pipeline`). No function here moves data between
threads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch.kernels.flags import TEMPERATURE
from fsresearch.kernels.pieces import maximum
from fsresearch.kernels.rows import row_noise
from fsresearch.kernels.transform import inverse_temperature, transform

__all__ = ["add_units", "beside", "open_race", "peak_units", "transform_units"]

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def open_race(source, race, draws, args, STREAM: tl.constexpr, FLAGS: tl.constexpr):
    """Return (row [1], factor [1], draw, race, greedy, k0, k1, c1, c2, c3, source), most scalars.

    Args:
        source: (pointer to the row, its columns' stride).
        race: int32, the number of a draw of a row.
        draws: a row.
        args: from the launcher.
        STREAM: the kind of noise, shifted to its place in the counter.
        FLAGS: the options that are on.
    """
    row, draw = race // draws, race % draws
    rows = row + tl.arange(0, 1)
    factor = tl.full((1,), 1.0, tl.float32) * args[0][4]
    if TEMPERATURE & FLAGS:
        factor = inverse_temperature(tl.load(args[0][3] + rows))
    greedy, k0, k1, c2, c3 = row_noise(row, args, STREAM, FLAGS)
    return rows, factor, draw, race, greedy, k0, k1, draw.to(tl.uint32), c2, c3, source


@triton.jit
def beside(value, like):
    """Lay int32 out as float32 that come from memory.

    The compiler lays numbers that it makes itself out in its own way, and then takes what follows
    from them, such as the words of Philox, through shared memory at every tile.
    """
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r,f", (value, like), dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def transform_units(raw, first, rows, args, FLAGS: tl.constexpr):
    """Return the transformed logits float32 of a tile."""
    x0, x1, x2, x3 = raw
    return (
        transform(x0.to(tl.float32), first, rows[0], rows[1], args, FLAGS),
        transform(x1.to(tl.float32), first + 16, rows[0], rows[1], args, FLAGS),
        transform(x2.to(tl.float32), first + 32, rows[0], rows[1], args, FLAGS),
        transform(x3.to(tl.float32), first + 48, rows[0], rows[1], args, FLAGS),
    )


@triton.jit
def peak_units(x):
    """Return the largest of every unit; a NaN stays."""
    return maximum(maximum(x[0], x[1]), maximum(x[2], x[3]))


@triton.jit
def add_units(x, high, top, mass):
    """Add a tile to masses that are relative to the largest logits so far, unit by unit.

    Args:
        x: the tile.
        high: from `peak_units`.
        top: the largest logits so far.
        mass: so far.
    """
    merged = maximum(top, high)
    shift = tl.where(merged == float("-inf"), 0.0, merged)
    low = tl.exp2((x[0] - shift) * _LOG2_E) + tl.exp2((x[1] - shift) * _LOG2_E)
    more = low + (tl.exp2((x[2] - shift) * _LOG2_E) + tl.exp2((x[3] - shift) * _LOG2_E))
    return mass * tl.exp2((top - shift) * _LOG2_E) + more
