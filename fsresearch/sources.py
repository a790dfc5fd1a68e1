"""Where the transformed logits of a tile come from: logits in memory, or an LM head.

A source covers the global ids [start, stop). A rank's source covers its shard, with its own part of
bias and mask.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fsresearch.tiles import Tile, default_width
from fsresearch.transforms import Transform

__all__ = ["LMHead", "Logits", "Source"]

_GATHERED_ELEMENTS = 1 << 22


class Source(Protocol):
    """Transformed logits of ``rows`` rows over the global ids [start, stop), a tile at a time."""

    rows: int
    start: int
    stop: int
    device: torch.device

    @property
    def width(self) -> int:
        """The default tile width."""

    def tile(self, start: int, stop: int) -> Tile:
        """Return the tile of the global ids [start, stop)."""

    def at(self, tokens: Tensor) -> Tensor:
        """Return the transformed logits of tokens int64 [B, n], -inf outside the source."""


class Logits:
    """Logits that already exist.

    Args:
        logits: float32, bfloat16 or float16 [B, V].
        transform: what is done to them.
        vocab_size: how many of the V columns are tokens; the rest is padding.
        start: the global id of the first column.
        temperature: what the transform's inverse was made of, for kernels that invert it alike.

    >>> Logits(torch.tensor([[1.0, 2.0, 3.0]])).tile(1, 3)
    Tile(logits=tensor([[2., 3.]]), start=1)
    """

    def __init__(
        self,
        logits: Tensor,
        transform: Transform | None = None,
        *,
        vocab_size: int | None = None,
        start: int = 0,
        temperature: float | Tensor | None = None,
    ) -> None:
        self.logits = logits
        self.temperature = temperature
        self.transform = transform or Transform()
        self.rows, columns = logits.shape
        self.start = start
        self.stop = start + (columns if vocab_size is None else vocab_size)
        self.device = logits.device

    @property
    def width(self) -> int:
        """The default tile width."""
        return default_width(self.rows)

    def tile(self, start: int, stop: int) -> Tile:
        """Return the tile of the global ids [start, stop)."""
        local = start - self.start
        raw = self.logits[:, local : stop - self.start].float()
        return Tile(self.transform.apply(raw, local), start)

    def at(self, tokens: Tensor) -> Tensor:
        """Return the transformed logits of tokens int64 [B, n], -inf outside the source."""
        local, outside = _local(tokens, self.start, self.stop)
        if self.start == self.stop:
            return torch.full(tokens.shape, -torch.inf, device=self.device)
        raw = self.logits.gather(1, local).float()
        return self.transform.apply_at(raw, local).masked_fill(outside, -torch.inf)


class LMHead:
    """Logits ``hidden @ weight.T``, computed a tile at a time and never held as [B, V].

    Products are accumulated and kept in float32 whatever the inputs' dtype.

    Args:
        hidden: float32, bfloat16 or float16 [B, D].
        weight: the same dtypes, [V, D].
        transform: what is done to the logits.
        vocab_size: how many of the V rows are tokens; the rest is padding.
        start: the global id of the first row.
        temperature: what the transform's inverse was made of, for kernels that invert it alike.

    >>> head = LMHead(torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    >>> head.tile(1, 3).logits
    tensor([[3., 5.],
            [4., 6.]])
    """

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        transform: Transform | None = None,
        *,
        vocab_size: int | None = None,
        start: int = 0,
        temperature: float | Tensor | None = None,
    ) -> None:
        self.raw_hidden = hidden
        self.temperature = temperature
        self.weight = weight
        self.transform = transform or Transform()
        self.rows = len(hidden)
        self.start = start
        self.stop = start + (len(weight) if vocab_size is None else vocab_size)
        self.device = hidden.device

    @cached_property
    def hidden(self) -> Tensor:
        """The hidden states in float32 [B, D]."""
        return self.raw_hidden.float()

    @property
    def width(self) -> int:
        """The default tile width."""
        return default_width(self.rows, self.raw_hidden.shape[1])

    def tile(self, start: int, stop: int) -> Tile:
        """Return the tile of the global ids [start, stop)."""
        local = start - self.start
        raw = self.hidden @ self.weight[local : stop - self.start].float().T
        return Tile(self.transform.apply(raw, local), start)

    def at(self, tokens: Tensor) -> Tensor:
        """Return the transformed logits of tokens int64 [B, n], -inf outside the source."""
        local, outside = _local(tokens, self.start, self.stop)
        if self.start == self.stop:
            return torch.full(tokens.shape, -torch.inf, device=self.device)
        few = max(_GATHERED_ELEMENTS // max(self.hidden.numel(), 1), 1)
        parts = [
            (self.hidden[:, None] * self.weight[ids].float()).sum(2) for ids in local.split(few, 1)
        ]
        raw = torch.cat(parts, 1)
        return self.transform.apply_at(raw, local).masked_fill(outside, -torch.inf)


def _local(tokens: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Return (column, outside): ids relative to the source, 0 where they lie outside it."""
    outside = (tokens < start) | (tokens >= stop)
    return (tokens - start).masked_fill(outside, 0), outside
