"""The frontier of a stochastic beam search: the beams of one step, and how the next are chosen.

Source: Kool, van Hoof, Welling, "Stochastic beams and where to find them", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fsresearch.without_replacement.decoding import ended
from fsresearch.without_replacement.truncated_gumbel import truncate

__all__ = ["Beams", "Children", "select"]


class Beams(NamedTuple):
    """The frontier, B rows of w beams in key order.

    Attributes:
        prefixes: int64 [B, w, t], filled up with a safe id.
        keys: float64 [B, w]; -inf where there is no beam, NaN in an invalid row.
        log_probs: float64 [B, w], of the prefix under what is sampled.
        model_log_probs: float64 [B, w].
        lengths: int64 [B, w].
        finished: bool [B, w].
    """

    prefixes: Tensor
    keys: Tensor
    log_probs: Tensor
    model_log_probs: Tensor
    lengths: Tensor
    finished: Tensor

    def growing(self, num_beams: int) -> Tensor:
        """Return which beams have children, bool [B, w]: none in a row whose k best have ended."""
        growing = (self.keys > -torch.inf) & ~self.finished
        return growing & growing[:, :num_beams].any(1, keepdim=True)


class Children(NamedTuple):
    """The w best children of every beam, in order: each field [B, w, c]; keys on the local scale.

    Attributes:
        keys: float64, log p(token | prefix) + Gumbel.
        tokens: int64, -1 where there is none.
        log_probs: float64, log p(token | prefix) under what is sampled.
        model_log_probs: float64.
    """

    keys: Tensor
    tokens: Tensor
    log_probs: Tensor
    model_log_probs: Tensor

    def broken(self, growing: Tensor) -> Tensor:
        """Return the growing beams whose logits are not a distribution, bool [B, w]."""
        return growing & ~self.keys[..., 0].isfinite()


def select(
    beams: Beams,
    children: Children,
    growing: Tensor,
    width: int,
    eos: tuple[int, ...],
    stop: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Beams, Tensor, Tensor]:
    """Take the next frontier from the children of growing beams, and from the others as they are.

    A child's key is its parent's local key, shifted so that the best child has the parent's key to
    the bit and no child exceeds it; equal keys keep the order of their parents, then of siblings.
    So the w best come from the w best.

    Args:
        beams: w beams a row.
        children: of every beam; those of beams that do not grow are ignored.
        growing: bool [B, w].
        width: how many to keep.
        eos: the ids that end a sequence.
        stop: names prefixes [R, t] that end, bool [R].

    Returns:
        The frontier; int64 [B, width] the place that each beam continues; int64 [B, width] the
        token that it adds, -1 where it adds none.
    """
    keys = _keys(beams, children, growing)
    order = keys.flatten(1).sort(dim=1, descending=True, stable=True)
    kept, chosen = order.values[:, :width], order.indices[:, :width]
    real = kept > -torch.inf
    places = (chosen // keys.shape[2]).masked_fill(~real, 0)
    grown = growing.gather(1, places) & real
    tokens = children.tokens.flatten(1).gather(1, chosen).masked_fill(~grown, -1)

    def total(old: Tensor, more: Tensor) -> Tensor:
        added = more.flatten(1).gather(1, chosen).masked_fill(~grown, 0.0)
        sums = (old.gather(1, places) + added).masked_fill(~real, -torch.inf)
        return sums.masked_fill(kept.isnan(), torch.nan)

    old = beams.prefixes.gather(1, places[..., None].expand(-1, -1, beams.prefixes.shape[2]))
    new = tokens.masked_fill(~grown, eos[0] if eos else 0)
    prefixes = torch.cat([old, new[..., None]], 2)
    made = Beams(
        prefixes,
        kept,
        total(beams.log_probs, children.log_probs),
        total(beams.model_log_probs, children.model_log_probs),
        (beams.lengths.gather(1, places) + grown).masked_fill(~real, 0),
        real & torch.where(grown, ended(prefixes, eos, stop), beams.finished.gather(1, places)),
    )
    return made, places, tokens


def _keys(beams: Beams, children: Children, growing: Tensor) -> Tensor:
    """Return the keys of all that may follow, float64 [B, w, c].

    A beam that does not grow stands for itself, in the first of its c places. A row in which a
    growing beam has no distribution becomes NaN.
    """
    parent = beams.keys[..., None]
    grows = growing[..., None]
    target = (beams.keys - beams.log_probs).masked_fill(~growing, 0.0)
    local = truncate(children.keys.masked_fill(~grows, 0.0), target)
    keys = torch.minimum(local + beams.log_probs[..., None], parent)
    keys = torch.where(local == target[..., None], parent, keys)
    itself = torch.full_like(keys, -torch.inf)
    itself[..., 0] = beams.keys
    broken = children.broken(growing).any(1)[:, None, None]
    return torch.where(grows, keys, itself).masked_fill(broken, torch.nan)
