"""Degenerate rows: no distribution, one token, no rows, ties at temperature zero; and numbers."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fsresearch.theory.categorical import log_normalizer, log_probabilities
from fsresearch.verify.sizes import binomial_size
from fsresearch.verify.statistics import binomial
from fsresearch.verify.trial import FALSE_FAIL, Check, Trial, Verdict

__all__ = ["CHECKS"]

_VOCAB = 300
_UNUSABLE = {
    "every logit -inf": {"all": -math.inf},
    "every logit NaN": {"all": math.nan},
    "NaN at the first id": {"0": math.nan},
    "NaN in the middle": {"129": math.nan},
    "NaN at the last id": {"299": math.nan},
    "+inf at one id": {"200": math.inf},
}
_TOLERANCE = 2.0**-21
_TEMPERATURES = {1e-3: 0.002, 0.5: 0.5, 4.0: 4.0}


def _no_distribution(trial: Trial) -> Verdict:
    """Ask for rows that are no distribution; an error or -1 is right, any id is wrong."""
    wrong = []
    for name, values in _UNUSABLE.items():
        try:
            token = trial.call(_unusable(trial, values)).token
        except (RuntimeError, ValueError, FloatingPointError):
            continue
        if bool((token != -1).any()):
            wrong.append(f"{name}: token {int(token.flatten()[0])}")
    return Verdict(not wrong, "; ".join(wrong) or f"{len(_UNUSABLE)} rows refused or marked")


def _neighbours(trial: Trial) -> Verdict:
    """Put an unusable row between usable ones."""
    clean = torch.zeros(3, _VOCAB, device=trial.device)
    seed = trial.seed()
    right = trial.call(clean, seed=seed).token
    wrong = []
    for name, values in _UNUSABLE.items():
        logits = clean.clone()
        logits[1] = _unusable(trial, values)[0]
        token = trial.call(logits, seed=seed).token
        if not torch.equal(token[::2], right[::2]):
            wrong.append(f"{name} changed the rows beside it")
        if bool((token[1] != -1).any()):
            wrong.append(f"{name} gave token {int(token[1, 0])}")
    return Verdict(not wrong, "; ".join(wrong) or "rows beside an unusable one keep their tokens")


def _single(trial: Trial) -> Verdict:
    """Draw from V = 1, and from rows with one token of mass."""
    wrong = []
    for vocab, only in ((1, 0), (_VOCAB, 0), (_VOCAB, 130), (_VOCAB, _VOCAB - 1)):
        logits = np.full(vocab, -np.inf)
        logits[only] = -3.0
        tokens = trial.tokens(trial.row(logits), 64)
        if (tokens != only).any():
            wrong.append(f"V = {vocab}, only id {only}: token {tokens[tokens != only][0]}")
    return Verdict(not wrong, "; ".join(wrong) or "the only token is always drawn")


def _empty(trial: Trial) -> Verdict:
    """Ask for no rows."""
    token = trial.call(torch.zeros(0, 10, device=trial.device)).token
    fine = token.shape[0] == 0 and token.dtype == torch.int64
    return Verdict(fine, f"no rows gave {token.dtype} of shape {list(token.shape)}")


def _greedy(trial: Trial) -> Verdict:
    """Put ties at temperature 0 into other tiles."""
    wrong = []
    for vocab, ties in ((3, [0, 1]), (129, [127, 128]), (4096, [5, 130, 4000]), (16, range(16))):
        logits = np.full(vocab, -1.0)
        logits[list(ties)] = 21.375
        tokens = trial.tokens(trial.row(logits), 64, temperature=0.0)
        if (tokens != min(ties)).any():
            wrong.append(f"ties at {list(ties)[:3]} of {vocab}: {tokens[tokens != min(ties)][0]}")
    return Verdict(not wrong, "; ".join(wrong) or "the lowest id wins every tie")


def _temperature(trial: Trial) -> Verdict:
    """Draw from two tokens at three temperatures; at 1e-3 their gap is 0.002."""
    each = FALSE_FAIL / len(_TEMPERATURES)
    p_values, said = {}, []
    for temperature, gap in _TEMPERATURES.items():
        exact = 1 / (1 + math.exp(-float(np.float32(gap)) / temperature))
        other = 1 / (1 + math.exp(-gap / temperature / 2))
        draws = trial.size(binomial_size(exact, other, each, trial.budget.false_pass))
        tokens = trial.tokens(trial.row([0.0, gap]), draws, temperature=temperature)
        hits = int((tokens == 1).sum())
        p_values[f"T = {temperature:g}"] = binomial(hits, draws, exact).p_value
        said.append(f"T = {temperature:g}: {hits / draws:.3f} of {draws}, exact {exact:.3f}")
    return Verdict(min(p_values.values()) >= each, "; ".join(said), p_values)


def _numbers(trial: Trial) -> Verdict:
    """Compare log-probabilities and log-normalisers with float64."""
    spread = trial.random.normal(size=(4, 2000)) * np.array([[1.0], [10.0], [1.0], [0.01]])
    spread[2] += 1000.0
    spread[3, ::2] = -np.inf
    logits = torch.from_numpy(spread).float().to(trial.device)
    drawn = trial.call(logits, details=True)
    if drawn.log_prob is None or drawn.log_normalizer is None:
        return Verdict(False, "the sampler returned no log-probabilities")
    worst = 0.0
    rows = zip(logits.double().cpu().numpy(), drawn.token, drawn.log_prob, strict=True)
    for row, (values, token, scored) in enumerate(rows):
        total = log_normalizer(values)
        exact = log_probabilities(values)[token.cpu().numpy()]
        scale = max(abs(total), 1.0)
        found = scored.double().cpu().numpy()
        worst = max(worst, float(np.abs(found - exact).max()) / scale)
        worst = max(worst, abs(float(drawn.log_normalizer[row]) - total) / scale)
    return Verdict(
        worst <= _TOLERANCE,
        f"largest error {worst:.2g} relative to max(1, |log-normaliser|), allowed {_TOLERANCE:.2g}",
    )


def _unusable(trial: Trial, values: dict[str, float]) -> Tensor:
    """Return one row of zeros with the given values at the given ids."""
    logits = torch.zeros(1, _VOCAB, device=trial.device)
    for place, value in values.items():
        logits[:, slice(None) if place == "all" else int(place)] = value
    return logits


_EXACT = "Comparison with the one right answer."

CHECKS = (
    Check(
        "degenerate/no distribution",
        "A row without a finite logit, or with NaN or +inf, raises or gives -1.",
        _EXACT,
        "any id in place of an error or -1",
        "comparisons with NaN that are false, so that a first value stays, or a NaN that wins",
        _no_distribution,
        false_fail=0.0,
    ),
    Check(
        "degenerate/neighbours",
        "A row that is no distribution gives -1 and leaves the rows beside it alone.",
        _EXACT,
        "a neighbour's token that changes",
        "a batch-wide maximum, sum or error",
        _neighbours,
        frozenset({"seed", "marks-invalid"}),
        false_fail=0.0,
    ),
    Check(
        "degenerate/one token",
        "A vocabulary of one, or one token with mass, is always that token.",
        _EXACT,
        "any other token in 64 draws",
        "a tile or group without mass that is not skipped",
        _single,
        false_fail=0.0,
    ),
    Check(
        "degenerate/no rows",
        "No rows give no tokens.",
        _EXACT,
        "an error or another shape",
        "a grid of size zero",
        _empty,
        frozenset({"empty-batch"}),
        false_fail=0.0,
    ),
    Check(
        "degenerate/ties at temperature 0",
        "At temperature 0 the lowest id of the largest logits is given.",
        _EXACT,
        "another id in 64 draws",
        "a maximum that keeps the last tie, or a small temperature in place of an argmax",
        _greedy,
        frozenset({"temperature", "greedy"}),
        false_fail=0.0,
    ),
    Check(
        "temperature/two tokens",
        "Temperatures 0.001, 0.5 and 4 divide the logits.",
        "Exact binomial tests of two tokens.",
        "a temperature twice as high",
        "a floor under the temperature, or a division in low precision",
        _temperature,
        frozenset({"temperature"}),
    ),
    Check(
        "log-probabilities/error",
        "Log-probabilities and log-normalisers are those of float64.",
        "Largest absolute error relative to max(1, |log-normaliser|).",
        "an error above 2**-21",
        "a softmax in half precision, or a sum without its maximum taken out",
        _numbers,
        frozenset({"log-prob"}),
        false_fail=0.0,
    ),
)
