"""The tokens of a tile that may be among the k best, found as `lm_head_max.scan` finds a winner.

Such a token is scored by the definition at once. Its packed key waits in a register of its thread,
two deep; the next one pushes the oldest into the program's list in memory, where it takes the place
of the smallest key. All of that is a branch that few threads take, so it is PTX.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch.kernels.philox import gumbel_ptx, hex_ptx, leaf_unit, philox
from fsresearch.kernels.pieces import halves, pieces, words_apart

__all__ = ["insert", "scan"]


def _insert_ptx(key: str, entries: str, k: str) -> str:
    """Return PTX that puts a key into a list of k keys in place of the smallest, if larger.

    Entries only grow, and the smallest one that was seen is replaced only where it is still there,
    so threads may race; a key that is in the list already is not put there again.
    """
    loads = "".join(
        f"""
    add.s32 m, j, {i}; min.s32 m, m, last; mad.wide.s32 place, m, 8, {entries};
    ld.relaxed.gpu.global.u64 v{i}, [place];"""
        for i in range(8)
    )
    checks = "".join(
        f"""
    setp.eq.or.u64 there, v{i}, {key}, there;
    setp.lt.u64 less, v{i}, low;
    @less mov.b64 low, v{i};
    @less add.s32 at, j, {i};"""
        for i in range(8)
    )
    return f"""{{
    .reg .b64 low, was, place, v0, v1, v2, v3, v4, v5, v6, v7; .reg .b32 j, m, at, last;
    .reg .pred less, there, more;
    sub.s32 last, {k}, 1;
AGAIN:
    mov.b64 low, -1; mov.b32 at, 0; mov.b32 j, 0; setp.ne.s32 there, j, 0;
LOOK:{loads}{checks}
    add.s32 j, j, 8; setp.lt.s32 more, j, {k};
    @more bra LOOK;
    setp.le.or.u64 there, {key}, low, there;
    @there bra DONE;
    mad.wide.s32 place, at, 8, {entries};
    atom.relaxed.gpu.global.cas.b64 was, [place], low, {key};
    setp.ne.u64 more, was, low;
    @more bra AGAIN;
DONE:
    }}"""


def _scan_ptx() -> str:
    """Outputs: both waiting keys.

    Inputs: the same, limit, scale, first id, k0, k1, c2, c3, four words, four logits, the bound's
    key, its address, the list's address, k.
    """
    return f"""{{
    .reg .f32 floor, slack, x, x1, x2, x3, y, g; .reg .b32 w, w1, w2, w3, n, h, i, token;
    .reg .b64 a, b, key; .reg .pred p, q, still;
    mov.b64 a, $2; mov.b64 b, $3;
    min.u32 w, $11, $12; min.u32 n, $13, $14; min.u32 w, w, n;
    setp.gt.u32 p, w, $4;
    @p bra SKIP;
    mov.b64 {{i, h}}, $19;
    setp.lt.s32 p, h, 0; xor.b32 i, h, -2147483648; not.b32 h, h; selp.b32 h, i, h, p;
    mov.b32 floor, h;
    abs.f32 slack, floor; fma.rn.f32 slack, slack, {hex_ptx(6e-7)}, {hex_ptx(1.6e-5)};
    mov.b32 w, $11; mov.b32 w1, $12; mov.b32 w2, $13; mov.b32 w3, $14;
    mov.f32 x, $15; mov.f32 x1, $16; mov.f32 x2, $17; mov.f32 x3, $18;
    mov.b32 n, 0;
    setp.eq.f32 still, $5, 0f00000000;
TOKEN:
    .pragma "nounroll";
    sub.f32 y, x, floor; setp.geu.f32 p, y, 0f00000000;
    add.f32 y, y, slack; mul.f32 y, y, {hex_ptx(1.4426950408889634)};
    ex2.approx.f32 y, y; mul.f32 y, y, 0f4F800000; cvt.rzi.sat.u32.f32 i, y;
    setp.le.u32 q, w, i;
    @still bra TRIED;
    mov.pred p, q;
TRIED:
    @!p bra NEXT;
    mad.lo.u32 token, n, 16, $6;
    {gumbel_ptx("w", "token", ["$7", "$8"], ["0", "$9", "$10"])}
    fma.rn.f32 y, g, $5, x; add.f32 y, y, 0f00000000;
    mov.b32 i, y; shr.s32 h, i, 31; or.b32 h, h, -2147483648; xor.b32 i, i, h;
    not.b32 h, token; mov.b64 key, {{h, i}};
    setp.le.u64 p, key, $19;
    @p bra NEXT;
    red.relaxed.gpu.global.max.u64 [$20], key;
    setp.eq.u64 p, b, 0;
    @p bra PUSH;
    {_insert_ptx("b", "$21", "$22")}
PUSH:
    mov.b64 b, a; mov.b64 a, key;
NEXT:
    mov.b32 w, w1; mov.b32 w1, w2; mov.b32 w2, w3;
    mov.f32 x, x1; mov.f32 x1, x2; mov.f32 x2, x3;
    add.u32 n, n, 1; setp.lt.u32 p, n, 4;
    @p bra TOKEN;
SKIP:
    mov.b64 $0, a; mov.b64 $1, b;
}}"""


_SCAN_PTX = tl.constexpr(_scan_ptx())
_INSERT_PTX = tl.constexpr(
    "{ .reg .pred p; setp.eq.u64 p, $1, 0; @p bra NONE;"
    + _insert_ptx("$1", "$2", "$3")
    + "NONE: mov.b32 $0, 0; }"
)


@triton.jit
def scan(logits, waiting, known, rows, first, zero, GROUP: tl.constexpr):
    """Let the tokens of a tile whose keys are above the bound wait, or enter the list.

    Args:
        logits: float32 [rows, columns].
        waiting: two keys uint64 [rows, 4], the younger first, 0 for none.
        known: (limit, bound, its address, the list's address, k).
        rows: from `open_rows`.
        first: int32 [rows, 4], the first token of each strand.
        zero: uint32 0, which only the caller knows (see `philox`).
        GROUP: 0; which 64 columns, inside.
    """
    if logits.shape[1] > 64:
        left, right = halves(logits)
        waiting = scan(left, waiting, known, rows, first, zero, GROUP)
        return scan(right, waiting, known, rows, first, zero, GROUP + left.shape[1] // 64)
    else:
        x0, x1, x2, x3 = words_apart(logits)
        a0, a1, a8, a9 = pieces(x0)
        b0, b1, b8, b9 = pieces(x1)
        c0, c1, c8, c9 = pieces(x2)
        d0, d1, d8, d9 = pieces(x3)
        first = first + GROUP * 64
        waiting = _scan_part(waiting, known, rows, first, zero, a0, b0, c0, d0)
        waiting = _scan_part(waiting, known, rows, first + 1, zero, a1, b1, c1, d1)
        waiting = _scan_part(waiting, known, rows, first + 8, zero, a8, b8, c8, d8)
        return _scan_part(waiting, known, rows, first + 9, zero, a9, b9, c9, d9)


@triton.jit
def _scan_part(waiting, known, rows, first, zero, x0, x1, x2, x3):
    """Scan the four tokens of one Philox call, of draw 0."""
    limit, bound, cell, entries, k = known
    _, _, _, _, scale, k0, k1, c2, c3 = rows
    turn = waiting[0].to(tl.uint32) & zero
    w0, w1, w2, w3 = philox(k0, k1, leaf_unit(first), zero, c2, c3, turn)
    return tl.inline_asm_elementwise(
        _SCAN_PTX,
        "=&l,=&l,l,l,r,f,r,r,r,r,r,r,r,r,r,f,f,f,f,l,l,l,r",
        waiting  # noqa: RUF005
        + (limit, scale, first, k0, k1, c2, c3, w0, w1, w2, w3, x0, x1, x2, x3)
        + (bound, cell, entries, k),
        dtype=(tl.uint64, tl.uint64),
        is_pure=False,
        pack=1,
    )


@triton.jit
def insert(key, entries, k):
    """Put keys uint64 into lists, each at its address; 0 is none."""
    tl.inline_asm_elementwise(
        _INSERT_PTX, "=r,l,l,r", [key, entries, k], dtype=tl.int32, is_pure=False, pack=1
    )
