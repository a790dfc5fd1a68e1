"""The tile table: which kernel and which tiles serve a call, by architecture and batch."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["HOPPER", "PLAIN", "Config", "choose"]


class Config(NamedTuple):
    """Tiles of one kernel.

    Attributes:
        form: "plain" or "hopper".
        max_rows: serves batches up to this size; the last of a table serves any.
        block_b: rows of a tile.
        block_v: tokens of a tile, a multiple of 64.
        block_d: depth of a step.
        warps: warps that hold the accumulator.
        stages: steps in flight.
    """

    form: str
    max_rows: int
    block_b: int
    block_v: int
    block_d: int
    warps: int
    stages: int


HOPPER = (
    Config("hopper", 64, 64, 128, 128, 4, 4),
    Config("hopper", 128, 128, 128, 64, 8, 6),
    Config("hopper", 192, 64, 256, 64, 4, 5),
    Config("hopper", 1 << 31, 128, 256, 64, 8, 4),
)

PLAIN = (
    Config("plain", 16, 16, 128, 64, 4, 4),
    Config("plain", 32, 32, 128, 64, 4, 4),
    Config("plain", 1 << 31, 64, 128, 32, 4, 3),
)


def choose(form: str, rows: int) -> Config:
    """Return the configuration of a form for a batch.

    >>> choose("hopper", 100).block_b
    128
    """
    table = HOPPER if form == "hopper" else PLAIN
    return next(config for config in table if rows <= config.max_rows)
