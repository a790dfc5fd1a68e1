"""The bench can tell: planted faults fail the check that is named for them, exact samplers pass."""

from __future__ import annotations

import pytest

from fsresearch.verify import BUDGETS, verify
from fsresearch.verify.battery import BATTERY
from fsresearch.verify.controls import CONTROLS, EXACT
from fsresearch.verify.samplers import OWN
from proofs_tests.statistics_policy import false_fail

NO_CLOCK = 1e9
QUICK = BUDGETS["quick"]._replace(seconds=NO_CLOCK)
STANDARD = BUDGETS["standard"]._replace(seconds=NO_CLOCK)
DEEP = BUDGETS["deep"]._replace(seconds=NO_CLOCK)

NEED_MORE = {
    "appendix-j-uniform": STANDARD,
    "24-bit-uniform": STANDARD,
    "31-bit-uniform": DEEP,
}
CHEAP = [check.name for check in BATTERY if check.weight <= 1]


def test_every_control_names_a_check_that_applies() -> None:
    checks = {check.name: check for check in BATTERY}
    for control in CONTROLS.values():
        assert checks[control.caught_by].needs <= control.sampler.features


@pytest.mark.parametrize("name", CONTROLS)
def test_the_named_check_catches_the_fault(name: str) -> None:
    control = CONTROLS[name]
    budget = NEED_MORE.get(name, QUICK)
    report = verify(control.sampler, budget=budget, checks=[control.caught_by], seed=5)
    assert [finding.status for finding in report.findings] == ["failed"]
    assert not report.passed


@false_fail(5e-7, seeds_vary=False)
def test_what_the_faults_vary_is_exact() -> None:
    checks = [name for name in CHEAP if not name.startswith("invariance")]
    report = verify(EXACT, budget=QUICK, checks=checks)
    assert report.passed, report.failed[0].sentence


@false_fail(5e-7, seeds_vary=False)
@pytest.mark.parametrize("name", OWN)
def test_the_methods_are_exact(name: str) -> None:
    report = verify(name, budget=QUICK, checks=CHEAP)
    assert report.passed, report.failed[0].sentence
    assert {finding.status for finding in report.findings} <= {"passed", "not applicable"}


@pytest.mark.deep
@false_fail(5e-7, seeds_vary=False)
@pytest.mark.parametrize("name", OWN)
def test_the_methods_pass_the_standard_battery(name: str) -> None:
    report = verify(name, budget="standard", seed=1)
    assert report.passed, report.failed[0].sentence
