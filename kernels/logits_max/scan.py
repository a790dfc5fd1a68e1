"""A scan of a tile of logits in memory: the few tokens that could win score themselves.

A Gumbel is at most ``-log(word / 2**32)``. So a token whose logit is at most ``peak`` can beat a
score ``floor`` only where its word is at most ``2**32 exp(peak - floor)``: one comparison of
integers, for four tokens at once, and a branch that is seldom taken. In the branch a token has its
score by the definition and adds it to the key of its row, so that a scan keeps nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch.kernels.philox import gumbel_ptx, hex_ptx

__all__ = ["assembly", "floor_of", "scan"]

_LOG2_E = 1.4426950408889634


def assembly() -> str:
    """Return the branch in PTX. Output: nothing of use.

    Inputs: the four's maximum, the least of their words, log2 of the limit where the maximum is 0,
    floor, first token, k0, k1, c1, c2, c3, address of the key, the four words, the four logits.
    """
    turn = " ".join(
        [f"mov.b32 w{i}, w{i + 1};" for i in range(3)]
        + [f"mov.f32 x{i}, x{i + 1};" for i in range(3)]
    )
    return f"""{{
    .reg .f32 e, g, x<4>; .reg .b32 limit, token, more, o, s, w<4>; .reg .b64 key; .reg .pred skip;
    fma.rn.f32 e, $1, {hex_ptx(_LOG2_E)}, $3;
    ex2.approx.ftz.f32 e, e;
    cvt.rzi.sat.u32.f32 limit, e;
    setp.gt.u32 skip, $2, limit;
    @skip bra SKIP;
    {" ".join(f"mov.b32 w{i}, ${12 + i}; mov.f32 x{i}, ${16 + i};" for i in range(4))}
    mov.b32 token, $5; mov.b32 more, 4;
NEXT:
    .pragma "nounroll";
    setp.gt.u32 skip, w0, limit;
    @skip bra BEATEN;
    {gumbel_ptx("w0", "token", ["$6", "$7"], ["$8", "$9", "$10"])}
    add.f32 e, x0, g;
    setp.lt.f32 skip, e, $4;
    @skip bra BEATEN;
    add.f32 e, e, 0f00000000; mov.b32 o, e;
    shr.s32 s, o, 31; or.b32 s, s, 0x80000000; xor.b32 o, o, s;
    not.b32 s, token; mov.b64 key, {{s, o}};
    red.relaxed.gpu.global.max.u64 [$11], key;
BEATEN:
    {turn}
    add.u32 token, token, 16; sub.u32 more, more, 1;
    setp.ne.u32 skip, more, 0;
    @skip bra NEXT;
SKIP:
    mov.b32 $0, 0;
}}"""


_BRANCH = tl.constexpr(assembly())


@triton.jit
def scan(x, high, words, token, floor, key, address):
    """Let a tile's tokens that may reach the floor add themselves to the key of their row.

    Args:
        x: four float32 [1, units], transformed.
        high: their largest.
        words: four uint32 [1, units].
        token: int32 [1, units], the global id of the first.
        floor: float32, at most the row's best score.
        key: pointer to the key of the row.
        address: (k0, k1, c1, c2, c3).
    """
    slack = 1.6e-5 + tl.abs(floor) * 6e-7
    start = 32.0 + (slack - floor) * 1.4426950408889634
    low = tl.minimum(tl.minimum(words[0], words[1]), tl.minimum(words[2], words[3]))
    tl.inline_asm_elementwise(
        _BRANCH,
        "=r,f,r,f,f,r,r,r,r,r,r,l,r,r,r,r,f,f,f,f",
        (high, low, start, floor, token) + address + (key.to(tl.uint64),) + words + x,  # noqa: RUF005
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def floor_of(x, words):
    """Return a score float32 that some token of a tile reaches, close to the best one.

    Of each unit the token with the smallest word stands for all, and ``v (1 + v)`` for its
    ``-log(1 - v)``, which it is not below while v <= 0.68.
    """
    word, logit = _smaller(words[0], x[0], words[1], x[1])
    other_word, other = _smaller(words[2], x[2], words[3], x[3])
    word, logit = _smaller(word, logit, other_word, other)
    v = (word.to(tl.float32) + 1.0) * 2.3283064365386963e-10
    score = logit - tl.log2(v + v * v) * 0.6931471805599453
    best = tl.max(tl.max(tl.where(v < 0.68, score, float("-inf")), 1), 0)
    return best - (1e-5 + tl.abs(best) * 1e-6)


@triton.jit
def _smaller(word, logit, other_word, other):
    take = other_word < word
    return tl.where(take, other_word, word), tl.where(take, other, logit)
