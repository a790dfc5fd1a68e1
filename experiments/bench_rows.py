"""Rows of an experiment in a CSV file that grows, so that a run can stop and go on."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "append", "read"]

RESULTS = Path(__file__).parent / "results"


def append(file: str, rows: list[dict[str, Any]]) -> None:
    """Add rows to a file in RESULTS, with a header if it is new."""
    if not rows:
        return
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / file
    new = not path.exists()
    with path.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def read(file: str) -> list[dict[str, str]]:
    """Return a file's rows; none if there is no file."""
    path = RESULTS / file
    if not path.exists():
        return []
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))
