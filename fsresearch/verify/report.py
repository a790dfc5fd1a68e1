"""What a run found, as a table in the terminal, as JSON, and as one HTML page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fsresearch.verify.html import page
from fsresearch.verify.trial import Budget, Check

__all__ = ["Finding", "Report"]

_WIDE = 110
_STYLES = {"passed": "green", "failed": "bold red", "not decided": "yellow"}


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        check: the question.
        budget: what it could spend.
        status: passed, failed, not decided, or not applicable.
        said: what was seen, or why nothing was.
        p_values: of the tests inside.
        draws: tokens drawn.
        seconds: spent.
        data: what the plots need.
    """

    check: Check
    budget: Budget
    status: str
    said: str
    p_values: Mapping[str, float] = field(default_factory=dict)
    draws: int = 0
    seconds: float = 0.0
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def alternative(self) -> str:
        """What the check would miss with at most the budget's false-pass rate."""
        return self.check.alternative.format(budget=self.budget)

    @property
    def sentence(self) -> str:
        """What was seen, what should hold, and what usually causes a failure."""
        null = self.check.null.rstrip(".")
        return (
            f"{self.said}, although it should hold that {null[0].lower()}{null[1:]}; "
            f"usually caused by {self.check.cause}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return everything that JSON can hold."""
        return {
            "check": self.check.name,
            "status": self.status,
            "said": self.said,
            "sentence": self.sentence,
            "null_hypothesis": self.check.null,
            "statistic": self.check.statistic,
            "false_fail_rate": self.check.false_fail,
            "alternative": self.alternative,
            "false_pass_rate": self.budget.false_pass,
            "usual_cause": self.check.cause,
            "p_values": dict(self.p_values),
            "draws": self.draws,
            "seconds": round(self.seconds, 3),
            "data": dict(self.data),
        }


@dataclass(frozen=True)
class Report:
    """What a run found.

    Attributes:
        sampler: its name.
        about: its version and the like.
        features: what it offers and promises.
        budget: what the run could spend.
        device: where logits lay.
        seed: of the run.
        findings: one a check, in the order they ran.
        seconds: of the whole run.
    """

    sampler: str
    about: str
    features: tuple[str, ...]
    budget: Budget
    device: str
    seed: int
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings that failed."""
        return tuple(finding for finding in self.findings if finding.status == "failed")

    @property
    def passed(self) -> bool:
        """Whether no check failed; some may not apply or not be decided."""
        return not self.failed

    @property
    def false_fail(self) -> float:
        """A bound on the chance that a correct sampler fails this run."""
        return math.fsum(f.check.false_fail for f in self.findings if f.status != "not applicable")

    @property
    def summary(self) -> str:
        """One sentence: how many of each, and the risk of a false alarm."""
        counts = {status: 0 for status in (*_STYLES, "not applicable")}
        for finding in self.findings:
            counts[finding.status] += 1
        parts = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
        return (
            f"{self.sampler}: {parts} in {self.seconds:.1f} s ({self.budget.name} budget, "
            f"{self.device}, seed {self.seed}); a correct sampler fails such a run with "
            f"probability at most {self.false_fail:.1g}"
        )

    def print(self, console: Console | None = None) -> None:
        """Print the table, and under it what is wrong and what usually causes it."""
        console = console or Console()
        wide = console.width >= _WIDE
        table = Table(title=self.about or None, box=box.SIMPLE_HEAD)
        table.add_column("check", no_wrap=wide)
        table.add_column("status", no_wrap=wide)
        table.add_column("what was seen")
        if wide:
            table.add_column("draws", justify="right")
            table.add_column("s", justify="right")
        for finding in self.findings:
            style = _STYLES.get(finding.status, "dim")
            cells = [finding.check.name, f"[{style}]{finding.status}[/]", escape(finding.said)]
            if wide:
                drawn = finding.draws > 0
                cells.append(f"{finding.draws:,}" if drawn else "")
                cells.append(f"{finding.seconds:.1f}" if drawn else "")
            table.add_row(*cells)
        console.print(table)
        for finding in self.failed:
            console.print(f"[bold red]{finding.check.name}[/]: {escape(finding.sentence)}\n")
        console.print(self.summary, markup=False, highlight=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as nested dictionaries that JSON can hold."""
        return {
            "sampler": self.sampler,
            "about": self.about,
            "features": list(self.features),
            "budget": self.budget.name,
            "device": self.device,
            "seed": self.seed,
            "seconds": round(self.seconds, 2),
            "passed": self.passed,
            "false_fail_rate": self.false_fail,
            "findings": [finding.as_dict() for finding in self.findings],
        }

    def json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.as_dict(), indent=2)

    def html(self) -> str:
        """Return the report as one page that needs no other file."""
        return page(self.as_dict(), self.summary)
