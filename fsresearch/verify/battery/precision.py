"""Precision: what is lost where scores, probabilities or sums are rounded on the way."""

from __future__ import annotations

import math

import numpy as np
import torch

from fsresearch.theory.categorical import probabilities
from fsresearch.verify.sizes import Sequential, binomial_size
from fsresearch.verify.statistics import binomial
from fsresearch.verify.trial import FALSE_FAIL, Check, Trial, Verdict

__all__ = ["CHECKS"]

_TIED_VOCAB, _TIED_BITS = 1 << 16, 16
_SUM_VOCAB = 1 << 20
_WIDE = 60


def _ties(trial: Trial) -> Verdict:
    """Look at every bit of the winner's index among 2**16 logits of 1000."""
    each = FALSE_FAIL / _TIED_BITS
    draws = trial.size(binomial_size(0.5, 0.25, each, trial.budget.false_pass))
    tokens = trial.tokens(trial.row(np.full(_TIED_VOCAB, 1000.0)), draws)
    ones = [int((tokens >> bit & 1).sum()) for bit in range(_TIED_BITS)]
    p_values = {f"bit {bit}": binomial(n, draws, 0.5).p_value for bit, n in enumerate(ones)}
    worst = min(range(_TIED_BITS), key=lambda bit: p_values[f"bit {bit}"])
    return Verdict(
        p_values[f"bit {worst}"] >= each,
        f"bit {worst} of the id is set in {ones[worst] / draws:.1%} of {draws} draws, not 50%",
        p_values,
    )


def _rounded_probabilities(trial: Trial) -> Verdict:
    """Compare tokens just above a midpoint of bfloat16 with tokens just below it."""
    middle = 2.0**-6 * (1 + 2.0**-8)
    law = np.full(64, middle * (1 - 2.0**-11))
    law[: _WIDE // 2] = middle * (1 + 2.0**-11)
    law[_WIDE:] = (1 - law[:_WIDE].sum()) / (64 - _WIDE)
    logits = np.log(law).astype(np.float32)
    exact = probabilities(logits)
    upper = float(exact[: _WIDE // 2].sum())
    rounded = torch.from_numpy(exact).bfloat16().double().numpy()
    other = float(rounded[: _WIDE // 2].sum() / rounded.sum())
    test = Sequential(upper, other, FALSE_FAIL, trial.budget.false_pass)
    passed = trial.decide(test, trial.row(logits), lambda drawn: drawn.token < _WIDE // 2)
    return Verdict(
        passed,
        f"share {test.hits / test.draws:.5f} of {test.draws} draws, exact {upper:.5f}, with "
        f"probabilities rounded to bfloat16 {other:.5f}",
        {"bound": test.p_value},
    )


def _running_sum(trial: Trial) -> Verdict:
    """Count hits of 2**20 tokens of 0.49 ulp each, which a running float32 sum cannot add."""
    each = 0.49 * 2.0**-24
    mass = (_SUM_VOCAB - 1) * each
    logits = np.full(_SUM_VOCAB, math.log(each / (1 - mass)))
    logits[0] = 0
    value = float(np.float32(logits[1]))
    exact = (_SUM_VOCAB - 1) * math.exp(value) / (1 + (_SUM_VOCAB - 1) * math.exp(value))
    test = Sequential(exact, exact / 100, FALSE_FAIL, trial.budget.false_pass)
    passed = trial.decide(test, trial.row(logits), lambda drawn: drawn.token != 0)
    return Verdict(
        passed,
        f"{test.hits} hits of the tail in {test.draws} draws, expected {test.draws * exact:.3g}",
        {"bound": test.p_value},
    )


CHECKS = (
    Check(
        "precision/ties of large scores",
        "Among 2**16 equal logits of 1000 every bit of the drawn id is a fair coin.",
        "Exact binomial tests of 16 bits.",
        "a bit that is set half as often as it should be",
        "scores or tile maxima kept in bfloat16 or float16, so that they tie",
        _ties,
        weight=3,
    ),
    Check(
        "precision/rounded probabilities",
        "Probabilities either side of a midpoint of bfloat16 keep their ratio.",
        "Sequential test of the share of the upper class.",
        "probabilities rounded to bfloat16",
        "probabilities stored in bfloat16 before the draw",
        _rounded_probabilities,
        weight=6,
    ),
    Check(
        "precision/running sum",
        "A tail of 2**20 tokens of 2.9e-8 each, after a head of 0.97, keeps its mass.",
        "Sequential test of the hits of the tail.",
        "a tail of which a hundredth is left",
        "a cumulative sum in float32, one token after the other",
        _running_sum,
        weight=5,
    ),
)
