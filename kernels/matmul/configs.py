"""The tile table: which kernel and which tiles serve a call, by architecture and batch."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["HOPPER", "PLAIN", "Config", "choose"]

ANY = 1 << 31
# Rows of the tiles beside which most registers are free.
HEAVY_ROWS = 128


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
        bands: parts of the rows that run for themselves, each with its epilogue and its warps.
    """

    form: str
    max_rows: int
    block_b: int
    block_v: int
    block_d: int
    warps: int
    stages: int
    bands: int = 1


HOPPER = (
    Config("hopper", 64, 64, 128, 128, 4, 4),
    Config("hopper", 128, 128, 128, 64, 8, 6),
    Config("hopper", 192, 192, 128, 64, 12, 5, 3),
    Config("hopper", ANY, 128, 256, 64, 8, 4),
)

PLAIN = (
    Config("plain", 16, 16, 128, 64, 4, 4),
    Config("plain", 32, 32, 128, 64, 4, 4),
    Config("plain", ANY, 64, 128, 32, 4, 3),
)


def choose(form: str, rows: int, *, light: int = ANY) -> Config:
    """Return the configuration of a form for a batch.

    Args:
        form: "plain" or "hopper".
        rows: B.
        light: the largest batch whose epilogue does not lack registers. Larger ones take the tiles
            of 128 rows, again and again.

    >>> choose("hopper", 160).block_b, choose("hopper", 160, light=128).block_b
    (192, 128)
    """
    table = HOPPER if form == "hopper" else PLAIN
    if rows > light:
        rows = HEAVY_ROWS
    return next(config for config in table if rows <= config.max_rows)
