"""Goodness of fit: are tokens drawn with the probabilities of softmax?"""

from __future__ import annotations

import math
from functools import partial
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsresearch.theory.categorical import probabilities
from fsresearch.verify.sizes import fit_size, pooled_classes
from fsresearch.verify.statistics import MIN_EXPECTED, goodness_of_fit
from fsresearch.verify.trial import FALSE_FAIL, Check, Trial, Verdict

__all__ = ["CHECKS", "fit", "rows_of_logits"]

Floats = NDArray[np.float64]

_COARSER = {"zipf": 1.5, "real model": 2.5}
_FINEST = {"flat": 1e-3, "peaked": 2e-4, "two levels": 1e-4}
_LANGUAGE_FINEST = 2e-3


def rows_of_logits() -> dict[str, Floats]:
    """Return the rows that goodness of fit is tested on, from flat to a language model's.

    >>> {name: len(row) for name, row in rows_of_logits().items()}
    {'flat': 1000, 'peaked': 500, 'zipf': 4096, 'two levels': 512, 'real model': 49152}
    """
    two = np.where(np.arange(512) % 2 == 0, 0.0, -3.0)
    file = resources.files("fsresearch.verify.battery") / "smollm2_logits.npy"
    with resources.as_file(file) as path:
        real = np.load(path).astype(np.float64)
    return {
        "flat": np.zeros(1000),
        "peaked": np.where(np.arange(500) == 317, math.log(0.9 / 0.1 * 499), 0.0),
        "zipf": -np.log(1.0 + np.arange(4096) * 1663 % 4096),
        "two levels": two,
        "real model": real,
    }


def fit(trial: Trial, logits: Floats, finest: float, distance: float, **options: Any) -> Verdict:
    """Test by chi-square over pooled classes whether a row is drawn by its softmax.

    Args:
        trial: draws.
        logits: [V]; float32 values are the ones that are meant.
        finest: tokens of at least this probability are classes of their own.
        distance: the total variation that must not be missed.
        options: fields of the request.
    """
    law = probabilities(np.asarray(logits, dtype=np.float32))
    draws = trial.size(fit_size(law, finest, distance, FALSE_FAIL, trial.budget.false_pass))
    tokens = trial.tokens(trial.row(logits), draws, **options)
    wrong = (tokens < 0) | (tokens >= len(law))
    if wrong.any():
        return Verdict(False, f"{wrong.sum()} of {draws} tokens are no ids: {tokens[wrong][0]}")
    counts = np.bincount(tokens, minlength=len(law))
    if counts[law == 0].any():
        token = int(np.flatnonzero((law == 0) & (counts > 0))[0])
        return Verdict(False, f"token {token} has probability 0 and was drawn")
    places = pooled_classes(law, finest)
    able = places >= 0
    outcome = goodness_of_fit(
        np.bincount(places[able], counts[able]), np.bincount(places[able], law[able])
    )
    if outcome.dof == 0:
        return Verdict(None, f"{draws} draws are too few for two classes")
    far = abs(np.bincount(places[able], counts[able] / draws - law[able])).sum() / 2
    noise = float(np.sqrt(np.bincount(places[able], law[able]) / (2 * math.pi * draws)).sum())
    return Verdict(
        outcome.p_value >= FALSE_FAIL,
        f"chi-square {outcome.statistic:.0f} on {outcome.dof} degrees of freedom; total variation "
        f"{far:.2g}, from sampling noise alone about {noise:.2g}",
        {"chi-square": outcome.p_value},
        {"decades": _decades(law, counts, draws)},
    )


def _run(name: str, trial: Trial) -> Verdict:
    distance = trial.budget.distance * _COARSER.get(name, 1.0)
    finest = _FINEST.get(name, _LANGUAGE_FINEST * min(distance / 0.15, 1.0))
    return fit(trial, rows_of_logits()[name], finest * (1 - 1e-6), distance)


def _many_tiles(trial: Trial) -> Verdict:
    return fit(trial, np.zeros(1024), 1 / 1024, trial.budget.distance * 1.5, width=64)


def _decades(law: Floats, counts: NDArray[np.int64], draws: int) -> list[dict[str, Any]]:
    """Return hits and expectation by half decades of probability, the rarest ones together."""
    able = law > 0
    decade = np.floor(2 * np.log10(law[able])) / 2
    made: list[dict[str, Any]] = []
    expected, hits, together = 0.0, 0, False
    for place in np.unique(decade):
        inside = decade == place
        expected += draws * float(law[able][inside].sum())
        hits += int(counts[able][inside].sum())
        if expected >= MIN_EXPECTED:
            name = f"{'to ' if together else ''}10^{place:g}"
            made.append({"decade": name, "expected": expected, "hits": hits})
            expected, hits = 0.0, 0
        together = expected > 0
    return made


def _check(name: str, subject: str) -> Check:
    coarse = _COARSER.get(name, 1.0)
    times = "" if coarse == 1 else f"{coarse} times "
    return Check(
        f"fit/{name}",
        f"Draws of {subject} are independent, each with the probabilities of softmax.",
        "Pearson's chi-square; tokens that expect under 5 hits share classes by quarter decades.",
        f"a total variation of {times}{{budget.distance}} between the classes",
        "noise that is too coarse or shared, probabilities rounded on the way, or a wrong merge",
        partial(_run, name),
        weight=2 if name == "real model" else 1,
    )


CHECKS = (
    _check("flat", "1000 equal logits"),
    _check("peaked", "a head of 0.9 and 499 equal tokens"),
    _check("two levels", "512 logits that alternate between 0 and -3"),
    _check("zipf", "Zipf's law on 4096 shuffled ids"),
    _check("real model", "a language model's logits (SmolLM2-135M, 49,152 tokens)"),
    Check(
        "fit/many tiles",
        "Draws of 1024 equal logits in tiles of 64 have the probabilities of softmax.",
        "Pearson's chi-square.",
        "a total variation of 1.5 times {budget.distance}",
        "merges that share a random number, such as one coin for all",
        _many_tiles,
        frozenset({"width"}),
        weight=1,
    ),
)
