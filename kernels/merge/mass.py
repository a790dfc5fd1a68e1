"""Log-masses: of a tile's strands, of a program's rows, and of whole rows.

A mass is kept beside the largest logit that it is relative to. Both lie as `kernels.pieces` says,
[rows, 4], until a program leaves them in memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fsresearch.kernels.pieces import halves, maximum, pieces

__all__ = ["add_mass", "leave_mass", "merge_masses", "strand_mass"]

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def add_mass(logits, high, top, mass):
    """Add a tile to the strands' masses.

    Args:
        logits: float32 [rows, columns].
        high: the strands' largest logits in the tile.
        top: the strands' largest logits so far, which ``mass`` is relative to.
        mass: so far.
    """
    merged = maximum(top, high)
    shift = tl.where(merged == float("-inf"), 0.0, merged)
    return mass * tl.exp2((top - shift) * _LOG2_E) + strand_mass(logits, shift)


@triton.jit
def strand_mass(logits, shift):
    """Sum exp(logits - shift) over each strand."""
    if logits.shape[1] > 16:
        left, right = halves(logits)
        return strand_mass(left, shift) + strand_mass(right, shift)
    else:
        p0, p1, p8, p9 = pieces(logits)
        low = tl.exp2((p0 - shift) * _LOG2_E) + tl.exp2((p1 - shift) * _LOG2_E)
        return low + (tl.exp2((p8 - shift) * _LOG2_E) + tl.exp2((p9 - shift) * _LOG2_E))


@triton.jit
def leave_mass(top, mass, row, live, slot, left, num_rows):
    """Write a program's maxima and masses to ``left`` = (maxima, masses), each [slots, rows]."""
    peak_row = tl.reduce(top, 1, maximum)
    shift = tl.where(peak_row == float("-inf"), 0.0, peak_row)
    total = tl.sum(mass * tl.exp2((top - shift[:, None]) * _LOG2_E), 1)
    offset = slot.to(tl.int64) * num_rows + row
    tl.store(left[0] + offset, peak_row, mask=live)
    tl.store(left[1] + offset, total, mask=live)


def merge_masses(left: Tensor) -> Tensor:
    """Merge the maxima and masses that programs left [2, slots, rows]; float64 [rows, 1]."""
    _, slots, rows = left.shape
    log_mass = torch.empty((rows, 1), dtype=torch.float64, device=left.device)
    block = triton.next_power_of_2(slots)
    merge_masses_kernel[(rows,)](
        left[0], left[1], log_mass, rows, slots, block, num_warps=1, enable_fp_fusion=False
    )
    return log_mass


@triton.jit(do_not_specialize=["num_rows", "slots"])
def merge_masses_kernel(maxima_ptr, masses_ptr, log_mass_ptr, num_rows, slots, BLOCK: tl.constexpr):
    """Reduce (maximum, mass relative to it) [slots, rows] to log-masses float64 [rows].

    One program serves one row. A NaN or +inf makes it NaN.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, BLOCK)
    held = slot < slots
    at = slot.to(tl.int64) * num_rows + row
    maximum = tl.load(maxima_ptr + at, mask=held, other=float("-inf"))
    mass = tl.load(masses_ptr + at, mask=held, other=0.0).to(tl.float64)
    usable = maximum < float("inf")
    broken = tl.max(tl.where(usable, 0, 1), 0) > 0
    top = tl.max(tl.where(usable, maximum, float("-inf")), 0)
    empty = top == float("-inf")
    shift = tl.where(empty, 0.0, top).to(tl.float64)
    total = tl.sum(mass * tl.exp(maximum.to(tl.float64) - shift), 0)
    log_mass = tl.where(empty, float("-inf"), shift + tl.log(total))
    tl.store(log_mass_ptr + row, tl.where(broken, float("nan"), log_mass))
