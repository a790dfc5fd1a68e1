"""Tiles: the consecutive pieces of the vocabulary that are summarised one at a time."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fsresearch.noise import GROUP_SIZE

__all__ = ["Tile", "default_width", "tile_cuts"]

_TILE_ELEMENTS = 64 * 12_288
_WEIGHT_ELEMENTS = 1 << 22
_MAX_WIDTH = 12_288


class Tile(NamedTuple):
    """Transformed logits of the tokens [start, start + T).

    Attributes:
        logits: float32 [B, T], real or -inf in a row that is a distribution.
        start: the first token's global id.
    """

    logits: Tensor
    start: int

    @property
    def stop(self) -> int:
        """The global id after the last token."""
        return self.start + self.logits.shape[1]

    def ids(self) -> Tensor:
        """The tokens' global ids, int64 [T]."""
        return torch.arange(self.start, self.stop, device=self.logits.device)

    def groups(self) -> tuple[int, Tensor]:
        """Return (index of the first group, logits by group [B, G, 64]), -inf outside the tile."""
        before, after = self.start % GROUP_SIZE, -self.stop % GROUP_SIZE
        logits = self.logits
        if before or after:
            logits = torch.nn.functional.pad(logits, (before, after), value=-torch.inf)
        return self.start // GROUP_SIZE, logits.unflatten(1, (-1, GROUP_SIZE))


def default_width(rows: int, hidden_size: int = 1) -> int:
    """Return the tile width, a multiple of 64, that keeps a tile's temporaries in cache.

    >>> default_width(64), default_width(1), default_width(1, hidden_size=4096)
    (12288, 12288, 1024)
    """
    of_tile, of_weight = _TILE_ELEMENTS // max(rows, 1), _WEIGHT_ELEMENTS // max(hidden_size, 1)
    widest = min(of_tile, of_weight, _MAX_WIDTH)
    return max(widest // GROUP_SIZE, 1) * GROUP_SIZE


def tile_cuts(start: int, stop: int, width: int) -> list[int]:
    """Return the ascending cuts of [start, stop) at global multiples of width, ends included.

    >>> tile_cuts(0, 300, 128)
    [0, 128, 256, 300]
    >>> tile_cuts(100, 300, 128)
    [100, 128, 256, 300]

    Raises:
        ValueError: If width is not positive.
    """
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}")
    inner = range((start // width + 1) * width, stop, width)
    return [start, *inner, stop] if stop > start else [start]
