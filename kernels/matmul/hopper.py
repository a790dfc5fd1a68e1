"""Hopper: one warp copies tiles through TMA, the others multiply and run the epilogue; Gluon.

Copies run ahead through a ring of stages, also while an epilogue runs, so memory stays busy. The
rows of hidden must fill the row blocks, because TMA is slow on boxes that leave the tensor.

Integer work does not hide behind the matrix unit: Philox computed while it runs, between the steps
of a tile, made a call at B = 256 take 1.35 of cuBLAS's time, against 1.16 computed after the tile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

__all__ = ["matmul_kernel", "run_hopper"]

PRODUCER_REGISTERS = gl.constexpr(24)
copy_box = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared


@gluon.jit(do_not_specialize=["num_rows", "num_columns", "depth", "slots"])
def matmul_kernel(
    hidden_desc,
    weight_desc,
    num_rows,
    num_columns,
    depth,
    slots,
    args,
    FLAGS: gl.constexpr,
    OPEN: gl.constexpr,
    PEEK: gl.constexpr,
    LIFT: gl.constexpr,
    CLOSE: gl.constexpr,
    BANDS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Give every tile of ``hidden @ weight.T`` to an epilogue; numbered as the plain kernel is."""
    args = args[0], args[1], args[2], args[3] + (num_rows,), args[4]
    BAND: gl.constexpr = hidden_desc.block_shape[0]
    BLOCK_V: gl.constexpr = weight_desc.block_shape[0]
    BLOCK_D: gl.constexpr = hidden_desc.block_shape[1]
    hidden_ring = gl.allocate_shared_memory(
        hidden_desc.dtype, [STAGES * BANDS, BAND, BLOCK_D], hidden_desc.layout
    )
    weight_ring = gl.allocate_shared_memory(
        weight_desc.dtype, [STAGES, BLOCK_V, BLOCK_D], weight_desc.layout
    )
    filled = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    emptied = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(filled.index(stage), count=1)
        mbarrier.init(emptied.index(stage), count=BANDS)
    fence_async_shared()
    blocks = (num_rows + BAND * BANDS - 1) // (BAND * BANDS)
    block = gl.program_id(0) % blocks
    slot = gl.program_id(0) // blocks
    tiles = (num_columns + BLOCK_V - 1) // BLOCK_V
    rings = hidden_ring, weight_ring, filled, emptied
    place = block, slot, slots, tiles, depth
    copy = rings, place, hidden_desc, weight_desc
    if BANDS == 1:
        gl.warp_specialize(
            [(_multiply, (rings, place, 0, args, FLAGS, OPEN, PEEK, LIFT, CLOSE)), (_copy, copy)],
            [1],
            [PRODUCER_REGISTERS],
        )
    else:
        gl.static_assert(BANDS == 3, "one band, or three")
        gl.warp_specialize(
            [
                (_multiply, (rings, place, 0, args, FLAGS, OPEN, PEEK, LIFT, CLOSE)),
                (_multiply, (rings, place, 1, args, FLAGS, OPEN, PEEK, LIFT, CLOSE)),
                (_multiply, (rings, place, 2, args, FLAGS, OPEN, PEEK, LIFT, CLOSE)),
                (_copy, copy),
            ],
            [4, 4, 1],
            [160, 160, PRODUCER_REGISTERS],
        )


@gluon.jit
def _copy(rings, place, hidden_desc, weight_desc):
    """Fill the ring, a step of both operands at a time."""
    hidden_ring, weight_ring, filled, emptied = rings
    block, slot, slots, tiles, depth = place
    STAGES: gl.constexpr = weight_ring.shape[0]
    BANDS: gl.constexpr = hidden_ring.shape[0] // STAGES
    BAND: gl.constexpr = hidden_ring.shape[1]
    BLOCK_V: gl.constexpr = weight_desc.block_shape[0]
    BLOCK_D: gl.constexpr = weight_desc.block_shape[1]
    BYTES: gl.constexpr = BANDS * hidden_desc.block_type.nbytes + weight_desc.block_type.nbytes
    stage = 0
    phase = 1
    for tile in range(slot, tiles, slots):
        for offset in range(0, depth, BLOCK_D):
            mbarrier.wait(emptied.index(stage), phase)
            bar = filled.index(stage)
            mbarrier.expect(bar, BYTES)
            for band in gl.static_range(BANDS):
                row = (block * BANDS + band) * BAND
                box = hidden_ring.index(stage * BANDS + band)
                copy_box(hidden_desc, [row, offset], bar, box)
            copy_box(weight_desc, [tile * BLOCK_V, offset], bar, weight_ring.index(stage))
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@gluon.jit
def _multiply(
    rings,
    place,
    INDEX: gl.constexpr,
    args,
    FLAGS: gl.constexpr,
    OPEN: gl.constexpr,
    PEEK: gl.constexpr,
    LIFT: gl.constexpr,
    CLOSE: gl.constexpr,
):
    """Multiply a band's rows with tile after tile, each followed by its epilogue."""
    hidden_ring, weight_ring, filled, emptied = rings
    block, slot, slots, tiles, depth = place
    STAGES: gl.constexpr = weight_ring.shape[0]
    BANDS: gl.constexpr = hidden_ring.shape[0] // STAGES
    BAND: gl.constexpr = hidden_ring.shape[1]
    BLOCK_V: gl.constexpr = weight_ring.shape[1]
    BLOCK_D: gl.constexpr = weight_ring.shape[2]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, BLOCK_V, 16]
    )
    band = block * BANDS + INDEX
    row = band * BAND + gl.arange(0, BAND, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, BLOCK_V, layout=gl.SliceLayout(0, LAYOUT))
    rows, state = OPEN(row, columns, args, FLAGS)
    stage = 0
    phase = 0
    for tile in range(slot, tiles, slots):
        bound = PEEK(tile * BLOCK_V, rows, args, FLAGS)
        logits = gl.zeros((BAND, BLOCK_V), gl.float32, layout=LAYOUT)
        for offset in range(0, depth, BLOCK_D):
            mbarrier.wait(filled.index(stage), phase)
            token = warpgroup_mma(
                hidden_ring.index(stage * BANDS + INDEX),
                weight_ring.index(stage).permute((1, 0)),
                logits,
                is_async=True,
            )
            logits = warpgroup_mma_wait(num_outstanding=1, deps=(token,))
            before = (stage + STAGES - 1) % STAGES
            mbarrier.arrive(emptied.index(before), count=1, pred=offset > 0)
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1
        logits = warpgroup_mma_wait(num_outstanding=0, deps=(logits,))
        mbarrier.arrive(emptied.index((stage + STAGES - 1) % STAGES), count=1)
        column = tile * BLOCK_V + columns
        state = LIFT(logits, column, bound, rows, state, args, FLAGS)
    CLOSE(slot, slots, band, rows, state, args, FLAGS)


def run_hopper(
    hidden: Tensor,
    weight: Tensor,
    vocab_size: int,
    args: Any,
    flags: int,
    hooks: tuple[Callable[..., Any], ...],
    config: Any,
    slots: int,
) -> None:
    """Launch the kernel on bfloat16 or float16 operands that TMA can address."""
    rows, depth = hidden.shape
    blocks = -(-rows // config.block_b)
    short = blocks * config.block_b - rows
    if not short and not _addressable(hidden):
        hidden = hidden.clone(memory_format=torch.contiguous_format)
    if short:
        hidden = torch.nn.functional.pad(hidden, (0, 0, 0, short))
    matmul_kernel[(slots * blocks,)](
        _descriptor(
            hidden, blocks * config.block_b, config.block_b // config.bands, config.block_d
        ),
        _descriptor(weight, vocab_size, config.block_v, config.block_d),
        rows,
        vocab_size,
        depth,
        slots,
        args,
        flags,
        *hooks,
        config.bands,
        config.stages,
        num_warps=config.warps // config.bands,
        enable_fp_fusion=False,
    )


def _addressable(matrix: Tensor) -> bool:
    """Say whether TMA can address the rows of a 16-bit matrix."""
    rows_apart = matrix.stride(0)
    aligned = matrix.data_ptr() % 16 == 0 and rows_apart % 8 == 0
    return aligned and matrix.stride(1) == 1 and rows_apart >= matrix.shape[1]


def _descriptor(matrix: Tensor, rows: int, block_rows: int, block_depth: int) -> TensorDescriptor:
    """Describe rows of a matrix to TMA in boxes of a tile."""
    layout = _shared_layout(matrix.dtype, block_rows, block_depth)
    return TensorDescriptor(
        matrix, [rows, matrix.shape[1]], list(matrix.stride()), [block_rows, block_depth], layout
    )


@cache
def _shared_layout(dtype: torch.dtype, block_rows: int, block_depth: int) -> Any:
    """Return the layout of a box in shared memory; to make it takes as long as to launch."""
    element = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([block_rows, block_depth], element)
