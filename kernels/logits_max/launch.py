"""The hooks of one call."""

from __future__ import annotations

from torch import Tensor

from fsresearch.kernels.logits_max.epilogue import close_row, lift, open_row
from fsresearch.kernels.options import Options
from fsresearch.kernels.stream.launch import Stream, run_races

__all__ = ["CONFIG", "launch"]

CONFIG = Stream(256, 2, 10, 4)


def launch(logits: Tensor, options: Options, programs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Run one call: two launches, or three where the log-mass is wanted."""
    return run_races(logits, options, CONFIG, (open_row, lift, close_row), programs)
