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
from fsresearch.kernels.lm_head_group.race import race_strands, strands
from fsresearch.kernels.merge.mass import leave_mass
from fsresearch.kernels.merge.packed import poison, score_of, submit
from fsresearch.kernels.philox import gumbel_from_bits, philox
from fsresearch.kernels.pieces import fill, maximum
from fsresearch.kernels.stream.units import open_race, peak_units, transform_units
from fsresearch.kernels.transform import transform

__all__ = ["close_row", "lift", "open_row"]

_GROUP_STREAM = tl.constexpr(noise.GROUP << 24)
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def open_row(source, race, draws, first, args, FLAGS: tl.constexpr):
    """Return (rows, state): what the row's tokens share, and the neutral summary."""
    rows = open_race(source, race, draws, args, _GROUP_STREAM, FLAGS)
    high, group = _group_peaks(fill(first[None, :], 0.0), first)
    lowest = fill(high, float("-inf"))
    return rows, (lowest, fill(group, -1), float("-inf") + fill(race, 0.0), lowest, fill(high, 0.0))


@triton.jit
def lift(raw, first, rows, state, args, FLAGS: tl.constexpr):
    """Merge a tile into the state (best score, group, floor, mass maximum, mass).

    A Gumbel is at most ``-log(word / 2**32)``. So one comparison without a logarithm tells which
    groups may reach the floor, the program's best score. Most tiles have none, and scores are a
    quarter of the instructions.
    """
    best, leader, floor, top, mass = state
    _, _, draw, _, greedy, k0, k1, _, c2, c3, _ = rows
    x = transform_units(raw, first, rows, args, FLAGS)
    high, group = _group_peaks(peak_units(x), first)
    shift = tl.where(high == float("-inf"), 0.0, high)
    total = _group_masses(x, shift)
    group += args[3][1] >> 6
    c1 = (fill(group, 0) + draw).to(tl.uint32)
    word, _, more, _ = philox(k0, k1, group.to(tl.uint32), c1, c2, c3)
    slack = 1.6e-5 + tl.abs(floor) * 6e-7
    limit = total * tl.exp2((high - floor + slack) * _LOG2_E + 32.0)
    reaches = tl.where(greedy, 4294967296.0, word.to(tl.float32)) <= limit
    if tl.max(reaches.to(tl.int32), 0) > 0:
        noise = tl.where(greedy, 0.0, gumbel_from_bits(word, more))
        score = high + tl.where(greedy, 0.0, tl.log(total)) + noise
        leads = score > best
        best, leader = tl.where(leads, score, best), tl.where(leads, group, leader)
        floor = tl.max(best, 0)
    merged = maximum(top, high)
    if LOG_MASS & FLAGS:
        about = tl.where(merged == float("-inf"), 0.0, merged)
        mass = mass * tl.exp2((top - about) * _LOG2_E)
        mass += total * tl.exp2((high - about) * _LOG2_E)
    return best, leader, floor, merged, mass


@triton.jit
def close_row(slot, slots, rows, state, args, FLAGS: tl.constexpr):
    """Write a program's mass and add its winner to those of all programs."""
    best, leader, _, top, mass = state
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
    row, factor, draw, _, greedy, k0, k1, _, c2, c3, source = rows
    column = group * 64 - args[3][1] + tl.arange(0, 64)
    at = source[0] + column.to(tl.int64) * source[1]
    raw = tl.load(at, mask=column < args[3][0], other=float("-inf")).to(tl.float32)
    x = strands(transform(raw[None, :], column, row, factor, args, FLAGS))
    first = (group * 64 + tl.arange(0, 4) * 2)[None, :]
    lowest = fill(x[0], float("-inf"))
    known = (row, factor, draw, draw, greedy, k0, k1, c2, c3)
    _, token = race_strands(x, lowest, fill(first, -1), lowest, first, draw, known)
    return tl.max(tl.max(token, 1), 0)


@triton.jit
def _group_peaks(high, first):
    """Return the groups' largest [groups] of the units' [1, units], and beside them their ids."""
    high = tl.reshape(high, (high.shape[1] // 16, 16))
    return tl.reduce((high, tl.reshape(first >> 6, high.shape)), 1, _peak_first)


@triton.jit
def _peak_first(high, group, other, same):
    """The larger, where a NaN stays, and the id, which both have."""
    return maximum(high, other), group


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
