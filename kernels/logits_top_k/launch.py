"""Lists and outputs of one call, its launch, and the merge."""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch.kernels.logits_top_k.epilogue import close_row, lift, open_row
from fsresearch.kernels.merge.mass import merge_masses
from fsresearch.kernels.merge.ranked import merge_lists
from fsresearch.kernels.options import Options
from fsresearch.kernels.stream.launch import Stream, run, slots

__all__ = ["CONFIG", "launch"]

CONFIG = Stream(128, 1, 12, 4)
_MOST_SLOTS = 64


def launch(logits: Tensor, options: Options, programs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Run one call: two launches, or three where the log-mass is wanted."""
    rows, k, device = len(logits), options.columns, logits.device
    shared = min(slots(rows, options.vocab_size, CONFIG, programs), _MOST_SLOTS)
    lists = torch.empty((shared, rows, k), dtype=torch.uint64, device=device)
    perturbed = torch.empty((rows, k), dtype=torch.float32, device=device)
    token = torch.empty((rows, k), dtype=torch.int64, device=device)
    left = torch.empty((2, shared if options.log_mass else 0, rows), device=device)
    outputs = lists, tuple(left), k
    run(logits, options, CONFIG, (open_row, lift, close_row), outputs, 1, shared)
    merge_lists(lists, perturbed, token)
    if options.log_mass:
        return perturbed, token, merge_masses(left)
    return perturbed, token, torch.empty((rows, 0), dtype=torch.float64, device=device)
