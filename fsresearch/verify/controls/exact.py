"""An exact sampler whose cost is the number of runs of equal logits, not of tokens.

A run of m equal logits x has the mass m exp(x): one 64-bit Gumbel chooses among the runs, a second
number chooses a place in the run. Faults vary how runs are cut, addressed and scored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fsresearch.arguments import row_noise
from fsresearch.noise import NODE, RowNoise, gumbel_from_bits, uniform_from_bits
from fsresearch.verify.sampler import Drawn, Request

__all__ = ["COMMON", "Runs", "draw_exactly", "draw_rows", "draw_runs", "row_of", "runs_of", "win"]

COMMON = frozenset(
    {
        "seed",
        "row-seeds",
        "position",
        "temperature",
        "greedy",
        "num-samples",
        "batch-invariant",
        "marks-invalid",
    }
)


class Runs(NamedTuple):
    """Runs of equal logits in one row.

    Attributes:
        start: int64 [R], the first id.
        length: int64 [R].
        value: float64 [R].
    """

    start: Tensor
    length: Tensor
    value: Tensor


Words = tuple[Tensor, Tensor, Tensor, Tensor]
Rule = Callable[[Runs, Words], Tensor]


def draw_exactly(request: Request) -> Drawn:
    """Draw from softmax.

    >>> logits = torch.tensor([[0.0, 0.0, -torch.inf]])
    >>> draw_exactly(Request(logits, 10, seed=1)).token
    tensor([[1, 1, 1, 1, 1, 1, 0, 0, 1, 0]])
    """
    return draw_rows(request, draw_runs)


def draw_rows(
    request: Request,
    rule: Rule,
    *,
    cuts: int | None = None,
    address: Callable[[Runs], Tensor] = lambda runs: runs.start,
) -> Drawn:
    """Draw every row by a rule; rows that share one memory are drawn together.

    Args:
        request: what is asked.
        rule: from a row's runs and their words [B, n, R] to tokens [B, n].
        cuts: runs end at multiples of this id, if given.
        address: the units of the runs' noise.
    """
    logits = request.logits
    rows = len(logits)
    noise = row_noise(request.seed, request.position, 0, request.num_samples, rows, logits.device)
    if logits.stride(0) == 0 or rows == 1:
        return Drawn(_draw_row(logits[:1], noise, request, rule, cuts, address))
    parts = [
        _draw_row(
            logits[row : row + 1],
            noise._replace(
                seeds=noise.seeds[row : row + 1],
                positions=noise.positions.expand(rows)[row : row + 1],
            ),
            request,
            rule,
            cuts,
            address,
        )
        for row in range(rows)
    ]
    return Drawn(torch.cat(parts))


def _draw_row(
    logits: Tensor,
    noise: RowNoise,
    request: Request,
    rule: Rule,
    cuts: int | None,
    address: Callable[[Runs], Tensor],
) -> Tensor:
    """Draw [B, n] tokens from one row that all of the noise's rows share."""
    shape = len(noise.seeds), len(noise.draws)
    row = row_of(logits, request.temperature)
    if row is None:
        return torch.full(shape, -1, device=logits.device)
    if request.temperature == 0:
        return row.argmax().expand(shape)
    runs = runs_of(row, cuts)
    few = max((1 << 21) // (len(runs.start) * shape[0]), 1)
    parts = [
        rule(runs, noise._replace(draws=part).words(address(runs), NODE))
        for part in noise.draws.split(few)
    ]
    return torch.cat(parts, 1)


def row_of(logits: Tensor, temperature: float) -> Tensor | None:
    """Return the row [V] as it is sampled, or None where it is no distribution.

    >>> row_of(torch.tensor([[1.0, 3.0]]), 2.0)
    tensor([0.5000, 1.5000], dtype=torch.float64)
    """
    row = logits[0].double()
    if not bool((row.max() > -math.inf) & (row.max() < math.inf)):
        return None
    return row / temperature if temperature else row


def runs_of(row: Tensor, cuts: int | None = None) -> Runs:
    """Return the runs of equal values of a row [V], cut at multiples of ``cuts`` if given.

    >>> runs_of(torch.tensor([0.0, 0.0, 1.0, 1.0]), cuts=3)
    Runs(start=tensor([0, 2, 3]), length=tensor([2, 1, 1]), value=tensor([0., 1., 1.]))
    """
    first = torch.ones(len(row), dtype=torch.bool, device=row.device)
    first[1:] = row[1:] != row[:-1]
    if cuts:
        first[::cuts] = True
    start = first.nonzero()[:, 0]
    end = torch.tensor([len(row)], device=row.device)
    return Runs(start, torch.cat([start[1:], end]) - start, row[start])


def draw_runs(runs: Runs, words: Words) -> Tensor:
    """Choose a run by its mass, and a place in it.

    >>> runs = runs_of(torch.zeros(8))
    >>> draw_runs(runs, tuple(torch.tensor([[[1 << 31]]]) for _ in range(4)))
    tensor([[4]])
    """
    scores = runs.value + runs.length.log() + gumbel_from_bits(words[0], words[2])
    place = uniform_from_bits(words[1], words[3]) * runs.length
    return win(runs, scores, place)


def win(runs: Runs, scores: Tensor, place: Tensor) -> Tensor:
    """Return tokens [B, n]: the run of the largest score [B, n, R], at its place in the run."""
    winner = scores.argmax(-1)
    offset = place.gather(-1, winner[..., None])[..., 0].long()
    return runs.start[winner] + torch.minimum(offset, runs.length[winner] - 1)
