"""The ledger counts tests that ran and fails a run above the budget."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from proofs_tests.statistics_policy import BUDGET, FalseFailLedger, false_fail


def report(
    rate: float, seeds_vary: bool, *, when: str = "call", skipped: bool = False
) -> pytest.TestReport:
    made = SimpleNamespace(
        when=when, skipped=skipped, user_properties=[("false_fail", (rate, seeds_vary))]
    )
    return cast(pytest.TestReport, made)


def exit_after(*reports: pytest.TestReport) -> int:
    ledger, session = FalseFailLedger(), SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    for each in reports:
        ledger.pytest_runtest_logreport(each)
    ledger.pytest_sessionfinish(cast(pytest.Session, session))
    return int(session.exitstatus)


def test_varying_seeds_above_the_budget_fail_the_run() -> None:
    half = report(0.6 * BUDGET, True)
    assert exit_after(half) == pytest.ExitCode.OK
    assert exit_after(half, half) == pytest.ExitCode.TESTS_FAILED


def test_fixed_seeds_skips_and_set_up_do_not_count() -> None:
    skipped = report(0.5, True, skipped=True)
    assert exit_after(report(0.5, False), skipped, report(0.5, True, when="setup")) == 0


@pytest.mark.parametrize("rate", [0.0, 1.0, -1e-9])
def test_a_rate_is_a_probability(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        false_fail(rate, seeds_vary=True)


@false_fail(1e-12, seeds_vary=True)
def test_a_mark_travels_with_the_report(request: pytest.FixtureRequest) -> None:
    assert ("false_fail", (1e-12, True)) in request.node.user_properties
