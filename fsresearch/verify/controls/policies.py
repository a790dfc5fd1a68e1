"""Faults of policy: what happens to padding, NaN, ties, tiny temperatures and tiny tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch.verify.controls.exact import draw_exactly
from fsresearch.verify.sampler import Drawn, Request

__all__ = ["dropped_smallest", "last_tie", "nan_wins", "padding_lane", "temperature_floor"]


def padding_lane(request: Request) -> Drawn:
    """Draw from logits padded with 0 to a multiple of 64.

    >>> int(padding_lane(Request(torch.full((1, 3), -50.0), seed=1)).token) >= 3
    True
    """
    missing = -request.logits.shape[1] % 64
    return draw_exactly(_with(request, torch.nn.functional.pad(request.logits, (0, missing))))


def nan_wins(request: Request) -> Drawn:
    """Give the first NaN's id where there is one.

    >>> nan_wins(Request(torch.tensor([[0.0, torch.nan]]), seed=1)).token
    tensor([[1]])
    """
    drawn = draw_exactly(request)
    bad = request.logits.isnan()
    token = torch.where(bad.any(1, keepdim=True), bad.int().argmax(1, keepdim=True), drawn.token)
    return drawn._replace(token=token)


def last_tie(request: Request) -> Drawn:
    """Give the last of the largest logits at temperature 0.

    >>> last_tie(Request(torch.tensor([[1.0, 1.0]]), temperature=0.0)).token
    tensor([[1]])
    """
    if request.temperature:
        return draw_exactly(request)
    vocab = request.logits.shape[1]
    flipped = draw_exactly(_with(request, request.logits.flip(1)))
    return flipped._replace(token=vocab - 1 - flipped.token)


def temperature_floor(request: Request) -> Drawn:
    """Draw at a temperature of at least 0.01, unless it is 0.

    >>> temperature_floor(Request(torch.tensor([[0.0, 9.0]]), seed=1, temperature=1e-3)).token
    tensor([[1]])
    """
    temperature = max(request.temperature, 1e-2) if request.temperature else 0.0
    return draw_exactly(request._replace(temperature=temperature))


def dropped_smallest(request: Request) -> Drawn:
    """Never draw the smallest logit with mass, where there are two.

    >>> dropped_smallest(Request(torch.tensor([[0.0, 0.1]]), 4, seed=1)).token
    tensor([[1, 1, 1, 1]])
    """
    shared = request.logits.stride(0) == 0
    logits = request.logits[:1].clone() if shared else request.logits.clone()
    able = logits.masked_fill(logits == -torch.inf, torch.inf)
    smallest = able.min(1, keepdim=True)
    several = (able < torch.inf).sum(1, keepdim=True) > 1
    dropped = torch.where(several, -torch.inf, smallest.values)
    logits.scatter_(1, smallest.indices, dropped)
    return draw_exactly(_with(request, logits.expand(len(request.logits), -1)))


def _with(request: Request, logits: Tensor) -> Request:
    """Ask the same of other logits, in one memory where the rows were in one."""
    if request.logits.stride(0) == 0:
        logits = logits[:1].expand(len(request.logits), -1)
    return request._replace(logits=logits)
