"""Gumbel-max: the largest perturbed logit and its token; path-exact.

The argmax of ``logit + Gumbel`` has the law softmax(logits) (T2.1), and the maximum over a
partition is the maximum of the parts' maxima, ties to the lowest id (D.5): the answer does not
depend on how the vocabulary was cut.

Source: FlashSampling, Theorem 2.1, Lemma D.5, Algorithms I.1 and 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fsresearch.noise import GROUP_SIZE, RowNoise
from fsresearch.summaries.arrivals import arrival_bounds, latest_arrival
from fsresearch.summaries.base import Reducer, first_maximum
from fsresearch.tiles import Tile

__all__ = ["GumbelMax", "PerturbedMaximum", "larger"]


class PerturbedMaximum(NamedTuple):
    """The winner so far.

    Attributes:
        perturbed: float32 [B, n], -inf where nothing had mass, NaN in an invalid row.
        token: int64 [B, n], -1 where there is no winner.
    """

    perturbed: Tensor
    token: Tensor


class GumbelMax(Reducer[PerturbedMaximum]):
    """Keep the largest perturbed logit; with no noise, the plain argmax of greedy rows.

    >>> from fsresearch.noise import RowNoise
    >>> noise = RowNoise(torch.tensor([7]), torch.tensor(0), torch.arange(4))
    >>> sampler = GumbelMax(noise)
    >>> sampler.draw(sampler.lift(Tile(torch.zeros(1, 1000), 0)))
    tensor([[707, 986, 182, 185]])
    """

    exactness = "path"

    def __init__(self, noise: RowNoise | None) -> None:
        self.noise = noise

    def empty(self, rows: int, device: torch.device) -> PerturbedMaximum:
        """Return -inf and -1."""
        draws = 1 if self.noise is None else len(self.noise.draws)
        return PerturbedMaximum(
            torch.full((rows, draws), -torch.inf, device=device),
            torch.full((rows, draws), -1, device=device),
        )

    def lift(self, tile: Tile) -> PerturbedMaximum:
        """Perturb a tile and keep its winner."""
        if self.noise is not None and tile.logits.device.type == "cpu":
            return _race(tile, self.noise)
        scores = tile.logits[:, None]
        if self.noise is not None:
            scores = scores + self.noise.gumbel_tile(tile.start, tile.stop)
        return PerturbedMaximum(*first_maximum(scores, tile.start))

    def merge(self, left: PerturbedMaximum, right: PerturbedMaximum) -> PerturbedMaximum:
        """Keep the larger score."""
        take = larger(left.perturbed, left.token, right.perturbed, right.token)
        return PerturbedMaximum(
            torch.where(take, right.perturbed, left.perturbed),
            torch.where(take, right.token, left.token),
        )

    def draw(self, state: PerturbedMaximum) -> Tensor:
        """Return the tokens int64 [B, n]."""
        return state.token


def larger(score: Tensor, token: Tensor, other_score: Tensor, other_token: Tensor) -> Tensor:
    """Return where the other candidate wins: a larger score, a lower id on ties, or a NaN.

    >>> zero, one = torch.tensor([0.0]), torch.tensor([1.0])
    >>> larger(zero, torch.tensor([4]), zero, torch.tensor([3])), larger(one, zero, zero, zero)
    (tensor([True]), tensor([False]))
    """
    tie = (other_score == score) & (other_token < token)
    return (other_score > score) | tie | other_score.isnan()


def _race(tile: Tile, noise: RowNoise) -> PerturbedMaximum:
    """Perturb only the groups where the winner can be; the answer is that of all.

    First come the groups with the earliest bound; another can seldom beat their winner.
    """
    first, logits = tile.groups()
    bounds, largest = arrival_bounds(logits, first, noise)
    score = torch.full_like(bounds, -torch.inf)
    token = torch.full(bounds.shape, -1)

    def perturb(chosen: Tensor) -> None:
        row, draw, group = chosen.nonzero(as_tuple=True)
        scores = logits[row, group] + noise.gumbel_groups(row, draw, first + group)
        score[row, draw, group], token[row, draw, group] = first_maximum(scores)

    reachable = bounds < torch.inf
    earliest = reachable & (bounds == bounds.amin(-1, keepdim=True))
    perturb(earliest)
    limit = latest_arrival(score.amax(-1, keepdim=True), largest)
    others = reachable & ~earliest & (bounds <= limit)
    if others.any():
        perturb(others)
    perturbed, group = first_maximum(score)
    token = token.gather(2, group.clamp(min=0)[..., None])[..., 0]
    token += (first + group) * GROUP_SIZE
    return PerturbedMaximum(perturbed, token.masked_fill_(group < 0, -1))
