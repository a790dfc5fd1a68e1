"""Scratch and outputs of one call, its launch, and the merge of its masses."""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch.kernels.lm_head_max.epilogue import close_rows, lift, open_rows, peek
from fsresearch.kernels.matmul.configs import Config
from fsresearch.kernels.matmul.launch import grid, run
from fsresearch.kernels.merge.mass import merge_masses
from fsresearch.kernels.options import Options

__all__ = ["launch"]


def launch(
    hidden: Tensor, weight: Tensor, options: Options, config: Config, programs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one call: at most two launches, or four where the hidden rows need padding."""
    rows, device = len(hidden), hidden.device
    slots, blocks = grid(rows, options.vocab_size, config, programs)
    bands = blocks * config.bands
    winners = rows * options.columns
    scratch = torch.zeros(2 * winners + rows + bands + 1, dtype=torch.int32, device=device)
    keys = scratch[: 2 * winners].view(torch.uint64)
    bounds = scratch[2 * winners : 2 * winners + rows].view(torch.uint32)
    arrived = scratch[2 * winners + rows : -1].view(torch.uint32)
    lock = scratch[-1:]
    parked = torch.empty(config.block_b * config.block_v, dtype=torch.float32, device=device)
    perturbed = torch.empty((rows, options.columns), dtype=torch.float32, device=device)
    token = torch.empty((rows, options.columns), dtype=torch.int64, device=device)
    log_mass = torch.empty((rows, 0), dtype=torch.float64, device=device)
    left = torch.empty((2, slots if options.log_mass else 0, rows), device=device)
    run(
        hidden,
        weight,
        options,
        config,
        (open_rows, peek, lift, close_rows),
        (keys, bounds, arrived, perturbed, token, tuple(left), lock, parked),
        programs,
    )
    if options.log_mass:
        log_mass = merge_masses(left)
    return perturbed, token, log_mass
