"""The law of a sample without replacement, ordered and as a set.

A set is the sum over its orders, k! of them. Walking from the empty set to S through the lattice of
its subsets, with weight p_u / (mass outside A) from A to A + u, sums the same products along paths:
2**k steps, all of positive terms, in logarithms. From the empty set forwards this gives P(S). From
S backwards it gives, at {s} and {s, s'}, the probabilities that the rest of S comes first where s,
or both, have been removed from the domain: the leave-out ratios of the unordered-set estimator.

Source: Kool, van Hoof and Welling, "Estimating Gradients for Discrete Random Variables by Sampling
without Replacement", ICLR 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from fsresearch.without_replacement.race import Drawn, Race, log_left, race

__all__ = ["MAX_SET", "SetRatios", "ordered_log_prob", "set_ratios", "unordered_log_prob"]

MAX_SET = 12

_IDENTITY = 1e-6
_TABLE_ELEMENTS = 1 << 21

Walk: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


class SetRatios(NamedTuple):
    """The law of a set of k tokens, and of what is left of it when some are known.

    Attributes:
        log_prob: float64 [...], log P(S).
        first: float64 [..., k], p_s R(S, s), the probability that s came first given the set; sums
            to 1. R(S, s) = P(S - s without s in the domain) / P(S).
        second: float64 [..., k, k], at [s, s'], where s is not s', the probability that s' came
            first given that the set came and that s is not in the domain, times the mass without
            s: p_s' R(S, s'; without s). On the diagonal p_s, so that a row is the weights of the
            baseline of s.
    """

    log_prob: Tensor
    first: Tensor
    second: Tensor


def ordered_log_prob(drawn: Drawn) -> Tensor:
    """Return the log-probability of the tokens in their order, float64 [...].

    Args:
        drawn: an OrderedSample, a BeamSample, a Race or log-probabilities [..., k] in order; places
            with -inf are empty.

    Source: Plackett, "The Analysis of Permutations", 1975.

    >>> ordered_log_prob(torch.log(torch.tensor([0.3, 0.5]))).exp()
    tensor(0.2143, dtype=torch.float64)
    """
    known = race(drawn)
    terms = known.log_prob - log_left(known)
    return terms.masked_fill(known.log_prob == -torch.inf, 0.0).sum(-1)


def unordered_log_prob(drawn: Drawn) -> Tensor:
    """Return the log-probability that the set came, in any order, float64 [...].

    Args:
        drawn: an OrderedSample, a BeamSample, a Race or log-probabilities [..., k]; places with
            -inf are empty.

    Raises:
        ValueError: If k exceeds MAX_SET.

    >>> unordered_log_prob(torch.log(torch.tensor([0.3, 0.5]))).exp()
    tensor(0.5143, dtype=torch.float64)
    """
    known = race(drawn)
    _check_size(known)
    return _by_rows(_forwards, known)[0]


def set_ratios(drawn: Drawn) -> SetRatios:
    """Return the law of the set and its leave-out ratios, and check that they agree.

    P(S) comes from the walk forwards and the ratios from the walk backwards.

    Args:
        drawn: as for `unordered_log_prob`.

    Raises:
        ValueError: If k exceeds MAX_SET, or sum_s p_s R(S, s) differs from 1 by more than 1e-6,
            which says that the log-probabilities are none of one distribution.

    Source: Kool, van Hoof, Welling, ICLR 2020.

    >>> ratios = set_ratios(torch.log(torch.tensor([0.3, 0.5])))
    >>> ratios.first
    tensor([0.4167, 0.5833], dtype=torch.float64)
    """
    known = race(drawn)
    _check_size(known)
    log_set, singles, pairs = _by_rows(_both_ways, known)
    first = torch.exp(known.log_prob + singles - log_set[..., None])
    wrong = (first.sum(-1) - 1).abs() > _IDENTITY
    if wrong.any():
        worst = float(first.sum(-1)[wrong][0])
        raise ValueError(
            "drawn must hold log-probabilities of different tokens of one distribution: the sum "
            f"of p_s R(S, s) must be 1 within {_IDENTITY}, got {worst}"
        )
    ratio = (pairs - singles[..., None]).masked_fill(pairs == -torch.inf, -torch.inf)
    return SetRatios(log_set, first, torch.exp(known.log_prob[..., None, :] + ratio))


def _check_size(known: Race) -> None:
    size = known.log_prob.shape[-1]
    if not 1 <= size <= MAX_SET:
        raise ValueError(f"k must be in [1, {MAX_SET}] where subsets are enumerated, got {size}")


def _forwards(log_prob: Tensor, log_rest: Tensor) -> tuple[Tensor]:
    """Return log P(S) [N]: the sum over paths from the empty set, ended by the last arrival."""
    rows, size = log_prob.shape
    log_left = _log_left(log_prob, log_rest)
    log_paths = torch.full_like(log_left, -torch.inf)
    log_paths[:, 0] = 0.0
    for subsets, members, smaller in _lattice(size, log_prob.device):
        ways = log_paths[:, smaller] - log_left[:, smaller]
        ways = ways.masked_fill(log_paths[:, smaller] == -torch.inf, -torch.inf)
        log_paths[:, subsets] = (ways + log_prob[:, members]).logsumexp(-1)
    return (log_paths[torch.arange(rows, device=log_prob.device), _target(log_prob)],)


def _both_ways(log_prob: Tensor, log_rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log P(S) and the log-weights of the paths to S from {s} [N, k], {s, s'} [N, k, k]."""
    rows, size = log_prob.shape
    log_left = _log_left(log_prob, log_rest)
    everything = (1 << size) - 1
    log_paths = torch.full_like(log_left, -torch.inf)
    log_paths[torch.arange(rows, device=log_prob.device), _target(log_prob)] = 0.0
    for subsets, members, smaller in _lattice(size, log_prob.device):
        outside, larger = everything - subsets, everything - smaller
        ways = (log_prob[:, members] + log_paths[:, larger]).logsumexp(-1)
        onward = (ways - log_left[:, outside]).masked_fill(ways == -torch.inf, -torch.inf)
        log_paths[:, outside] = torch.maximum(log_paths[:, outside], onward)
    single = 1 << torch.arange(size, device=log_prob.device)
    (log_set,) = _forwards(log_prob, log_rest)
    return log_set, log_paths[:, single], log_paths[:, single[:, None] | single]


def _log_left(log_prob: Tensor, log_rest: Tensor) -> Tensor:
    """Return the log-mass outside every subset [N, 2**k], summed from what is outside."""
    log_mass = log_rest[:, None]
    for member in log_prob.unbind(1):
        log_mass = torch.cat([log_mass, torch.logaddexp(log_mass, member[:, None])], 1)
    return log_mass.flip(1)


def _target(log_prob: Tensor) -> Tensor:
    """Return the subset of the places that hold a token, int64 [N]."""
    return (
        (log_prob != -torch.inf) << torch.arange(log_prob.shape[1], device=log_prob.device)
    ).sum(1)


@lru_cache(maxsize=2 * MAX_SET)
def _lattice(size: int, device: torch.device) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return the subsets [n] of every size from 1, their members [n, m] and A - member [n, m]."""
    levels = []
    for m in range(1, size + 1):
        members = torch.tensor(list(combinations(range(size), m)), device=device)
        bits = 1 << members
        subsets = bits.sum(1)
        levels.append((subsets, members, subsets[:, None] - bits))
    return levels


def _by_rows(walk: Walk, known: Race) -> tuple[Tensor, ...]:
    """Apply a walk to rows [N, k] a few at a time, and restore their leading shape."""
    leading, size = known.log_prob.shape[:-1], known.log_prob.shape[-1]
    few = max(_TABLE_ELEMENTS >> size, 1)
    log_prob, log_rest = known.log_prob.reshape(-1, size), known.log_rest.reshape(-1)
    parts = [
        walk(p, rest) for p, rest in zip(log_prob.split(few), log_rest.split(few), strict=True)
    ]
    whole = (torch.cat(part) for part in zip(*parts, strict=True))
    return tuple(part.reshape((*leading, *part.shape[1:])) for part in whole)
