"""A pytest plugin that does what the one line in ``summaries/__init__.py`` would: list a reducer.

``-p proofs_tests.conformance.with_skeleton`` adds the reducer of docs/skeleton_reducer.py.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fsresearch.noise import RowNoise
from fsresearch.summaries import REDUCERS, Reducer

__all__ = ["NAME", "skeleton"]

NAME = "ExponentialRace"
SKELETON = Path(__file__).resolve().parents[2] / "docs" / "skeleton_reducer.py"


@cache
def skeleton() -> Callable[[RowNoise], Reducer[Any]]:
    """Return the class that the skeleton file defines."""
    factory: Callable[[RowNoise], Reducer[Any]] = runpy.run_path(str(SKELETON))[NAME]
    return factory


def pytest_configure() -> None:
    """List the reducer before tests are collected."""
    REDUCERS[NAME] = skeleton()
