"""The tokens of a tile that may be among the k best: found in the tile, settled after it.

As in `lm_head_max.scan`, a comparison of integers leaves out four tokens at once. A token that its
own logit does not leave out is noted, `NOTED` of a strand; the few that are noted are scored by the
definition when the tile is through. So the branch that is repeated all over a tile stays short:
instructions that do not fit their cache cost more than they do.

A key above the bound goes into the list of its row, which all programs share.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch.kernels.philox import gumbel_ptx, hex_ptx, leaf_unit, philox, pick_lane
from fsresearch.kernels.pieces import halves, pieces, words_apart

__all__ = ["NOTED", "note", "settle"]

NOTED = tl.constexpr(2)
_LOG2_E = 1.4426950408889634


def _insert_ptx(key: str, bound: str, start: str, entries: str, k: str) -> str:
    """Return PTX that puts the register `key` into a list of k keys; it must not be there yet.

    The key goes round the list once. Wherever it meets a smaller key it takes its place, and the
    smaller one goes on. An entry only grows, and nobody waits for anybody: the key that is left at
    the end is below all that it passed. One that is not above the bound need not go on.
    """
    loads = "".join(
        f"""
    add.s32 m, j, {i}; min.s32 m, m, last; add.s32 m, m, {start}; sub.s32 n, m, {k};
    setp.ge.s32 p, n, 0; selp.b32 m, n, m, p; mad.wide.s32 place{i}, m, 8, {entries};
    ld.relaxed.gpu.global.u64 v{i}, [place{i}];"""
        for i in range(4)
    )
    swaps = "".join(
        f"""
    setp.lt.u64 p, v{i}, {key}; mov.b64 v{i}, {key};
    @p atom.relaxed.gpu.global.max.u64 v{i}, [place{i}], {key};
    min.u64 {key}, {key}, v{i};"""
        for i in range(4)
    )
    return f"""{{
    .reg .b64 place0, place1, place2, place3, v0, v1, v2, v3; .reg .b32 j, m, n, last;
    .reg .pred p;
    mad.wide.s32 place0, {start}, 8, {entries};
    atom.relaxed.gpu.global.max.u64 v0, [place0], {key};
    min.u64 {key}, {key}, v0;
    sub.s32 last, {k}, 1; mov.b32 j, 0;
ON:
    setp.le.u64 p, {key}, {bound};
    @p bra IN;{loads}{swaps}
    add.s32 j, j, 4; setp.lt.s32 p, j, {k};
    @p bra ON;
IN:
    }}"""


def _note_ptx() -> str:
    """Outputs: logit and token of up to two, the last first, and a number that counts up to 0.

    Inputs: the same, limit, reach, mask, first id, four words, four logits.
    """
    tests = "".join(
        f"""
    and.b32 m, ${14 + i}, $12; or.b32 m, m, n; cvt.rn.f32.u32 y, m; lg2.approx.f32 y, y;
    fma.rn.f32 z, ${18 + i}, {hex_ptx(_LOG2_E)}, $11; setp.ge.f32 p{i}, z, y;"""
        for i in range(4)
    )
    notes = "".join(
        f"""
    setp.lt.and.s32 p, c, 0, p{i};
    @!p bra NEXT{i};
    mov.f32 x2, x1; mov.b32 t2, t1;
    mov.f32 x1, ${18 + i}; add.s32 t1, $13, {16 * i}; add.s32 c, c, 1;
NEXT{i}:"""
        for i in range(4)
    )
    names = ["x1", "t1", "x2", "t2", "c"]
    return (
        "{ .reg .f32 x1, x2, y, z; .reg .b32 t1, t2, c, m, n; .reg .pred p, p0, p1, p2, p3;\n"
        + "".join(f"    mov.b32 {name}, ${5 + i};\n" for i, name in enumerate(names))
        + f"""
    min.u32 m, $14, $15; min.u32 n, $16, $17; min.u32 m, m, n;
    setp.gt.u32 p, m, $10;
    @p bra SKIP;
    not.b32 n, $12; and.b32 n, n, 1;{tests}{notes}
SKIP:
"""
        + "".join(f"    mov.b32 ${i}, {name};\n" for i, name in enumerate(names))
        + "}"
    )


def _settle_ptx() -> str:
    """Output: 0. Inputs: logit, token, word, scale, k0, k1, c2, c3, bound, start, entries, k."""
    return f"""{{
    .reg .f32 y, g; .reg .b32 h, i; .reg .b64 key; .reg .pred p;
    setp.lt.s32 p, $2, 0;
    @p bra DONE;
    {gumbel_ptx("$3", "$2", ["$5", "$6"], ["0", "$7", "$8"])}
    fma.rn.f32 y, g, $4, $1; add.f32 y, y, 0f00000000;
    mov.b32 i, y; shr.s32 h, i, 31; or.b32 h, h, -2147483648; xor.b32 i, i, h;
    not.b32 h, $2; mov.b64 key, {{h, i}};
    setp.le.u64 p, key, $9;
    @p bra DONE;
    {_insert_ptx("key", "$9", "$10", "$11", "$12")}
DONE:
    mov.b32 $0, 0;
}}"""


_NOTE_PTX = tl.constexpr(_note_ptx())
_SETTLE_PTX = tl.constexpr(_settle_ptx())


@triton.jit
def note(logits, noted, known, rows, first, zero, GROUP: tl.constexpr):
    """Note the tokens of a tile whose scores may be above the bound.

    Args:
        logits: float32 [rows, columns].
        noted: (logit, token) of each, the last first, and a number that starts at minus how many
            to note, of which the last `NOTED` are kept; [rows, 4].
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
    turn = noted[4].to(tl.uint32) & zero
    w0, w1, w2, w3 = philox(k0, k1, leaf_unit(first), zero, c2, c3, turn)
    return tl.inline_asm_elementwise(
        _NOTE_PTX,
        "=&f,=&r,=&f,=&r,=&r,f,r,f,r,r,r,f,r,r,r,r,r,r,f,f,f,f",
        noted + known + (first, w0, w1, w2, w3, x0, x1, x2, x3),
        dtype=(tl.float32, tl.int32, tl.float32, tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def settle(logit, token, known, rows, zero):
    """Score a token that was noted, and put its key into the row's list if it is above the bound.

    Args:
        logit: float32 [rows, 4].
        token: int32 [rows, 4]; -1 is none.
        known: (bound, the place to begin at, the list's address, k).
        rows: from `open_rows`.
        zero: uint32 0.
    """
    _, _, _, _, scale, k0, k1, c2, c3 = rows
    word = pick_lane(token, *philox(k0, k1, leaf_unit(token), zero, c2, c3))
    tl.inline_asm_elementwise(
        _SETTLE_PTX,
        "=r,f,r,r,f,r,r,r,r,l,r,l,r",
        (logit, token, word, scale, k0, k1, c2, c3) + known,  # noqa: RUF005
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
