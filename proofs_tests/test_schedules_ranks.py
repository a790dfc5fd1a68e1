"""Schedules: what they accept, and ranks over gloo that answer as one process does."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fsresearch.noise import RowNoise
from fsresearch.sampling import sample
from fsresearch.schedules.online import online
from fsresearch.schedules.ranks import ranks
from fsresearch.schedules.tiled import merge_tree, tiled
from fsresearch.sources import Logits
from fsresearch.summaries import (
    REDUCERS,
    CoinFlip,
    GumbelMax,
    LogNormalizer,
    PerturbedMass,
    Product,
)
from fsresearch.tiles import Tile, default_width, tile_cuts
from proofs_tests.conformance import oracles
from proofs_tests.conformance.rank_worker import (
    CASES,
    HEADS,
    MERGED,
    SHARDS_OF_BAD_CUTS,
    WORLD,
    head,
    ranked_case,
)

ROOT = Path(__file__).resolve().parents[1]
NOISE = RowNoise(torch.tensor([1, 2]), torch.tensor(0), torch.arange(2))
SOURCE = Logits(torch.linspace(0, 1, 400).expand(2, -1))
Answers = list[dict[str, Any]]


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What each of four processes answered; spawned once, also where tests run in parallel."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ranks"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _run_ranks(folder)
            (folder / "done").touch()
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


def _run_ranks(folder: Path) -> None:
    command = [sys.executable, "-m", "proofs_tests.conformance.rank_worker"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            [*command, str(rank), str(folder)],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        failures = [process.communicate(timeout=120)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert not any(process.returncode for process in started), "\n".join(failures)


def test_ranks_give_the_tokens_of_one_full_pass(answers: Answers) -> None:
    for number in range(CASES):
        case = ranked_case(number)
        reducer = REDUCERS[case.name](case.noise)
        tokens = reducer.draw(reducer.lift(Tile(case.logits, 0)))
        for rank in range(case.world):
            assert torch.equal(answers[rank][f"case {number}"], tokens), (number, rank)
        if case.name == "GumbelMax":
            expected = oracles.maximum(case.logits, case.noise)
            assert np.array_equal(tokens.numpy(), expected)


def test_the_cases_hold_empty_shards_and_all_rank_counts() -> None:
    bounds = [ranked_case(number).bounds for number in range(CASES)]
    empty = [b for b in bounds if len(set(b)) < len(b)]
    assert len(empty) > 20
    assert any(b[1] == 0 for b in empty) and any(b[-2] == b[-1] for b in empty)
    assert {len(b) - 1 for b in bounds} == {1, 2, 3, 4}
    assert {"GumbelMax", "GumbelTopK", "PerturbedMass"} <= set(MERGED)


def test_the_front_door_over_ranks_is_that_of_one_process(answers: Answers) -> None:
    for number in range(HEADS):
        made = head(number)
        alone = sample(made.hidden, made.weight, **made.options)
        for rank in range(len(made.bounds) - 1):
            shared = answers[rank][f"head {number}"]
            assert torch.equal(shared[0], alone.token), (number, rank)
            assert torch.equal(shared[1], alone.valid)
            assert (shared[2] is None) == (alone.log_prob is None)
            if alone.log_prob is not None:
                torch.testing.assert_close(shared[2], alone.log_prob, rtol=1e-5, atol=1e-5)
                torch.testing.assert_close(shared[3], alone.log_normalizer, rtol=1e-5, atol=1e-5)
                torch.testing.assert_close(shared[4], alone.perturbed, rtol=0, atol=0)


def test_two_scalars_a_row_and_draw_are_exchanged_at_once(answers: Answers) -> None:
    score_and_token = 4 + 8
    for rank in range(WORLD):
        assert answers[rank]["message sizes"] == {
            "gumbel-max 1": [score_and_token],
            "grouped 1": [score_and_token],
            "gumbel-max 3": [3 * score_and_token],
        }


def test_errors_over_ranks_say_what_is_accepted(answers: Answers) -> None:
    nearest = {1: 128, 2: 192, 3: 320}
    for rank in range(WORLD):
        said = answers[rank]
        if rank:
            assert "must be a multiple of 64" in said["bad cut"]
            assert f"got {SHARDS_OF_BAD_CUTS[rank]}" in said["bad cut"]
            assert f"nearest is {nearest[rank]}" in said["bad cut"]
        assert "must cover the vocabulary once" in said["gap"]
        assert "gumbel-max, grouped" in said["online"]
        assert "gumbel-max, grouped" in said["hierarchical"]
        assert "seed must be given" in said["no seed"]


def test_ordered_reducers_refuse_ranks() -> None:
    with pytest.raises(ValueError, match="cannot run over ranks"):
        ranks(CoinFlip(NOISE), SOURCE)
    with pytest.raises(ValueError, match="cannot run over ranks"):
        ranks(Product(GumbelMax(NOISE), CoinFlip(NOISE)), SOURCE)


@pytest.mark.parametrize("schedule", [online, tiled])
class TestCuts:
    def test_a_width_off_the_groups_is_refused(self, schedule: Any) -> None:
        with pytest.raises(ValueError, match=r"width must be a multiple of 64 .* got 100.* is 128"):
            schedule(PerturbedMass(NOISE), SOURCE, width=100)

    def test_a_cut_off_the_groups_is_refused(self, schedule: Any) -> None:
        with pytest.raises(ValueError, match=r"cuts must be a multiple of 64 .* got 70.* is 64"):
            schedule(PerturbedMass(NOISE), SOURCE, cuts=[70])
        with pytest.raises(ValueError, match="nearest is 64"):
            schedule(Product(GumbelMax(NOISE), PerturbedMass(NOISE)), SOURCE, cuts=[3])

    def test_one_tile_needs_no_multiple(self, schedule: Any) -> None:
        wide = schedule(PerturbedMass(NOISE), SOURCE, width=1000).token
        assert torch.equal(wide, schedule(PerturbedMass(NOISE), SOURCE, cuts=[]).token)

    def test_cuts_must_ascend_inside(self, schedule: Any) -> None:
        for cuts in ([5, 3], [-1], [401]):
            with pytest.raises(ValueError, match="must ascend within"):
                schedule(GumbelMax(NOISE), SOURCE, cuts=cuts)

    def test_width_and_cuts_exclude_each_other(self, schedule: Any) -> None:
        with pytest.raises(ValueError, match="exclude"):
            schedule(GumbelMax(NOISE), SOURCE, width=64, cuts=[64])

    def test_width_is_positive(self, schedule: Any) -> None:
        with pytest.raises(ValueError, match="width must be at least 1"):
            schedule(GumbelMax(NOISE), SOURCE, width=0)

    def test_an_empty_source_gives_the_empty_summary(self, schedule: Any) -> None:
        state = schedule(GumbelMax(NOISE), Logits(torch.zeros(2, 0), start=128))
        assert (state.token == -1).all()
        assert (state.perturbed == -torch.inf).all()

    def test_a_source_may_start_anywhere(self, schedule: Any) -> None:
        whole = torch.linspace(0, 3, 500).expand(2, -1)
        shard = Logits(whole[:, 137:], start=137)
        token = schedule(GumbelMax(NOISE), shard, width=50).token
        masked = whole.clone()
        masked[:, :137] = -torch.inf
        assert torch.equal(token, schedule(GumbelMax(NOISE), Logits(masked)).token)


def test_products_are_their_parts() -> None:
    both = Product(GumbelMax(NOISE), LogNormalizer())
    winner, total = tiled(both, SOURCE, width=64)
    assert torch.equal(winner.token, online(GumbelMax(NOISE), SOURCE).token)
    assert torch.equal(total.log_mass, tiled(LogNormalizer(), SOURCE, width=64).log_mass)
    assert both.exactness == "law" and not both.ordered and both.granularity == 1
    assert Product(GumbelMax(NOISE), GumbelMax(None)).exactness == "path"
    assert both.draw((winner, total))[0] is winner.token


def test_a_merge_tree_keeps_the_order_of_its_states() -> None:
    class Joining(Product):
        def merge(self, left: Any, right: Any) -> Any:
            return left + right

    states: list[Any] = [(number,) for number in range(7)]
    assert merge_tree(Joining(GumbelMax(None)), states) == tuple(range(7))


def test_tiles() -> None:
    assert tile_cuts(5, 5, 64) == [5]
    assert tile_cuts(0, 64, 64) == [0, 64]
    tile = Tile(torch.zeros(1, 3), 70)
    assert (tile.stop, tile.ids().tolist()) == (73, [70, 71, 72])
    widths = [default_width(rows, size) for rows in (0, 1, 64, 10**6) for size in (1, 64, 10**9)]
    assert all(width >= 64 and width % 64 == 0 for width in widths)
