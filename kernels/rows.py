"""What the tokens of a row share: its factor and the address of its noise."""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch.kernels.flags import SAMPLED, TEMPERATURE
from fsresearch.kernels.pieces import fill, spread
from fsresearch.kernels.transform import inverse_temperature

__all__ = ["open_row_block", "row_noise"]


@triton.jit
def open_row_block(row, column, args, STREAM: tl.constexpr, FLAGS: tl.constexpr):
    """Return (row, factor, wide, live, greedy, k0, k1, c2, c3).

    The first two are [rows], the others lie beside the strands, [rows, 4] (`kernels.pieces`).

    Args:
        row: int32 [rows]; those past the batch are not live and take the last one's values.
        column: int32 [columns] of a tile.
        args: from the launcher.
        STREAM: the kind of noise, shifted to its place in the counter.
        FLAGS: the options that are on.
    """
    num_rows = args[3][3]
    _, _, _, temperatures, inverse, _ = args[0]
    held = tl.minimum(row, num_rows - 1)
    factor = fill(held, 0.0) + inverse
    if TEMPERATURE & FLAGS:
        factor = inverse_temperature(tl.load(temperatures + held))
    wide = spread(row, column)
    live = wide < num_rows
    held = tl.minimum(wide, num_rows - 1)
    greedy, k0, k1, c2, c3 = row_noise(held, args, STREAM, FLAGS)
    return row, factor, wide, live, greedy, k0, k1, c2, c3


@triton.jit
def row_noise(row, args, STREAM: tl.constexpr, FLAGS: tl.constexpr):
    """Return (greedy, k0, k1, c2, c3) of rows that exist, in any shape."""
    seeds, positions, position_stride, temperatures, _, role_bits = args[0]
    greedy = row < 0
    if TEMPERATURE & FLAGS:
        greedy = tl.load(temperatures + row) == 0.0
    k0 = row.to(tl.uint32)
    k1, c2, c3 = k0, k0, k0
    if SAMPLED & FLAGS:
        seed = tl.load(seeds + row)
        position = tl.load(positions + row.to(tl.int64) * position_stride)
        k0 = seed.to(tl.uint32)
        k1 = (seed >> 32).to(tl.uint32)
        c2 = position.to(tl.uint32)
        c3 = ((position >> 32) & 0xFFFFFF | role_bits | STREAM).to(tl.uint32)
    return greedy, k0, k1, c2, c3
