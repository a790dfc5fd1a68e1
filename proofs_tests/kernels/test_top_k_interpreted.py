"""The top-k kernel's own code, interpreted on the CPU, against the core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

HEADS = 21


@pytest.fixture(scope="module")
def findings() -> list[list[str]]:
    """What a process with the interpreter printed; Triton reads the switch at import."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "proofs_tests.kernels.interpreted_top_k"],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_the_operator_is_registered_whole(findings: list[list[str]]) -> None:
    assert findings[0] == ["registration", "SUCCESS"]


def test_the_best_do_not_depend_on_how_many_are_kept(findings: list[list[str]]) -> None:
    assert findings[1] == ["prefixes", "0"]


def test_tokens_are_the_references_in_order(findings: list[list[str]]) -> None:
    assert len(findings[2:]) == HEADS
    assert [name for name, count, *_ in findings[2:] if int(count)] == []


def test_scores_and_log_masses_are_the_references(findings: list[list[str]]) -> None:
    """In units of the values, where those are above 1."""
    errors = {name: (float(mass), float(score)) for name, _, mass, score in findings[2:]}
    assert {name: e for name, e in errors.items() if max(e) > 1e-6} == {}
