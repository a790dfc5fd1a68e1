"""The jitted twin of ``fsresearch.noise``: the same words, and their Gumbels in float32.

Every function is elementwise, so a caller decides which tokens live in which registers. One call of
`philox` serves four tokens 16 apart: `split_lanes` brings those four together without moving data
when the vocabulary lies along the columns of a matrix accumulator.

Two conversions turn a word into its Gumbel. `gumbel` is the definition, within
``2**-22 max(1, abs(g))`` of real arithmetic. `rough_log2` is what a kernel can afford for every
token: within `ROUGH_ERROR` in the Gumbel, enough to name the few tokens that could be the winner.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch import noise

__all__ = [
    "REFINE_BELOW",
    "ROUGH_ERROR",
    "gumbel",
    "leaf_unit",
    "philox",
    "pick_lane",
    "rough_log2",
    "split_lanes",
]

REFINE_BELOW = tl.constexpr(noise.REFINE_BELOW)
REFINE_STREAM = tl.constexpr(noise.REFINE << 24)
ROUGH_ERROR = tl.constexpr(1.2e-5)

_SERIES_BELOW = tl.constexpr(1 << 27)


@triton.jit
def philox(k0, k1, c0, c1, c2, c3):
    """Return the four words uint32 of Philox4x32-10 at broadcastable uint32 keys and counters."""
    for _ in tl.static_range(10):
        p0 = c0.to(tl.uint64) * 0xD2511F53
        p1 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = p1.to(tl.uint32)
        c3 = p0.to(tl.uint32)
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def leaf_unit(token):
    """Return the Philox unit uint32 of tokens."""
    return ((token >> 6 << 4) | (token & 15)).to(tl.uint32)


@triton.jit
def pick_lane(token, w0, w1, w2, w3):
    """Return the word of each token among the four of its unit."""
    low = tl.where((token & 16) == 0, w0, w1)
    high = tl.where((token & 16) == 0, w2, w3)
    return tl.where((token & 32) == 0, low, high)


@triton.jit
def split_lanes(x):
    """Split [rows, columns] into four [rows, columns / 64, 16], the tokens of one Philox call.

    The first column must be a multiple of 64.
    """
    ROWS: tl.constexpr = x.shape[0]
    GROUPS: tl.constexpr = x.shape[1] // 64
    x = tl.permute(tl.reshape(x, (ROWS, GROUPS, 2, 2, 16)), (0, 1, 4, 3, 2))
    low, high = tl.split(x)
    x0, x1 = tl.split(low)
    x2, x3 = tl.split(high)
    return x0, x1, x2, x3


@triton.jit
def gumbel(word, refinement):
    """Return the standard Gumbels float32 of words uint32 with their refinements uint32."""
    mirrored = word >= 0x80000000
    near = tl.where(mirrored, ~word, word)
    small = word < REFINE_BELOW
    fraction = refinement.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    half = tl.where(small, fraction, 0.5)
    v = (near.to(tl.float32) + half) * 2.3283064365386963e-10
    logarithm = tl.log(v)
    far = -tl.log(tl.where(mirrored, -logarithm, 1.0))
    p = tl.fma(v, 0.396646125, -0.420243389)
    p = tl.fma(v, p, 0.318446111)
    p = tl.fma(v, p, -0.0153124226)
    p = tl.fma(v, p, 0.10080059)
    p = tl.fma(v, p, 0.123810948)
    p = tl.fma(v, p, 0.208378433)
    p = tl.fma(v, p, 0.49999956)
    return tl.where(mirrored, far, -tl.fma(v, p, logarithm))


@triton.jit
def rough_log2(word, PTX: tl.constexpr):
    """Return y float32 with -ln(2) y - ln(ln 2) within ROUGH_ERROR of the unrefined Gumbel."""
    signed = word.to(tl.int32, bitcast=True).to(tl.float32)
    w = tl.fma(signed, 2.3283064365386963e-10, 1.1641532182693481e-10)
    survival = tl.where(w > 0.0, 1.0, 0.0) - w
    series = w * tl.fma(w, tl.fma(w, 0.4808983469629878, 0.7213475204444817), 1.4426950408889634)
    clock = tl.where(word < _SERIES_BELOW, series, -fast_log2(survival, PTX))
    return fast_log2(clock, PTX)


@triton.jit
def fast_log2(x, PTX: tl.constexpr):
    """Return log2, by the special function unit where PTX is spoken."""
    if PTX:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.log2(x)
