"""The jitted twin of ``fsresearch.noise``: the same words, and their Gumbels in float32.

Every function is elementwise, so a caller decides which tokens live in which registers. One call of
`philox` serves four tokens 16 apart.

Two conversions turn a word into its Gumbel. `gumbel` is the definition, within
``2**-22 max(1, abs(g))`` of real arithmetic, and `gumbel_ptx` the same in assembly.
`ROUGH_LOG2_PTX` costs two logarithms of the special function unit: -ln(2) y is within `ROUGH_ERROR`
of the largest Gumbel of a word, enough to name the few tokens that could win.
"""

from __future__ import annotations

import struct

import triton
import triton.language as tl

from fsresearch import noise

__all__ = [
    "REFINE_BELOW",
    "REFINE_STREAM",
    "ROUGH_ERROR",
    "ROUGH_LOG2_PTX",
    "gumbel",
    "gumbel_from_bits",
    "gumbel_ptx",
    "hex_ptx",
    "leaf_unit",
    "philox",
    "pick_lane",
    "uniform_from_bits",
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


# Sets f32 l to log a for a normal positive a, as libdevice does; i, m and r are scratch.
_LOG_PTX = """
    mov.b32 i, a; add.s32 i, i, -1059760811; and.b32 i, i, -8388608;
    mov.b32 m, a; sub.s32 m, m, i; mov.b32 r, m; cvt.rn.f32.s32 l, i; mul.f32 l, l, 0f34000000;
    add.f32 r, r, 0fBF800000;
    fma.rn.f32 q, r, 0fBE055027, 0f3E1039F6; fma.rn.f32 q, q, r, 0fBDF8CDCC;
    fma.rn.f32 q, q, r, 0f3E0F2955; fma.rn.f32 q, q, r, 0fBE2AD8B9;
    fma.rn.f32 q, q, r, 0f3E4CED0B; fma.rn.f32 q, q, r, 0fBE7FFF22;
    fma.rn.f32 q, q, r, 0f3EAAAA78; fma.rn.f32 q, q, r, 0fBF000000;
    mul.f32 q, q, r; fma.rn.f32 q, q, r, r;
    fma.rn.f32 l, l, 0f3F317218, q;"""
_PARAMETERS = (
    0.396646125,
    -0.420243389,
    0.318446111,
    -0.0153124226,
    0.10080059,
    0.123810948,
    0.208378433,
    0.49999956,
)


def gumbel_ptx(word: str, token: str, keys: list[str], counters: list[str]) -> str:
    """Return PTX that sets the float32 g as `gumbel` would; short, for code that seldom runs.

    A word below REFINE_BELOW takes its refinement from a second call of Philox.

    Args:
        word: operand, the token's.
        token: operand.
        keys: operands k0 and k1.
        counters: operands c1, c2 and c3.
    """
    series = f"mov.f32 q, {hex_ptx(_PARAMETERS[0])};" + "".join(
        f" fma.rn.f32 q, v, q, {hex_ptx(value)};" for value in _PARAMETERS[1:]
    )
    return f"""{{
    .reg .f32 v, h, a, l, q, r; .reg .b32 i, m, c, d, e, f, s, t, y, z; .reg .pred p;
    mov.f32 h, 0f3F000000;
    setp.ge.u32 p, {word}, {noise.REFINE_BELOW};
    @p bra REFINED;
    shr.u32 c, {token}, 6; and.b32 i, {token}, 15; mad.lo.u32 c, c, 16, i;
    mov.b32 d, {counters[0]}; mov.b32 e, {counters[1]};
    or.b32 f, {counters[2]}, {noise.REFINE << 24};
    mov.b32 s, {keys[0]}; mov.b32 t, {keys[1]}; mov.b32 i, 10;
ROUND:
    .pragma "nounroll";
    mul.hi.u32 y, c, 0xD2511F53; mul.lo.u32 c, c, 0xD2511F53;
    mul.hi.u32 z, e, 0xCD9E8D57; mul.lo.u32 e, e, 0xCD9E8D57;
    xor.b32 z, z, d; xor.b32 y, y, f; mov.b32 d, e; mov.b32 f, c;
    xor.b32 c, z, s; xor.b32 e, y, t;
    add.u32 s, s, 0x9E3779B9; add.u32 t, t, 0xBB67AE85; sub.u32 i, i, 1;
    setp.ne.u32 p, i, 0;
    @p bra ROUND;
    and.b32 i, {token}, 16; setp.ne.u32 p, i, 0; selp.b32 c, d, c, p; selp.b32 e, f, e, p;
    and.b32 i, {token}, 32; setp.ne.u32 p, i, 0; selp.b32 c, e, c, p;
    cvt.rn.f32.u32 h, c; mul.f32 h, h, 0f2F800000; add.f32 h, h, 0f2F000000;
REFINED:
    shr.s32 i, {word}, 31; xor.b32 i, i, {word}; cvt.rn.f32.u32 v, i;
    add.f32 v, v, h; mul.f32 v, v, 0f2F800000; mov.f32 a, v;{_LOG_PTX}
    setp.lt.s32 p, {word}, 0;
    @p bra FAR;
    {series}
    fma.rn.f32 l, v, q, l;
    bra SCORED;
FAR:
    neg.f32 a, l;{_LOG_PTX}
SCORED:
    neg.f32 g, l;
    }}"""


def hex_ptx(value: float) -> str:
    """Return a float32 as PTX writes it."""
    return f"0f{struct.unpack('>I', struct.pack('>f', value))[0]:08X}"


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
    return _gumbel(word, tl.where(word < REFINE_BELOW, _fraction(refinement), 0.5))


@triton.jit
def gumbel_from_bits(high, low):
    """Return the standard Gumbels float32 of 64 bits, two words uint32."""
    return _gumbel(high, _fraction(tl.where(high >= 0x80000000, ~low, low)))


@triton.jit
def uniform_from_bits(high, low):
    """Return float32 in (0, 1] of 64 bits, two words uint32."""
    return (high.to(tl.float32) + _fraction(low)) * 2.3283064365386963e-10


@triton.jit
def _fraction(word):
    """Return the midpoint float32 of a word's cell in (0, 1]."""
    return word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10


@triton.jit
def _gumbel(word, fraction):
    """Return the Gumbels of words with a fraction, which counts away from the nearer end."""
    mirrored = word >= 0x80000000
    near = tl.where(mirrored, ~word, word)
    v = (near.to(tl.float32) + fraction) * 2.3283064365386963e-10
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
