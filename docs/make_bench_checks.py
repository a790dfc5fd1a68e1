"""Write bench_checks.csv, the table of all checks on the page about the bench.

python docs/make_bench_checks.py
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from fsresearch.verify import BUDGETS
from fsresearch.verify.battery import BATTERY

FILE = Path(__file__).parent / "bench_checks.csv"


def table() -> str:
    """Return the table as CSV, with the alternatives of the standard budget."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["check", "null hypothesis", "statistic", "must not miss", "false fails"])
    for check in BATTERY:
        alternative = check.alternative.format(budget=BUDGETS["standard"])
        rate = f"{check.false_fail:.0e}" if check.false_fail else "0"
        writer.writerow([check.name, check.null, check.statistic, alternative, rate])
    return text.getvalue()


if __name__ == "__main__":
    FILE.write_text(table(), encoding="utf-8")
