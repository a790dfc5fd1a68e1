"""Scans of a tile: the few tokens that could win are found without a logarithm for the others.

A Gumbel is at most ``-log(word / 2**32)``. So a token whose logit is at most ``peak`` can beat a
score ``floor`` only where its word is at most ``2**32 exp(peak - floor)``: one comparison of
integers, for four tokens at once, and a branch that is seldom taken after the first tile.

In the branch tokens have rough scores, and where these are too near to tell the best of them, the
scores of the definition. All state is [rows, 4], a value of each strand (see `kernels.pieces`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch.kernels.merge.packed import larger
from fsresearch.kernels.philox import (
    REFINE_BELOW,
    REFINE_STREAM,
    ROUGH_ERROR,
    ROUGH_LOG2_PTX,
    gumbel,
    gumbel_ptx,
    hex_ptx,
    leaf_unit,
    philox,
)
from fsresearch.kernels.pieces import halves, pieces, words_apart

__all__ = ["limit", "race", "scan_defined", "scan_greedy"]


def _race_branch() -> str:
    """Outputs: best, logit, token, word.

    Inputs: the same, limit, scale, first token, k0, k1, c1, c2, c3, four words, four logits.
    """
    rough = "".join(
        f"""
    mov.b32 w, ${16 + n};{ROUGH_LOG2_PTX}
    fma.rn.f32 y, y, scale, ${20 + n};
    setp.gt.f32 q, y, best;
    min.f32 e, y, best; max.f32 second, second, e; max.f32 best, best, y;
    @q mov.f32 x, ${20 + n}; @q mov.b32 word, w; @q add.s32 token, $10, {16 * n};"""
        for n in range(4)
    )
    chosen = "".join(
        f"""
    setp.eq.u32 p, n, {n}; @p mov.b32 w, ${16 + n}; @p mov.f32 v, ${20 + n};"""
        for n in range(4)
    )
    return f"""{{
    .reg .f32 best, second, scale, x, y, v, e, g; .reg .b32 token, word, w, n, i; .reg .pred p, q;
    mov.f32 best, $4; mov.f32 x, $5; mov.b32 token, $6; mov.b32 word, $7;
    min.u32 w, $16, $17; min.u32 n, $18, $19; min.u32 w, w, n;
    setp.gt.u32 p, w, $8;
    @p bra DONE;
    mov.f32 scale, $9; mov.f32 second, 0fFF800000;{rough}
    abs.f32 e, best; fma.rn.f32 e, e, {hex_ptx(1e-6)}, {hex_ptx(2 * ROUGH_ERROR.value)};
    setp.lt.u32 q, word, {REFINE_BELOW.value}; cvt.rn.f32.u32 v, word; rcp.approx.ftz.f32 v, v;
    @q add.f32 e, e, v;
    sub.f32 e, best, e;
    setp.ge.f32 p, second, e;
    setp.gt.and.f32 p, second, 0fFF800000, p;
    @!p bra DONE;
    mov.f32 best, 0fFF800000; mov.b32 n, 0;
TOKEN:
    .pragma "nounroll";
    mov.b32 w, $7; mov.f32 v, $5; mov.b32 i, $6;
    setp.eq.f32 p, $4, 0fFF800000; @p mov.f32 v, 0fFF800000;{chosen}
    setp.lt.u32 p, n, 4; @p mad.lo.u32 i, n, 16, $10;
    {gumbel_ptx("w", "i", ["$11", "$12"], ["$13", "$14", "$15"])}
    setp.eq.f32 p, scale, 0f00000000;
    @p mov.f32 g, 0f00000000;
    add.f32 g, v, g;
    setp.lt.s32 q, i, token;
    setp.eq.and.f32 q, g, best, q;
    setp.gt.or.f32 q, g, best, q;
    @q mov.f32 best, g; @q mov.f32 x, v; @q mov.b32 token, i; @q mov.b32 word, w;
    add.u32 n, n, 1;
    setp.lt.u32 p, n, 5;
    @p bra TOKEN;
DONE:
    mov.f32 $0, best; mov.f32 $1, x; mov.b32 $2, token; mov.b32 $3, word;
}}"""


def _greedy_branch() -> str:
    """Outputs: best, id. Inputs: the same, floor, first id, the four's maximum, the four."""
    tokens = "".join(
        f"""
    add.s32 i, $5, {16 * lane};
    setp.lt.s32 q, i, id;
    setp.eq.and.f32 q, ${7 + lane}, best, q;
    setp.gt.or.f32 q, ${7 + lane}, best, q;
    @q mov.f32 best, ${7 + lane};
    @q mov.b32 id, i;"""
        for lane in range(4)
    )
    return f"""{{
    .reg .f32 best; .reg .b32 id, i; .reg .pred q;
    mov.f32 best, $2; mov.b32 id, $3;
    setp.ltu.f32 q, $6, $4;
    @q bra SKIP;{tokens}
SKIP:
    mov.f32 $0, best; mov.b32 $1, id;
}}"""


_LOG2_E = tl.constexpr(1.4426950408889634)
_RACE_BRANCH = tl.constexpr(_race_branch())
_GREEDY_BRANCH = tl.constexpr(_greedy_branch())


@triton.jit
def race(logits, state, word_limit, scale, zero, address, GROUP: tl.constexpr):
    """Absorb a tile's tokens whose words are within the limit.

    Args:
        logits: float32 [rows, columns].
        state: (rough score, logit, token, word) of the best so far.
        word_limit: uint32, the largest word of interest.
        scale: -ln 2, or 0 for greedy rows.
        zero: uint32 0, which only the caller knows.
        address: (first token, k0, k1, c1, c2, c3).
        GROUP: 0; which 64 columns, inside.
    """
    if logits.shape[1] > 64:
        left, right = halves(logits)
        state = race(left, state, word_limit, scale, zero, address, GROUP)
        SKIPPED: tl.constexpr = left.shape[1] // 64
        return race(right, state, word_limit, scale, zero, address, GROUP + SKIPPED)
    else:
        x0, x1, x2, x3 = words_apart(logits)
        a0, a1, a8, a9 = pieces(x0)
        b0, b1, b8, b9 = pieces(x1)
        c0, c1, c8, c9 = pieces(x2)
        d0, d1, d8, d9 = pieces(x3)
        known = word_limit, scale, zero
        state = _compete(state, known, address, GROUP * 64, a0, b0, c0, d0)
        state = _compete(state, known, address, GROUP * 64 + 1, a1, b1, c1, d1)
        state = _compete(state, known, address, GROUP * 64 + 8, a8, b8, c8, d8)
        return _compete(state, known, address, GROUP * 64 + 9, a9, b9, c9, d9)


@triton.jit
def _compete(state, known, address, OFFSET: tl.constexpr, x0, x1, x2, x3):
    """Absorb the four tokens of one Philox call.

    ``zero`` makes each call of Philox wait for the last branch. Otherwise the assembler starts all
    of them at once and runs out of registers.
    """
    word_limit, scale, zero = known
    first, k0, k1, c1, c2, c3 = address
    first = first + OFFSET
    w0, w1, w2, w3 = philox(k0, k1, leaf_unit(first), c1, c2, c3, state[3] & zero)
    return tl.inline_asm_elementwise(
        _RACE_BRANCH,
        "=&f,=&f,=&r,=&r,f,f,r,r,r,f,r,r,r,r,r,r,r,r,r,r,f,f,f,f",
        state  # noqa: RUF005
        + (word_limit, scale, first, k0, k1, c1, c2, c3, w0, w1, w2, w3, x0, x1, x2, x3),
        dtype=(tl.float32, tl.float32, tl.int32, tl.uint32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def limit(high, floor, scale):
    """Return the largest word uint32 with which a strand's largest logit may reach the floor."""
    slack = 1.6e-5 + tl.abs(floor) * 6e-7
    word = tl.exp2((high - floor + slack) * _LOG2_E) * 4294967296.0
    word = tl.where(scale == 0.0, tl.where(high >= floor, 4294967296.0, 0.0), word)
    return tl.inline_asm_elementwise(
        "cvt.rzi.sat.u32.f32 $0, $1;", "=r,f", [word], dtype=tl.uint32, is_pure=True, pack=1
    )


@triton.jit
def scan_greedy(logits, state, floor, first, GROUP: tl.constexpr, PTX: tl.constexpr):
    """Absorb a tile's tokens by their logits, lowest id on ties; those below the floor may not."""
    if logits.shape[1] > 64:
        left, right = halves(logits)
        state = scan_greedy(left, state, floor, first, GROUP, PTX)
        return scan_greedy(right, state, floor, first, GROUP + left.shape[1] // 64, PTX)
    else:
        x0, x1, x2, x3 = words_apart(logits)
        a0, a1, a8, a9 = pieces(x0)
        b0, b1, b8, b9 = pieces(x1)
        c0, c1, c8, c9 = pieces(x2)
        d0, d1, d8, d9 = pieces(x3)
        first = first + GROUP * 64
        state = _absorb_greedy(state, floor, first, a0, b0, c0, d0, PTX)
        state = _absorb_greedy(state, floor, first + 1, a1, b1, c1, d1, PTX)
        state = _absorb_greedy(state, floor, first + 8, a8, b8, c8, d8, PTX)
        return _absorb_greedy(state, floor, first + 9, a9, b9, c9, d9, PTX)


@triton.jit
def _absorb_greedy(state, floor, first, x0, x1, x2, x3, PTX: tl.constexpr):
    """Absorb four tokens 16 apart."""
    best, token = state
    if PTX:
        top = tl.maximum(tl.maximum(x0, x1), tl.maximum(x2, x3))
        return tl.inline_asm_elementwise(
            _GREEDY_BRANCH,
            "=&f,=&r,f,r,f,r,f,f,f,f,f",
            [best, token, floor, first, top, x0, x1, x2, x3],
            dtype=(tl.float32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        best, token = larger(best, token, x0, first)
        best, token = larger(best, token, x1, first + 16)
        best, token = larger(best, token, x2, first + 32)
        return larger(best, token, x3, first + 48)


@triton.jit
def scan_defined(logits, state, zero, sampled, address, GROUP: tl.constexpr):
    """Absorb every token by its defined score, where there is no PTX.

    ``zero`` is 0, which only the caller knows; see `_compete`.
    """
    if logits.shape[1] > 64:
        left, right = halves(logits)
        state = scan_defined(left, state, zero, sampled, address, GROUP)
        return scan_defined(right, state, zero, sampled, address, GROUP + left.shape[1] // 64)
    else:
        x0, x1, x2, x3 = words_apart(logits)
        a0, a1, a8, a9 = pieces(x0)
        b0, b1, b8, b9 = pieces(x1)
        c0, c1, c8, c9 = pieces(x2)
        d0, d1, d8, d9 = pieces(x3)
        first, k0, k1, c1_, c2, c3 = address
        first = first + GROUP * 64
        state = _absorb_defined(state, zero, sampled, (first, k0, k1, c1_, c2, c3), a0, b0, c0, d0)
        address = (first + 1, k0, k1, c1_, c2, c3)
        state = _absorb_defined(state, zero, sampled, address, a1, b1, c1, d1)
        address = (first + 8, k0, k1, c1_, c2, c3)
        state = _absorb_defined(state, zero, sampled, address, a8, b8, c8, d8)
        address = (first + 9, k0, k1, c1_, c2, c3)
        return _absorb_defined(state, zero, sampled, address, a9, b9, c9, d9)


@triton.jit
def _absorb_defined(state, zero, sampled, address, x0, x1, x2, x3):
    """Absorb the four tokens of one Philox call."""
    first, k0, k1, c1, c2, c3 = address
    best, token = state
    turn = best.to(tl.uint32, bitcast=True) & zero
    unit = leaf_unit(first)
    w0, w1, w2, w3 = philox(k0, k1, unit, c1, c2, c3, turn)
    r0, r1, r2, r3 = philox(k0, k1, unit, c1, c2, c3 | REFINE_STREAM, turn)
    x0 = x0 + tl.where(sampled, gumbel(w0, r0), 0.0)
    best, token = larger(best, token, x0, first)
    x1 = x1 + tl.where(sampled, gumbel(w1, r1), 0.0)
    best, token = larger(best, token, x1, first + 16)
    x2 = x2 + tl.where(sampled, gumbel(w2, r2), 0.0)
    best, token = larger(best, token, x2, first + 32)
    x3 = x3 + tl.where(sampled, gumbel(w3, r3), 0.0)
    return larger(best, token, x3, first + 48)
