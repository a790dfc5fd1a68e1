"""The hooks of one call; greedy calls have no groups."""

from __future__ import annotations

from torch import Tensor

from fsresearch.kernels.logits_group.epilogue import close_row, lift, open_row
from fsresearch.kernels.logits_max.launch import launch as launch_max
from fsresearch.kernels.options import Options
from fsresearch.kernels.stream.launch import Stream, run_races

__all__ = ["CONFIG", "launch"]

CONFIG = Stream(256, 1, 16, 3)


def launch(logits: Tensor, options: Options, programs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Run one call: two launches, or three where the log-mass is wanted."""
    if options.seeds is None:
        return launch_max(logits, options, programs)
    return run_races(logits, options, CONFIG, (open_row, lift, close_row), programs)
