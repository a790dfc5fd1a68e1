"""Independence: do draws that should share nothing share noise?

Pairs of draws from 64 equal tokens are compared: how often the two are equal, and two tables of
one against the other, by the high and by the low digit of the id.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsresearch.verify.sizes import binomial_size, chi_square_size
from fsresearch.verify.statistics import binomial, goodness_of_fit, independence
from fsresearch.verify.trial import FALSE_FAIL, Check, Trial, Verdict

__all__ = ["CHECKS"]

_VOCAB, _BASE = 64, 8
_COPIES = 0.05
_DIGITS, _DIGIT_VOCAB = 16, 4096
_SHARD_VOCAB = 8192

Pairs = dict[str, tuple[Tensor, Tensor]]


def _rows(trial: Trial) -> Verdict:
    """Compare neighbouring rows of one call."""
    token = _draw(trial, 2 * _pairs(trial, 1))
    return _compare(trial, {"row, next row": (token[0::2], token[1::2])})


def _draws(trial: Trial) -> Verdict:
    """Compare two draws from every row."""
    token = _draw(trial, _pairs(trial, 1), num_samples=2)
    return _compare(trial, {"draw 0, draw 1": (token[:, :1], token[:, 1:])})


def _positions(trial: Trial) -> Verdict:
    """Compare positions 0, 1 and 2**32 under one seed."""
    pairs = _pairs(trial, 2)
    seed = _seed(trial, pairs)
    zero, one, high = (_draw(trial, pairs, seed=seed, position=p) for p in (0, 1, 1 << 32))
    return _compare(trial, {"position 0, 1": (zero, one), "position 0, 2**32": (zero, high)})


def _seeds(trial: Trial) -> Verdict:
    """Compare seeds that differ by 1 and by 2**32, row by row."""
    pairs = _pairs(trial, 2)
    seed = _seed(trial, pairs)
    token, next_token, far = (_draw(trial, pairs, seed=seed + step) for step in (0, 1, 1 << 32))
    return _compare(
        trial, {"seed, seed + 1": (token, next_token), "seed, seed + 2**32": (token, far)}
    )


def _shifted(trial: Trial) -> Verdict:
    """Compare a step in one part of the address with a step in another."""
    features = trial.sampler.features
    pairs = _pairs(trial, 4)
    seed = _seed(trial, pairs)
    steps: dict[str, Tensor] = {"seed + 1": _draw(trial, pairs, seed=seed + 1)}
    if "position" in features:
        steps["position 1"] = _draw(trial, pairs, seed=seed, position=1)
    if "num-samples" in features:
        steps["draw 1"] = _draw(trial, pairs, seed=seed, num_samples=2)[:, 1:]
    if isinstance(seed, int):
        steps["next row"] = _draw(trial, pairs, seed=seed).roll(-1, 0)
    names = sorted(steps)
    return _compare(
        trial,
        {
            f"{left}, {right}": (steps[left], steps[right])
            for i, left in enumerate(names)
            for right in names[i + 1 :]
        },
    )


def _shards(trial: Trial) -> Verdict:
    """Count how often the second of two shards of equal logits wins."""
    draws = trial.size(binomial_size(0.5, 0.25, FALSE_FAIL, trial.budget.false_pass))
    tokens = trial.tokens(trial.row(np.zeros(_SHARD_VOCAB)), draws, shards=2)
    hits = int((tokens >= _SHARD_VOCAB // 2).sum())
    p_value = binomial(hits, draws, 0.5).p_value
    return Verdict(
        p_value >= FALSE_FAIL,
        f"the second of two equal shards won {hits / draws:.1%} of {draws} draws, not 50%",
        {"share": p_value},
    )


def _digits(trial: Trial) -> Verdict:
    """Hold the group of 64 that won against the place in the group."""
    dof = _DIGITS**2 - 1
    size = chi_square_size(dof, 0.2, FALSE_FAIL, trial.budget.false_pass)
    draws = trial.size(size)
    tokens = trial.tokens(trial.row(np.zeros(_DIGIT_VOCAB)), draws)
    if ((tokens < 0) | (tokens >= _DIGIT_VOCAB)).any():
        return Verdict(False, "tokens out of range")
    cell = tokens // 256 * _DIGITS + tokens % 64 // 4
    outcome = goodness_of_fit(np.bincount(cell, minlength=dof + 1), np.full(dof + 1, 1 / (dof + 1)))
    if outcome.dof == 0:
        return Verdict(None, f"{draws} draws are too few for {dof + 1} cells")
    return Verdict(
        outcome.p_value >= FALSE_FAIL,
        f"group against place in the group: chi-square {outcome.statistic:.0f} on {dof} degrees "
        f"of freedom in {draws} draws",
        {"chi-square": outcome.p_value},
    )


def _compare(trial: Trial, pairs: Pairs) -> Verdict:
    """Test every pair of draws for equality and for any relation of their digits."""
    each = FALSE_FAIL / (3 * len(pairs))
    p_values: dict[str, float] = {}
    rates: list[dict[str, Any]] = []
    for name, (left, right) in pairs.items():
        a, b = _numbers(left), _numbers(right)
        if ((a < 0) | (a >= _VOCAB) | (b < 0) | (b >= _VOCAB)).any():
            return Verdict(False, "tokens out of range")
        equal = int((a == b).sum())
        p_values[f"{name}: equal"] = binomial(equal, len(a), 1 / _VOCAB).p_value
        for digit, of in (("high", np.floor_divide), ("low", np.remainder)):
            table = np.zeros((_BASE, _BASE))
            np.add.at(table, (of(a, _BASE), of(b, _BASE)), 1)
            table = table[table.sum(1) > 0]
            p_values[f"{name}: {digit} digits"] = independence(table).p_value
        rates.append({"name": name, "equal": equal, "pairs": len(a), "rate": 1 / _VOCAB})
    worst = min(p_values, key=lambda name: p_values[name])
    said = "; ".join(f"{r['name']}: {r['equal'] / r['pairs']:.2%} equal" for r in rates)
    if p_values[worst] < each:
        said += f"; {worst} has p = {p_values[worst]:.1g}"
    return Verdict(
        p_values[worst] >= each,
        f"{said} (independent: {1 / _VOCAB:.2%})",
        p_values,
        {"pairs": rates},
    )


def _pairs(trial: Trial, comparisons: int) -> int:
    """Return how many pairs show that one in twenty is a copy."""
    each = FALSE_FAIL / (3 * comparisons)
    copies = 1 / _VOCAB + _COPIES * (1 - 1 / _VOCAB)
    return trial.size(binomial_size(1 / _VOCAB, copies, each, trial.budget.false_pass))


def _draw(trial: Trial, rows: int, **options: Any) -> Tensor:
    """Draw rows of equal logits in one call; [rows, n]."""
    logits = torch.zeros(1, _VOCAB, device=trial.device).expand(rows, -1)
    return trial.call(logits, **options).token


def _seed(trial: Trial, rows: int) -> int | Tensor:
    """Return a seed that neighbours can be made of: one a row, or one for all."""
    return trial.row_seeds(rows) if "row-seeds" in trial.sampler.features else trial.seed()


def _numbers(tokens: Tensor) -> NDArray[np.int64]:
    values: NDArray[np.int64] = tokens.cpu().numpy().ravel()
    return values


_STATISTIC = "Binomial test of equal pairs, chi-square of their high and of their low digits."
_ALTERNATIVE = "one pair in 20 that is a copy"

CHECKS = (
    Check(
        "independence/rows",
        "Neighbouring rows of a batch are independent.",
        _STATISTIC,
        _ALTERNATIVE,
        "one seed that serves every row of the batch",
        _rows,
    ),
    Check(
        "independence/draws",
        "Two draws from one row are independent.",
        _STATISTIC,
        _ALTERNATIVE,
        "noise that does not depend on the draw",
        _draws,
        frozenset({"num-samples"}),
    ),
    Check(
        "independence/positions",
        "Positions 0, 1 and 2**32 of one seed are independent.",
        _STATISTIC,
        _ALTERNATIVE,
        "a position that is ignored or cut to 32 bits, such as one baked into a captured graph",
        _positions,
        frozenset({"seed", "position"}),
    ),
    Check(
        "independence/adjacent seeds",
        "Seeds that differ by 1 or by 2**32 are independent.",
        _STATISTIC,
        _ALTERNATIVE,
        "a seed that is cut to 32 bits, or used as an offset",
        _seeds,
        frozenset({"seed"}),
    ),
    Check(
        "independence/shifted streams",
        "A step in the seed, the draw, the position or the row meets no other step's noise.",
        _STATISTIC,
        _ALTERNATIVE,
        "streams made by adding: draw 1 of a seed is draw 0 of the next",
        _shifted,
        frozenset({"seed"}),
    ),
    Check(
        "independence/shards",
        "Two equal shards win equally often.",
        "Binomial test of the second shard's share.",
        "a second shard that wins 25%",
        "noise addressed by a token's place in its shard, so that ties go to the first",
        _shards,
        frozenset({"shards"}),
        weight=1,
    ),
    Check(
        "independence/digits of the id",
        "The group of 64 that a token is in says nothing of its place in the group.",
        "Chi-square of 16 x 16 cells of 4096 equal tokens.",
        "a joint law with sum (p1 - p0)**2 / p0 = 0.2",
        "a choice of group and a choice inside it that use one random number",
        _digits,
        weight=1,
    ),
)
