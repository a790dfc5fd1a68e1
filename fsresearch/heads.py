"""From an LM head as the samplers know it to the options of a kernel."""

from __future__ import annotations

from torch import Tensor

from fsresearch.backend import Options, choose
from fsresearch.noise import RowNoise
from fsresearch.sources import LMHead, Source

__all__ = ["head_options"]


def head_options(
    source: Source, noise: RowNoise, greedy: Tensor | bool, log_mass: bool
) -> Options | None:
    """Return the options of a source that a kernel serves, an LM head on a GPU; else None.

    Args:
        source: where the logits come from; its ``raw_hidden`` and ``weight`` are the operands.
        noise: the rows' noise and draws.
        greedy: for all rows, which then need no seeds; the temperature says it of single rows.
        log_mass: whether the log-mass is wanted.

    >>> import torch
    >>> noise = RowNoise(torch.tensor([7]), torch.tensor(0), torch.arange(2))
    >>> head_options(LMHead(torch.zeros(1, 8), torch.zeros(9, 8)), noise, False, True) is None
    True
    """
    if type(source) is not LMHead or source.device.type != "cuda":
        return None
    transform, temperature, inverse = source.transform, source.temperature, 1.0
    if isinstance(transform.inverse_temperature, Tensor) and not isinstance(temperature, Tensor):
        return None
    if choose(source.raw_hidden, source.weight, start=source.start).form == "reference":
        return None
    if isinstance(temperature, Tensor):
        temperature = temperature.expand(source.rows)
    else:
        temperature = None
        if transform.inverse_temperature is not None:
            inverse = float(transform.inverse_temperature)
    return Options(
        seeds=None if greedy is True else noise.seeds,
        positions=None if greedy is True else noise.positions,
        temperature=temperature,
        bias=transform.bias,
        mask=transform.mask,
        inverse=inverse,
        logit_scale=transform.logit_scale,
        softcap=transform.softcap,
        vocab_size=source.stop - source.start,
        start=source.start,
        draws=len(noise.draws),
        role=noise.role,
        log_mass=log_mass,
    )
