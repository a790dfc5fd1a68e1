"""Tiles of one row of logits in memory, one after another, as a thread's registers want them.

A tile is so many units of noise (`fsresearch.noise`): one call of Philox serves four tokens 16
apart, and so four tensors [1, units] hold the tokens at offset 0, 16, 32 and 48 of their groups of
64. Neighbouring units are neighbouring tokens: a thread loads 8 or 16 bytes at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["stream_kernel"]


@triton.jit
def stream_kernel(
    logits_ptr,
    width,
    row_stride,
    column_stride,
    slots,
    draws,
    args,
    FLAGS: tl.constexpr,
    OPEN: tl.constexpr,
    PEEK: tl.constexpr,
    LIFT: tl.constexpr,
    CLOSE: tl.constexpr,
    UNITS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Give every tile of a row to an epilogue.

    A race is one draw of one row. Programs are numbered race-major: ``slot = program_id % slots``
    takes the tiles slot, slot + slots, ... of a race. The next tile is loaded before one is given
    away. ``width`` and ``row_stride`` are in units of ALIGNED elements. Tokens from width on are
    -inf.

    OPEN takes (source, race, draws, unit [units], args, FLAGS) and returns (rows, state). LIFT
    takes (tile, unit, what PEEK loaded, rows, state, args, FLAGS) and returns the state. CLOSE ends
    a program.
    """
    slot = tl.program_id(0) % slots
    race = tl.program_id(0) // slots
    row = race // draws
    unit = tl.arange(0, UNITS)
    row_ptr = logits_ptr + row.to(tl.int64) * row_stride * ALIGNED
    width = width * ALIGNED
    tiles = tl.cdiv(args[3][0], UNITS * 4)
    rows, state = OPEN((row_ptr, width, column_stride), race, draws, unit, args, FLAGS)
    raw = _load(row_ptr, slot * UNITS + unit, width, column_stride)
    for tile in range(slot, tiles, slots):
        following = _load(row_ptr, (tile + slots) * UNITS + unit, width, column_stride)
        early = PEEK(rows, args, FLAGS)
        state = LIFT(raw, tile * UNITS + unit, early, rows, state, args, FLAGS)
        raw = following
    CLOSE(slot, slots, rows, state, args, FLAGS)


@triton.jit
def _load(row_ptr, unit, width, column_stride):
    """Load the four tokens of every unit."""
    first = (unit // 16 * 64 + unit % 16)[None, :]
    return (
        _load_lane(row_ptr, first, width, column_stride),
        _load_lane(row_ptr, first + 16, width, column_stride),
        _load_lane(row_ptr, first + 32, width, column_stride),
        _load_lane(row_ptr, first + 48, width, column_stride),
    )


@triton.jit
def _load_lane(row_ptr, column, width, column_stride):
    at = row_ptr + column.to(tl.int64) * column_stride
    return tl.load(at, mask=column < width, other=float("-inf"), eviction_policy="evict_first")
