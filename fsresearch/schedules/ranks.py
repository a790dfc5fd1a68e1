"""Ranks: every process summarises its shard, and all merge the gathered summaries alike."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fsresearch.schedules.cuts import check_cut
from fsresearch.schedules.online import online
from fsresearch.schedules.tiled import merge_tree
from fsresearch.sources import Source
from fsresearch.summaries.base import Reducer

__all__ = ["ranks"]


def ranks(
    reducer: Reducer[Any],
    source: Source,
    *,
    group: dist.ProcessGroup | None = None,
    width: int | None = None,
) -> Any:
    """Summarise this rank's shard, exchange summaries, and merge them in rank order.

    Only the state's tensors travel, in one all-gather: two scalars a row and draw for the samplers.
    Every rank returns the same state. A shard may be empty.

    Args:
        reducer: what is kept; its merges must not depend on order.
        source: this rank's part of the vocabulary.
        group: the process group, the default one if None.
        width: tokens a tile within the shard.

    Raises:
        ValueError: If the reducer needs ordered merges, or the shard starts at a cut that the
            reducer does not allow.

    Source: FlashSampling, Algorithms 1 and I.4.

    >>> from fsresearch.summaries import CoinFlip
    >>> ranks(CoinFlip(None), None)
    Traceback (most recent call last):
    ValueError: CoinFlip merges neighbours in order and cannot run over ranks
    """
    if reducer.ordered:
        name = type(reducer).__name__
        raise ValueError(f"{name} merges neighbours in order and cannot run over ranks")
    if source.start < source.stop:
        check_cut(reducer, source.start, "vocab_start")
    state = online(reducer, source, width=width)
    return merge_tree(reducer, _all_gather(state, group))


def _all_gather(state: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Return the states of all ranks, sent as the bytes of one tensor."""
    leaves = _leaves(state)
    message = torch.cat([leaf.contiguous().view(torch.uint8).flatten() for leaf in leaves])
    gathered = [torch.empty_like(message) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, message, group=group)
    sizes = [leaf.numel() * leaf.element_size() for leaf in leaves]
    states = []
    for other in gathered:
        parts = zip(other.split(sizes), leaves, strict=True)
        received = [part.clone().view(leaf.dtype).view(leaf.shape) for part, leaf in parts]
        states.append(_like(state, iter(received)))
    return states


def _leaves(state: Any) -> list[Tensor]:
    """Return the tensors of a nested state, in order."""
    if isinstance(state, Tensor):
        return [state]
    return [leaf for part in state for leaf in _leaves(part)]


def _like(state: Any, leaves: Any) -> Any:
    """Build a state of the same structure from an iterator of tensors."""
    if isinstance(state, Tensor):
        return next(leaves)
    parts = [_like(part, leaves) for part in state]
    return tuple(parts) if type(state) is tuple else type(state)(*parts)
