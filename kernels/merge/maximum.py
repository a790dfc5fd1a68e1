"""Merge the winners, and the masses, that programs left for each row."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["merge_maxima_kernel"]


@triton.jit
def merge_maxima_kernel(
    scores_ptr,
    tokens_ptr,
    maxima_ptr,
    masses_ptr,
    perturbed_ptr,
    token_ptr,
    log_mass_ptr,
    num_rows,
    draws,
    slots,
    LOG_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Reduce [slots, draws, rows] to perturbed float32 and token int64 [rows, draws].

    One program serves one (row, draw). A NaN or +inf makes the row's perturbed NaN, token -1.
    """
    row = (tl.program_id(0) // draws).to(tl.int64)
    draw = tl.program_id(0) % draws
    slot = tl.arange(0, BLOCK)
    held = slot < slots
    at = (slot.to(tl.int64) * draws + draw) * num_rows + row
    score = tl.load(scores_ptr + at, mask=held, other=float("-inf"))
    token = tl.load(tokens_ptr + at, mask=held, other=-1)
    usable = score < float("inf")
    broken = tl.max(tl.where(usable, 0, 1), 0) > 0
    best = tl.max(tl.where(usable, score, float("-inf")), 0)
    candidate = tl.where((score == best) & (token >= 0), token, 0x7FFFFFFF)
    winner = tl.min(candidate, 0)
    valid = (best > float("-inf")) & ~broken
    out = row * draws + draw
    tl.store(perturbed_ptr + out, tl.where(broken, float("nan"), best))
    tl.store(token_ptr + out, tl.where(valid, winner, -1).to(tl.int64))
    if LOG_MASS:
        if draw == 0:
            at = slot.to(tl.int64) * num_rows + row
            maximum = tl.load(maxima_ptr + at, mask=held, other=float("-inf"))
            mass = tl.load(masses_ptr + at, mask=held, other=0.0).to(tl.float64)
            top = tl.max(maximum, 0)
            empty = top == float("-inf")
            shift = tl.where(empty, 0.0, top).to(tl.float64)
            total = tl.sum(mass * tl.exp(maximum.to(tl.float64) - shift), 0)
            log_mass = shift + tl.log(total)
            log_mass = tl.where(empty, float("-inf"), log_mass)
            tl.store(log_mass_ptr + row, tl.where(broken, float("nan"), log_mass))
