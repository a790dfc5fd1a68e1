"""Time every method on the CPU against softmax and torch.multinomial, in one run.

Candidates take turns, so that a slow spell of the machine strikes all alike; figures are medians,
and ratios are to the baseline of the same run. Nothing else should be running. Idle OpenMP threads
are told to spin for microseconds only: where two threads share a core, a spinning one takes time
from the one that works, and a sleeping one is slow to wake.

    python experiments/cpu_baselines.py

writes cpu_baselines.csv and cpu_baselines.png to experiments/results.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # read when torch is loaded

import argparse
import csv
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import fsresearch
from fsresearch.baselines.inverse_cdf import inverse_cdf
from fsresearch.baselines.multinomial import multinomial

ROWS, VOCAB, K = 64, 151_936, 64
RESULTS = Path(__file__).parent / "results"


class Candidate(NamedTuple):
    """One column of the comparison: what runs, and which candidate it is compared with."""

    name: str
    run: Callable[[], Any]
    baseline: str
    limit: float | None = None


def candidates(logits: torch.Tensor) -> list[Candidate]:
    """Return the samplers of [64, 151936] logits, baselines first."""
    one, many = "softmax + multinomial", f"softmax + multinomial({K}, replacement=False)"
    top_k = fsresearch.sample_logits_without_replacement
    return [
        Candidate(one, lambda: multinomial(logits), one),
        Candidate("gumbel-max", lambda: _sample(logits, "gumbel-max"), one, 0.50),
        Candidate("grouped", lambda: _sample(logits, "grouped"), one, 0.10),
        Candidate("online", lambda: _sample(logits, "online"), one),
        Candidate("hierarchical", lambda: _sample(logits, "hierarchical"), one),
        Candidate("softmax + inverse CDF, float64", lambda: inverse_cdf(logits), one),
        Candidate(many, lambda: multinomial(logits, K, replacement=False), many),
        Candidate(f"gumbel-top-{K}", lambda: top_k(logits, K, seed=1), many, 0.65),
    ]


def measure(runs: list[Candidate], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of every candidate over interleaved rounds."""
    times: dict[str, list[float]] = {candidate.name: [] for candidate in runs}
    for index in track(range(rounds + 1), "rounds"):
        for candidate in runs:
            start = time.perf_counter()
            candidate.run()
            if index:
                times[candidate.name].append(1e3 * (time.perf_counter() - start))
    return {name: median(values) for name, values in times.items()}


def main() -> None:
    """Measure, print, and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(0))
    runs = candidates(logits)
    milliseconds = measure(runs, rounds)
    rows = [
        {
            "method": run.name,
            "milliseconds": round(milliseconds[run.name], 2),
            "ratio": round(milliseconds[run.name] / milliseconds[run.baseline], 4),
            "baseline": run.baseline,
            "at most": run.limit,
        }
        for run in runs
    ]
    setting = (
        f"logits [{ROWS}, {VOCAB}] float32, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, {platform.machine()}, median of {rounds} rounds"
    )
    _print(rows, setting)
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "cpu_baselines.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "setting"])
        writer.writeheader()
        writer.writerows({**row, "setting": setting} for row in rows)
    _plot(rows, setting, RESULTS / "cpu_baselines.png")


def _sample(logits: torch.Tensor, method: str) -> torch.Tensor:
    return fsresearch.sample_logits(logits, seed=1, method=method).token


def _print(rows: list[dict[str, Any]], setting: str) -> None:
    table = Table(title=setting)
    for column in rows[0]:
        table.add_column(column, justify="right" if column in ("milliseconds", "ratio") else "left")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    Console().print(table)


def _plot(rows: list[dict[str, Any]], setting: str, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    names = [row["method"] for row in rows][::-1]
    colors = ["tab:gray" if "softmax" in name else "tab:blue" for name in names]
    bars = axes.barh(names, [row["milliseconds"] for row in rows][::-1], color=colors)
    axes.bar_label(bars, [f"{row['ratio']:.2f}" for row in rows][::-1], padding=3)
    axes.set_xlabel("milliseconds a call (ratio to its baseline beside the bar)")
    axes.set_title(setting, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
