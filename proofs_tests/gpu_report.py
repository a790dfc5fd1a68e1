"""A pytest plugin that writes what ran where, and how it went, to a file of results.

``-p proofs_tests.gpu_report --gpu-report FILE``
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file."""
    parser.addoption("--gpu-report", type=Path, help="write counts, versions and the date here")


class GpuReport:
    """Counts the outcomes of tests."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.outcomes: Counter[str] = Counter()
        self.failed: list[str] = []
        self.reasons: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that ended: it ran, or its setup or teardown did not pass."""
        if report.when != "call" and report.passed:
            return
        self.outcomes[report.outcome] += 1
        if report.failed:
            self.failed.append(report.nodeid)
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        found = torch.cuda.is_available()
        summary = {
            "date": datetime.date.today().isoformat(),
            "gpu": torch.cuda.get_device_name() if found else "none",
            "torch": torch.__version__,
            "triton": version("triton"),
            **{name: self.outcomes[name] for name in ("passed", "failed", "skipped")},
            "failures": sorted(self.failed),
            "skipped_because": dict(self.reasons),
        }
        self.file.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Watch the run, in the process that hears of all tests."""
    file = config.getoption("gpu_report")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(GpuReport(file))
