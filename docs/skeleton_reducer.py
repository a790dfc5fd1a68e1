"""An exponential race: every token has a clock, and the earliest to ring is drawn; path-exact.

Token v rings at time E_v exp(-logit_v), with E_v = exp(-Gumbel_v) a standard exponential, so its
rate is exp(logit_v) and it rings first with probability softmax(logits). Times are kept as
logarithms, which neither overflow nor vanish. The earliest of a union is the earliest of the parts'
earliest.

Source: FlashSampling, Theorem 2.1 and Lemma D.5, in the domain of clocks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fsresearch.noise import RowNoise
from fsresearch.summaries.base import Reducer
from fsresearch.tiles import Tile

__all__ = ["Arrival", "ExponentialRace"]


class Arrival(NamedTuple):
    """The earliest token so far.

    Attributes:
        log_time: float32 [B, n], inf where nothing had mass, NaN in an invalid row.
        token: int64 [B, n], -1 where none arrived.
    """

    log_time: Tensor
    token: Tensor


class ExponentialRace(Reducer[Arrival]):
    """Keep the token that rings first.

    >>> noise = RowNoise(torch.tensor([7]), torch.tensor(0), torch.arange(4))
    >>> race = ExponentialRace(noise)
    >>> race.draw(race.lift(Tile(torch.zeros(1, 1000), 0)))
    tensor([[707, 986, 182, 185]])
    """

    exactness = "path"

    def __init__(self, noise: RowNoise) -> None:
        self.noise = noise

    def empty(self, rows: int, device: torch.device) -> Arrival:
        """Return no arrival."""
        shape = rows, len(self.noise.draws)
        return Arrival(
            torch.full(shape, torch.inf, device=device),
            torch.full(shape, -1, device=device),
        )

    def lift(self, tile: Tile) -> Arrival:
        """Start the tile's clocks and keep the earliest, the lowest id on ties."""
        log_times = -self.noise.gumbel_tile(tile.start, tile.stop) - tile.logits[:, None]
        log_time, index = log_times.min(-1)
        log_time = log_time.masked_fill(log_time == -torch.inf, torch.nan)
        token = (index + tile.start).masked_fill(~(log_time < torch.inf), -1)
        return Arrival(log_time, token)

    def merge(self, left: Arrival, right: Arrival) -> Arrival:
        """Keep the earlier arrival; an invalid part makes the row invalid."""
        tie = (right.log_time == left.log_time) & (right.token < left.token)
        take = (right.log_time < left.log_time) | tie | right.log_time.isnan()
        return Arrival(
            torch.where(take, right.log_time, left.log_time),
            torch.where(take, right.token, left.token),
        )

    def draw(self, state: Arrival) -> Tensor:
        """Return the tokens int64 [B, n]."""
        return state.token
