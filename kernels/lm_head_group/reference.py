"""The readable truth beside the kernel: the core, one pass over the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch.kernels.lm_head_max.reference import lm_head_max_reference
from fsresearch.kernels.options import Options
from fsresearch.noise import RowNoise
from fsresearch.schedules.online import online
from fsresearch.sources import LMHead
from fsresearch.summaries import PerturbedMass
from fsresearch.transforms import Transform, inverse_temperature

__all__ = ["lm_head_group_reference"]


def lm_head_group_reference(
    hidden: Tensor, weight: Tensor, options: Options
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `lm_head_group` returns, from the core.

    >>> seeds, positions = torch.tensor([7]), torch.tensor(0)
    >>> options = Options(1000, seeds, positions, draws=4)
    >>> lm_head_group_reference(torch.zeros(1, 1), torch.zeros(1000, 1), options)[1]
    tensor([[476, 985,  93, 724]])
    """
    greedy = lm_head_max_reference(hidden, weight, options._replace(seeds=None, positions=None))
    if options.seeds is None or options.positions is None:
        return greedy
    temperature = options.temperature
    factor = options.inverse if temperature is None else inverse_temperature(temperature)
    transform = Transform(options.logit_scale, options.softcap, options.bias, options.mask, factor)
    noise = RowNoise(
        options.seeds,
        options.positions,
        torch.arange(options.draws, device=hidden.device),
        options.role,
    )
    state = online(
        PerturbedMass(noise, keep_log_mass=options.log_mass),
        LMHead(hidden, weight, transform, vocab_size=options.vocab_size, start=options.start),
    )
    cold = torch.zeros((), device=hidden.device) if temperature is None else temperature == 0
    cold = cold.bool().reshape(-1, 1)
    perturbed = torch.where(cold, greedy[0], state.perturbed)
    return perturbed, torch.where(cold, greedy[1], state.token), state.log_mass
