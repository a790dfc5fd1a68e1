"""Where a schedule cuts a source, checked against what the reducer allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from fsresearch.sources import Source
from fsresearch.summaries.base import Reducer
from fsresearch.tiles import Tile, tile_cuts

__all__ = ["check_cut", "tiles"]


def tiles(
    reducer: Reducer[Any], source: Source, width: int | None, cuts: Sequence[int] | None
) -> Iterator[Tile]:
    """Yield the tiles of a source in ascending order: regular ones, or those between given cuts.

    Raises:
        ValueError: If both width and cuts are given, cuts do not ascend inside the source, or an
            inner cut or the width is not a multiple of the reducer's granularity.
    """
    if cuts is None:
        width = source.width * reducer.breadth if width is None else width
        inner = tile_cuts(source.start, source.stop, width)[1:-1]
        if inner and width % reducer.granularity:
            check_cut(reducer, width, "width")
    elif width is not None:
        raise ValueError(f"width and cuts exclude each other, got width={width} and cuts={cuts}")
    else:
        inner = list(cuts)
        for cut in inner:
            check_cut(reducer, cut, "cuts")
    bounds = [source.start, *inner, source.stop]
    if any(a > b for a, b in pairwise(bounds)):
        raise ValueError(
            f"cuts must ascend within [{source.start}, {source.stop}], got {list(inner)}"
        )
    for start, stop in pairwise(bounds):
        if start < stop:
            yield source.tile(start, stop)


def check_cut(reducer: Reducer[Any], cut: int, name: str) -> None:
    """Raise a ValueError that names the nearest allowed cut, unless this one is allowed."""
    step = reducer.granularity
    if cut % step:
        nearest = max(round(cut / step), 1) * step
        raise ValueError(
            f"{name} must be a multiple of {step} for {type(reducer).__name__}, got {cut}; "
            f"the nearest is {nearest}"
        )
