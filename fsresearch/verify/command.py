"""The command ``fsresearch verify``: run with progress, print, write files, tell by exit status."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fsresearch.verify.bench import verify
from fsresearch.verify.controls import CONTROLS, EXACT
from fsresearch.verify.sampler import Sampler
from fsresearch.verify.samplers import find
from fsresearch.verify.trial import Check

__all__ = ["run"]


def run(
    name: str,
    *,
    budget: str = "quick",
    device: str = "cpu",
    checks: Sequence[str] = (),
    seed: int = 0,
    html: Path | None = None,
    as_json: bool = False,
    console: Console | None = None,
    progress_console: Console | None = None,
) -> int:
    """Verify a sampler by name; return 0 if no check failed, else 1.

    Args:
        name: a known sampler, ``module:callable``, or ``fault:NAME`` for a planted fault.
        budget: quick, standard or deep.
        device: where logits lie.
        checks: names of checks or themes, all if empty.
        seed: of all draws.
        html: where to write the page, if anywhere.
        as_json: print JSON instead of the table.
        console: where to print.
        progress_console: where progress shows; standard error if None.

    Raises:
        ValueError: If a name is not known.

    >>> quiet = Console(quiet=True)
    >>> run("grouped", checks=["degenerate"], console=quiet, progress_console=quiet)
    0
    >>> run("fault:last-tie", checks=["degenerate"], console=quiet, progress_console=quiet)
    1
    """
    sampler = _find(name)
    console = console or Console()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=progress_console or Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task(sampler.name, total=None)

        def show(check: Check, number: int, total: int) -> None:
            progress.update(task, description=check.name, completed=number, total=total)

        report = verify(
            sampler,
            budget=budget,
            device=device,
            checks=checks or None,
            seed=seed,
            progress=show,
        )
    if html is not None:
        html.write_text(report.html(), encoding="utf-8")
    if as_json:
        console.print(report.json(), markup=False, highlight=False, soft_wrap=True)
    else:
        report.print(console)
    return 0 if report.passed else 1


def _find(name: str) -> Sampler:
    """Return a sampler by name, planted faults included."""
    kind, _, fault = name.partition(":")
    if kind != "fault":
        return find(name)
    if fault == EXACT.name:
        return EXACT
    if fault not in CONTROLS:
        raise ValueError(f"fault must be one of {', '.join(CONTROLS)}; got {fault}")
    return CONTROLS[fault].sampler
