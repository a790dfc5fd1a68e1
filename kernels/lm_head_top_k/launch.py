"""Lists and outputs of one call, its launch, and the merge."""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch.kernels.lm_head_top_k import epilogue, plain
from fsresearch.kernels.matmul.configs import Config
from fsresearch.kernels.matmul.launch import grid, run
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
    lists = torch.empty((slots, rows, k), dtype=torch.uint64, device=device)
    perturbed = torch.empty((rows, k), dtype=torch.float32, device=device)
    token = torch.zeros((rows, k), dtype=torch.int64, device=device)
    log_mass = torch.empty((rows, 0), dtype=torch.float64, device=device)
    left = torch.empty((2, slots if options.log_mass else 0, rows), device=device)
    form = epilogue if config.form == "hopper" else plain
    run(
        hidden,
        weight,
        options,
        config,
        (form.open_rows, form.peek, form.lift, form.close_rows),
        (lists, token.view(torch.uint64), tuple(left)),
        programs,
    )
    merge_lists(lists, perturbed, token)
    if options.log_mass:
        log_mass = merge_masses(left)
    return perturbed, token, log_mass
