"""Scans of a tile: the few tokens that could win are found without a logarithm for the others.

A Gumbel is at most ``-log(word / 2**32)``. So a token whose logit is at most ``peak`` can beat a
score ``floor`` only where its word is at most ``2**32 exp(peak - floor)``: one comparison of
integers, for four tokens at once, and a branch that is seldom taken.

In the branch tokens have rough scores. Of each strand (`kernels.pieces`) a scan keeps the best of
these with its logit, id and word, and the best of the rest. All state is [rows, 4].
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch.kernels.merge.packed import larger
from fsresearch.kernels.philox import (
    REFINE_STREAM,
    ROUGH_LOG2_PTX,
    gumbel,
    leaf_unit,
    philox,
)
from fsresearch.kernels.pieces import halves, pieces, words_apart

__all__ = ["park", "scan_defined", "scan_greedy", "scan_parked", "scan_rough"]


def _rough_branch() -> str:
    """Outputs: best, second, logit, id, word, turn. Inputs: they, limit, scale, id, 4 (w, x)."""
    tokens = "".join(
        f"""
    mov.b32 w, ${15 + 2 * lane}; mov.f32 x, ${16 + 2 * lane};
    {ROUGH_LOG2_PTX}
    fma.rn.f32 y, y, scale, x;
    setp.gt.f32 q, y, best;
    min.f32 e, y, best;
    max.f32 second, second, e;
    max.f32 best, best, y;
    @q mov.f32 logit, x;
    @q mov.b32 word, w;
    @q add.s32 id, first, {16 * lane};"""
        for lane in range(4)
    )
    return f"""{{
    .reg .f32 best, second, logit, scale, x, y, v, e; .reg .b32 id, word, turn, first, w, m;
    .reg .pred p, q;
    mov.f32 best, $6; mov.f32 second, $7; mov.f32 logit, $8; mov.b32 id, $9; mov.b32 word, $10;
    mov.b32 turn, $11;
    min.u32 w, $15, $17; min.u32 m, $19, $21; min.u32 m, m, w;
    setp.gt.u32 p, m, $12;
    @p bra SKIP;
    mov.f32 scale, $13; mov.b32 first, $14;{tokens}
    and.b32 turn, turn, w;
SKIP:
    mov.f32 $0, best; mov.f32 $1, second; mov.f32 $2, logit; mov.b32 $3, id; mov.b32 $4, word;
    mov.b32 $5, turn;
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


_ROUGH_BRANCH = tl.constexpr(_rough_branch())
_GREEDY_BRANCH = tl.constexpr(_greedy_branch())


@triton.jit
def scan_rough(logits, state, limit, scale, address, GROUP: tl.constexpr):
    """Absorb a tile's tokens whose words are within the limit.

    Args:
        logits: float32 [rows, columns].
        state: (best, second, logit, token, word, turn) so far. ``turn`` is 0, which only the caller
            knows: it makes each call of Philox wait for the last branch. Otherwise the assembler
            starts all of them at once and runs out of registers.
        limit: uint32, the largest word of interest.
        scale: -ln 2, or 0 for greedy rows.
        address: (first token, k0, k1, c1, c2, c3).
        GROUP: 0; which 64 columns, inside.
    """
    if logits.shape[1] > 64:
        left, right = halves(logits)
        state = scan_rough(left, state, limit, scale, address, GROUP)
        return scan_rough(right, state, limit, scale, address, GROUP + left.shape[1] // 64)
    else:
        x0, x1, x2, x3 = words_apart(logits)
        a0, a1, a8, a9 = pieces(x0)
        b0, b1, b8, b9 = pieces(x1)
        c0, c1, c8, c9 = pieces(x2)
        d0, d1, d8, d9 = pieces(x3)
        state = _absorb_rough(state, limit, scale, address, GROUP, 0, a0, b0, c0, d0)
        state = _absorb_rough(state, limit, scale, address, GROUP, 1, a1, b1, c1, d1)
        state = _absorb_rough(state, limit, scale, address, GROUP, 8, a8, b8, c8, d8)
        return _absorb_rough(state, limit, scale, address, GROUP, 9, a9, b9, c9, d9)


@triton.jit
def _absorb_rough(
    state, limit, scale, address, GROUP: tl.constexpr, OFFSET: tl.constexpr, x0, x1, x2, x3
):
    """Absorb the four tokens of one Philox call."""
    first, k0, k1, c1, c2, c3 = address
    turn = state[5]
    unit = leaf_unit(first) + (GROUP * 16 + OFFSET)
    w0, w1, w2, w3 = philox(k0, k1, unit, c1, c2, c3, turn)
    first = first + (GROUP * 64 + OFFSET)
    return tl.inline_asm_elementwise(
        _ROUGH_BRANCH,
        "=&f,=&f,=&f,=&r,=&r,=&r,f,f,f,r,r,r,r,f,r,r,f,r,f,r,f,r,f",
        state + (limit, scale, first, w0, x0, w1, x1, w2, x2, w3, x3),  # noqa: RUF005
        dtype=(tl.float32, tl.float32, tl.float32, tl.int32, tl.uint32, tl.uint32),
        is_pure=True,
        pack=1,
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

    ``zero`` is 0, which only the caller knows; it is what ``turn`` is above.
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
        state = absorb_defined(state, zero, sampled, (first, k0, k1, c1_, c2, c3), a0, b0, c0, d0)
        address = (first + 1, k0, k1, c1_, c2, c3)
        state = absorb_defined(state, zero, sampled, address, a1, b1, c1, d1)
        address = (first + 8, k0, k1, c1_, c2, c3)
        state = absorb_defined(state, zero, sampled, address, a8, b8, c8, d8)
        address = (first + 9, k0, k1, c1_, c2, c3)
        return absorb_defined(state, zero, sampled, address, a9, b9, c9, d9)


@triton.jit
def absorb_defined(state, zero, sampled, address, x0, x1, x2, x3):
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


@triton.jit
def park(logits, cell, GROUP: tl.constexpr):
    """Store a tile in pieces: [groups, pieces of 16 tokens, words, rows, 4]."""
    if logits.shape[1] > 64:
        left, right = halves(logits)
        park(left, cell, GROUP)
        park(right, cell, GROUP + left.shape[1] // 64)
    else:
        SIZE: tl.constexpr = logits.shape[0] * 4
        x0, x1, x2, x3 = words_apart(logits)
        _park_word(x0, cell + (GROUP * 16) * SIZE, SIZE)
        _park_word(x1, cell + (GROUP * 16 + 1) * SIZE, SIZE)
        _park_word(x2, cell + (GROUP * 16 + 2) * SIZE, SIZE)
        _park_word(x3, cell + (GROUP * 16 + 3) * SIZE, SIZE)


@triton.jit
def _park_word(x, cell, SIZE: tl.constexpr):
    p0, p1, p8, p9 = pieces(x)
    tl.store(cell, p0)
    tl.store(cell + 4 * SIZE, p1)
    tl.store(cell + 8 * SIZE, p8)
    tl.store(cell + 12 * SIZE, p9)


@triton.jit
def scan_parked(cell, state, zero, sampled, address, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Absorb every token of a parked tile by its defined score."""
    first, k0, k1, c1, c2, c3 = address
    for piece in range(COLUMNS // 16):
        at = cell + piece * (16 * ROWS)
        x0 = tl.load(at, cache_modifier=".cg")
        x1 = tl.load(at + 4 * ROWS, cache_modifier=".cg")
        x2 = tl.load(at + 8 * ROWS, cache_modifier=".cg")
        x3 = tl.load(at + 12 * ROWS, cache_modifier=".cg")
        token = first + (piece >> 2) * 64 + (piece & 1) + (piece & 2) * 4
        state = absorb_defined(state, zero, sampled, (token, k0, k1, c1, c2, c3), x0, x1, x2, x3)
    return state
