"""Plant every fault, and see that the check named for it catches it.

Two parts, each resumable: rows that the CSV files hold are not run again.

    python experiments/bench_faults.py named    every fault at its named check, 20 seeds
    python experiments/bench_faults.py battery  every fault once through the standard battery
    python experiments/bench_faults.py table    the table of the documentation, from the two

write bench_faults_named.csv, bench_faults_battery.csv and bench_faults.csv to experiments/results.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

from bench_rows import RESULTS, append, read
from rich.console import Console
from rich.progress import Progress

from fsresearch.verify import verify
from fsresearch.verify.battery import BATTERY
from fsresearch.verify.controls import CONTROLS, EXACT

NAMED, WHOLE, TABLE = "bench_faults_named.csv", "bench_faults_battery.csv", "bench_faults.csv"


def named(seeds: int) -> None:
    """Run the named check alone, at the least budget that must catch the fault."""
    done = {(row["fault"], int(row["seed"])) for row in read(NAMED)}
    todo = [(name, seed) for name in CONTROLS for seed in range(seeds) if (name, seed) not in done]
    with Progress() as progress:
        for name, seed in progress.track(todo, description="named checks"):
            control = CONTROLS[name]
            report = verify(
                control.sampler, budget=control.budget, checks=[control.caught_by], seed=seed
            )
            (finding,) = report.findings
            append(
                NAMED,
                [
                    {
                        "fault": name,
                        "seed": seed,
                        "check": control.caught_by,
                        "budget": control.budget,
                        "status": finding.status,
                        "draws": finding.draws,
                        "seconds": round(finding.seconds, 2),
                        "said": finding.said,
                    }
                ],
            )


def battery() -> None:
    """Run every fault, and the exact sampler that they vary, through the standard battery."""
    samplers = {EXACT.name: EXACT, **{name: c.sampler for name, c in CONTROLS.items()}}
    done = {row["fault"] for row in read(WHOLE)}
    todo = [name for name in samplers if name not in done]
    with Progress() as progress:
        for name in progress.track(todo, description="whole battery"):
            report = verify(samplers[name], budget="standard", seed=1)
            statuses = {finding.check.name: finding.status for finding in report.findings}
            seconds = round(report.seconds, 1)
            append(WHOLE, [{"fault": name, "seconds": seconds, **statuses}])


def table() -> None:
    """Join both parts: one row a fault."""
    caught: dict[str, list[bool]] = defaultdict(list)
    draws: dict[str, int] = defaultdict(int)
    for row in read(NAMED):
        caught[row["fault"]].append(row["status"] == "failed")
        draws[row["fault"]] = max(draws[row["fault"]], int(row["draws"]))
    statuses = {row["fault"]: row for row in read(WHOLE)}
    rows = []
    for name, control in CONTROLS.items():
        failed = [
            check.name
            for check in BATTERY
            if statuses.get(name, {}).get(check.name) == "failed"
            and check.name != control.caught_by
        ]
        rows.append(
            {
                "fault": control.fault,
                "named check": control.caught_by,
                "budget": control.budget,
                "caught": f"{sum(caught[name])} of {len(caught[name])}",
                "most draws": draws[name],
                "battery": statuses.get(name, {}).get(control.caught_by, "not run"),
                "also failed": ", ".join(failed) or "none",
            }
        )
    (RESULTS / TABLE).unlink(missing_ok=True)
    append(TABLE, rows)
    missed = [row["fault"] for row in rows if len(set(str(row["caught"]).split(" of "))) > 1]
    Console().print(f"missed at least once: {missed or 'none'}", highlight=False)


def main() -> None:
    """Run one part, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=["named", "battery", "table", "all"])
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    part = options.part or "all"
    if part in ("named", "all"):
        named(options.seeds)
    if part in ("battery", "all"):
        battery()
    table()


if __name__ == "__main__":
    main()
