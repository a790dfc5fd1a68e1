"""Hierarchical sampling: log-masses of a nested partition, built once and walked down per draw.

Choosing a part with probability proportional to its mass, then a part of that part, and at last a
token, leaves the law softmax (D.2, level by level). Building costs one pass over the vocabulary;
each draw after it touches one node's children a level.

Source: FlashSampling, Lemma D.2 applied level by level.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from fsresearch.noise import NODE, RowNoise, gumbel_from_bits
from fsresearch.sources import Source
from fsresearch.summaries.base import first_maximum
from fsresearch.summaries.log_normalizer import log_mass
from fsresearch.tiles import tile_cuts

__all__ = ["LogMassTree"]

_DRAWN_ELEMENTS = 1 << 19


class LogMassTree:
    """A tree of log-masses over consecutive ids, from which draws are cheap.

    Args:
        source: where the logits come from; kept, for the logits of drawn groups. It must cover
            the vocabulary from id 0.
        fan_out: children a node, for all levels or for each from the bottom (first the tokens a
            group). Levels are added until one node is left; after the last given fan-out, the root
            joins all that remain.

    Attributes:
        levels: float64 [B, nodes] a level, from the groups of tokens up to the root.

    Raises:
        ValueError: If a fan-out is less than 2.

    >>> from fsresearch.sources import Logits
    >>> tree = LogMassTree(Logits(torch.zeros(1, 1000)))
    >>> [level.shape[1] for level in tree.levels]
    [16, 1]
    >>> tree.draw(RowNoise(torch.tensor([7]), torch.tensor(0), torch.arange(4)))
    tensor([[613, 769, 964, 922]])
    """

    def __init__(self, source: Source, fan_out: int | Sequence[int] = 64) -> None:
        self.source = source
        given = (fan_out,) if isinstance(fan_out, int) else tuple(fan_out)
        if not given or min(given) < 2:
            raise ValueError(f"fan_out must be at least 2 on every level, got {fan_out}")
        self.fan_outs = [given[0]]
        self.levels = [self._groups(given[0])]
        while (nodes := self.levels[-1].shape[1]) > 1:
            if isinstance(fan_out, int):
                fan = fan_out
            else:
                fan = given[len(self.levels)] if len(self.levels) < len(given) else nodes
            children = _padded(self.levels[-1], fan).unflatten(1, (-1, fan))
            self.fan_outs.append(fan)
            self.levels.append(children.logsumexp(-1))

    @property
    def log_normalizer(self) -> Tensor:
        """Logsumexp of the transformed logits, float32 [B]; NaN where a row is no distribution."""
        total = self.levels[-1][:, 0]
        return total.masked_fill(total == -torch.inf, torch.nan).float()

    def draw(self, noise: RowNoise) -> Tensor:
        """Return tokens int64 [B, n], one a draw of the noise; -1 in invalid rows."""
        few = max(_DRAWN_ELEMENTS // (max(self.source.rows, 1) * max(self.fan_outs)), 1)
        parts = [self._walk(noise._replace(draws=draws)) for draws in noise.draws.split(few)]
        return torch.cat(parts, 1)

    def _groups(self, size: int) -> Tensor:
        """Return the log-masses of the groups of tokens, a few whole groups at a time."""
        width = max(self.source.width // size, 1) * size
        cuts = tile_cuts(self.source.start, self.source.stop, width)
        masses = []
        for start, stop in pairwise(cuts):
            logits = _padded(self.source.tile(start, stop).logits, size)
            masses.append(log_mass(logits.unflatten(1, (-1, size))))
        return torch.cat(masses, 1)

    def _walk(self, noise: RowNoise) -> Tensor:
        """Choose a child a level by Gumbel-max, from the root to a token."""
        device = self.source.device
        node = torch.zeros(self.source.rows, len(noise.draws), dtype=torch.int64, device=device)
        first = 1
        for fan, masses in zip(self.fan_outs[:0:-1], self.levels[-2::-1], strict=True):
            children = node[..., None] * fan + torch.arange(fan, device=device)
            high, _, low, _ = noise.words(first + children, NODE)
            mass = _padded(masses, fan)[:, None].expand(-1, node.shape[1], -1).gather(2, children)
            node = first_maximum(mass + gumbel_from_bits(high, low))[1].clamp(min=0)
            node = children.gather(2, node[..., None])[..., 0]
            first += masses.shape[1]
        size = self.fan_outs[0]
        tokens = node[..., None] * size + torch.arange(size, device=device)
        logits = self.source.at(tokens.flatten(1)).view(tokens.shape)
        place = first_maximum(logits + noise.gumbel(tokens))[1]
        token = tokens.gather(2, place.clamp(min=0)[..., None])[..., 0]
        return token.masked_fill(~(self.levels[-1] > -torch.inf), -1)


def _padded(values: Tensor, multiple: int) -> Tensor:
    """Fill the last axis up to a multiple with -inf."""
    return torch.nn.functional.pad(values, (0, -values.shape[1] % multiple), value=-torch.inf)
