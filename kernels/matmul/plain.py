"""Plain Triton: persistent programs over tiles of the vocabulary, loads by pointer.

It takes any strides and alignment, and runs wherever Triton does.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["matmul_kernel"]


@triton.jit(do_not_specialize=["num_rows", "num_columns"])
def matmul_kernel(
    hidden_ptr,
    weight_ptr,
    num_rows,
    num_columns,
    depth,
    hidden_row_stride,
    hidden_stride,
    weight_row_stride,
    weight_stride,
    args,
    FLAGS: tl.constexpr,
    OPEN: tl.constexpr,
    PEEK: tl.constexpr,
    LIFT: tl.constexpr,
    CLOSE: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
    EVEN_D: tl.constexpr,
):
    """Give every tile of ``hidden @ weight.T`` to an epilogue.

    Programs are numbered slot-major: ``slot = program_id // blocks of rows`` takes the tiles slot,
    slot + slots, ... of one block of rows. Rows past the batch read the last one.
    """
    args = args[0], args[1], args[2], args[3] + (num_rows,), args[4]
    blocks = tl.cdiv(num_rows, BLOCK_B)
    slot = tl.program_id(0) // blocks
    slots = tl.num_programs(0) // blocks
    block = tl.program_id(0) % blocks
    row = block * BLOCK_B + tl.arange(0, BLOCK_B)
    rows, state = OPEN(row, tl.arange(0, BLOCK_V), args, FLAGS)
    inner = tl.arange(0, BLOCK_D)
    held_row = tl.minimum(row, num_rows - 1).to(tl.int64)
    hidden_ptrs = hidden_ptr + held_row[:, None] * hidden_row_stride
    for tile in range(slot, tl.cdiv(num_columns, BLOCK_V), slots):
        column = tile * BLOCK_V + tl.arange(0, BLOCK_V)
        held = tl.minimum(column, num_columns - 1).to(tl.int64)
        weight_ptrs = weight_ptr + held[None, :] * weight_row_stride
        bound = PEEK(tile * BLOCK_V, rows, args, FLAGS)
        logits = tl.zeros((BLOCK_B, BLOCK_V), tl.float32)
        for start in range(0, depth, BLOCK_D):
            offs = (start + inner).to(tl.int64)
            h_ptrs = hidden_ptrs + offs[None, :] * hidden_stride  # [BLOCK_B, BLOCK_D]
            w_ptrs = weight_ptrs + offs[:, None] * weight_stride  # [BLOCK_D, BLOCK_V]
            if EVEN_D:
                h = tl.load(h_ptrs)
                w = tl.load(w_ptrs)
            else:
                h = tl.load(h_ptrs, mask=(offs < depth)[None, :], other=0.0)
                w = tl.load(w_ptrs, mask=(offs < depth)[:, None], other=0.0)
            logits = tl.dot(h, w, logits, input_precision="ieee")
        state = LIFT(logits, column, bound, rows, state, args, FLAGS)
    CLOSE(slot, slots, block, rows, state, args, FLAGS)
