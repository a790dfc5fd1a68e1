"""Run the standard battery over samplers that people use, and keep what it finds.

    python experiments/bench_public.py [NAME ...]

writes bench_public.csv, one row a sampler and check that applies, to experiments/results; samplers
that it holds are not run again. bench_public_faults.csv keeps the rows that are not passed.
"""

from __future__ import annotations

import argparse

from bench_rows import RESULTS, append, read
from rich.progress import Progress

from fsresearch.verify import verify
from fsresearch.verify.samplers import PUBLIC

FILE, FAULTS = "bench_public.csv", "bench_public_faults.csv"


def main() -> None:
    """Run the samplers that are not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--budget", default="standard")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    done = {row["sampler"] for row in read(FILE)}
    todo = [name for name in options.names or PUBLIC if name not in done]
    with Progress() as progress:
        for name in progress.track(todo, description="samplers"):
            report = verify(name, budget=options.budget, device=options.device)
            append(
                FILE,
                [
                    {
                        "sampler": name,
                        "version": report.about,
                        "device": report.device,
                        "check": finding.check.name,
                        "status": finding.status,
                        "seen": finding.said,
                    }
                    for finding in report.findings
                    if finding.status != "not applicable"
                ],
            )
    (RESULTS / FAULTS).unlink(missing_ok=True)
    append(FAULTS, [dict(row) for row in read(FILE) if row["status"] != "passed"])


if __name__ == "__main__":
    main()
