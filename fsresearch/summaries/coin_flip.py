"""Coin flips between parts: the online Group-Gumbel-Max; law-exact.

Each part keeps its log-mass and an exact local sample. Joining A and B, the sample of B is taken
with probability exp(L_B) / (exp(L_A) + exp(L_B)) (D.3), which needs one coin. A coin's address is
its cut, the first id of the right part, so merges join neighbours in order; an empty part tosses
none. Which coins are tossed depends on the cuts, so the path does, and the law does not.

Source: FlashSampling, Lemma D.3, Algorithm I.3.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fsresearch.noise import COIN, RowNoise, uniform_from_bits
from fsresearch.summaries.base import Reducer, first_maximum
from fsresearch.summaries.log_normalizer import add_log_masses, log_mass
from fsresearch.tiles import Tile

__all__ = ["CoinFlip", "LocalSample"]


class LocalSample(NamedTuple):
    """An exact sample of a part, and the part's mass.

    Attributes:
        log_mass: float64 [B, 1].
        token: int64 [B, n], -1 where the part has no mass or the row is invalid.
        start: int64 [B, 1], the part's first id, -1 for a part without tokens.
    """

    log_mass: Tensor
    token: Tensor
    start: Tensor


class CoinFlip(Reducer[LocalSample]):
    """Keep (log-mass, sample); a merge flips the coin of its cut.

    >>> noise = RowNoise(torch.tensor([7]), torch.tensor(0), torch.arange(4))
    >>> sampler = CoinFlip(noise)
    >>> left, right = (sampler.lift(Tile(torch.zeros(1, 50), start)) for start in (0, 50))
    >>> sampler.draw(sampler.merge(left, right))
    tensor([[13, 56, 82, 16]])
    """

    exactness = "law"
    ordered = True

    def __init__(self, noise: RowNoise) -> None:
        self.noise = noise

    def empty(self, rows: int, device: torch.device) -> LocalSample:
        """Return no mass, no token, and no start."""
        return LocalSample(
            torch.full((rows, 1), -torch.inf, dtype=torch.float64, device=device),
            torch.full((rows, len(self.noise.draws)), -1, device=device),
            torch.full((rows, 1), -1, device=device),
        )

    def lift(self, tile: Tile) -> LocalSample:
        """Draw the local sample by Gumbel-max."""
        scores = tile.logits[:, None] + self.noise.gumbel_tile(tile.start, tile.stop)
        return LocalSample(
            log_mass(tile.logits)[:, None],
            first_maximum(scores, tile.start)[1],
            torch.full((len(tile.logits), 1), tile.start, device=tile.logits.device),
        )

    def merge(self, left: LocalSample, right: LocalSample) -> LocalSample:
        """Toss the coin of the cut, right.start, with odds exp(L_right) to exp(L_left)."""
        cut = right.start.clamp(min=0).expand(right.token.shape)
        high, _, low, _ = self.noise.words(cut[..., None], COIN)
        coin = uniform_from_bits(high, low)[..., 0]
        share = 1 / (1 + torch.exp(left.log_mass - right.log_mass))
        return LocalSample(
            add_log_masses(left.log_mass, right.log_mass),
            self._choose(left, right, coin < share),
            torch.where(left.start < 0, right.start, left.start),
        )

    def draw(self, state: LocalSample) -> Tensor:
        """Return the tokens int64 [B, n]."""
        return state.token

    @staticmethod
    def _choose(left: LocalSample, right: LocalSample, heads: Tensor) -> Tensor:
        """Return the right token on heads; a part without mass never, an invalid row none."""
        take = (heads | (left.log_mass == -torch.inf)) & (right.log_mass > -torch.inf)
        token = torch.where(take, right.token, left.token)
        return token.masked_fill((left.log_mass + right.log_mass).isnan(), -1)
