"""The report: statuses, rates, table, JSON, page, and the command's exit status."""

from __future__ import annotations

import io
import json
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from fsresearch.cli import app
from fsresearch.verify import BUDGETS, Report, verify
from fsresearch.verify.battery import BATTERY
from fsresearch.verify.controls import CONTROLS, EXACT

ROOT = Path(__file__).resolve().parents[2]
TIMELESS = BUDGETS["quick"]._replace(seconds=1e9)


@pytest.fixture(scope="module")
def report() -> Report:
    return verify(
        CONTROLS["tile-addressed-noise"].sampler,
        budget=TIMELESS,
        checks=[
            "invariance/batch",
            "invariance/tile width",
            "invariance/shards",
            "independence",
            "fit/flat",
        ],
        seed=3,
    )


class Tags(HTMLParser):
    """Counts tags and checks that they close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_check_states_what_it_does() -> None:
    names = [check.name for check in BATTERY]
    assert len(set(names)) == len(names)
    for check in BATTERY:
        assert check.null.endswith(".") and check.statistic.endswith(".")
        assert check.alternative.format(budget=TIMELESS)
        assert check.cause


def test_the_false_fail_rates_of_a_run_stay_under_the_budget() -> None:
    assert sum(check.false_fail for check in BATTERY) <= 1e-6


def test_statuses(report: Report) -> None:
    statuses = {finding.check.name: finding.status for finding in report.findings}
    assert statuses["invariance/tile width"] == "failed"
    assert statuses["invariance/shards"] == "not applicable"
    assert statuses["invariance/batch"] == "passed"
    assert not report.passed
    assert [finding.check.name for finding in report.failed] == ["invariance/tile width"]


def test_the_table_says_what_is_wrong(report: Report) -> None:
    for width in (60, 160):
        console = Console(width=width, record=True, file=io.StringIO())
        report.print(console)
        text = " ".join(console.export_text().split())
        assert "usually caused by noise addressed by the tile" in text
        assert "a correct sampler fails such a run" in text


def test_json_holds_everything(report: Report) -> None:
    loaded = json.loads(report.json())
    assert loaded["passed"] is False
    assert len(loaded["findings"]) == len(report.findings)
    assert 0 < loaded["false_fail_rate"] <= 1e-6
    for finding in loaded["findings"]:
        assert finding["null_hypothesis"] and finding["alternative"]


def test_the_page_stands_alone(report: Report) -> None:
    page = report.html()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.seen["svg"] == 3
    assert tags.seen["details"] == len(report.findings)
    assert not re.search(r"(src|href)=|url\(|@import|https?:", page)
    assert "prefers-color-scheme: dark" in page


def test_what_time_does_not_decide_is_not_passed() -> None:
    report = verify(EXACT, budget=TIMELESS._replace(seconds=0.0), checks=["fit/flat", "tail/mass"])
    assert [finding.status for finding in report.findings] == ["not decided", "not decided"]
    assert report.passed


def test_the_same_seed_asks_the_same(report: Report) -> None:
    checks = ["fit/flat", "independence/rows"]
    one, two = (verify(EXACT, budget=TIMELESS, checks=checks, seed=8) for _ in range(2))
    assert [f.said for f in one.findings] == [f.said for f in two.findings]
    other = verify(EXACT, budget=TIMELESS, checks=checks, seed=9)
    assert [f.said for f in one.findings] != [f.said for f in other.findings]


def test_generators_are_left_alone() -> None:
    torch.manual_seed(5)
    before, drawn = torch.get_rng_state(), np.random.RandomState()
    drawn.set_state(np.random.get_state())
    verify("torch-multinomial", budget=TIMELESS, checks=["support/masked ids"])
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(drawn.random(9), np.random.random(9))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="budget must be one of"):
        verify(EXACT, budget="endless")
    with pytest.raises(ValueError, match="checks must be among"):
        verify(EXACT, checks=["nothing"])


def test_the_command_tells_by_its_exit_status(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run = CliRunner().invoke
    fine = run(app, ["verify", "grouped", "--check", "degenerate", "--html", str(page), "--json"])
    assert fine.exit_code == 0
    assert json.loads(fine.stdout)["passed"] is True
    assert page.read_text().startswith("<!doctype html>")
    assert run(app, ["verify", "fault:last-tie", "--check", "degenerate"]).exit_code == 1
    assert run(app, ["verify", "fault:nothing"]).exit_code == 2
    assert run(app, ["verify", "nothing"]).exit_code == 2


def test_the_table_of_checks_in_the_documentation_is_current() -> None:
    written = (ROOT / "docs" / "bench_checks.csv").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "docs" / "make_bench_checks.py"))["table"]()
    assert written == made, "run python docs/make_bench_checks.py"
