"""Gumbel-top-k: the k largest perturbed logits in order; path-exact.

Taking the k largest scores draws k tokens without replacement, in Plackett-Luce order (Kool et al.
2019). The order (score falling, id rising on ties) is strict, so the k best of a union are the k
best of the parts' k best, and any cuts, any order of merges and any rank count give the same ids.

Source: Kool, van Hoof, Welling, "Stochastic beams and where to find them", ICML 2019.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fsresearch.noise import RowNoise
from fsresearch.summaries.base import Reducer
from fsresearch.tiles import Tile

__all__ = ["GumbelTopK", "PerturbedTop", "pack", "unpack"]

_CHUNK = 64


class PerturbedTop(NamedTuple):
    """The k best so far, in order.

    Attributes:
        perturbed: float32 [B, k], -inf where there is no token, NaN throughout an invalid row.
        token: int64 [B, k], -1 where there is no token.
    """

    perturbed: Tensor
    token: Tensor


class GumbelTopK(Reducer[PerturbedTop]):
    """Keep the k largest perturbed logits; with no noise, the k largest logits.

    Args:
        noise: one draw a row, or None.
        k: how many to keep, at least 1.

    >>> noise = RowNoise(torch.tensor([7]), torch.tensor(0), torch.tensor([0]))
    >>> sampler = GumbelTopK(noise, k=3)
    >>> sampler.draw(sampler.lift(Tile(torch.zeros(1, 1000), 0)))
    tensor([[707, 202, 613]])
    """

    exactness = "path"
    breadth = 2

    def __init__(self, noise: RowNoise | None, k: int) -> None:
        self.noise = noise
        self.k = k

    def empty(self, rows: int, device: torch.device) -> PerturbedTop:
        """Return -inf and -1."""
        return PerturbedTop(
            torch.full((rows, self.k), -torch.inf, device=device),
            torch.full((rows, self.k), -1, device=device),
        )

    def lift(self, tile: Tile) -> PerturbedTop:
        """Perturb a tile and keep its k best."""
        scores = tile.logits
        if self.noise is not None:
            scores = scores + self.noise.gumbel_tile(tile.start, tile.stop)[:, 0]
        tokens = tile.ids().expand(scores.shape)
        return self._best(*_best_chunks(scores, tokens, self.k))

    def merge(self, left: PerturbedTop, right: PerturbedTop) -> PerturbedTop:
        """Keep the k best of both; a token that both hold counts once."""
        scores = torch.cat([left.perturbed, right.perturbed], 1)
        tokens = torch.cat([left.token, right.token], 1)
        order = pack(scores, tokens).argsort(1, descending=True)
        scores, tokens = scores.gather(1, order), tokens.gather(1, order)
        again = (tokens[:, 1:] == tokens[:, :-1]) & (scores[:, 1:] == scores[:, :-1])
        scores[:, 1:].masked_fill_(again, -torch.inf)
        return self._best(scores, tokens)

    def draw(self, state: PerturbedTop) -> Tensor:
        """Return the tokens int64 [B, k] in order."""
        return state.token

    def _best(self, scores: Tensor, tokens: Tensor) -> PerturbedTop:
        """Return the k best of candidates [B, T], padded to k where T is smaller."""
        found = min(self.k, scores.shape[1])
        perturbed, token = unpack(pack(scores, tokens).topk(found).values)
        token = token.masked_fill(perturbed == -torch.inf, -1)
        best = self.empty(len(scores), scores.device)
        best.perturbed[:, :found] = perturbed
        best.token[:, :found] = token
        invalid = ~(scores.amax(1, keepdim=True) < torch.inf)
        best.perturbed.masked_fill_(invalid, torch.nan)
        best.token.masked_fill_(invalid, -1)
        return best


def _best_chunks(scores: Tensor, tokens: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the candidates [B, at most 64 k] of the k chunks of 64 with the largest maxima.

    The k best lie there: a chunk left out comes after k others in the strict order, each of which
    holds a better candidate. A NaN or +inf is in the first chunk.
    """
    chunks = scores.shape[1] // _CHUNK
    if chunks < 2 * k:
        return scores, tokens
    whole = chunks * _CHUNK
    maxima = scores[:, :whole].unflatten(1, (-1, _CHUNK)).amax(-1)
    maxima = maxima.nan_to_num(torch.inf, torch.inf, -torch.inf)
    order = torch.arange(chunks, device=scores.device)
    _, first = unpack(pack(maxima, order).topk(k).values)
    inside = torch.arange(_CHUNK, device=scores.device)
    places = (first[..., None] * _CHUNK + inside).flatten(1)
    rest = slice(whole, None)
    return (
        torch.cat([scores.gather(1, places), scores[:, rest]], 1),
        torch.cat([tokens[:, :1] + places, tokens[:, rest]], 1),
    )


def pack(scores: Tensor, tokens: Tensor) -> Tensor:
    """Return int64 numbers in the strict order: score rising, then id falling; -0 equals 0.

    Args:
        scores: float32 [B, T], without NaN.
        tokens: int64, ids that broadcast to them; -1 counts as 0.

    >>> unpack(pack(torch.tensor([[1.0, 2.0, 2.0]]), torch.arange(3)).sort().values)
    (tensor([[1., 2., 2.]]), tensor([[0, 2, 1]]))
    """
    bits = (scores + 0.0).view(torch.int32)
    rising = bits ^ (bits >> 31 & 0x7FFFFFFF)
    return rising.long().bitwise_left_shift_(32).add_(0xFFFFFFFF - tokens.clamp(min=0))


def unpack(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return (scores, tokens) of what `pack` made."""
    rising = (packed >> 32).int()
    bits = rising ^ (rising >> 31 & 0x7FFFFFFF)
    return bits.view(torch.float32), 0xFFFFFFFF - (packed & 0xFFFFFFFF)
