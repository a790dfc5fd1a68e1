"""Faults of the conversion from random bits to a Gumbel.

The largest of m Gumbels made of uniforms on a grid is that of the largest of m grid points, whose
law is known: no token needs to be visited.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fsresearch.noise import uniform_from_bits
from fsresearch.verify.controls.exact import Runs, Words, draw_rows, win
from fsresearch.verify.sampler import Drawn, Request

__all__ = ["appendix_j", "of_24_bits", "of_31_bits"]


def of_24_bits(request: Request) -> Drawn:
    """Draw with Gumbels -log(-log(u)) of u = 1 - k / 2**24, k >= 1.

    >>> of_24_bits(Request(torch.tensor([[9.0, -9.0]]), seed=1)).token
    tensor([[0]])
    """
    return draw_rows(request, partial(_on_grid, 24))


def of_31_bits(request: Request) -> Drawn:
    """Draw with Gumbels -log(-log(u)) of u = 1 - k / 2**31, k >= 1.

    >>> of_31_bits(Request(torch.tensor([[9.0, -9.0]]), seed=1)).token
    tensor([[0]])
    """
    return draw_rows(request, partial(_on_grid, 31))


def appendix_j(request: Request) -> Drawn:
    """Draw with Gumbels -log(-log(u)) of u = (r + 1) / (2**32 + 1) in float32.

    Source: FlashSampling, Appendix J.

    >>> appendix_j(Request(torch.tensor([[9.0, -9.0]]), seed=1)).token
    tensor([[0]])
    """
    return draw_rows(request, _in_float32)


def _on_grid(bits: int, runs: Runs, words: Words) -> Tensor:
    """Score every run by its smallest k; among equal k the first token of the run wins."""
    points = 2.0**bits
    k = _smallest(points, runs, words)
    scores = runs.value + -torch.log(-torch.log1p(-k / points))
    keep = (points - k) / (points - k + 1)
    ties = torch.log1p(
        uniform_from_bits(words[1], words[3]) * torch.expm1(runs.length * keep.log())
    )
    return win(runs, scores, (ties / keep.log()).floor())


def _in_float32(runs: Runs, words: Words) -> Tensor:
    """Score every run by its largest word, converted in float32; the place in it is uniform."""
    word = 2.0**32 - _smallest(2.0**32, runs, words)
    uniform = (word.float() + 1) / (2.0**32 + 1)
    scores = runs.value.float() - torch.log(-torch.log(uniform))
    return win(runs, scores, uniform_from_bits(words[1], words[3]) * runs.length)


def _smallest(points: float, runs: Runs, words: Words) -> Tensor:
    """Return the smallest of a run's uniform k in [1, points): P(smallest > k) = (1 - k/n)**m."""
    uniform = uniform_from_bits(words[0], words[2])
    return torch.ceil(-points * torch.expm1(uniform.log() / runs.length)).clamp(1, points - 1)
