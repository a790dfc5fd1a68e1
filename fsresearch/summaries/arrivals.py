"""Which groups of a tile can hold a winner: a bound that costs no logarithm.

Gumbel-max is a race: a token's clock rings at ``E exp(-logit)``, and the first to ring has the
largest score. Its exponential E is at least ``word / 2**32``, so words and logits alone bound every
arrival from below. Only the groups whose bound comes before a known arrival need their noise. On
the CPU, where logarithms are what Gumbels cost, this leaves the words to pay for; a GPU would have
to wait for the host to read which groups those are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch.noise import GROUP_SIZE, LEAF, RowNoise

__all__ = ["arrival_bounds", "latest_arrival"]


def arrival_bounds(logits: Tensor, first: int, noise: RowNoise) -> tuple[Tensor, Tensor]:
    """Return (bounds, largest) of groups, in units that `latest_arrival` shares.

    Args:
        logits: float32 [B, G, 64].
        first: index of the first group.
        noise: n draws.

    Returns:
        float32 [B, n, G], 0 in a group with a NaN; and the rows' largest logits [B, 1, 1].

    >>> noise = RowNoise(torch.tensor([7]), torch.tensor(0), torch.tensor([0]))
    >>> logits = torch.zeros(1, 2, 64)
    >>> bounds, largest = arrival_bounds(logits, 0, noise)
    >>> winner = (logits + noise.gumbel_tile(0, 128).view(1, 2, 64)).amax((1, 2))
    >>> bounds <= latest_arrival(winner[:, None, None], largest)
    tensor([[[ True, False]]])
    """
    rows, groups, draws = *logits.shape[:2], len(noise.draws)
    largest = logits.amax((1, 2), keepdim=True)
    largest.masked_fill_(largest == -torch.inf, 0.0)
    bounds = (largest - logits).exp_().view(rows, 1, groups, 4, 16)
    bounds = bounds.expand(rows, draws, groups, 4, 16).contiguous()
    units = torch.arange(first * 16, (first + groups) * 16, device=logits.device)
    for lane, word in enumerate(noise.words(units, LEAF)):
        bounds[:, :, :, lane].mul_(word.view(rows, draws, groups, GROUP_SIZE // 4))
    return bounds.flatten(3).amin(-1).nan_to_num_(0.0, torch.inf), largest


def latest_arrival(score: Tensor, largest: Tensor) -> Tensor:
    """Return the bound above which a group holds no score as large, ties and rounding included.

    Args:
        score: float32 [B, n, 1], a perturbed logit.
        largest: from `arrival_bounds`.
    """
    rounding = 1e-4 + 2.0**-21 * (score.abs() + largest.abs())
    return (largest - score + rounding).exp_() * 2.0**32
