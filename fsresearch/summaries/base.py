"""The contract of a reducer: what is kept of a tile, and how two summaries become one.

A reducer is a monoid of summaries (Gumbel-max and log-mass are two of them). All randomness enters
at ``lift``, or for the coin at ``merge``, through the addresses of the noise it was built with, so
a summary does not depend on when or where it is made. States are NamedTuples of tensors.

A row that is not a distribution travels as NaN with token -1, and a part of the vocabulary without
mass as -inf with token -1; every merge propagates the first and absorbs the second.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from fsresearch.tiles import Tile

__all__ = ["Product", "Reducer", "first_maximum"]

StateT = TypeVar("StateT", bound=tuple[Any, ...])


class Reducer(ABC, Generic[StateT]):
    """Summarises tiles and merges summaries; see ``docs/extending`` for a skeleton to copy.

    Attributes:
        exactness: "path" if the drawn tokens are those of one full pass, whatever the cuts and
            the order of merges; "law" if their distribution is.
        granularity: every cut must be a multiple of this global id.
        breadth: how many default tile widths to take at once; above 1 where a token costs little.
        ordered: whether merges must join neighbours, the lower ids on the left.
    """

    exactness: Literal["path", "law"]
    granularity: int = 1
    breadth: int = 1
    ordered: bool = False

    @abstractmethod
    def empty(self, rows: int, device: torch.device) -> StateT:
        """Return the summary of no tokens, the neutral element of merge."""

    @abstractmethod
    def lift(self, tile: Tile) -> StateT:
        """Summarise one tile."""

    @abstractmethod
    def merge(self, left: StateT, right: StateT) -> StateT:
        """Summarise the union of two disjoint parts."""

    @abstractmethod
    def draw(self, state: StateT) -> Tensor:
        """Return what the reducer is for; a sampler's tokens int64 [B, n], -1 where invalid."""


class Product(Reducer[tuple[Any, ...]]):
    """Several reducers over one pass; states and draws are tuples.

    >>> from fsresearch.summaries import GumbelMax, LogNormalizer
    >>> both = Product(GumbelMax(None), LogNormalizer())
    >>> state = both.lift(Tile(torch.tensor([[0.0, 1.0]]), 0))
    >>> state[0].token, state[1].log_mass
    (tensor([[1]]), tensor([[1.3133]], dtype=torch.float64))
    """

    def __init__(self, *reducers: Reducer[Any]) -> None:
        self.reducers = reducers
        paths = all(r.exactness == "path" for r in reducers)
        self.exactness = "path" if paths else "law"
        self.breadth = min((r.breadth for r in reducers), default=1)
        self.granularity = max(r.granularity for r in reducers)
        self.ordered = any(r.ordered for r in reducers)

    def empty(self, rows: int, device: torch.device) -> tuple[Any, ...]:
        """Return the tuple of empty summaries."""
        return tuple(r.empty(rows, device) for r in self.reducers)

    def lift(self, tile: Tile) -> tuple[Any, ...]:
        """Summarise one tile for every reducer."""
        return tuple(r.lift(tile) for r in self.reducers)

    def merge(self, left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
        """Merge component by component."""
        return tuple(r.merge(a, b) for r, a, b in zip(self.reducers, left, right, strict=True))

    def draw(self, state: tuple[Any, ...]) -> Any:
        """Return the tuple of draws."""
        return tuple(r.draw(s) for r, s in zip(self.reducers, state, strict=True))


def first_maximum(scores: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
    """Return (maximum, token) over the last axis: lowest id on ties, -1 without a finite score.

    A NaN or +inf among the scores makes the maximum NaN.

    >>> first_maximum(torch.tensor([[1.0, 2.0, 2.0], [0.0, torch.inf, 1.0]]), start=64)
    (tensor([2., nan]), tensor([65, -1]))
    """
    maximum, index = scores.max(-1)
    maximum = maximum.masked_fill(maximum == torch.inf, torch.nan)
    return maximum, torch.where(maximum > -torch.inf, index + start, -1)
