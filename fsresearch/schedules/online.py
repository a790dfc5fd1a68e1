"""Online: a left fold over tiles with one tile and one summary in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsresearch.schedules.cuts import tiles
from fsresearch.sources import Source
from fsresearch.summaries.base import Reducer

__all__ = ["online"]


def online(
    reducer: Reducer[Any],
    source: Source,
    *,
    width: int | None = None,
    cuts: Sequence[int] | None = None,
) -> Any:
    """Summarise a source from left to right.

    Args:
        reducer: what is kept.
        source: where the logits come from.
        width: tokens a tile; tiles start at its global multiples.
        cuts: ascending global ids to cut at instead, possibly repeated.

    Returns:
        The reducer's state.

    Raises:
        ValueError: If width or a cut is not allowed.

    Source: FlashSampling, Algorithms I.1 and I.3.

    >>> import torch
    >>> from fsresearch.sources import Logits
    >>> from fsresearch.summaries import GumbelMax
    >>> online(GumbelMax(None), Logits(torch.tensor([[0.0, 3.0, 1.0]])), width=2).token
    tensor([[1]])
    """
    state = reducer.empty(source.rows, source.device)
    for tile in tiles(reducer, source, width, cuts):
        state = reducer.merge(state, reducer.lift(tile))
    return state
