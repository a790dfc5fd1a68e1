"""Winners of rows as packed (score, token) keys: the largest key is the best, lowest id on ties.

Programs merge by one atomic a row; the last of them unpacks the keys.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["LOWEST", "deliver", "key", "larger", "ordered", "poison", "score_of", "submit"]


# What -inf is `ordered` to.
LOWEST = tl.constexpr(0x007FFFFF)


@triton.jit
def ordered(score):
    """Return uint32 that order as the scores do, all above 0; a NaN is above all."""
    bits = (score + 0.0).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 1, ~bits, bits | 0x80000000)


@triton.jit
def score_of(ordered):
    """Undo `ordered`; 0 becomes NaN."""
    bits = tl.where(ordered >> 31 == 1, ordered ^ 0x80000000, ~ordered)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def key(score, token):
    """Pack a score and a token into uint64."""
    return ordered(score).to(tl.uint64) << 32 | (~token.to(tl.uint32)).to(tl.uint64)


@triton.jit
def larger(score, token, other, other_token):
    """Keep the larger score, the lower id on ties; a NaN never wins."""
    take = (other > score) | ((other == score) & (other_token < token))
    return tl.where(take, other, score), tl.where(take, other_token, token)


@triton.jit
def submit(score, token, wide, live, keys, draw, num_rows):
    """Add the winners of strands [rows, 4] to the keys [draws, rows]; token -1 is none."""
    score, token = tl.reduce((score, token), 1, larger)
    held = (tl.max(live.to(tl.int32), 1) > 0) & (token >= 0)
    tl.atomic_max(keys + draw * num_rows + tl.max(wide, 1), key(score, token), mask=held)


@triton.jit
def poison(row, broken, keys, draws, num_rows):
    """Make every draw of the broken rows NaN."""
    nan = key(tl.where(broken, float("nan"), float("nan")), tl.where(broken, -1, -1))
    for draw in range(draws):
        tl.atomic_max(keys + draw * num_rows + row, nan, mask=broken)


@triton.jit
def deliver(row, live, keys, perturbed, token, draws, num_rows):
    """Unpack the keys of rows to perturbed float32 and token int64 [rows, draws]."""
    for draw in range(draws):
        best = tl.load(keys + draw * num_rows + row, mask=live, other=0, cache_modifier=".cg")
        score = score_of((best >> 32).to(tl.uint32))
        leader = (~best).to(tl.uint32).to(tl.int64)
        valid = (score > float("-inf")) & (score < float("inf"))
        offset = row.to(tl.int64) * draws + draw
        tl.store(perturbed + offset, score, mask=live)
        tl.store(token + offset, tl.where(valid, leader, -1), mask=live)
