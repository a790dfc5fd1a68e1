"""A new reducer is one file and one line; both suites then run on it, and reject a broken one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from fsresearch.noise import RowNoise
from fsresearch.summaries import GumbelMax, Reducer
from fsresearch.tiles import Tile
from proofs_tests.conformance.checks import (
    check_independence,
    check_law,
    check_neutral,
    check_path,
)
from proofs_tests.conformance.with_skeleton import NAME, skeleton
from proofs_tests.statistics_policy import FIXED_P, false_fail
from proofs_tests.strategies import Case, cases

ROOT = Path(__file__).resolve().parents[2]
Factory = Callable[[RowNoise], Reducer[Any]]


@false_fail(4 * FIXED_P, seeds_vary=False)
def test_both_suites_run_on_a_reducer_that_is_listed() -> None:
    suites = ["test_path_exact.py", "test_law_exact.py"]
    command = [
        *(sys.executable, "-m", "pytest", "-v", "-p", "proofs_tests.conformance.with_skeleton"),
        *("-p", "no:cacheprovider", "-k", NAME),
        *(f"proofs_tests/conformance/{suite}" for suite in suites),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CI": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for test in (
        "test_tokens_are_those_of_one_full_pass",
        "test_tiles_of_one_token",
        "test_the_empty_summary_is_neutral",
        "test_tokens_follow_softmax",
        "test_draws_and_neighbouring_seeds_are_independent",
    ):
        assert f"{test}[{NAME}] PASSED" in done.stdout


def test_the_race_is_won_by_the_token_of_gumbel_max() -> None:
    noise = RowNoise(torch.arange(50), torch.tensor(0), torch.arange(4))
    tile = Tile(torch.linspace(-2, 2, 333).expand(50, -1), 0)
    race, maximum = skeleton()(noise), GumbelMax(noise)
    assert torch.equal(race.lift(tile).token, maximum.lift(tile).token)


def noise_by_place_in_the_tile(race: Any) -> None:
    lift = race.lift

    def local(tile: Tile) -> Any:
        state = lift(Tile(tile.logits, 0))
        shifted = torch.where(state.token < 0, -1, state.token + tile.start)
        return state._replace(token=shifted)

    race.lift = local


def the_later_arrival(race: Any) -> None:
    merge = race.merge
    race.merge = lambda left, right: merge(left, right)._replace(token=right.token)


def half_the_logits(race: Any) -> None:
    lift = race.lift
    race.lift = lambda tile: lift(Tile(tile.logits / 2, tile.start))


def one_draw_for_all(race: Any) -> None:
    race.draw = lambda state: state.token[:, :1].expand_as(state.token)


def an_empty_summary_that_wins(race: Any) -> None:
    empty = race.empty
    race.empty = lambda rows, device: empty(rows, device)._replace(
        log_time=torch.full((rows, len(race.noise.draws)), -99.0, device=device)
    )


def broken(fault: Callable[[Any], None]) -> Factory:
    """Return a factory of the skeleton with one fault planted."""

    def make(noise: RowNoise) -> Reducer[Any]:
        reducer = skeleton()(noise)
        fault(reducer)
        return reducer

    return make


@pytest.mark.parametrize("fault", [noise_by_place_in_the_tile, the_later_arrival])
def test_the_path_suite_rejects_a_broken_reducer(fault: Callable[[Any], None]) -> None:
    @settings(
        max_examples=50,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(max_vocab=300))
    def holds(case: Case) -> None:
        check_path(broken(fault), case)

    with pytest.raises(AssertionError, match="changes tokens"):
        holds()


@pytest.mark.parametrize("fault", [the_later_arrival, half_the_logits])
def test_the_law_suite_rejects_a_broken_reducer(fault: Callable[[Any], None]) -> None:
    with pytest.raises(AssertionError, match=r"ChiSquare|no token"):
        check_law(broken(fault), rows=1024)


def test_dependent_draws_are_rejected() -> None:
    with pytest.raises(AssertionError, match="ChiSquare"):
        check_independence(broken(one_draw_for_all))


def test_an_empty_summary_that_is_not_neutral_is_rejected() -> None:
    case = Case(
        torch.zeros(2, 5),
        RowNoise(torch.tensor([1, 2]), torch.tensor(0), torch.arange(1)),
        *(5, [], 0, 0, [0]),
    )
    check_neutral(skeleton(), case)
    with pytest.raises(AssertionError):
        check_neutral(broken(an_empty_summary_that_wins), case)
