"""Kinds of logit rows that samplers meet, each a function of a generator and a size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["DISTRIBUTIONS", "ROW_KINDS", "stack"]

Row = NDArray[np.floating]
Generator = np.random.Generator
LARGEST = float(np.finfo(np.float32).max)


def stack(kinds: Sequence[str], vocab: int, rng: Generator) -> Tensor:
    """Return float32 logits [B, V], one row of each kind."""
    rows = [ROW_KINDS[kind](rng, vocab) for kind in kinds]
    return torch.from_numpy(np.stack(rows).astype(np.float32))


def _sparse(rng: Generator, vocab: int) -> Row:
    kept = rng.random(vocab) < 0.1
    kept[rng.integers(vocab)] = True
    return np.where(kept, rng.normal(size=vocab), -np.inf)


def _masked_runs(rng: Generator, vocab: int) -> Row:
    """Whole stretches without mass, among them groups and tiles."""
    row = rng.normal(size=vocab)
    for _ in range(3):
        start, stop = np.sort(rng.integers(0, vocab + 1, 2))
        if stop - start < vocab:
            kept = row.copy()
            kept[start:stop] = -np.inf
            row = kept if np.isfinite(kept).any() else row
    return row


def _one(rng: Generator, vocab: int) -> Row:
    row = np.full(vocab, -np.inf)
    row[rng.integers(vocab)] = rng.normal() * 100
    return row


def _spoilt(value: float) -> Callable[[Generator, int], Row]:
    def row(rng: Generator, vocab: int) -> Row:
        values = _sparse(rng, vocab)
        values[rng.integers(vocab)] = value
        return values

    return row


DISTRIBUTIONS: Final[dict[str, Callable[[Generator, int], Row]]] = {
    "normal": lambda rng, vocab: rng.normal(size=vocab) * 3,
    "wide": lambda rng, vocab: rng.normal(size=vocab) * 40,
    "equal": lambda rng, vocab: np.full(vocab, float(rng.integers(-50, 50))),
    "ties": lambda rng, vocab: rng.integers(0, 2, vocab) * 1.0,
    "tied_by_rounding": lambda rng, vocab: 1e8 + 64 * rng.integers(0, 2, vocab),
    "huge": lambda rng, vocab: rng.normal(size=vocab) * 1e30,
    "largest": lambda rng, vocab: rng.choice([-LARGEST, LARGEST], vocab),
    "tiny": lambda rng, vocab: rng.normal(size=vocab) * 1e-38,
    "far_below_zero": lambda rng, vocab: rng.normal(size=vocab) - 1e4,
    "sparse": _sparse,
    "masked_runs": _masked_runs,
    "one": _one,
}

ROW_KINDS: Final[dict[str, Callable[[Generator, int], Row]]] = {
    **DISTRIBUTIONS,
    "none": lambda rng, vocab: np.full(vocab, -np.inf),
    "nan": _spoilt(np.nan),
    "infinite": _spoilt(np.inf),
}
