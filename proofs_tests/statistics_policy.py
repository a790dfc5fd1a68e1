"""How rarely a correct sampler may fail a test of law, and the sum of that over a run.

A test with a fixed seed takes its risk once, when the seed is chosen; a test whose seeds vary takes
it in every run, so the rates of those are summed, printed, and held under ``BUDGET``.

    @false_fail(1e-9, seeds_vary=True)
    def test_the_law_of_something() -> None: ...
"""

from __future__ import annotations

from typing import cast

import pytest

BUDGET = 1e-6
FIXED_P, FIXED_SIGMA = 1e-4, 5.0
VARYING_P, VARYING_SIGMA = 1e-9, 6.5


def false_fail(rate: float, *, seeds_vary: bool) -> pytest.MarkDecorator:
    """Declare that a correct sampler fails the decorated test with probability at most ``rate``.

    A parametrised test counts once a case; a test of several checks declares their sum.

    >>> false_fail(1e-9, seeds_vary=True).args
    (1e-09, True)
    """
    if not 0 < rate < 1:
        raise ValueError(f"rate must be in (0, 1), got {rate}")
    return pytest.mark.false_fail(rate, seeds_vary)


class FalseFailLedger:
    """Pytest plugin that adds up the declared rates; workers report theirs with their results."""

    def __init__(self) -> None:
        self.fixed, self.varying = 0.0, 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the rates of a test that ran."""
        if report.when != "call" or report.skipped:
            return
        for name, value in report.user_properties:
            if name == "false_fail":
                rate, seeds_vary = cast(tuple[float, bool], value)
                if seeds_vary:
                    self.varying += rate
                else:
                    self.fixed += rate

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run whose varying seeds risk more than the budget."""
        if self.varying > BUDGET and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print both sums."""
        terminalreporter.write_line(
            f"false-fail rates: varying seeds {self.varying:.2g} (budget {BUDGET:.0e}), "
            f"fixed seeds {self.fixed:.2g} (taken once)",
            red=self.varying > BUDGET,
        )
