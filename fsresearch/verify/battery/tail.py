"""The tail: is what is rare drawn as often as it must, and what is impossible never?

Tail tests cost e**depth words a hit, whatever the vocabulary, so the depth is what a budget buys.
Scores that are returned show the noise itself: the largest of V equal logits plus Gumbels is a
Gumbel around log V, and coarse uniforms have a largest value.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import stats

from fsresearch.theory.categorical import log_normalizer
from fsresearch.verify.sizes import (
    Sequential,
    certain_size,
    grid_tail_probability,
    kolmogorov_size,
    tail_probability,
)
from fsresearch.verify.statistics import independence
from fsresearch.verify.trial import FALSE_FAIL, Check, Trial, Verdict

__all__ = ["CHECKS"]

_VOCAB = 1 << 17
_LARGEST_OF_24_BITS = 24 * math.log(2)
_NO_CHANCE = -100.0
_INFINITE = 2.0**-25
_SUP_DISTANCE = 0.05
_GRID = 8


def _mass(trial: Trial) -> Verdict:
    """Count how often 2**17 - 1 equal tokens win that lie far below one head."""
    cheap = "cheap-draws" in trial.sampler.features
    depth, bits = trial.budget.tail_depth[cheap], trial.budget.tail_bits[cheap]
    exact = tail_probability(depth, _VOCAB)
    other = grid_tail_probability(bits, depth, _VOCAB) if bits else exact / 2
    test = Sequential(exact, other, FALSE_FAIL, trial.budget.false_pass)
    logits = np.full(_VOCAB, -depth)
    logits[0] = 0
    passed = trial.decide(test, trial.row(logits), lambda drawn: drawn.token != 0)
    against = f"{bits}-bit uniforms" if bits else "the loss of half of it"
    return Verdict(
        passed,
        f"at {depth:g} nats below the head: {test.hits} hits in {test.draws} draws, expected "
        f"{test.draws * exact:.3g} (with {against}: {test.draws * other:.3g})",
        {"bound": test.p_value},
    )


def _impossible(trial: Trial) -> Verdict:
    """Draw until infinite noise, once in 2**25 words, would have made a token of no chance win."""
    draws = certain_size(-math.expm1(_VOCAB * math.log1p(-_INFINITE)), trial.budget.false_pass)
    draws = trial.size(draws)
    logits = np.full(_VOCAB, _NO_CHANCE)
    logits[0] = 0
    tokens = trial.tokens(trial.row(logits), draws)
    hits = int((tokens != 0).sum())
    chance = draws * _VOCAB * math.exp(_NO_CHANCE)
    return Verdict(
        hits == 0, f"{hits} of {draws} draws gave a token that expects {chance:.1g} hits in all"
    )


def _reach(trial: Trial) -> Verdict:
    """Wait for a maximum above what 24 bits can give."""
    exact = -math.expm1(-_VOCAB * math.exp(-_LARGEST_OF_24_BITS))
    test = Sequential(exact, exact / 1000, FALSE_FAIL, trial.budget.false_pass)
    passed = trial.decide(
        test,
        trial.row(np.zeros(_VOCAB)),
        lambda drawn: _scores(drawn.perturbed) > _LARGEST_OF_24_BITS,
        details=True,
    )
    return Verdict(
        passed,
        f"{test.hits} of {test.draws} maxima of {_VOCAB} scores exceed 24 ln 2 = "
        f"{_LARGEST_OF_24_BITS:.4g}, expected {test.draws * exact:.3g}",
        {"bound": test.p_value},
    )


def _law_of_score(trial: Trial) -> Verdict:
    """Compare winning scores with their Gumbel law, and with the token they belong to."""
    logits = np.linspace(0.0, 3.0, 64).astype(np.float32).astype(np.float64)
    size = kolmogorov_size(_SUP_DISTANCE, FALSE_FAIL / 2, trial.budget.false_pass)
    scores, tokens = [], []
    for drawn in trial.chunks(trial.row(logits), trial.size(size), details=True):
        scores.append(_scores(drawn.perturbed).double().cpu().numpy().ravel())
        tokens.append(drawn.token.cpu().numpy().ravel())
    score, token = np.concatenate(scores), np.concatenate(tokens)
    chance = np.exp(-np.exp(log_normalizer(logits) - score))
    far = stats.kstest(chance, "uniform")
    table = np.zeros((_GRID, _GRID))
    slot = np.minimum((chance * _GRID).astype(int), _GRID - 1)
    np.add.at(table, (slot, token * _GRID // len(logits)), 1)
    joint = independence(table[table.sum(1) > 0])
    p_values = {"Kolmogorov": float(far.pvalue), "score and token": joint.p_value}
    return Verdict(
        min(p_values.values()) >= FALSE_FAIL / 2,
        f"sup-distance {far.statistic:.2g} from the Gumbel law in {len(score)} draws; score and "
        f"token: chi-square {joint.statistic:.0f} on {joint.dof}",
        p_values,
    )


def _scores(perturbed: object) -> torch.Tensor:
    """Return the scores that the sampler promised."""
    if not isinstance(perturbed, torch.Tensor):
        raise TypeError(f"the sampler returned no scores but {perturbed!r}")
    return perturbed


CHECKS = (
    Check(
        "tail/reach of scores",
        "The largest of 2**17 scores exceeds 24 ln 2 as often as a Gumbel around 17 ln 2 does.",
        "Sequential test of the exceedances.",
        "maxima that exceed it a thousandth as often, as with 24-bit uniforms",
        "uniform numbers of 24 bits or fewer under the logarithm",
        _reach,
        frozenset({"scores"}),
        weight=3,
    ),
    Check(
        "tail/law of scores",
        "The winning score is Gumbel(log-normaliser, 1), independent of the token.",
        "Kolmogorov's test of scores, and chi-square of score octile against token octile.",
        f"a sup-distance of {_SUP_DISTANCE} between the distribution functions",
        "a score that leaves out its noise, or a maximum that is shared between groups",
        _law_of_score,
        frozenset({"scores"}),
    ),
    Check(
        "tail/mass",
        "Tokens far below the head win as often as their probability says.",
        "Sequential test of how often one of 2**17 - 1 equal tokens beats the head.",
        "at {budget.tail_depth[0]:g} nats (cheap draws: {budget.tail_depth[1]:g}) the loss that "
        "{budget.tail_bits[0]} bits ({budget.tail_bits[1]}) cause; 0 bits stand for half",
        "uniform numbers too coarse at the end that decides, such as -log(-log(u)) of a float32 u, "
        "or a cumulative sum in float32, which cannot add what is small",
        _mass,
        weight=4,
    ),
    Check(
        "tail/impossible tokens",
        "Tokens of probability e**-100 are never drawn.",
        "Count of draws that are not the head.",
        "noise that is infinite once in 2**25 words, as where float32 rounds a uniform to 1",
        "a uniform that reaches exactly 0 or 1, so that its Gumbel is infinite",
        _impossible,
        weight=7,
    ),
)
