"""Tiled: every tile is summarised on its own, then summaries merge in a balanced tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsresearch.schedules.cuts import tiles
from fsresearch.sources import Source
from fsresearch.summaries.base import Reducer

__all__ = ["merge_tree", "tiled"]


def tiled(
    reducer: Reducer[Any],
    source: Source,
    *,
    width: int | None = None,
    cuts: Sequence[int] | None = None,
) -> Any:
    """Summarise tiles independently and merge neighbours pairwise.

    Args:
        reducer: what is kept.
        source: where the logits come from.
        width: tokens a tile; tiles start at its global multiples.
        cuts: ascending global ids to cut at instead, possibly repeated.

    Returns:
        The reducer's state.

    Raises:
        ValueError: If width or a cut is not allowed.

    Source: FlashSampling, Algorithms 1 and I.2.

    >>> import torch
    >>> from fsresearch.sources import Logits
    >>> from fsresearch.summaries import GumbelMax
    >>> tiled(GumbelMax(None), Logits(torch.tensor([[0.0, 3.0, 1.0]])), cuts=[1, 2]).token
    tensor([[1]])
    """
    states = [reducer.lift(tile) for tile in tiles(reducer, source, width, cuts)]
    return merge_tree(reducer, states or [reducer.empty(source.rows, source.device)])


def merge_tree(reducer: Reducer[Any], states: Sequence[Any]) -> Any:
    """Merge at least one state in a balanced tree that keeps their order."""
    if len(states) == 1:
        return states[0]
    middle = len(states) // 2
    left, right = merge_tree(reducer, states[:middle]), merge_tree(reducer, states[middle:])
    return reducer.merge(left, right)
