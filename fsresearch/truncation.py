"""Truncation, the reference: top-k, top-p and min-p as a set of tokens that a row keeps.

One order: the transformed logits, temperature included, lose what min-p and top-k drop, the rest is
renormalised, and top-p drops from that. One tie rule: of equal logits the lower ids stay, so that
top-k keeps exactly k and every filter keeps a prefix of the row in descending order. The kept set
becomes the row's mask, and noise is addressed by token as ever: a filter on one row changes no
other row, and one that keeps everything changes nothing.

It is correct before it is fast: the rows are held as logits [B, V], a block at a time, and sorted.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fsresearch import checks
from fsresearch.sources import LMHead, Logits, Source
from fsresearch.tiles import tile_cuts
from fsresearch.transforms import Transform

__all__ = ["Filters", "MaterializedLogitsWarning", "kept", "truncate", "warn_materialized"]

_BLOCK_ELEMENTS = 1 << 22
_PASSED_OVER = "fsresearch", "torch"

_FLOATING = torch.float32, torch.float64, torch.bfloat16, torch.float16


class MaterializedLogitsWarning(UserWarning):
    """A call that promised never to hold logits [B, V] holds them, a block of rows at a time."""


class Filters(NamedTuple):
    """What rows keep; None keeps everything, and so do top_k >= V, top_p = 1 and min_p = 0.

    Attributes:
        top_k: the k largest logits, of ties the lower ids; at least 1; a number, or int64 or int32
            0-d or [B].
        top_p: of what top_k and min_p keep, the smallest set of largest logits whose mass is at
            least top_p of it; never empty; in [0, 1], a number, or floating 0-d or [B].
        min_p: tokens at least min_p times as probable as the likeliest; in [0, 1], a number, or
            floating 0-d or [B].
    """

    top_k: int | Tensor | None = None
    top_p: float | Tensor | None = None
    min_p: float | Tensor | None = None

    def checked(self, rows: int, device: torch.device, check: bool = False) -> Filters:
        """Return the filters with None for shares that keep everything.

        Args:
            rows: B.
            device: where tensors [B] must be.
            check: read tensors on the host.

        Raises:
            TypeError, ValueError: Naming the argument at fault, with check also the row.

        >>> Filters(top_k=0).checked(1, torch.device("cpu"))
        Traceback (most recent call last):
        ValueError: top_k must be at least 1, got 0
        """
        top_k, *shares = self
        if isinstance(top_k, Tensor):
            checks.row_integers("top_k", top_k, rows, device)
        elif top_k is not None:
            top_k = checks.integer("top_k", top_k, 1)
        for i, (name, off) in enumerate((("top_p", 1.0), ("min_p", 0.0))):
            share = shares[i]
            if isinstance(share, Tensor):
                checks.tensor(name, share, *_FLOATING)
                checks.per_row(name, share, rows, device)
            elif share is not None:
                share = checks.number(name, share)
                if not 0 <= share <= 1:
                    raise ValueError(f"{name} must be in [0, 1], got {share}")
                shares[i] = None if share == off else share
        made = Filters(top_k, *shares)
        if check:
            _check_values(made)
        return made


def kept(
    transformed_logits: Tensor,
    top_k: int | Tensor | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | Tensor | None = None,
) -> Tensor:
    """Return the tokens that rows keep, bool [B, V]; of those with mass at least one.

    A row that is not a distribution keeps everything, and stays what it is. A value in a tensor
    that is out of range is not read on the host: its row keeps nothing.

    Args:
        transformed_logits: float32 [B, V], temperature applied.
        top_k: see `Filters`; so are the others.
        top_p: masses accumulate in float64.
        min_p: compared in float64, as differences of logits.

    Raises:
        TypeError, ValueError: Naming the argument at fault.

    >>> row = torch.tensor([[1.0, 2.0, 2.0, 2.0, 3.0]])
    >>> kept(row, top_k=3)
    tensor([[False,  True,  True, False,  True]])
    >>> kept(row, top_p=0.6), kept(row, min_p=0.3)
    (tensor([[False,  True, False, False,  True]]), tensor([[False,  True,  True,  True,  True]]))
    """
    checks.tensor("transformed_logits", transformed_logits, torch.float32, torch.float64)
    if transformed_logits.dim() != 2:
        raise ValueError(
            f"transformed_logits must be [B, V], got shape {list(transformed_logits.shape)}"
        )
    logits = transformed_logits + 0.0
    rows, vocab = logits.shape
    top_k, top_p, min_p = Filters(top_k, top_p, min_p).checked(rows, logits.device)
    k, p, least = (_column(value, logits) for value in (top_k, top_p, min_p))
    largest = logits.amax(1, keepdim=True)
    with_mass = logits > -torch.inf
    keep = with_mass
    if k is not None or p is not None:
        few = top_k if isinstance(top_k, int) else vocab
        ordered = _descending(logits, min(few, vocab))
        size = _prefix(ordered, k, p, least)
        last = ordered.gather(1, size.long() - 1)
        above = logits > last
        tied = logits == last
        room = size - above.sum(1, keepdim=True)
        keep = keep & (above | (tied & (tied.cumsum(1) <= room)))
    elif least is not None:
        keep = keep & (logits >= _lowest(largest, least))
    for value, low, high in ((k, 1, torch.inf), (p, 0, 1), (least, 0, 1)):
        if value is not None:
            keep = keep & (value >= low) & (value <= high)
    return torch.where(largest.isfinite(), keep, torch.ones_like(keep))


def truncate(
    source: Logits | LMHead, filters: Filters, greedy: Tensor | bool, check: bool = False
) -> Logits | LMHead:
    """Return the source with what its rows keep as their mask; greedy rows keep everything.

    Args:
        source: of all V tokens.
        filters: as a caller passed them.
        greedy: for all rows, or bool [B, 1].
        check: read tensors on the host.

    Raises:
        TypeError, ValueError: Naming the argument at fault.

    >>> truncate(Logits(torch.tensor([[1.0, 3.0, 2.0]])), Filters(top_k=2), False).tile(0, 3).logits
    tensor([[-inf, 3., 2.]])
    >>> truncate(Logits(torch.zeros(1, 3)), Filters(top_k=0), False)
    Traceback (most recent call last):
    ValueError: top_k must be at least 1, got 0
    """
    filters = filters.checked(source.rows, source.device, check)
    if isinstance(filters.top_k, int) and filters.top_k >= source.stop:
        filters = filters._replace(top_k=None)
    if greedy is True or not source.rows or all(value is None for value in filters):
        return source
    if isinstance(source, LMHead):
        warn_materialized()
    block = max(_BLOCK_ELEMENTS // source.stop, 1)
    parts = []
    for start in range(0, source.rows, block):
        rows = slice(start, start + block)
        part = _narrow(source, rows) if block < source.rows else source
        parts.append(kept(_materialized(part), *(_rows(value, rows) for value in filters)))
    keep = torch.cat(parts)
    if isinstance(greedy, Tensor):
        keep |= greedy
    if source.transform.mask is not None:
        keep &= source.transform.allowed(0, source.stop)
    return _with(source, source.transform._replace(mask=keep))


@cache
def warn_materialized() -> None:
    """Warn, once in a process, that filters hold logits, at the line that called this package."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back and frame.f_globals["__name__"].partition(".")[0] in _PASSED_OVER:
        level, frame = level + 1, frame.f_back
    warnings.warn(
        "top_k, top_p and min_p hold logits [B, V], a block of rows at a time, and sort them: "
        "a reference, correct before it is fast. This is said once.",
        MaterializedLogitsWarning,
        stacklevel=level,
    )


def _check_values(filters: Filters) -> None:
    """Read tensors on the host and raise a ValueError that names the row at fault."""
    for name, value in zip(filters._fields, filters, strict=True):
        if isinstance(value, Tensor):
            flat = value.reshape(-1)
            fine = flat >= 1 if name == "top_k" else (flat >= 0) & (flat <= 1)
            bad = (~fine).nonzero()
            if len(bad):
                row = int(bad[0])
                accepted = "at least 1" if name == "top_k" else "in [0, 1]"
                raise ValueError(f"{name} must be {accepted}, got {flat[row].item()} in row {row}")


def _prefix(ordered: Tensor, k: Tensor | None, p: Tensor | None, least: Tensor | None) -> Tensor:
    """Return how many of the largest logits [B, n], descending, all filters keep, int64 [B, 1]."""
    place = torch.arange(ordered.shape[1], device=ordered.device)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if k is not None:
        keep = keep & (place < k)
    if least is not None:
        keep = keep & (ordered >= _lowest(ordered[:, :1], least))
    if p is not None:
        weights = torch.exp(ordered.double() - ordered[:, :1].double())
        mass = weights.masked_fill(~keep, 0.0).cumsum(1)
        before = mass.roll(1, 1).masked_fill(place == 0, 0.0)
        keep = keep & ((before < p * mass[:, -1:]) | (p >= 1))
    return keep.sum(1, keepdim=True).clamp(min=1)


def _descending(logits: Tensor, few: int) -> Tensor:
    """Return at least the largest few values of every row, in descending order."""
    if few < logits.shape[1] // 8:
        return logits.topk(few).values
    return logits.sort(descending=True).values


def _lowest(largest: Tensor, least: Tensor) -> Tensor:
    """Return the logit of ``least`` times the likeliest token's probability, float64 [B, 1]."""
    return largest.double() + least.log()


def _column(value: float | Tensor | None, like: Tensor) -> Tensor | None:
    """Return a number, 0-d or [B] as [1, 1] or [B, 1]: integers int64, the rest float64."""
    if value is None:
        return None
    integral = isinstance(value, int) or (
        isinstance(value, Tensor) and not value.is_floating_point()
    )
    dtype = torch.int64 if integral else torch.float64
    return torch.as_tensor(value, dtype=dtype, device=like.device).detach().reshape(-1, 1)


def _materialized(source: Source) -> Tensor:
    """Return all transformed logits float32 [B, V]."""
    cuts = tile_cuts(source.start, source.stop, source.width)
    return torch.cat([source.tile(a, b).logits for a, b in pairwise(cuts)], 1)


def _narrow(source: Logits | LMHead, rows: slice) -> Logits | LMHead:
    """Return some rows of a source."""
    old = source.transform
    per_row = (old.bias, old.mask, old.inverse_temperature)
    made = Transform(old.logit_scale, old.softcap, *(_rows(value, rows, 2) for value in per_row))
    return _with(source, made, rows)


def _rows(value: Any, rows: slice, per_row: int = 1) -> Any:
    """Return the rows of a tensor that has per_row dimensions; anything else as it is."""
    return value[rows] if isinstance(value, Tensor) and value.dim() == per_row else value


def _with(
    source: Logits | LMHead, transform: Transform, rows: slice = slice(None)
) -> Logits | LMHead:
    """Return rows of a source with another transform."""
    if isinstance(source, LMHead):
        return LMHead(
            source.raw_hidden[rows],
            source.weight,
            transform,
            vocab_size=source.stop,
            temperature=_rows(source.temperature, rows),
        )
    return Logits(source.logits[rows], transform, vocab_size=source.stop)
