"""The readable truth beside the kernel: the core, one pass over the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsresearch.kernels.options import Options
from fsresearch.noise import RowNoise
from fsresearch.schedules.online import online
from fsresearch.sources import LMHead
from fsresearch.summaries import GumbelMax, LogNormalizer, Product, Reducer
from fsresearch.transforms import Transform, inverse_temperature

__all__ = ["lm_head_max_reference"]


def lm_head_max_reference(
    hidden: Tensor, weight: Tensor, options: Options
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `lm_head_max` returns, from the core.

    >>> lm_head_max_reference(torch.ones(1, 1), torch.tensor([[1.0], [2.0]]), Options(2))[:2]
    (tensor([[2.]]), tensor([[1]]))
    """
    seeds, positions, temperature = options.seeds, options.positions, options.temperature
    factor = options.inverse if temperature is None else inverse_temperature(temperature)
    transform = Transform(options.logit_scale, options.softcap, options.bias, options.mask, factor)
    source = LMHead(hidden, weight, transform, vocab_size=options.vocab_size, start=options.start)
    reducers: list[Reducer[Any]] = [GumbelMax(None), LogNormalizer()]
    if seeds is not None and positions is not None:
        numbers = torch.arange(options.draws, device=hidden.device)
        reducers.append(GumbelMax(RowNoise(seeds, positions, numbers, options.role)))
    states = online(Product(*reducers), source)
    perturbed, token = states[0]
    if seeds is not None:
        greedy = torch.tensor(False, device=hidden.device)
        if temperature is not None:
            greedy = temperature.reshape(-1, 1) == 0
        perturbed = torch.where(greedy, perturbed, states[2].perturbed)
        token = torch.where(greedy, token, states[2].token)
    total = states[1].log_mass
    return perturbed, token, total if options.log_mass else total[:, :0]
