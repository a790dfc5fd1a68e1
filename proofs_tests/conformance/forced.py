"""Noise whose words a test chooses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fsresearch.noise import RowNoise

__all__ = ["ForcedNoise", "forced"]


class ForcedNoise(RowNoise):
    """Row noise for one row whose words are the same four at every unit, or one set a draw.

    Leaf Gumbels are 0, but for chosen tokens that get a score no other can reach.
    """

    forced: Tensor
    winners: tuple[int, ...]

    def words(self, units: Tensor, kind: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the chosen words int64 [1, n, T], whatever the address."""
        a, b, c, d = (
            w.view(1, -1, 1).expand(1, len(self.draws), units.shape[-1]) for w in self.forced
        )
        return a, b, c, d

    def gumbel_tile(self, start: int, stop: int) -> Tensor:
        """Return 1e9 for the winners and 0 for others, float32 [1, n, stop - start]."""
        ids = torch.arange(start, stop)
        won = torch.isin(ids, torch.tensor(self.winners)).float() * 1e9
        return won.expand(1, len(self.draws), -1)


def forced(words: Sequence[int | Tensor], *, winners: Sequence[int] = ()) -> ForcedNoise:
    """Return noise of chosen words, each a number or int64 [n], one a draw.

    >>> [w.tolist() for w in forced([1, 2, 3, 4]).words(torch.arange(2), 0)][:2]
    [[[[1, 1]]], [[[2, 2]]]]
    """
    columns = torch.stack(torch.broadcast_tensors(*(torch.as_tensor(w).reshape(-1) for w in words)))
    noise = ForcedNoise(torch.tensor([0]), torch.tensor(0), torch.arange(columns.shape[1]))
    noise.forced, noise.winners = columns, tuple(winners)
    return noise
