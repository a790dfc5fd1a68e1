"""Scratch and outputs of one call, and the hooks of its form."""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch.kernels.lm_head_group import epilogue
from fsresearch.kernels.lm_head_max.launch import launch as launch_max
from fsresearch.kernels.matmul.configs import Config
from fsresearch.kernels.matmul.launch import Hooks, grid, run
from fsresearch.kernels.merge.mass import merge_masses
from fsresearch.kernels.options import Options

__all__ = ["hooks", "launch"]


def hooks(form: str) -> Hooks:
    """Return the epilogue of a form.

    >>> hooks("plain") == hooks("hopper")
    False
    """
    lift = epilogue.lift if form == "plain" else epilogue.lift_quads
    return epilogue.open_rows, epilogue.peek, lift, epilogue.close_rows


def launch(
    hidden: Tensor, weight: Tensor, options: Options, config: Config, programs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one call: at most two launches, or four where the hidden rows need padding.

    Where every row is greedy there are no groups, and `lm_head_max` serves.
    """
    if options.seeds is None:
        return launch_max(hidden, weight, options, config, programs)
    rows, draws, device = len(hidden), options.columns, hidden.device
    slots, blocks = grid(rows, options.vocab_size, config, programs)
    bands = blocks * config.bands
    keys_end = 2 * rows * draws
    zeros = torch.zeros(keys_end + rows + bands, dtype=torch.int32, device=device)
    keys, words = zeros[:keys_end].view(torch.uint64), zeros[keys_end:].view(torch.uint32)
    masses = torch.empty((2, slots if options.log_mass else 0, rows), device=device)
    perturbed = torch.empty((rows, draws), device=device)
    token = torch.empty((rows, draws), dtype=torch.int64, device=device)
    outputs = keys, words[:rows], words[rows:], perturbed, token, tuple(masses)
    run(hidden, weight, options, config, hooks(config.form), outputs, programs)
    if options.log_mass:
        return perturbed, token, merge_masses(masses)
    return perturbed, token, torch.empty((rows, 0), dtype=torch.float64, device=device)
