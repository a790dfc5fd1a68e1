"""The tokens of a tile that may be among the k best: found in the tile, settled after it.

As in `lm_head_max.scan`, a comparison of integers leaves out four tokens at once. A token that its
own logit does not leave out is noted, `NOTED` of a strand; the few that are noted are scored by the
definition when the tile is through. So the branch that is repeated all over a tile stays short:
instructions that do not fit their cache cost more than they do.

A packed key above the bound then waits in a register of its thread, two deep; the next one pushes
the oldest into the program's list in memory, where it takes the place of the smallest key.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch.kernels.philox import gumbel_ptx, hex_ptx, leaf_unit, philox
from fsresearch.kernels.pieces import halves, pieces, words_apart

__all__ = ["NOTED", "insert", "note", "settle"]

NOTED = tl.constexpr(3)
_LOG2_E = 1.4426950408889634


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


def _note_ptx() -> str:
    """Outputs: logit, token, word of up to three, the last first, and how many there were.

    Inputs: the same, limit, reach, mask, first id, four words, four logits.
    """
    tests = "".join(
        f"""
    and.b32 m, ${23 + 1 + i}, $22; or.b32 m, m, n; cvt.rn.f32.u32 y, m; lg2.approx.f32 y, y;
    fma.rn.f32 z, ${28 + i}, {hex_ptx(_LOG2_E)}, $21; setp.ge.f32 p{i}, z, y;"""
        for i in range(4)
    )
    notes = "".join(
        f"""
    @!p{i} bra NEXT{i};
    mov.f32 x3, x2; mov.b32 t3, t2; mov.b32 w3, w2; mov.f32 x2, x1; mov.b32 t2, t1; mov.b32 w2, w1;
    mov.f32 x1, ${28 + i}; add.s32 t1, $23, {16 * i}; mov.b32 w1, ${24 + i}; add.s32 c, c, 1;
NEXT{i}:"""
        for i in range(4)
    )
    names = [f"{part}{i}" for i in (1, 2, 3) for part in "xtw"] + ["c"]
    return (
        "{ .reg .f32 x1, x2, x3, y, z; .reg .b32 t1, t2, t3, w1, w2, w3, c, m, n;"
        + " .reg .pred p, p0, p1, p2, p3;\n"
        + "".join(f"    mov.b32 {name}, ${10 + i};\n" for i, name in enumerate(names))
        + f"""
    min.u32 m, $24, $25; min.u32 n, $26, $27; min.u32 m, m, n;
    setp.gt.u32 p, m, $20;
    @p bra SKIP;
    not.b32 n, $22; and.b32 n, n, 1;{tests}{notes}
SKIP:
"""
        + "".join(f"    mov.b32 ${i}, {name};\n" for i, name in enumerate(names))
        + "}"
    )


def _settle_ptx() -> str:
    """Outputs: both waiting keys.

    Inputs: the same, logit, token, word, scale, k0, k1, c2, c3, the bound's key, its address, the
    list's address, k.
    """
    return f"""{{
    .reg .f32 y, g; .reg .b32 h, i; .reg .b64 a, b, key; .reg .pred p;
    mov.b64 a, $2; mov.b64 b, $3;
    setp.lt.s32 p, $5, 0;
    @p bra DONE;
    {gumbel_ptx("$6", "$5", ["$8", "$9"], ["0", "$10", "$11"])}
    fma.rn.f32 y, g, $7, $4; add.f32 y, y, 0f00000000;
    mov.b32 i, y; shr.s32 h, i, 31; or.b32 h, h, -2147483648; xor.b32 i, i, h;
    not.b32 h, $5; mov.b64 key, {{h, i}};
    setp.le.u64 p, key, $12;
    @p bra DONE;
    red.relaxed.gpu.global.max.u64 [$13], key;
    setp.eq.u64 p, b, 0;
    @p bra PUSH;
    {_insert_ptx("b", "$14", "$15")}
PUSH:
    mov.b64 b, a; mov.b64 a, key;
DONE:
    mov.b64 $0, a; mov.b64 $1, b;
}}"""


_NOTE_PTX = tl.constexpr(_note_ptx())
_SETTLE_PTX = tl.constexpr(_settle_ptx())
_INSERT_PTX = tl.constexpr(
    "{ .reg .pred p; setp.eq.u64 p, $1, 0; @p bra NONE;"
    + _insert_ptx("$1", "$2", "$3")
    + "NONE: mov.b32 $0, 0; }"
)


@triton.jit
def note(logits, noted, known, rows, first, zero, GROUP: tl.constexpr):
    """Note the tokens of a tile whose scores may be above the bound.

    Args:
        logits: float32 [rows, columns].
        noted: (logit, token, word) of each, the last first, and how many there were; [rows, 4].
        known: (limit, reach, mask): the largest word of interest for the largest logit; what
            ``log2(word)`` of a token may be above its logit's binary exponent; 0 for greedy rows,
            else all ones.
        rows: from `open_rows`.
        first: int32 [rows, 4], the first token of each strand.
        zero: uint32 0, which only the caller knows (see `philox`).
        GROUP: 0; which 64 columns, inside.
    """
    if logits.shape[1] > 64:
        left, right = halves(logits)
        noted = note(left, noted, known, rows, first, zero, GROUP)
        return note(right, noted, known, rows, first, zero, GROUP + left.shape[1] // 64)
    else:
        x0, x1, x2, x3 = words_apart(logits)
        a0, a1, a8, a9 = pieces(x0)
        b0, b1, b8, b9 = pieces(x1)
        c0, c1, c8, c9 = pieces(x2)
        d0, d1, d8, d9 = pieces(x3)
        first = first + GROUP * 64
        noted = _note_part(noted, known, rows, first, zero, a0, b0, c0, d0)
        noted = _note_part(noted, known, rows, first + 1, zero, a1, b1, c1, d1)
        noted = _note_part(noted, known, rows, first + 8, zero, a8, b8, c8, d8)
        return _note_part(noted, known, rows, first + 9, zero, a9, b9, c9, d9)


@triton.jit
def _note_part(noted, known, rows, first, zero, x0, x1, x2, x3):
    """Look at the four tokens of one Philox call, of draw 0."""
    _, _, _, _, _, k0, k1, c2, c3 = rows
    turn = noted[9].to(tl.uint32) & zero
    w0, w1, w2, w3 = philox(k0, k1, leaf_unit(first), zero, c2, c3, turn)
    return tl.inline_asm_elementwise(
        _NOTE_PTX,
        "=&f,=&r,=&r,=&f,=&r,=&r,=&f,=&r,=&r,=&r,f,r,r,f,r,r,f,r,r,r,r,f,r,r,r,r,r,r,f,f,f,f",
        noted + known + (first, w0, w1, w2, w3, x0, x1, x2, x3),
        dtype=(
            tl.float32,
            tl.int32,
            tl.uint32,
            tl.float32,
            tl.int32,
            tl.uint32,
            tl.float32,
            tl.int32,
            tl.uint32,
            tl.int32,
        ),
        is_pure=True,
        pack=1,
    )


@triton.jit
def settle(waiting, token, known, rows):
    """Score a token that was noted, and let its key wait if it is above the bound.

    Args:
        waiting: two keys uint64 [rows, 4], the younger first, 0 for none.
        token: (logit, token, word); token -1 is none.
        known: (bound, its address, the list's address, k).
        rows: from `open_rows`.
    """
    _, _, _, _, scale, k0, k1, c2, c3 = rows
    return tl.inline_asm_elementwise(
        _SETTLE_PTX,
        "=&l,=&l,l,l,f,r,r,f,r,r,r,r,l,l,l,r",
        waiting + token + (scale, k0, k1, c2, c3) + known,
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
