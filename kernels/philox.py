"""The jitted twin of ``fsresearch.noise``: the same words, and their Gumbels in float32.

Every function is elementwise, so a caller decides which tokens live in which registers. One call of
`philox` serves four tokens 16 apart.

Two conversions turn a word into its Gumbel. `gumbel` is the definition, within
``2**-22 max(1, abs(g))`` of real arithmetic. `rough_log2` costs two logarithms of the special
function unit and is within `ROUGH_ERROR`: enough to name the few tokens that could win.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch import noise

__all__ = [
    "REFINE_BELOW",
    "REFINE_STREAM",
    "ROUGH_ERROR",
    "ROUGH_LOG2_PTX",
    "gumbel",
    "leaf_unit",
    "philox",
    "pick_lane",
    "rough_log2",
]

REFINE_BELOW = tl.constexpr(noise.REFINE_BELOW)
REFINE_STREAM = tl.constexpr(noise.REFINE << 24)
ROUGH_ERROR = tl.constexpr(4e-6)

# Sets f32 y from the word b32 w; v, e and the predicate q are scratch. With s the word as a signed
# number over 2**32, E = -log1p(-s): for positive s a polynomial beside log s, else -log(-s).
ROUGH_LOG2_PTX = """
    cvt.rn.f32.s32 v, w;
    setp.lt.u32 q, w, 65536;
    selp.f32 e, 0f1F000000, 0f2F000000, q;
    fma.rn.f32 v, v, 0f2F800000, e;
    abs.f32 y, v;
    lg2.approx.ftz.f32 y, y;
    fma.rn.f32 e, v, 0f3EF0F916, 0fBE8C1CAE;
    fma.rn.f32 e, e, v, 0f3E8AF09F;
    fma.rn.f32 e, e, v, 0f3E1C89C3;
    fma.rn.f32 e, e, v, 0f3E9B133A;
    fma.rn.f32 e, e, v, 0f3F38A602;
    fma.rn.f32 e, e, v, y;
    mul.f32 y, y, 0fBF317218;
    lg2.approx.ftz.f32 y, y;
    setp.lt.f32 q, v, 0f00000000;
    selp.f32 y, y, e, q;
"""
_ROUGH_LOG2 = tl.constexpr(
    "{ .reg .f32 v, e, y; .reg .b32 w; .reg .pred q; mov.b32 w, $1;"
    + ROUGH_LOG2_PTX
    + "mov.f32 $0, y; }"
)


@triton.jit
def philox(k0, k1, c0, c1, c2, c3, turn=0):
    """Return the four words uint32 of Philox4x32-10 at broadcastable uint32 keys and counters.

    ``turn`` is 0. Where only the caller knows that, the assembler cannot start this call before
    turn is there.
    """
    c3 = c3 ^ turn
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
def rough_log2(word):
    """Return y float32 with -ln(2) y within ROUGH_ERROR of the largest Gumbel of a word; PTX only.

    A word below REFINE_BELOW is taken at the end of its cell where the Gumbel is largest.
    """
    return tl.inline_asm_elementwise(
        _ROUGH_LOG2, "=f,r", [word], dtype=tl.float32, is_pure=True, pack=1
    )
