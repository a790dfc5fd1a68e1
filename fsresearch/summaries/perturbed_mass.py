"""Perturbed log-mass of canonical groups: parallel Group-Gumbel-Max; law-exact.

The maximum of a group's perturbed logits has the law Gumbel(L) with L the group's log-mass, and is
independent of which token attains it (D.1). So a group needs one Gumbel, not 64: the winner of
``L_k + Gumbel_k`` is a group with probability proportional to its mass, and a local choice inside
it finishes an exact sample (D.2). Merges are a plain maximum.

The groups are the ids [64u, 64u + 64) and their noise is addressed by u, so the token depends
neither on tiles nor on batch or ranks, although only its law is that of softmax.

A group's mass is summed in one fixed order: four strands, tokens with equal ``v % 8 // 2``, each a
pairwise tree over its 16 tokens in ascending id, then ``(s0 + s1) + (s2 + s3)``. The choice walks
the same tree down, so a part without mass is never entered. Rounding may move each of the 63 inner
boundaries by 2**-24, a total variation of at most 2**-18 within a group; 1.6e-6 is the most that
enumeration has shown.

Source: FlashSampling, Lemmas D.1, D.2 and D.4, Algorithms I.2 and I.4.
"""

from __future__ import annotations

from functools import reduce
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from fsresearch.noise import GROUP, GROUP_SIZE, RowNoise, gumbel_from_bits, uniform_from_bits
from fsresearch.summaries.base import Reducer
from fsresearch.summaries.gumbel_max import larger
from fsresearch.summaries.log_normalizer import add_log_masses
from fsresearch.tiles import Tile

__all__ = ["GroupWinner", "PerturbedMass"]

_SIBLINGS = 1, 8, 16, 32, 2, 4
_WEIGHED_ELEMENTS = 1 << 19
_LOG_GROUP = 4.158884  # log 64, rounded up


class GroupWinner(NamedTuple):
    """The best group's perturbed log-mass, and a token of it.

    Attributes:
        log_mass: float64 [B, 1], of all groups so far, or [B, 0] where it is not kept.
        perturbed: float32 [B, n], the best L_k + Gumbel_k; -inf without mass, NaN where invalid.
        token: int64 [B, n], the local sample, or -1.
    """

    log_mass: Tensor
    perturbed: Tensor
    token: Tensor


class PerturbedMass(Reducer[GroupWinner]):
    """Keep the largest perturbed group mass and a local sample of that group.

    Args:
        noise: the rows' noise.
        keep_log_mass: whether states carry the log-mass, which gives the log-normaliser.

    >>> noise = RowNoise(torch.tensor([7]), torch.tensor(0), torch.arange(4))
    >>> sampler = PerturbedMass(noise)
    >>> sampler.draw(sampler.lift(Tile(torch.zeros(1, 1000), 0)))
    tensor([[476, 985,  93, 724]])

    Raises:
        ValueError: On lift, if the tile does not start at a multiple of 64.
    """

    exactness = "law"
    granularity = GROUP_SIZE
    breadth = 3

    def __init__(self, noise: RowNoise, *, keep_log_mass: bool = True) -> None:
        self.noise = noise
        self.keep_log_mass = keep_log_mass

    def empty(self, rows: int, device: torch.device) -> GroupWinner:
        """Return no mass and no token."""
        draws = len(self.noise.draws)
        return GroupWinner(
            torch.full(
                (rows, int(self.keep_log_mass)), -torch.inf, dtype=torch.float64, device=device
            ),
            torch.full((rows, draws), -torch.inf, device=device),
            torch.full((rows, draws), -1, device=device),
        )

    def lift(self, tile: Tile) -> GroupWinner:
        """Weigh the tile's groups, let one Gumbel each decide, and sample in the winner."""
        if tile.start % GROUP_SIZE:
            raise ValueError(f"a tile must start at a multiple of {GROUP_SIZE}, got {tile.start}")
        first, grouped = tile.groups()
        units = torch.arange(first, first + grouped.shape[1], device=grouped.device)
        high, inner_high, low, inner_low = self.noise.words(units, GROUP)
        noise = gumbel_from_bits(high, low).float()
        if self.keep_log_mass or grouped.device.type != "cpu":
            few = max(_WEIGHED_ELEMENTS // max(tile.logits.shape[1], 1), 1)
            log_mass = torch.cat([_log_masses(rows) for rows in grouped.split(few)])
        else:
            log_mass = _contending(grouped, noise)
        total = log_mass[:, :0].double()
        if self.keep_log_mass:
            total = log_mass.double().logsumexp(-1, keepdim=True)
        perturbed, winner = (log_mass[:, None] + noise).max(-1)
        at = winner[..., None]
        uniform = uniform_from_bits(inner_high.gather(2, at), inner_low.gather(2, at))[..., 0]
        weights, _ = _weights(grouped.gather(1, at.expand(-1, -1, GROUP_SIZE)))
        token = (first + winner) * GROUP_SIZE + _descend(weights, uniform.float())
        token = token.masked_fill(~(perturbed > -torch.inf), -1)
        return GroupWinner(total, perturbed, token)

    def merge(self, left: GroupWinner, right: GroupWinner) -> GroupWinner:
        """Keep the larger perturbed mass."""
        take = larger(left.perturbed, left.token, right.perturbed, right.token)
        return GroupWinner(
            add_log_masses(left.log_mass, right.log_mass),
            torch.where(take, right.perturbed, left.perturbed),
            torch.where(take, right.token, left.token),
        )

    def draw(self, state: GroupWinner) -> Tensor:
        """Return the tokens int64 [B, n]."""
        return state.token


def _contending(grouped: Tensor, noise: Tensor) -> Tensor:
    """Return the log-masses [B, groups] of the groups that can win a draw, -inf for the others.

    A group's log-mass is at least its largest logit, and at most that plus log 64.
    """
    maximum = grouped.amax(-1)
    lowest = maximum[:, None] + noise
    highest = (maximum + _LOG_GROUP)[:, None] + noise
    beaten = (highest < lowest.amax(-1, keepdim=True)) | (highest == -torch.inf)
    row, group = (~beaten).any(1).nonzero(as_tuple=True)
    log_mass = torch.full_like(maximum, -torch.inf)
    log_mass[row, group] = _log_masses(grouped[row, group][:, None])[:, 0]
    return log_mass


def _log_masses(grouped: Tensor) -> Tensor:
    """Return the groups' log-masses [B, groups]: -inf without mass, NaN with a NaN or +inf."""
    weights, maximum = _weights(grouped)
    strands = reduce(_pair, _SIBLINGS[:4], weights.flatten())
    strands = strands.as_strided(
        (*maximum.shape, 4), (maximum.shape[1] * GROUP_SIZE, GROUP_SIZE, 2)
    )
    mass = (strands[..., 0] + strands[..., 1]) + (strands[..., 2] + strands[..., 3])
    return maximum + mass.log_()


def _weights(grouped: Tensor) -> tuple[Tensor, Tensor]:
    """Return (weights, maximum): exp of the logits relative to their group's largest."""
    maximum = grouped.amax(-1)
    shift = maximum.masked_fill(maximum == -torch.inf, 0.0)
    return (grouped - shift[..., None]).exp_(), maximum


def _pair(level: Tensor, sibling: int) -> Tensor:
    """Return the next level of the mass tree over the last axis.

    A node stands where its first leaf does, its sibling so many places on. Only positions that a
    descent from a multiple of 64 reaches have a meaning. Idle sums are cheaper than strided access.
    """
    return level[..., :-sibling] + level[..., sibling:]


def _descend(weights: Tensor, uniform: Tensor) -> Tensor:
    """Choose inside groups [..., 64] by uniforms [...]; return the offset of the chosen token."""
    *below, total = accumulate(_SIBLINGS, _pair, initial=weights)
    x = uniform * total[..., 0]
    node = torch.zeros_like(x, dtype=torch.int64)
    for level, sibling in zip(reversed(below), reversed(_SIBLINGS), strict=True):
        left = level.gather(-1, node[..., None])[..., 0]
        right = level.gather(-1, node[..., None] + sibling)[..., 0]
        goes_left = (x < left) | (right == 0)
        x = torch.where(goes_left, x, x - left)
        node = torch.where(goes_left, node, node + sibling)
    return node
