"""Stochastic beams in the form that transformers returns beams in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import GenerateBeamDecoderOnlyOutput

from fsresearch.results import BeamSample

__all__ = ["StochasticBeamOutput", "beam_output"]


@dataclass
class StochasticBeamOutput(GenerateBeamDecoderOnlyOutput):
    """What stochastic beam search returns with ``return_dict_in_generate=True``.

    Sequences are in the order of their keys, so that the first n of k are a sample of n without
    replacement. sequences_scores are their log-probabilities under the distribution that was
    sampled, not divided by a length, and beam_indices are transformers'. Scores [rows, V] of every
    step are not kept.

    Attributes:
        beam_keys: float64 [B n], log-probability plus Gumbel, normalised; decreasing by prompt.
        kappa: float64 [B], the (k+1)-th key, if asked for.
        model_log_probs: float64 [B n], under the model at temperature 1, without filters.
    """

    beam_keys: Tensor | None = None
    kappa: Tensor | None = None
    model_log_probs: Tensor | None = None


def beam_output(drawn: BeamSample, prompts: Tensor, config: Any, cache: Any) -> Any:
    """Return what transformers returns for beams: the first sequences of every prompt."""
    count = config.num_return_sequences
    sequences = drawn.sequences[:, :count].flatten(0, 1)
    sequences = torch.cat([prompts.repeat_interleave(count, 0), sequences], 1)
    if not config.return_dict_in_generate:
        return sequences
    output: dict[str, Any] = {
        "sequences": sequences,
        "sequences_scores": drawn.log_probs[:, :count].flatten(),
        "beam_indices": _beam_indices(drawn)[:, :count].flatten(0, 1),
        "cache": cache,
        "beam_keys": drawn.keys[:, :count].flatten(),
        "model_log_probs": drawn.model_log_probs[:, :count].flatten(),
    }
    return StochasticBeamOutput(**output, kappa=drawn.kappa)


def _beam_indices(drawn: BeamSample) -> Tensor:
    """Return the flat beam that each token was added to, int64 [B, k, L]; -1 after the end."""
    rows, beams_a_prompt, longest = drawn.sequences.shape
    place = torch.arange(beams_a_prompt, device=drawn.tokens.device).expand(rows, -1)
    offset = torch.arange(rows, device=place.device)[:, None] * beams_a_prompt
    steps = []
    for parents, tokens in zip(drawn.backpointers.flip(0), drawn.tokens.flip(0), strict=True):
        parent = parents.gather(1, place)
        steps.append(torch.where(tokens.gather(1, place) >= 0, parent + offset, -1))
        place = parent
    return torch.stack(steps[::-1], 2)[..., :longest]
