"""The exactness bench: is what a sampler draws the law it claims?

``statistics`` holds the tests and distances, float64 and with their null hypotheses stated; the
float64 oracles of softmax come from `fsresearch.theory`.
"""

from __future__ import annotations

from fsresearch.theory.categorical import log_normalizer, log_probabilities, probabilities
from fsresearch.verify.statistics import (
    Binomial,
    ChiSquare,
    binomial,
    combine,
    expected_total_variation,
    goodness_of_fit,
    independence,
    total_variation,
)

__all__ = [
    "Binomial",
    "ChiSquare",
    "binomial",
    "combine",
    "expected_total_variation",
    "goodness_of_fit",
    "independence",
    "log_normalizer",
    "log_probabilities",
    "probabilities",
    "total_variation",
]
