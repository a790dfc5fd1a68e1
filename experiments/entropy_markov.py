"""RMSE of entropy estimates on a toy sequence model, at three temperatures.

The model is a Markov chain over 4 tokens and 6 steps, 4096 sequences: logits of the first token and
of every transition are twice standard normals of NumPy's default_rng(0), divided by the
temperature step by step. The entropy is the mean of -log p(sequence). Here k counts the model's
sequences: k independent ones for Monte Carlo, k ordered ones for sum-and-sample, and k - 1 with the
k-th as threshold for the weighted estimators (elsewhere in this library k leaves the threshold
out). One sample of 64 a run serves every k, since a sample's prefix is a sample.

    python experiments/entropy_markov.py

writes entropy_markov.csv and entropy_markov.png to experiments/results.

Source: Kool, van Hoof and Welling, "Stochastic Beams and Where to Find Them", ICML 2019.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from bench_rows import RESULTS
from matplotlib.ticker import NullLocator
from rich.progress import track
from torch import Tensor

from fsresearch import sample_logits, sample_logits_without_replacement
from fsresearch.results import OrderedSample
from fsresearch.without_replacement.estimators import (
    horvitz_thompson,
    self_normalized,
    sum_and_sample,
    unordered_set,
)

TOKENS, STEPS, BATCH = 4, 6, 250
TEMPERATURES = 1.0, 0.5, 0.25
SAMPLES = 4, 8, 16, 32, 64
STYLES = {
    "Monte Carlo": "C7o-",
    "Horvitz-Thompson": "C0o-",
    "self-normalised": "C2o-",
    "sum-and-sample": "C1s-",
    "unordered set": "C3^-",
}


def sequence_log_prob(temperature: float) -> Tensor:
    """Return the log-probabilities of all sequences, float64 [4096]."""
    random = np.random.default_rng(0)
    first, step = (
        torch.from_numpy(2 * random.normal(size=shape) / temperature).log_softmax(-1)
        for shape in ((TOKENS,), (TOKENS, TOKENS))
    )
    scores = first
    for _ in range(STEPS - 1):
        scores = (scores.view(-1, TOKENS)[..., None] + step).flatten()
    return scores


def estimates(log_prob: Tensor, runs: int, seed: int) -> dict[tuple[str, int], Tensor]:
    """Return the estimates [runs] by (estimator, k) of one batch."""
    logits = log_prob.float().expand(runs, -1)
    drawn = sample_logits_without_replacement(logits, max(SAMPLES), seed=seed)
    independent = sample_logits(
        logits[:1], num_samples=runs * max(SAMPLES), seed=seed, role=1, method="hierarchical"
    ).token.view(runs, -1)
    found = {}
    for k in SAMPLES:
        used, ordered = prefix(drawn, k - 1), prefix(drawn, k)
        surprise = -log_prob[ordered.token]
        found["Monte Carlo", k] = -log_prob[independent[:, :k]].mean(1)
        found["Horvitz-Thompson", k] = horvitz_thompson(used, surprise[:, :-1])
        found["self-normalised", k] = self_normalized(used, surprise[:, :-1])
        found["sum-and-sample", k] = sum_and_sample(ordered, surprise)
        if k <= 8:
            found["unordered set", k] = unordered_set(ordered, surprise)
    return found


def prefix(drawn: OrderedSample, k: int) -> OrderedSample:
    """Return the sample of k tokens that a longer one begins with."""
    scores = torch.cat([drawn.perturbed, drawn.kappa[:, None]], 1)
    return drawn._replace(
        token=drawn.token[:, :k],
        perturbed=scores[:, :k],
        kappa=scores[:, k],
        log_prob=drawn.log_prob[:, :k],
        num_valid=drawn.num_valid.clamp(max=k),
    )


def main() -> None:
    """Estimate, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=16_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows = []
    for temperature in TEMPERATURES:
        log_prob = sequence_log_prob(temperature)
        entropy = float(-(log_prob.exp() * log_prob).sum())
        largest = float(log_prob.exp().max())
        print(f"temperature {temperature}: entropy {entropy:.4f}, largest p {largest:.3f}")
        parts = defaultdict(list)
        for batch in track(range(options.runs // BATCH)):
            found = estimates(log_prob, BATCH, options.seed * 1_000_000 + batch)
            for key, values in found.items():
                parts[key].append(values)
        for (name, k), batches in parts.items():
            error = torch.cat(batches) - entropy
            rmse, bias = float(error.square().mean().sqrt()), float(error.mean())
            rows.append(
                {
                    "temperature": temperature,
                    "entropy": round(entropy, 4),
                    "largest p": round(largest, 3),
                    "k": k,
                    "estimator": name,
                    "RMSE": round(rmse, 6),
                    "bias": round(bias, 6),
                    "runs": len(error),
                }
            )
            print(k, name, f"{rmse:.3f} ({bias:+.3f})")
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "entropy_markov.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    _plot(rows)


def _plot(rows: list[dict[str, Any]]) -> None:
    figure, panels = plt.subplots(1, len(TEMPERATURES), figsize=(12, 4), layout="constrained")
    for panel, temperature in zip(panels, TEMPERATURES, strict=True):
        own = [row for row in rows if row["temperature"] == temperature]
        for name, style in STYLES.items():
            points = [(row["k"], row["RMSE"]) for row in own if row["estimator"] == name]
            panel.plot(*zip(*points, strict=True), style, label=name)
        title = f"temperature {temperature:g}, entropy {own[0]['entropy']:.2f}"
        panel.set(xscale="log", yscale="log", xlabel="samples k", title=title)
        panel.set_xticks(SAMPLES, [str(k) for k in SAMPLES])
        panel.xaxis.set_minor_locator(NullLocator())
    panels[0].set_ylabel("RMSE of the entropy")
    panels[0].legend(fontsize="small")
    figure.savefig(RESULTS / "entropy_markov.png", dpi=120)


if __name__ == "__main__":
    main()
