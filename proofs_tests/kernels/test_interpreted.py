"""The kernels' own code, interpreted on the CPU, against the core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def findings() -> list[str]:
    """What a process with the interpreter printed; Triton reads the switch at import."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "proofs_tests.kernels.interpreted"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_operator_is_registered_whole(findings: list[str]) -> None:
    assert findings[0] == "registration SUCCESS"


def test_words_are_the_cores(findings: list[str]) -> None:
    assert findings[1] == "words True"


def test_gumbels_are_within_their_bounds(findings: list[str]) -> None:
    assert float(findings[2].split()[1]) < 1.0


def test_tokens_are_the_references(findings: list[str]) -> None:
    heads = [line.split("\t") for line in findings[3:]]
    assert len(heads) == 13
    wrong = [name for name, count, error in heads if int(count) or float(error) > 2e-5]
    assert wrong == []
