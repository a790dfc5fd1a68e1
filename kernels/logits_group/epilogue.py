"""From tiles of logits in memory to the rows' winning groups; law-exact.

The hooks are those of `kernels.stream.pipeline`. A group's score is its log-mass plus one Gumbel; a
greedy row's is its largest logit. The winner of a row is the largest of packed (score, group) keys.
Nothing else is kept: the last program of a row reads the winning group's logits again and chooses
inside it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fsresearch import noise
from fsresearch.kernels.flags import LOG_MASS
from fsresearch.kernels.lm_head_group.race import group_noise, race_strands
from fsresearch.kernels.merge.mass import leave_mass
from fsresearch.kernels.merge.packed import poison, score_of, submit
from fsresearch.kernels.pieces import fill, maximum
from fsresearch.kernels.stream.units import open_race, peak_units, transform_units
from fsresearch.kernels.transform import transform

__all__ = ["close_row", "lift", "open_row"]

_GROUP_STREAM = tl.constexpr(noise.GROUP << 24)
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def open_row(source, race, draws, unit, args, FLAGS: tl.constexpr):
    """Return (rows, state): what the row's tokens share, and the neutral summary."""
    rows = open_race(source, race, draws, args, _GROUP_STREAM, FLAGS)
    group = _group_peaks(fill(unit[None, :], 0.0))
    lowest = fill(group, float("-inf"))
    return rows, (lowest, fill(group, 0.0).to(tl.int32) - 1, lowest, fill(group, 0.0))


@triton.jit
def lift(raw, unit, early, rows, state, args, FLAGS: tl.constexpr):
    """Merge a tile into the state (best score, group, mass maximum, mass)."""
    best, leader, top, mass = state
    _, _, draw, _, greedy, k0, k1, _, c2, c3, _ = rows
    x = transform_units(raw, unit, rows, args, FLAGS)
    high = _group_peaks(peak_units(x))
    shift = tl.where(high == float("-inf"), 0.0, high)
    total = _group_masses(x, shift)
    group = tl.max(tl.reshape(unit >> 4, (unit.shape[0] // 16, 16)), 1) + (args[3][1] >> 6)
    noise, _ = group_noise(group, draw, (0, 0, 0, 0, greedy, k0, k1, c2, c3))
    score = high + tl.where(greedy, 0.0, tl.log(total)) + noise
    leads = score > best
    if LOG_MASS & FLAGS:
        merged = maximum(top, high)
        about = tl.where(merged == float("-inf"), 0.0, merged)
        mass = mass * tl.exp2((top - about) * _LOG2_E)
        mass += total * tl.exp2((high - about) * _LOG2_E)
    best = tl.where(leads, score, best)
    return best, tl.where(leads, group, leader), maximum(top, high), mass


@triton.jit
def close_row(slot, slots, rows, state, args, FLAGS: tl.constexpr):
    """Write a program's mass and add its winner to those of all programs."""
    best, leader, top, mass = state
    keys, arrived, perturbed, token, left, races = args[4]
    row, draw, race = rows[0], rows[2], rows[3]
    here = race + tl.arange(0, 1)
    live = here == race
    if LOG_MASS & FLAGS:
        leave_mass(top[None, :], mass[None, :], row, here == race - draw, slot, left, args[3][3])
    submit(best[None, :], leader[None, :], here[:, None], live[:, None], keys, 0, races)
    broken = live & ~(tl.reduce(top[None, :], 1, maximum) < float("inf"))
    poison(here, broken, keys, 1, races)
    tl.debug_barrier()
    if tl.atomic_add(arrived + race, 1) == slots - 1:
        best_key = tl.load(keys + race, cache_modifier=".cg")
        score = score_of((best_key >> 32).to(tl.uint32))
        valid = (score > float("-inf")) & (score < float("inf"))
        group = tl.where(valid, (~best_key).to(tl.uint32).to(tl.int32), args[3][1] >> 6)
        chosen = _choose(group, rows, args, FLAGS)
        tl.store(perturbed + race, score)
        tl.store(token + race, tl.where(valid, chosen, -1).to(tl.int64))


@triton.jit
def _choose(group, rows, args, FLAGS: tl.constexpr):
    """Return the token int32 that a group's own uniform chooses, from its logits in memory."""
    row, factor, draw, _, greedy, k0, k1, _, c2, c3, _ = rows
    first = group * 64 + tl.arange(0, 4) * 2
    column = first - args[3][1]
    x = _again(column, rows, args, 32, FLAGS)
    lowest = fill(x[0], float("-inf"))
    none = fill(first[None, :], -1)
    known = (row, factor, draw, draw, greedy, k0, k1, c2, c3)
    _, token = race_strands(x, lowest, none, lowest, first[None, :], draw, known)
    return tl.max(tl.max(token, 1), 0)


@triton.jit
def _again(column, rows, args, APART: tl.constexpr, FLAGS: tl.constexpr):
    """Return a tuple of transformed logits [1, strands] of the row, from memory, in ascending id.

    Args:
        column: int32 [strands], their first.
        rows: from `open_row`.
        args: from the launcher.
        APART: ids between the halves of a strand; 0 is a token.
        FLAGS: the options that are on.
    """
    if APART == 0:
        row_ptr, width, column_stride = rows[10]
        at = row_ptr + column.to(tl.int64) * column_stride
        raw = tl.load(at, mask=column < width, other=float("-inf")).to(tl.float32)
        return (transform(raw[None, :], column, rows[0], rows[1], args, FLAGS),)
    else:
        NEXT: tl.constexpr = 1 if APART == 8 else APART // 2
        left = _again(column, rows, args, NEXT, FLAGS)
        return left + _again(column + APART, rows, args, NEXT, FLAGS)


@triton.jit
def _group_peaks(high):
    """Return the groups' largest [groups] of the units' [1, units]; a NaN stays."""
    return tl.reduce(tl.reshape(high, (high.shape[1] // 16, 16)), 1, maximum)


@triton.jit
def _group_masses(x, shift):
    """Sum exp(x - shift) over each group, in the order that the library defines.

    A strand is a pairwise tree: tokens 1 apart, then 8, 16 and 32; strands are 2 and then 4 apart.
    """
    low = _eights(x[0], shift) + _eights(x[1], shift)
    strand = low + (_eights(x[2], shift) + _eights(x[3], shift))
    left, right = tl.split(tl.reshape(strand, (strand.shape[0], 2, 2)))
    return tl.sum(left + right, 1)


@triton.jit
def _eights(x, shift):
    """Sum exp(x - shift) of 16 tokens over those 1 and 8 apart; return [groups, 4]."""
    weight = tl.exp2((tl.reshape(x, (x.shape[1] // 16, 16)) - shift[:, None]) * _LOG2_E)
    left, right = tl.split(tl.reshape(weight, (weight.shape[0], 2, 4, 2)))
    return tl.sum(left + right, 1)
