"""Merge the log-masses that programs left for each row."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["merge_masses_kernel"]


@triton.jit
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
