"""Lists and outputs of one call, its launch, and the merge."""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch.kernels.lm_head_top_k import epilogue, plain
from fsresearch.kernels.matmul.configs import Config
from fsresearch.kernels.matmul.launch import Hooks, grid, run
from fsresearch.kernels.merge.mass import merge_masses
from fsresearch.kernels.merge.ranked import merge_lists
from fsresearch.kernels.options import Options

__all__ = ["launch"]


def launch(
    hidden: Tensor, weight: Tensor, options: Options, config: Config, programs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one call: three launches, or five where the hidden rows need padding."""
    rows, k, device = len(hidden), options.columns, hidden.device
    slots, _ = grid(rows, options.vocab_size, config, programs)
    perturbed = torch.empty((rows, k), dtype=torch.float32, device=device)
    token = torch.empty((rows, k), dtype=torch.int64, device=device)
    log_mass = torch.empty((rows, 0), dtype=torch.float64, device=device)
    left = torch.empty((2, slots if options.log_mass else 0, rows), device=device)
    hooks: Hooks
    if config.form == "hopper":
        hooks = epilogue.open_rows, epilogue.peek, epilogue.lift, epilogue.close_rows
        lists = torch.zeros((2, rows, k), dtype=torch.int64, device=device).view(torch.uint64)
        filled = lists[:1]
    else:
        hooks = plain.open_rows, plain.peek, plain.lift, plain.close_rows
        filled = lists = torch.empty((slots, rows, k), dtype=torch.uint64, device=device)
    run(
        hidden,
        weight,
        options,
        config,
        hooks,
        (lists, tuple(left)),
        programs,
    )
    merge_lists(filled, perturbed, token)
    if options.log_mass:
        log_mass = merge_masses(left)
    return perturbed, token, log_mass
