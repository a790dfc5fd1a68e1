"""The log-normaliser alone: logsumexp of a row, merged by logaddexp; draws nothing."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fsresearch.summaries.base import Reducer
from fsresearch.tiles import Tile

__all__ = ["LogMass", "LogNormalizer", "add_log_masses", "log_mass"]


class LogMass(NamedTuple):
    """The log-mass so far, float64 [B, 1]; -inf where there is none, NaN in an invalid row."""

    log_mass: Tensor


class LogNormalizer(Reducer[LogMass]):
    """Logsumexp of the transformed logits; its draw is float32 [B].

    >>> summary = LogNormalizer()
    >>> summary.draw(summary.lift(Tile(torch.zeros(1, 8), 0)))
    tensor([2.0794])
    """

    exactness = "law"
    breadth = 3

    def empty(self, rows: int, device: torch.device) -> LogMass:
        """Return -inf."""
        return LogMass(torch.full((rows, 1), -torch.inf, dtype=torch.float64, device=device))

    def lift(self, tile: Tile) -> LogMass:
        """Return a tile's logsumexp."""
        return LogMass(log_mass(tile.logits)[:, None])

    def merge(self, left: LogMass, right: LogMass) -> LogMass:
        """Add the masses."""
        return LogMass(add_log_masses(left.log_mass, right.log_mass))

    def draw(self, state: LogMass) -> Tensor:
        """Return the log-normaliser float32 [B], NaN where the row is not a distribution."""
        total = state.log_mass[:, 0]
        return total.masked_fill(total == -torch.inf, torch.nan).float()


def log_mass(logits: Tensor) -> Tensor:
    """Return logsumexp over the last axis as float64: -inf without mass, NaN with NaN or +inf.

    >>> log_mass(torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf], [torch.inf, 0.0]]))
    tensor([0.6931,   -inf,    nan], dtype=torch.float64)
    """
    if logits.shape[-1] == 0:
        return torch.full(logits.shape[:-1], -torch.inf, dtype=torch.float64, device=logits.device)
    maximum = logits.amax(-1)
    maximum = maximum.masked_fill(maximum == torch.inf, torch.nan)
    shift = maximum.masked_fill(maximum == -torch.inf, 0.0)
    mass = (logits - shift[..., None]).exp_().sum(-1)
    return shift.double() + mass.double().log()


def add_log_masses(left: Tensor, right: Tensor) -> Tensor:
    """Return logaddexp, where -inf + -inf is -inf and NaN stays NaN.

    >>> add_log_masses(torch.tensor(-torch.inf), torch.tensor(-torch.inf))
    tensor(-inf)
    """
    return torch.logaddexp(left, right)
