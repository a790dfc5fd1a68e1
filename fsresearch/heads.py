"""From a source as the samplers know it to a kernel that serves it."""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch import backend
from fsresearch.backend import Options
from fsresearch.noise import RowNoise
from fsresearch.sources import LMHead, Logits, Source

__all__ = ["run_kernel"]

# By method, of an LM head and of logits in memory.
_KERNELS = {
    "gumbel-max": (backend.lm_head_max, backend.logits_max),
    "grouped": (backend.lm_head_group, backend.logits_group),
    "gumbel-top-k": (backend.lm_head_top_k, backend.logits_top_k),
}


def run_kernel(
    method: str,
    source: Source,
    noise: RowNoise,
    greedy: Tensor | bool,
    log_mass: bool,
    *,
    columns: int | None = None,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return (perturbed, token, log_mass) by the kernel of a method; None where none serves.

    Args:
        method: its name, or "gumbel-top-k".
        source: where the logits come from; an LM head or logits on a GPU are served.
        noise: the rows' noise and draws.
        greedy: for all rows; the temperature says it of single rows.
        log_mass: whether the log-mass is wanted.
        columns: how many different tokens a row gets; None for one a draw, or one for all draws
            where every row is greedy.

    >>> noise = RowNoise(torch.tensor([7]), torch.tensor(0), torch.arange(2))
    >>> head = LMHead(torch.zeros(1, 8), torch.zeros(9, 8))
    >>> run_kernel("gumbel-max", head, noise, False, True) is None
    True
    """
    if not (type(source) is LMHead or type(source) is Logits):
        return None
    if method not in _KERNELS or source.device.type != "cuda":
        return None
    transform, temperature, inverse = source.transform, source.temperature, 1.0
    one_for_all = greedy is True and columns is None
    if isinstance(transform.inverse_temperature, Tensor) and not isinstance(temperature, Tensor):
        return None
    if isinstance(temperature, Tensor):
        temperature = temperature.expand(source.rows)
    elif greedy is True and not one_for_all:
        temperature = torch.zeros(source.rows, device=source.device)
    else:
        temperature = None
        if transform.inverse_temperature is not None:
            inverse = float(transform.inverse_temperature)
    options = Options(
        seeds=None if one_for_all else noise.seeds,
        positions=None if one_for_all else noise.positions,
        temperature=temperature,
        bias=transform.bias,
        mask=transform.mask,
        inverse=inverse,
        logit_scale=transform.logit_scale,
        softcap=transform.softcap,
        vocab_size=source.stop - source.start,
        start=source.start,
        draws=len(noise.draws) if columns is None else columns,
        role=noise.role,
        log_mass=log_mass,
    )
    of_head, of_logits = _KERNELS[method]
    if isinstance(source, Logits):
        if backend.choose_for_logits(source.logits, options).form == "reference":
            return None
        return of_logits(source.logits, options)
    if backend.choose(source.raw_hidden, source.weight, start=source.start).form == "reference":
        return None
    return of_head(source.raw_hidden, source.weight, options)
