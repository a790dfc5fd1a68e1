"""Run the battery over every method of this project, at a budget.

    python experiments/bench_methods.py quick
    python experiments/bench_methods.py standard
    python experiments/bench_methods.py deep --device cuda [NAME ...]

writes bench_methods.csv, one row a method and budget, to experiments/results; rows that it holds
are not run again.
"""

from __future__ import annotations

import argparse

from bench_rows import append, read
from rich.progress import Progress

from fsresearch.verify import verify
from fsresearch.verify.samplers import OWN

FILE = "bench_methods.csv"


def main() -> None:
    """Run what is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("budget", choices=["quick", "standard", "deep"])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    done = {row["method"] for row in read(FILE) if row["budget"] == options.budget}
    todo = [name for name in options.names or OWN if name not in done]
    with Progress() as progress:
        for name in progress.track(todo, description=options.budget):
            report = verify(name, budget=options.budget, device=options.device)
            statuses = [finding.status for finding in report.findings]
            kinds = ("passed", "failed", "not decided", "not applicable")
            append(
                FILE,
                [
                    {
                        "method": name,
                        "budget": options.budget,
                        "device": report.device,
                        **{kind: statuses.count(kind) for kind in kinds},
                        "draws": sum(finding.draws for finding in report.findings),
                        "seconds": round(report.seconds, 1),
                        "undecided": ", ".join(
                            f.check.name for f in report.findings if f.status == "not decided"
                        ),
                    }
                ],
            )


if __name__ == "__main__":
    main()
