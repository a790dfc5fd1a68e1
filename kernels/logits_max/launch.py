"""Scratch and outputs of one call, its launch, and the merge of its masses."""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch.kernels.logits_max.epilogue import close_row, lift, open_row, peek
from fsresearch.kernels.merge.mass import merge_masses
from fsresearch.kernels.options import Options
from fsresearch.kernels.stream.launch import Stream, run, slots

__all__ = ["CONFIG", "launch"]

CONFIG = Stream(512, 4, 8)


def launch(logits: Tensor, options: Options, programs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Run one call: two launches, or three where the log-mass is wanted."""
    rows, draws, device = len(logits), options.columns, logits.device
    races = rows * draws
    shared = slots(races, options.vocab_size, CONFIG, programs)
    scratch = torch.zeros(3 * races, dtype=torch.int32, device=device)
    keys = scratch[: 2 * races].view(torch.uint64)
    arrived = scratch[2 * races :].view(torch.uint32)
    perturbed = torch.empty((rows, draws), dtype=torch.float32, device=device)
    token = torch.empty((rows, draws), dtype=torch.int64, device=device)
    log_mass = torch.empty((rows, 0), dtype=torch.float64, device=device)
    left = torch.empty((2, shared if options.log_mass else 0, rows), device=device)
    outputs = keys, arrived, perturbed, token, tuple(left), races
    run(logits, options, CONFIG, (open_row, peek, lift, close_row), outputs, draws, shared)
    if options.log_mass:
        log_mass = merge_masses(left)
    return perturbed, token, log_mass
