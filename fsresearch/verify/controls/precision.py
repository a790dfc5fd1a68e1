"""Faults of precision: maxima, probabilities and sums that are rounded on the way."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fsresearch.arguments import row_noise
from fsresearch.noise import NODE, gumbel_from_bits, uniform_from_bits
from fsresearch.verify.controls.exact import Runs, Words, draw_rows, row_of, win
from fsresearch.verify.sampler import Drawn, Request

Summation = Callable[[Tensor], Tensor]

__all__ = ["half_maxima", "half_probabilities", "running_sum"]

_TILE = 1024


def half_maxima(request: Request) -> Drawn:
    """Draw with the maxima of tiles rounded to bfloat16.

    >>> half_maxima(Request(torch.tensor([[0.0, 99.0]]), seed=1)).token
    tensor([[1]])
    """
    return draw_rows(request, _rounded_scores, cuts=_TILE)


def half_probabilities(request: Request) -> Drawn:
    """Draw by inverse distribution function from probabilities rounded to bfloat16.

    >>> half_probabilities(Request(torch.tensor([[0.0, 99.0]]), seed=1)).token
    tensor([[1]])
    """
    return _invert(request, lambda p: p.bfloat16().double().cumsum(0))


def running_sum(request: Request) -> Drawn:
    """Draw by inverse distribution function from a float32 sum, one token after the other.

    >>> running_sum(Request(torch.tensor([[0.0, 99.0]]), seed=1)).token
    tensor([[1]])
    """
    return _invert(request, _sum_in_order)


def _rounded_scores(runs: Runs, words: Words) -> Tensor:
    scores = runs.value + runs.length.log() + gumbel_from_bits(words[0], words[2])
    place = uniform_from_bits(words[1], words[3]) * runs.length
    return win(runs, scores.bfloat16(), place)


def _sum_in_order(probabilities: Tensor) -> Tensor:
    """NumPy adds in order; torch adds in blocks, which loses less."""
    summed = np.cumsum(probabilities.float().cpu().numpy(), dtype=np.float32)
    return torch.from_numpy(summed).double().to(probabilities.device)


def _invert(request: Request, cumulate: Summation) -> Drawn:
    """Draw by searching a cumulative sum for one uniform number a draw."""
    logits = request.logits
    rows = len(logits)
    noise = row_noise(request.seed, request.position, 0, request.num_samples, rows, logits.device)
    high, _, low, _ = noise.words(torch.tensor([0], device=logits.device), NODE)
    uniform = uniform_from_bits(high, low)[..., 0]
    shared = logits.stride(0) == 0 or rows == 1
    parts = []
    for row in range(1 if shared else rows):
        mine = uniform if shared else uniform[row : row + 1]
        values = row_of(logits[row : row + 1], request.temperature)
        if values is None:
            parts.append(torch.full(mine.shape, -1, device=logits.device))
        elif request.temperature == 0:
            parts.append(values.argmax().expand(mine.shape))
        else:
            cumulative = cumulate(torch.softmax(values, 0))
            parts.append(torch.searchsorted(cumulative, mine * cumulative[-1], right=True))
    return Drawn(torch.cat(parts).clamp(max=logits.shape[1] - 1))
