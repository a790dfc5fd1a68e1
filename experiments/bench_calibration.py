"""Measure that the bench raises no false alarms.

Three parts, each resumable: rows that the CSV files hold are not run again.

    python experiments/bench_calibration.py runs        50 quick runs of a correct sampler
    python experiments/bench_calibration.py p-values    1000 p-values of every fixed-size check
    python experiments/bench_calibration.py sequential  error rates of the sequential tests
    python experiments/bench_calibration.py summary     tables and plot from what there is

write bench_*.csv and bench_p_values.png to experiments/results. P-values are taken at the quick
budget's sizes, for goodness of fit a tenth of the standard ones and less; sequential error rates
at rates of 0.01, which simulation can measure.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import matplotlib.pyplot as plt
import numpy as np
from bench_rows import RESULTS, append, read
from rich.console import Console
from rich.progress import Progress
from scipy import stats

from fsresearch.verify import BUDGETS, verify
from fsresearch.verify.sizes import Sequential, grid_tail_probability, tail_probability

RUNS, P_VALUES, SEQUENTIAL = "bench_runs.csv", "bench_p_values.csv", "bench_sequential.csv"
SUMMARY = "bench_p_values_summary.csv"
SAMPLER, ORDERED = "grouped", "gumbel-top-k"
FIXED = [
    "fit",
    "independence",
    "temperature",
    "tail/law of scores",
    "precision/ties of large scores",
]
RATE, REPEATS, UPDATES = 0.01, 10_000, 40
TAIL = 1 << 17
TESTS = {
    "tail/mass, quick": (tail_probability(14, TAIL), tail_probability(14, TAIL) / 2),
    "tail/mass, 24 bits": (tail_probability(18, TAIL), grid_tail_probability(24, 18, TAIL)),
    "tail/mass, 31 bits": (tail_probability(22.85, TAIL), grid_tail_probability(31, 22.85, TAIL)),
    "precision/rounded probabilities": (0.47081, 0.47241),
    "precision/running sum": (0.0306, 0.000306),
    "tail/reach of scores": (0.0078, 0.0000078),
}


def runs(seeds: int) -> None:
    """Run the quick battery over a correct sampler with many seeds."""
    done = {int(row["seed"]) for row in read(RUNS)}
    todo = [seed for seed in range(seeds) if seed not in done]
    with Progress() as progress:
        for seed in progress.track(todo, description="quick runs"):
            report = verify(SAMPLER, budget="quick", seed=seed)
            counts = {
                status: sum(f.status == status for f in report.findings)
                for status in ("passed", "failed", "not decided", "not applicable")
            }
            failed = " ".join(f.check.name for f in report.failed)
            seconds = round(report.seconds, 1)
            append(RUNS, [{"seed": seed, **counts, "seconds": seconds, "which failed": failed}])


def p_values(seeds: int) -> None:
    """Collect one p-value of every test in every fixed-size check, a seed at a time."""
    budget = BUDGETS["quick"]._replace(seconds=1e9)
    done = {int(row["seed"]) for row in read(P_VALUES)}
    todo = [seed for seed in range(seeds) if seed not in done]
    with Progress() as progress:
        for seed in progress.track(todo, description="p-values"):
            found: dict[str, str | int] = {"seed": seed}
            for name, checks in ((SAMPLER, FIXED), (ORDERED, ["order"])):
                report = verify(name, budget=budget, checks=checks, seed=seed)
                for finding in report.findings:
                    for test, p in list(finding.p_values.items())[:1]:
                        found[f"{finding.check.name}: {test}"] = f"{p:.6g}"
            append(P_VALUES, [found])


def sequential() -> None:
    """Simulate every sequential test under its null hypothesis and its alternative."""
    (RESULTS / SEQUENTIAL).unlink(missing_ok=True)
    random = np.random.default_rng(0)
    for name, (null, alternative) in TESTS.items():
        chunk = _chunk(null, alternative)
        row: dict[str, object] = {"test": name, "null": null, "alternative": alternative}
        for truth, wrong in ((null, False), (alternative, True)):
            errors, draws = 0, 0
            for _ in range(REPEATS):
                test = Sequential(null, alternative, RATE, RATE)
                decided = None
                while decided is None:
                    decided = test.update(int(random.binomial(chunk, truth)), chunk)
                errors += decided is wrong
                draws += test.draws
            kind = "false-pass" if wrong else "false-fail"
            row[f"{kind} rate"] = errors / REPEATS
            row[f"mean draws, {'alternative' if wrong else 'null'}"] = round(draws / REPEATS)
        append(SEQUENTIAL, [row])


def _chunk(null: float, alternative: float) -> int:
    """Return draws an update, some 40 updates for the mean drift under the null hypothesis."""
    drift = null * np.log(null / alternative) + (1 - null) * np.log1p(
        (alternative - null) / (1 - alternative)
    )
    return max(int(-np.log(RATE) / drift / UPDATES), 1)


def summary() -> None:
    """Compare p-values with the uniform law, and plot them."""
    console = Console()
    done = read(RUNS)
    if done:
        failures = sum(int(row["failed"]) for row in done)
        slowest = max(float(row["seconds"]) for row in done)
        console.print(f"{len(done)} quick runs: {failures} failures, {slowest} s at most")
    values: dict[str, list[float]] = defaultdict(list)
    for row in read(P_VALUES):
        for name, p in row.items():
            if name != "seed":
                values[name].append(float(p))
    if not values:
        return
    (RESULTS / SUMMARY).unlink(missing_ok=True)
    figure, axes = plt.subplots(figsize=(6, 6), layout="constrained")
    for name, found in values.items():
        ordered = np.sort(found)
        far = stats.kstest(ordered, "uniform", alternative="greater")
        append(
            SUMMARY,
            [
                {
                    "check": name,
                    "p-values": len(found),
                    "smallest": f"{ordered[0]:.2g}",
                    "under 0.05": f"{(ordered < 0.05).mean():.3f}",
                    "excess of small ones, p": f"{far.pvalue:.2g}",
                }
            ],
        )
        axes.plot(ordered, (np.arange(len(found)) + 0.5) / len(found), linewidth=0.8)
    axes.plot([0, 1], [0, 1], color="black", linewidth=1, linestyle=":")
    axes.set(xlabel="p-value", ylabel="share of p-values up to it")
    axes.set_title(f"{len(values)} fixed-size tests of a correct sampler", fontsize=10)
    figure.savefig(RESULTS / "bench_p_values.png", dpi=130)
    console.print(f"{len(values)} tests in {RESULTS / SUMMARY}", highlight=False)


def main() -> None:
    """Run one part, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ["runs", "p-values", "sequential", "summary", "all"]
    parser.add_argument("part", nargs="?", choices=parts, default="all")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--p-values", type=int, default=1000)
    options = parser.parse_args()
    if options.part in ("runs", "all"):
        runs(options.runs)
    if options.part in ("p-values", "all"):
        p_values(options.p_values)
    if options.part in ("sequential", "all"):
        sequential()
    summary()


if __name__ == "__main__":
    main()
