"""What every test shares: threads, Hypothesis profiles, GPU skips and the ledger of false fails."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from hypothesis import settings

from proofs_tests.statistics_policy import FalseFailLedger

# The checkout's root is on sys.path here, and transformers would take kernels/ for the package
# of that name, which it may use; None tells the import system that there is none.
sys.modules.setdefault("kernels", None)  # type: ignore[arg-type]

settings.register_profile("local", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("local"), derandomize=False, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FalseFailLedger())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(skip)


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.user_properties.extend(("false_fail", m.args) for m in item.iter_markers("false_fail"))
