"""Faults of merging and of trees: shared coins, shared words, keys with the wrong law."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fsresearch.arguments import row_noise
from fsresearch.noise import NODE, RowNoise, gumbel_from_bits, uniform_from_bits
from fsresearch.verify.controls.exact import Runs, Words, draw_exactly, draw_rows
from fsresearch.verify.sampler import Drawn, Request

__all__ = ["fresh_noise", "one_coin", "root_zero", "shared_word"]

_GROUP = 64
_BRANCH = 2


def one_coin(request: Request) -> Drawn:
    """Fold tiles from left to right, with one coin for all of a draw's merges.

    >>> token = one_coin(Request(torch.zeros(50, 256), seed=1, width=64)).token
    >>> bool(((token >= 128) & (token < 192)).float().mean() < 0.2)
    True
    """
    width = request.width or 256
    return draw_rows(request, _fold, cuts=width)


def shared_word(request: Request) -> Drawn:
    """Choose a group of 64 and a place in it by the same number.

    >>> token = shared_word(Request(torch.zeros(50, 4096), seed=1)).token
    >>> bool((token % 64 < 32).float().mean() > 0.9)
    True
    """
    return draw_rows(request, _one_number, cuts=_GROUP)


def fresh_noise(request: Request) -> Drawn:
    """Draw k tokens by the best groups and, with noise of their own, the best tokens of those.

    >>> fresh_noise(Request(torch.zeros(1, 4), seed=1, k=4)).token.sort().values
    tensor([[0, 1, 2, 3]])
    """
    if not request.k:
        return draw_exactly(request)
    keys = _keys(request)
    groups = keys.phi.unflatten(1, (-1, _BRANCH)).logsumexp(2)
    above = groups + keys.noise(1 << 24, groups.shape[1])
    local = keys.phi - groups.repeat_interleave(_BRANCH, 1)
    below = above.repeat_interleave(_BRANCH, 1) + local + keys.noise(0, keys.phi.shape[1])
    return _best(below, request)


def root_zero(request: Request) -> Drawn:
    """Draw k tokens by keys that are conditioned on a largest key of 0.

    >>> root_zero(Request(torch.zeros(1, 4), seed=1, k=2)).token.shape
    torch.Size([1, 2])
    """
    if not request.k:
        return draw_exactly(request)
    keys = _keys(request)
    clocks = torch.exp(-(keys.phi + keys.noise(0, keys.phi.shape[1])))
    return _best(-torch.log(clocks - clocks.amin(1, keepdim=True) + 1), request)


class _Keys(NamedTuple):
    """Log-probabilities [B, V'], padded to whole branches, and their rows' noise."""

    phi: Tensor
    rows: RowNoise

    def noise(self, first: int, count: int) -> Tensor:
        """Return Gumbels [B, count] of units from ``first`` on."""
        units = torch.arange(first, first + count, device=self.phi.device)
        high, _, low, _ = self.rows.words(units, NODE)
        return gumbel_from_bits(high, low)[:, 0]


def _keys(request: Request) -> _Keys:
    logits = request.logits
    rows = row_noise(request.seed, request.position, 0, 1, len(logits), logits.device)
    shared = logits[:1] if logits.stride(0) == 0 else logits
    phi = torch.log_softmax(shared.double() / (request.temperature or 1.0), 1)
    phi = torch.nn.functional.pad(phi, (0, -phi.shape[1] % _BRANCH), value=-torch.inf)
    return _Keys(phi.expand(len(logits), -1), rows)


def _best(keys: Tensor, request: Request) -> Drawn:
    """Return the k largest keys' tokens, and the next key."""
    more = torch.nn.functional.pad(keys.nan_to_num(-torch.inf), (0, 1), value=-torch.inf)
    top = more.topk(request.k + 1, dim=1)
    token = top.indices[:, :-1].masked_fill(top.values[:, :-1] == -torch.inf, -1)
    return Drawn(token, kappa=top.values[:, -1])


def _fold(runs: Runs, words: Words) -> Tensor:
    """Keep or replace: a tile's draw replaces the one so far if the coin is under its share."""
    mass = (runs.value - runs.value.max()).exp() * runs.length
    share = mass / mass.cumsum(0)
    coin = uniform_from_bits(words[0][..., :1], words[2][..., :1])
    taken = (coin < share) & (mass > 0)
    last = (taken * torch.arange(1, len(mass) + 1, device=mass.device)).argmax(-1)
    place = uniform_from_bits(words[1], words[3]) * runs.length
    offset = place.gather(-1, last[..., None])[..., 0].long()
    return runs.start[last] + torch.minimum(offset, runs.length[last] - 1)


def _one_number(runs: Runs, words: Words) -> Tensor:
    """Choose a run by a Gumbel, and the place in it by the uniform that made the Gumbel."""
    uniform = uniform_from_bits(words[0], words[2])
    scores = runs.value + runs.length.log() + gumbel_from_bits(words[0], words[2])
    winner = scores.argmax(-1)
    offset = (uniform * runs.length).gather(-1, winner[..., None])[..., 0].long()
    return runs.start[winner] + torch.minimum(offset, runs.length[winner] - 1)
