"""Exact categorical sampling as mergeable summaries.

>>> import torch
>>> sample_logits(torch.tensor([[0.0, 1.0, 2.0]]), seed=7).token
tensor([[1]])
"""

from fsresearch.results import BeamSample, OrderedSample, Sample
from fsresearch.sampling import (
    METHODS,
    log_prob,
    sample,
    sample_logits,
    sample_logits_without_replacement,
    sample_without_replacement,
)
from fsresearch.without_replacement.stochastic_beam_search import stochastic_beam_search

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "BeamSample",
    "OrderedSample",
    "Sample",
    "log_prob",
    "sample",
    "sample_logits",
    "sample_logits_without_replacement",
    "sample_without_replacement",
    "stochastic_beam_search",
]
