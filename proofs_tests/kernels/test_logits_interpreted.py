"""The code of the kernels of logits in memory, interpreted on the CPU, against the core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

KERNELS = "logits_max", "logits_group", "logits_top_k"
CALLS = 15


@pytest.fixture(scope="module", params=KERNELS)
def findings(request: pytest.FixtureRequest) -> list[list[str]]:
    """What a process with the interpreter printed; Triton reads the switch at import."""
    module = "proofs_tests.kernels.interpreted_logits"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, request.param],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr
    return [line.split("\t")[1:] for line in done.stdout.splitlines()]


def test_the_operator_is_registered_whole(findings: list[list[str]]) -> None:
    assert findings[0] == ["registration", "SUCCESS"]


def test_tokens_are_the_references(findings: list[list[str]]) -> None:
    assert len(findings[1:]) == CALLS
    wrong = [name for name, count, error in findings[1:] if int(count) or float(error) > 2e-5]
    assert wrong == []
