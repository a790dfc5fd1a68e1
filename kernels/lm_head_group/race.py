"""A race of groups wherever Triton runs: every group is weighed, and a leader's token is chosen.

What is here lies as `kernels.pieces` says, a value a row and strand, [rows, 4]. A strand of a group
is a tuple of its 16 tokens in ascending id.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch.kernels.philox import gumbel_from_bits, philox, uniform_from_bits
from fsresearch.kernels.pieces import fill, halves, maximum, pieces, words_apart

__all__ = ["across", "group_noise", "race", "race_strands", "strands"]

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def race(logits, best, token, bound, first, draw, rows, GROUP: tl.constexpr):
    """Let a tile's groups race; return (best score, token), -1 where another strand knows it.

    Args:
        logits: float32 [rows, columns].
        best: the row's best score so far.
        token: the best group's token, or -1.
        bound: a score that a group must reach.
        first: int32, the global ids of the strands' first tokens.
        draw: which.
        rows: from `open_rows`.
        GROUP: 0; which group, inside.
    """
    if logits.shape[1] > 64:
        left, right = halves(logits)
        best, token = race(left, best, token, bound, first, draw, rows, GROUP)
        NEXT: tl.constexpr = GROUP + left.shape[1] // 64
        return race(right, best, token, bound, first, draw, rows, NEXT)
    else:
        first = first + GROUP * 64
        return race_strands(strands(logits), best, token, bound, first, draw, rows)


@triton.jit
def race_strands(x, best, token, bound, first, draw, rows):
    """Let one group race, a tuple of the strands' tokens; return what `race` does."""
    greedy = rows[4]
    top = x[0]
    for i in tl.static_range(1, 16):
        top = maximum(top, x[i])
    top = across(tl.reduce(top, 1, maximum), first)
    noise, uniform = group_noise(first >> 6, draw, rows)
    weights = _weights(x, tl.where(top == float("-inf"), 0.0, top))
    mass, strand = _sum(weights), first >> 1 & 3
    s0, s1 = _alone(mass, strand, 0), _alone(mass, strand, 1)
    s2, s3 = _alone(mass, strand, 2), _alone(mass, strand, 3)
    total = (s0 + s1) + (s2 + s3)
    score = top + tl.where(greedy, 0.0, tl.log(total)) + noise
    leads = (score >= bound) & (score > best)
    if tl.max(tl.max(leads.to(tl.int32), 1), 0) > 0:
        chosen = _choose(weights, (s0, s1, s2, s3), uniform * total, first)
        chosen = tl.where(greedy, _first_of(x, top, first), chosen)
        best = tl.where(leads, score, best)
        token = tl.where(leads, chosen, token)
    return best, token


@triton.jit
def group_noise(group, draw, rows):
    """Return (Gumbel, uniform) of groups in rows; a greedy row's Gumbel is 0."""
    _, _, _, _, greedy, k0, k1, c2, c3 = rows
    c1 = (fill(group, 0) + draw).to(tl.uint32)
    w0, w1, w2, w3 = philox(k0, k1, group.to(tl.uint32), c1, c2, c3)
    return tl.where(greedy, 0.0, gumbel_from_bits(w0, w2)), uniform_from_bits(w1, w3)


@triton.jit
def strands(logits):
    """Return the strands of a group's logits [rows, 64]."""
    x0, x1, x2, x3 = words_apart(logits)
    return pieces(x0) + pieces(x1) + pieces(x2) + pieces(x3)


@triton.jit
def across(value, like):
    """Lay a row's value [rows] beside its strands."""
    return tl.broadcast_to(value[:, None], like.shape)


@triton.jit
def _weights(x, shift):
    """Return exp(x - shift) of the strands."""
    weights = ()
    for i in tl.static_range(16):
        weights = weights + (tl.exp2((x[i] - shift) * _LOG2_E),)  # noqa: RUF005
    return weights


@triton.jit
def _sum(values):
    """Sum a tuple, a power of two of tensors, as a pairwise tree."""
    if len(values) == 1:
        return values[0]
    else:
        return _sum(values[: len(values) // 2]) + _sum(values[len(values) // 2 :])


@triton.jit
def _alone(value, strand, which):
    """Return one strand's value beside all four."""
    return across(tl.sum(tl.where(strand == which, value, 0.0), 1), value)


@triton.jit
def _choose(weights, masses, x, first):
    """Walk down the mass tree to the token at x; -1 in the strands that it leaves out."""
    s0, s1, s2, s3 = masses
    x, pair = _step(x, s0 + s1, s2 + s3)
    x, odd = _step(x, tl.where(pair, s2, s0), tl.where(pair, s3, s1))
    chosen = pair.to(tl.int32) * 2 + odd.to(tl.int32)
    offset = _descend(weights, x, fill(first, 0), 32)
    return tl.where((first >> 1 & 3) == chosen, first + offset, -1)


@triton.jit
def _descend(weights, x, offset, APART: tl.constexpr):
    """Walk down a strand, whose halves start APART ids from each other."""
    HALF: tl.constexpr = len(weights) // 2
    x, right = _step(x, _sum(weights[:HALF]), _sum(weights[HALF:]))
    offset += tl.where(right, APART, 0)
    if HALF == 1:
        return offset
    else:
        return _descend(_half(weights, right), x, offset, 1 if APART == 8 else APART // 2)


@triton.jit
def _half(values, right):
    """Return the half of a tuple that is asked for, place by place."""
    chosen = ()
    for i in tl.static_range(len(values) // 2):
        there = values[i + len(values) // 2]
        chosen = chosen + (tl.where(right, there, values[i]),)  # noqa: RUF005
    return chosen


@triton.jit
def _step(x, left, right):
    """Return (x inside the half that it falls into, whether that is the right one)."""
    goes_left = (x < left) | (right == 0.0)
    return tl.where(goes_left, x, x - left), ~goes_left


@triton.jit
def _first_of(x, top, first):
    """Return the lowest id of the tokens whose logit is the row's largest; -1 in other strands."""
    lowest = fill(first, 2147483647)
    for i in tl.static_range(16):
        offset = (i >> 2) * 16 + (i & 1) + (i & 2) * 4
        lowest = tl.minimum(lowest, tl.where(x[i] == top, first + offset, 2147483647))
    return tl.where(lowest == across(tl.min(lowest, 1), lowest), lowest, -1)
