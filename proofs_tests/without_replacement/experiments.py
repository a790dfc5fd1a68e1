"""The experiments' own code and figures, for tests that hold them to published values."""

from __future__ import annotations

import csv
import runpy
import sys
from pathlib import Path
from typing import Any

__all__ = ["load", "results"]

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def load(name: str) -> dict[str, Any]:
    """Return what a script in experiments/ defines."""
    sys.path.insert(0, str(EXPERIMENTS))
    try:
        return runpy.run_path(str(EXPERIMENTS / f"{name}.py"))
    finally:
        sys.path.remove(str(EXPERIMENTS))


def results(name: str) -> list[dict[str, str]]:
    """Return the rows of a file in experiments/results/."""
    with (EXPERIMENTS / "results" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))
