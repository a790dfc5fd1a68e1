"""Estimates of a mean from k of 100 outcomes: spread of five estimators, for k up to the whole.

Probabilities are cubes of Exponentials, normalised; values are Normal(log p, 1/2), shifted to start
at 0; both come from NumPy's RandomState(123). The estimators with hindsight draw the keys again,
ten times, given the order alone, and take the mean. Estimators without replacement use k outcomes
and the key of the next as threshold; Monte Carlo uses k independent draws.

    python experiments/hindsight_estimators.py

writes hindsight_estimators.csv (5, 25, 75 and 95 % points) and hindsight_estimators.png to
experiments/results.

Source: Shi, Bieber and Singh, "Incremental Sampling Without Replacement for Sequence Models", ICML
2020, the toy of their hindsight Gumbel estimator.
"""

from __future__ import annotations

import argparse
import csv
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from bench_rows import RESULTS
from torch import Tensor

from fsresearch import sample_logits, sample_logits_without_replacement
from fsresearch.without_replacement.estimators import horvitz_thompson, self_normalized
from fsresearch.without_replacement.race import hindsight

SIZE, REPEATS = 100, 10
SAMPLES = 2, 5, 10, 15, 20, 25, 30, 35, 40, 50, 60, 80, 100
POINTS = 0.05, 0.25, 0.75, 0.95
STYLES = {
    "Monte Carlo": "C7",
    "Horvitz-Thompson": "C0",
    "Horvitz-Thompson, hindsight": "C1",
    "self-normalised": "C2",
    "self-normalised, hindsight": "C3",
}


def universe() -> tuple[Tensor, Tensor]:
    """Return (probabilities, values), float64 [100]."""
    random = np.random.RandomState(123)
    p = random.exponential(size=SIZE) ** 3
    p /= p.sum()
    values = random.normal(np.log(p), 0.5)
    return torch.from_numpy(p), torch.from_numpy(values - values.min())


def estimates(k: int, runs: int, seed: int) -> dict[str, Tensor]:
    """Return the estimates [runs] by every estimator with k samples."""
    p, values = universe()
    logits = p.log().float().expand(runs, -1)
    drawn = sample_logits_without_replacement(logits, k, seed=seed)
    again = hindsight(drawn, repeats=REPEATS, seed=seed)
    independent = sample_logits(logits, num_samples=k, seed=seed, role=1)
    seen = values[drawn.token]
    return {
        "Monte Carlo": values[independent.token].mean(1),
        "Horvitz-Thompson": horvitz_thompson(drawn, seen),
        "Horvitz-Thompson, hindsight": horvitz_thompson(again, seen).mean(0),
        "self-normalised": self_normalized(drawn, seen),
        "self-normalised, hindsight": self_normalized(again, seen).mean(0),
    }


def main() -> None:
    """Estimate, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    p, values = universe()
    exact = float(p @ values)
    print(f"exact mean {exact:.6f}, largest probability {float(p.max()):.4f}")
    rows: list[dict[str, Any]] = []
    at = torch.tensor(POINTS, dtype=torch.float64)
    for k in SAMPLES:
        for name, found in estimates(k, options.runs, options.seed).items():
            offsets = [round(x, 6) for x in (found.quantile(at) - exact).tolist()]
            points = {f"{100 * q:g} %": x for q, x in zip(POINTS, offsets, strict=True)}
            rows.append({"estimator": name, "k": k, **points, "exact": round(exact, 6)})
            print(k, name, *(f"{x:+.2f}" for x in offsets))
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "hindsight_estimators.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "runs"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "runs": options.runs} for row in rows)
    _plot(rows, exact)


def _plot(rows: list[dict[str, Any]], exact: float) -> None:
    figure, (bands, widths) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for name, colour in STYLES.items():
        own = [row for row in rows if row["estimator"] == name]
        counts = [row["k"] for row in own]
        low, lower, upper, high = ([row[f"{100 * q:g} %"] for row in own] for q in POINTS)
        if not name.endswith("hindsight"):
            bands.fill_between(counts, low, high, color=colour, alpha=0.15)
            bands.fill_between(counts, lower, upper, color=colour, alpha=0.35, label=name)
        spread = [(k, b - a) for k, a, b in zip(counts, low, high, strict=True) if k < SIZE]
        if name == "Monte Carlo":
            spread.append((SIZE, high[-1] - low[-1]))
        widths.plot(*zip(*spread, strict=True), "o-", color=colour, markersize=3, label=name)
    bands.axhline(0.0, color="k", linewidth=0.8)
    bands.set(xlabel="samples k", ylim=(-3, 4), ylabel=f"estimate - {exact:.3f}")
    widths.set(xlabel="samples k", yscale="log", ylabel="from 5 % to 95 %")
    for panel in (bands, widths):
        panel.legend(fontsize="small")
    figure.savefig(RESULTS / "hindsight_estimators.png", dpi=120)


if __name__ == "__main__":
    main()
