"""verify: run the battery over a sampler and report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fsresearch.verify.battery import BATTERY
from fsresearch.verify.report import Finding, Report
from fsresearch.verify.sampler import Sampler, adapt
from fsresearch.verify.samplers import find
from fsresearch.verify.trial import BUDGETS, Budget, Check, OutOfTime, Trial, Verdict

__all__ = ["select", "verify"]

_SHARE = 0.6


def verify(
    sampler: Sampler | Callable[..., Any] | str,
    *,
    budget: str | Budget = "quick",
    device: str = "cpu",
    checks: Iterable[str] | None = None,
    seed: int = 0,
    progress: Callable[[Check, int, int], None] | None = None,
) -> Report:
    """Run every check that applies to a sampler, and say what each found.

    A check uses at most three fifths of the time that is left; what it cannot decide by then is
    reported as not decided. torch's generators are left as they were.

    Args:
        sampler: a Sampler, any callable that `adapt` takes, or a name that `find` knows.
        budget: quick, standard or deep, or a Budget.
        device: where logits lie.
        checks: names of checks or of themes (what stands before the slash); all if None.
        seed: of all draws; the same seed asks the same questions.
        progress: called before every check with its number and how many there are.

    Raises:
        ValueError: If a budget, a check or a sampler has no such name.

    >>> report = verify("grouped", checks=["degenerate", "support/odd sizes"])
    >>> report.passed, len(report.findings)
    (True, 6)
    """
    if isinstance(budget, str):
        if budget not in BUDGETS:
            raise ValueError(f"budget must be one of {', '.join(BUDGETS)}, got {budget}")
        budget = BUDGETS[budget]
    if isinstance(sampler, str):
        sampler = find(sampler)
    elif not isinstance(sampler, Sampler):
        sampler = adapt(sampler)
    chosen = select(checks)
    began = time.monotonic()
    deadline = began + budget.seconds
    findings = []
    with _own_randomness(seed, device):
        for number, check in enumerate(chosen):
            if progress:
                progress(check, number, len(chosen))
            findings.append(_find(check, sampler, budget, device, seed, deadline))
    return Report(
        sampler.name,
        sampler.about,
        tuple(sorted(sampler.features)),
        budget,
        device,
        seed,
        tuple(findings),
        time.monotonic() - began,
    )


def select(names: Iterable[str] | None) -> list[Check]:
    """Return the checks of names or themes, all if None, in the battery's order.

    Raises:
        ValueError: If a name is neither.

    >>> [check.name for check in select(["tail/mass", "order/duplicates"])]
    ['order/duplicates', 'tail/mass']
    """
    if names is None:
        return list(BATTERY)
    wanted = set(names)
    known = {name for check in BATTERY for name in (check.name, check.name.partition("/")[0])}
    unknown = sorted(wanted - known)
    if unknown:
        raise ValueError(f"checks must be among {', '.join(sorted(known))}; got {unknown}")
    return [c for c in BATTERY if c.name in wanted or c.name.partition("/")[0] in wanted]


def _find(
    check: Check, sampler: Sampler, budget: Budget, device: str, seed: int, deadline: float
) -> Finding:
    """Run one check, or say why it does not apply."""
    missing = sorted(check.needs - sampler.features)
    if missing:
        return Finding(check, budget, "not applicable", f"needs {', '.join(missing)}")
    now = time.monotonic()
    until = now + (deadline - now) * _SHARE
    trial = Trial(sampler, budget, device, seed, check.name, until)
    try:
        verdict = check.run(trial)
    except OutOfTime:
        verdict = Verdict(None, f"{trial.draws} draws were not enough for a decision")
    except Exception as error:
        verdict = Verdict(False, f"the sampler raised {type(error).__name__}: {error}")
    status = {True: "passed", False: "failed", None: "not decided"}[
        None if verdict.passed is None else bool(verdict.passed)
    ]
    return Finding(
        check,
        budget,
        status,
        verdict.said,
        verdict.p_values,
        trial.draws,
        time.monotonic() - now,
        verdict.data,
    )


@contextmanager
def _own_randomness(seed: int, device: str) -> Iterator[None]:
    """Seed torch's and NumPy's global generators, and restore them afterwards."""
    before = np.random.get_state()
    devices = [torch.device(device)] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        try:
            yield
        finally:
            np.random.set_state(before)
