"""Lists of packed keys from all programs become the rows' best tokens, in order."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fsresearch.kernels.merge.packed import score_of

__all__ = ["NOTHING", "merge_lists", "merge_lists_kernel"]

# The largest key of a score of -inf: keys up to here are no candidates.
NOTHING = tl.constexpr(0x007FFFFF_FFFFFFFF)
_INFINITE = tl.constexpr(0xFF800000)


def merge_lists(lists: Tensor, perturbed: Tensor, token: Tensor) -> None:
    """Write the k largest of the keys uint64 [slots, rows, k] to perturbed and token [rows, k]."""
    slots, rows, k = lists.shape
    block = triton.next_power_of_2(slots * k)
    warps = min(max(block // 512, 1), 16)
    merge_lists_kernel[(rows,)](
        *(lists, perturbed, token, rows, slots, k, block), num_warps=warps, enable_fp_fusion=False
    )


@triton.jit(do_not_specialize=["num_rows", "slots", "k"])
def merge_lists_kernel(
    lists_ptr, perturbed_ptr, token_ptr, num_rows, slots, k, BLOCK: tl.constexpr
):
    """Take the largest key k times; one program serves one row.

    Keys differ. A NaN or +inf makes the whole row NaN, with tokens -1.
    """
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    offset = ((place // k).to(tl.int64) * num_rows + row) * k + place % k
    keys = tl.load(lists_ptr + offset, mask=place < slots * k, other=0)
    broken = (tl.max(keys, 0) >> 32).to(tl.uint32) >= _INFINITE
    for rank in range(k):
        best = tl.max(keys, 0)
        keys = tl.where(keys == best, 0, keys)
        some = (best > NOTHING) & ~broken
        score = tl.where(some, score_of((best >> 32).to(tl.uint32)), float("-inf"))
        at = row * k + rank
        tl.store(perturbed_ptr + at, tl.where(broken, float("nan"), score))
        tl.store(token_ptr + at, tl.where(some, (~best).to(tl.uint32).to(tl.int64), -1))
