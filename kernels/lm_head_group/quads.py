"""A race of groups where four neighbouring lanes of a warp hold a row: NVIDIA's accumulators.

A group's score is at most its largest logit, plus log 64, plus its Gumbel. So most groups are
beaten without a single exponential: one vote of a warp, and a branch that is seldom taken. Inside,
the group is weighed as the definition says; where it takes the lead, its token is chosen at once.

Tensors lie as `kernels.pieces` says, a value a row and strand, [rows, 4].
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch.kernels.lm_head_group.race import across, group_noise, strands
from fsresearch.kernels.philox import hex_ptx
from fsresearch.kernels.pieces import fill, halves, maximum, peak

__all__ = ["assembly", "race_quads"]

_LOGITS = [f"${11 + i}" for i in range(16)]
_ALL = "0xffffffff"


def _weigh() -> str:
    """Set w to the weights of a strand, p, q and h to the nodes above them, and m to their sum."""
    lines = [
        f"sub.f32 w{i}, {x}, $7; mul.f32 w{i}, w{i}, {hex_ptx(1.4426950408889634)};"
        f" ex2.approx.ftz.f32 w{i}, w{i};"
        for i, x in enumerate(_LOGITS)
    ]
    for below, above, count in (("w", "p", 8), ("p", "q", 4), ("q", "h", 2)):
        lines += [f"add.f32 {above}{i}, {below}{2 * i}, {below}{2 * i + 1};" for i in range(count)]
    return "\n    ".join([*lines, "add.f32 m, h0, h1;"])


def _step(left: str, right: str) -> str:
    """Let g say whether x falls into the left part; move x inside the part that it falls into."""
    return f"""setp.eq.f32 g, {right}, {hex_ptx(0.0)}; setp.lt.or.f32 g, x, {left}, g;
    sub.f32 z, x, {left}; selp.f32 x, x, z, g;"""


def _descend() -> str:
    """Walk down a strand and add the offset of the token at x to id."""
    lines = []
    for level, (name, apart) in enumerate((("h", 32), ("q", 16), ("p", 8), ("w", 1))):
        lines += [_step(f"{name}0", f"{name}1"), f"@!g add.s32 id, id, {apart};"]
        for below, lower in enumerate("qpw"[level:]):
            half = 2 << below
            lines += [
                f"selp.f32 {lower}{i}, {lower}{i}, {lower}{i + half}, g;" for i in range(half)
            ]
    return "\n    ".join(lines)


def _attain() -> str:
    """In greedy rows, let id be the first token that attains the largest logit."""
    tokens = "\n    ".join(
        f"setp.eq.f32 g, {x}, $7; @g add.s32 i, $8, {(i >> 2) * 16 + (i & 1) + (i & 2) * 4};"
        for i, x in reversed(list(enumerate(_LOGITS)))
    )
    return f"""
    vote.sync.any.pred some, cold, {_ALL};
    @!some bra CHOSEN;
    mov.b32 i, 0x7fffffff;
    {tokens}
    shfl.sync.bfly.b32 j, i, 1, 0x1f, {_ALL}; min.s32 j, i, j;
    shfl.sync.bfly.b32 k, j, 2, 0x1f, {_ALL}; min.s32 j, j, k;
    setp.eq.s32 g, i, j;
    @cold mov.b32 id, i;
    and.pred g, g, cold; not.pred some, cold; and.pred mine, mine, some; or.pred mine, mine, g;
CHOSEN:"""


def assembly(greedy: bool) -> str:
    """Outputs: best, token.

    Inputs: the same, bound, the group's Gumbel, the uniforms of the quad's groups, the row's
    largest logit, first id, greedy, which lane's uniform is the group's, the strand's sixteen
    logits.
    """
    return f"""{{
    .reg .f32 w<16>, p<8>, q<4>, h<2>, best, score, x, y, z, m, n, pair, other;
    .reg .b32 token, id, i, j, k; .reg .pred g, some, leads, mine, upper, odd, cold;
    mov.f32 best, $2; mov.b32 token, $3;
    add.f32 score, $7, {hex_ptx(4.1588835)}; add.f32 score, score, $5;
    max.f32 x, best, $4; max.f32 x, x, {hex_ptx(-3.4028234663852886e38)};
    setp.ge.f32 some, score, x; vote.sync.any.pred some, some, {_ALL};
    @!some bra SKIP;
    {_weigh()}
    shfl.sync.bfly.b32 n, m, 1, 0x1f, {_ALL}; add.f32 pair, m, n;
    shfl.sync.bfly.b32 other, pair, 2, 0x1f, {_ALL}; add.f32 x, pair, other;
    lg2.approx.ftz.f32 score, x; mul.f32 score, score, {hex_ptx(0.6931471805599453)};
    {f"setp.ne.s32 cold, $9, 0; selp.f32 score, {hex_ptx(0.0)}, score, cold;" if greedy else ""}
    add.f32 score, $7, score; add.f32 score, score, $5;
    setp.ge.f32 leads, score, $4; setp.gt.and.f32 leads, score, best, leads;
    vote.sync.any.pred some, leads, {_ALL};
    @!some bra SKIP;
    shfl.sync.idx.b32 y, $6, $10, 0x1c1f, {_ALL}; mul.f32 x, y, x;
    mov.u32 i, %laneid; mov.b32 id, $8;
    and.b32 j, i, 2; setp.ne.s32 upper, j, 0; and.b32 j, i, 1; setp.ne.s32 odd, j, 0;
    selp.f32 y, other, pair, upper; selp.f32 other, pair, other, upper;
    {_step("y", "other")}
    xor.pred mine, g, upper;
    selp.f32 y, n, m, odd; selp.f32 other, m, n, odd;
    {_step("y", "other")}
    xor.pred g, g, odd; and.pred mine, mine, g;
    {_descend()}{_attain() if greedy else ""}
    selp.b32 id, id, 0xffffffff, mine;
    selp.f32 best, score, best, leads; selp.b32 token, id, token, leads;
SKIP:
    mov.f32 $0, best; mov.b32 $1, token;
}}"""


_SAMPLED = tl.constexpr(assembly(False))
_MIXED = tl.constexpr(assembly(True))
_OF_LANE = tl.constexpr(f"shfl.sync.idx.b32 $0, $1, $2, 0x1c1f, {_ALL};")


@triton.jit
def race_quads(logits, best, token, bound, first, draw, rows, GREEDY: tl.constexpr):
    """Let a tile's groups race; return (best score, token), -1 where another lane knows it.

    Args:
        logits: float32 [rows, columns], at most 256 columns.
        best: the row's best score so far.
        token: the best group's token, or -1.
        bound: a score that a group must reach.
        first: int32, the global ids of the strands' first tokens.
        draw: which.
        rows: from `open_rows`.
        GREEDY: whether rows can be greedy.
    """
    noise, uniform = group_noise((first >> 6) + (first >> 1 & 3), draw, rows)
    known = bound, _by_group(noise, logits), uniform, first, rows[4].to(tl.int32)
    return _absorb(logits, best, token, known, 0, GREEDY)


@triton.jit
def _by_group(noise, logits):
    """Return the noise of every group of a tile, which one lane has, in all four of the quad."""
    noises = ()
    for group in tl.static_range(logits.shape[1] // 64):
        one = tl.inline_asm_elementwise(
            _OF_LANE, "=f,f,r", [noise, group], dtype=tl.float32, is_pure=True, pack=1
        )
        noises = noises + (one,)  # noqa: RUF005
    return noises


@triton.jit
def _absorb(logits, best, token, known, GROUP: tl.constexpr, GREEDY: tl.constexpr):
    """Absorb the groups from GROUP on; the lane of that number has a group's uniform."""
    if logits.shape[1] > 64:
        left, right = halves(logits)
        best, token = _absorb(left, best, token, known, GROUP, GREEDY)
        return _absorb(right, best, token, known, GROUP + left.shape[1] // 64, GREEDY)
    else:
        bound, noises, uniform, first, greedy = known
        top = across(tl.reduce(peak(logits), 1, maximum), first)
        group = (noises[GROUP], uniform, top, first + GROUP * 64, greedy, fill(first, GROUP))
        return tl.inline_asm_elementwise(
            _MIXED if GREEDY else _SAMPLED,
            "=&f,=&r,f,r,f,f,f,f,r,r,r,f,f,f,f,f,f,f,f,f,f,f,f,f,f,f,f",
            (best, token, bound) + group + strands(logits),  # noqa: RUF005
            dtype=(tl.float32, tl.int32),
            is_pure=True,
            pack=1,
        )
