"""Where noise stands: the limits of an address, and their checks."""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch import checks

__all__ = ["POSITIONS", "TOKENS", "WORDS", "check_address", "check_places"]

WORDS = 1 << 32  # units and draws are below
TOKENS = 1 << 34  # four words serve the tokens of a unit
POSITIONS = 1 << 56


def check_address(
    seeds: Tensor,
    name: str,
    places: Tensor,
    stop: int,
    draw: int | Tensor,
    position: int | Tensor,
    role: int,
) -> None:
    """Raise unless an address is one: int64 seeds [B], and units or tokens below a limit.

    >>> check_address(torch.zeros(1).long(), "units", torch.arange(2).int(), WORDS, 0, 0, 0)
    Traceback (most recent call last):
    TypeError: units must be int64, got a tensor of torch.int32
    """
    checks.integer("role", role, 0, 31)
    checks.tensor("seeds", seeds, torch.int64)
    if seeds.dim() != 1:
        raise ValueError(f"seeds must be [B], got shape {list(seeds.shape)}")
    check_places(name, places, stop, len(seeds), seeds.device)
    for part, value, limit in (("draw", draw, WORDS), ("position", position, POSITIONS)):
        if isinstance(value, Tensor):
            checks.row_integers(part, value, len(seeds), seeds.device)
            checks.within(part, value, limit)
        else:
            checks.integer(part, value, 0, limit - 1)


def check_places(name: str, places: Tensor, stop: int, rows: int, device: torch.device) -> None:
    """Raise unless places are int64 [T] or [B, T] below a limit.

    >>> check_places("units", torch.arange(6).view(3, 2), WORDS, 2, torch.device("cpu"))
    Traceback (most recent call last):
    ValueError: units must be [T] or [2, T], got shape [3, 2]
    """
    checks.tensor(name, places, torch.int64)
    if places.dim() != 1 and (places.dim() != 2 or len(places) != rows):
        raise ValueError(f"{name} must be [T] or [{rows}, T], got shape {list(places.shape)}")
    checks.same_device(name, places, device)
    checks.within(name, places, stop)
