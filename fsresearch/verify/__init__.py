"""The exactness bench: is what a sampler draws the law it claims?

``verify`` asks a sampler everything in ``battery`` and gives a Report. ``sampler`` says what it may
be asked, ``sizes`` how many draws a question takes, ``controls`` holds planted faults that show
that the bench can tell. ``statistics`` holds the tests and distances, float64 and with their null
hypotheses stated; the float64 oracles come from `fsresearch.theory`.
"""

from __future__ import annotations

from fsresearch.theory.categorical import log_normalizer, log_probabilities, probabilities
from fsresearch.verify.bench import verify
from fsresearch.verify.report import Finding, Report
from fsresearch.verify.sampler import Drawn, Request, Sampler, adapt
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
from fsresearch.verify.trial import BUDGETS, Budget

__all__ = [
    "BUDGETS",
    "Binomial",
    "Budget",
    "ChiSquare",
    "Drawn",
    "Finding",
    "Report",
    "Request",
    "Sampler",
    "adapt",
    "binomial",
    "combine",
    "expected_total_variation",
    "goodness_of_fit",
    "independence",
    "log_normalizer",
    "log_probabilities",
    "probabilities",
    "total_variation",
    "verify",
]
