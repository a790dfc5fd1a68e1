"""The readable truth beside the kernels: the core, one pass over a source of logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsresearch.kernels.options import Options
from fsresearch.noise import RowNoise
from fsresearch.schedules.online import online
from fsresearch.sources import LMHead, Logits, Source
from fsresearch.summaries import (
    GumbelMax,
    GumbelTopK,
    LogNormalizer,
    PerturbedMass,
    Product,
    Reducer,
)
from fsresearch.transforms import Transform, inverse_temperature

__all__ = ["best_group", "head", "held", "largest", "largest_k"]


def head(hidden: Tensor, weight: Tensor, options: Options) -> LMHead:
    """Return the source that a call on an LM head reads."""
    vocab, start = options.vocab_size, options.start
    return LMHead(hidden, weight, _transform(options), vocab_size=vocab, start=start)


def held(logits: Tensor, options: Options) -> Logits:
    """Return the source that a call on logits in memory reads."""
    return Logits(logits, _transform(options), vocab_size=options.vocab_size, start=options.start)


def largest(source: Source, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a kernel of the largest score returns.

    >>> largest(held(torch.tensor([[1.0, 2.0]]), Options(2)), Options(2))[:2]
    (tensor([[2.]]), tensor([[1]]))
    """
    noise = _noise(options, torch.arange(options.draws, device=source.device))
    sampler: list[Reducer[Any]] = [] if noise is None else [GumbelMax(noise)]
    return _scored(source, options, GumbelMax(None), sampler)


def largest_k(source: Source, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a kernel of the largest scores returns, as many as there are draws.

    >>> rows = torch.tensor([7])
    >>> options = Options(3, rows, rows, temperature=torch.zeros(1), draws=2)
    >>> largest_k(held(torch.arange(3.0)[None], options), options)[:2]
    (tensor([[2., 1.]]), tensor([[2, 1]]))
    """
    k = options.columns
    noise = _noise(options, torch.zeros(1, dtype=torch.int64, device=source.device))
    sampler: list[Reducer[Any]] = [] if noise is None else [GumbelTopK(noise, k)]
    return _scored(source, options, GumbelTopK(None, k), sampler)


def best_group(source: Source, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a kernel of the best group returns.

    >>> options = Options(1000, torch.tensor([7]), torch.tensor(0), draws=4)
    >>> best_group(held(torch.zeros(1, 1000), options), options)[1]
    tensor([[476, 985,  93, 724]])
    """
    noise = _noise(options, torch.arange(options.draws, device=source.device))
    if noise is None:
        return largest(source, options)
    return _scored(source, options, GumbelMax(None), [PerturbedMass(noise, keep_log_mass=False)])


def _scored(
    source: Source, options: Options, argmax: Reducer[Any], sampler: list[Reducer[Any]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a sampler beside an argmax, which greedy rows take, and the log-mass."""
    states = online(Product(argmax, LogNormalizer(), *sampler), source)
    perturbed, token, total = states[0].perturbed, states[0].token, states[1].log_mass
    if sampler:
        greedy = torch.zeros((1, 1), dtype=torch.bool, device=source.device)
        if options.temperature is not None:
            greedy = options.temperature.reshape(-1, 1) == 0
        perturbed = torch.where(greedy, perturbed, states[2].perturbed)
        token = torch.where(greedy, token, states[2].token)
    return perturbed, token, total if options.log_mass else total[:, :0]


def _noise(options: Options, draws: Tensor) -> RowNoise | None:
    if options.seeds is None or options.positions is None:
        return None
    return RowNoise(options.seeds, options.positions, draws, options.role)


def _transform(options: Options) -> Transform:
    temperature = options.temperature
    factor = options.inverse if temperature is None else inverse_temperature(temperature)
    return Transform(options.logit_scale, options.softcap, options.bias, options.mask, factor)
