"""Tiles of one row of logits in memory, one after another, as a thread's registers want them.

A tile is so many units of noise (`fsresearch.noise`): one call of Philox serves four tokens 16
apart, and so four tensors [1, units] hold the tokens at offset 0, 16, 32 and 48 of their groups of
64. Neighbouring units are neighbouring tokens: with 8 units a thread loads 16 bytes of bfloat16 at
once.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["stream_kernel"]


@triton.jit(do_not_specialize=["num_rows", "slots"])
def stream_kernel(
    logits_ptr,
    row_stride,
    column_stride,
    num_rows,
    slots,
    draws,
    args,
    FLAGS: tl.constexpr,
    OPEN: tl.constexpr,
    LIFT: tl.constexpr,
    CLOSE: tl.constexpr,
    UNITS: tl.constexpr,
    STAGES: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Give every tile of a row to an epilogue.

    A race is one draw of one row. Programs are numbered race-major: ``slot = program_id % slots``
    takes the tiles slot, slot + slots, ... of a race. Up to STAGES - 1 tiles are on their way to
    shared memory while one is given away: loads into registers the assembler puts off until
    their use, which left nothing on its way (reading greedy rows took 2.4 times the floor).
    ``row_stride`` is in units of ALIGNED elements. Only the last tile needs masks, and is apart.

    OPEN takes (source, race, draws, first [units], args, FLAGS) and returns (rows, state). LIFT
    takes (tile, first, rows, state, args, FLAGS), with the units' first tokens, and returns the
    state. CLOSE ends a program.
    """
    args = args[0], args[1], args[2], args[3] + (num_rows,), args[4]
    slot = tl.program_id(0) % slots
    race = tl.program_id(0) // slots
    row = race // draws
    row_ptr = logits_ptr + row.to(tl.int64) * row_stride * ALIGNED
    vocab = args[3][0]
    unit = tl.arange(0, UNITS)
    first = unit // 16 * 64 + unit % 16
    rows, state = OPEN((row_ptr, column_stride), race, draws, first, args, FLAGS)
    whole = vocab // (UNITS * 4)
    for tile in tl.range(slot, whole, slots, num_stages=STAGES):
        raw = _load(row_ptr, tile * (UNITS * 4), first, vocab, column_stride, True)
        state = LIFT(raw, tile * (UNITS * 4) + first, rows, state, args, FLAGS)
    if (whole % slots == slot) & (whole * (UNITS * 4) < vocab):
        raw = _load(row_ptr, whole * (UNITS * 4), first, vocab, column_stride, False)
        state = LIFT(raw, whole * (UNITS * 4) + first, rows, state, args, FLAGS)
    CLOSE(slot, slots, rows, state, args, FLAGS)


@triton.jit
def _load(row_ptr, start, first, vocab, column_stride, WHOLE: tl.constexpr):
    """Load the four tokens of every unit of the tile at start."""
    start_ptr = row_ptr + tl.cast(start, tl.int64) * column_stride
    left = vocab - start
    return (
        _load_lane(start_ptr, first, left, column_stride, WHOLE),
        _load_lane(start_ptr, first + 16, left, column_stride, WHOLE),
        _load_lane(start_ptr, first + 32, left, column_stride, WHOLE),
        _load_lane(start_ptr, first + 48, left, column_stride, WHOLE),
    )


@triton.jit
def _load_lane(start_ptr, column, left, column_stride, WHOLE: tl.constexpr):
    at = (start_ptr + column.to(tl.int64) * column_stride)[None, :]
    if WHOLE:
        return tl.load(at, eviction_policy="evict_first")
    else:
        inside = (column < left)[None, :]
        return tl.load(at, mask=inside, other=float("-inf"), eviction_policy="evict_first")
