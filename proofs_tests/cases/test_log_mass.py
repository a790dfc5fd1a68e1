"""Samplers that weigh parts: empty parts, resolution, and independence of the two choices."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fsresearch import sample_logits
from fsresearch.hierarchy import LogMassTree
from fsresearch.noise import COIN, GROUP, NODE, RowNoise, gumbel_from_bits
from fsresearch.schedules.cuts import tiles
from fsresearch.schedules.online import online
from fsresearch.schedules.tiled import tiled
from fsresearch.sources import Logits
from fsresearch.summaries import CoinFlip, GumbelMax, LogNormalizer, PerturbedMass, Reducer
from fsresearch.verify.statistics import goodness_of_fit, independence
from proofs_tests.cases.helpers import (
    INF,
    NAMES,
    OVERWHELMING,
    assert_law,
    assert_share,
    assert_uniform,
    row_noise,
    share_p_value,
)
from proofs_tests.statistics_policy import FIXED_P, FIXED_SIGMA

Draw = Callable[[Tensor, RowNoise, int], Tensor]


def right_fold(reducer: Reducer[Any], logits: Tensor, width: int) -> Any:
    """Merge from the last tile backwards, neighbours in order."""
    states = [reducer.lift(tile) for tile in tiles(reducer, Logits(logits), width, None)]
    return reduce(lambda right, left: reducer.merge(left, right), reversed(states))


def backwards(reducer: Reducer[Any], logits: Tensor, width: int) -> Any:
    """Merge with the last tile as the first, which unordered reducers allow."""
    states = [reducer.lift(tile) for tile in tiles(reducer, Logits(logits), width, None)]
    return reduce(reducer.merge, reversed(states))


ORDERS: dict[str, Draw] = {
    "coin online": lambda x, n, w: online(CoinFlip(n), Logits(x), width=w).token,
    "coin tree": lambda x, n, w: tiled(CoinFlip(n), Logits(x), width=w).token,
    "coin reversed": lambda x, n, w: right_fold(CoinFlip(n), x, w).token,
    "mass online": lambda x, n, w: online(PerturbedMass(n), Logits(x), width=w).token,
    "mass tree": lambda x, n, w: tiled(PerturbedMass(n), Logits(x), width=w).token,
    "mass reversed": lambda x, n, w: backwards(PerturbedMass(n), x, w).token,
    "max online": lambda x, n, w: online(GumbelMax(n), Logits(x), width=w).token,
    "max reversed": lambda x, n, w: backwards(GumbelMax(n), x, w).token,
    "nodes": lambda x, n, w: LogMassTree(Logits(x), fan_out=w).draw(n),
}

WITH_MASS: dict[str, tuple[int, list[int]]] = {
    "group 3": (1024, list(range(384, 392))),
    "last group": (1024, list(range(900, 908))),
    "first group": (1024, list(range(8))),
    "last id": (1024, [1023]),
    "every other group": (1024, [5, 300, 301, 555, 600, 810, 811, 1000]),
    "V = 5": (5, [0, 1, 2, 3, 4]),
}


def finite_only(vocab: int, ids: list[int]) -> Tensor:
    logits = torch.full((1, vocab), -INF)
    logits[0, ids] = 0
    return logits


@pytest.mark.parametrize("support", WITH_MASS)
@pytest.mark.parametrize("order", ORDERS)
def test_b33_groups_without_mass_are_absorbed(order: str, support: str) -> None:
    """Merging a massless group computes -inf - -inf; tokens are uniform over the finite ids."""
    vocab, ids = WITH_MASS[support]
    logits = finite_only(vocab, ids)
    token = ORDERS[order](logits, row_noise(800, seed=33), 128)
    law = torch.zeros(vocab, dtype=torch.float64)
    law[ids] = 1 / len(ids)
    assert_law(token, law)


@pytest.mark.parametrize("support", WITH_MASS)
def test_b33_masses_of_empty_groups_and_of_all(support: str) -> None:
    """An empty group weighs exactly -inf and all groups ln(number of finite ids)."""
    vocab, ids = WITH_MASS[support]
    logits, noise = finite_only(vocab, ids), row_noise(1)
    tree = LogMassTree(Logits(logits), fan_out=128)
    empty = [all(not 128 * u <= v < 128 * (u + 1) for v in ids) for u in range(-(-vocab // 128))]
    assert (tree.levels[0][0] == -INF).tolist() == empty
    reducers: list[Reducer[Any]] = [CoinFlip(noise), PerturbedMass(noise), LogNormalizer()]
    for reducer in reducers:
        for unit, massless in enumerate(empty):
            part = Logits(logits).tile(128 * unit, min(128 * (unit + 1), vocab))
            assert (reducer.lift(part).log_mass.item() == -INF) == massless
        for state in (
            online(reducer, Logits(logits), width=128),
            tiled(reducer, Logits(logits), width=128),
            right_fold(reducer, logits, 128),
        ):
            assert state.log_mass.item() == pytest.approx(math.log(len(ids)), abs=1e-7)
    assert tree.log_normalizer.item() == pytest.approx(math.log(len(ids)), abs=1e-7)


def two_halves(vocab: int, first: float, second: float) -> Tensor:
    logits = torch.full((1, vocab), second)
    logits[0, : vocab // 2] = first
    return logits


@pytest.mark.parametrize(
    ("method", "draws"),
    [("gumbel-max", 32), ("grouped", 1000), ("online", 32), ("hierarchical", 50_000)],
)
def test_b35_a_million_boundaries_keep_their_shares(method: str, draws: int) -> None:
    """Prefix sums in float32 lose steps at V = 2^20; the lighter half must get a third."""
    logits = two_halves(1 << 20, math.log(2), 0.0)
    token = sample_logits(logits, seed=35, method=method, num_samples=draws).token
    assert_share(token >= 1 << 19, 1 / 3)


@pytest.mark.parametrize(("method", "draws"), [("grouped", 10_000), ("hierarchical", 60_000)])
def test_b35_rare_tokens_together_keep_their_share(method: str, draws: int) -> None:
    """Rare classes fall between float32 boundaries; 50,000 of them must get 0.000999."""
    logits = two_halves(100_000, 0.0, math.log(1e-3))
    token = sample_logits(logits, seed=35, method=method, num_samples=draws).token
    assert_share(token >= 50_000, 1e-3 / (1 + 1e-3))


def test_b35_control_a_float32_prefix_sum_fails() -> None:
    """A running sum in float32 stands still under the rare half's steps, which is never found."""
    mass = two_halves(100_000, 0.0, math.log(1e-3)).softmax(1).numpy()[0]
    total = np.cumsum(mass, dtype=np.float32)
    uniform = np.random.default_rng(35).random(100_000, np.float32) * total[-1]
    rare = torch.as_tensor(np.searchsorted(total, uniform, side="right") >= 50_000)
    assert share_p_value(rare, 1e-3 / (1 + 1e-3)) < OVERWHELMING


@pytest.mark.parametrize(("method", "draws"), [("grouped", 1000), ("hierarchical", 60_000)])
def test_b35_a_million_equal_ids(method: str, draws: int) -> None:
    """Of a million equal ids all must be reachable, evenly, with no more repeats than chance."""
    vocab = 1_000_000
    token = sample_logits(torch.zeros(1, vocab), seed=36, method=method, num_samples=draws).token
    assert_uniform(token // (vocab // 16), 16)
    load = draws / vocab
    distinct = vocab * -math.expm1(draws * math.log1p(-1 / vocab))
    deviation = math.sqrt(vocab * math.exp(-load) * (1 - (1 + load) * math.exp(-load)))
    assert abs(len(token.unique()) - distinct) < max(FIXED_SIGMA * deviation, 5)


@pytest.mark.parametrize("method", NAMES)
def test_b35_the_same_seed_gives_the_same_ids(method: str) -> None:
    """Ids must not jitter between runs of one seed."""
    logits = torch.zeros(1, 1_000_000)
    runs = [sample_logits(logits, seed=36, method=method, num_samples=3).token for _ in range(5)]
    assert all(run.equal(runs[0]) for run in runs)


@pytest.mark.deep
def test_b35_full_draws() -> None:
    """As above, by the full numbers of draws."""
    logits = two_halves(100_000, 0.0, math.log(1e-3))
    for method in ("grouped", "hierarchical"):
        token = sample_logits(logits, seed=35, method=method, num_samples=10**6).token
        assert_share(token >= 50_000, 1e-3 / (1 + 1e-3))
    flat = sample_logits(torch.zeros(1, 10**6), seed=1, method="hierarchical", num_samples=10**6)
    assert abs(len(flat.token.unique()) - 632_121) < FIXED_SIGMA * 311


@pytest.mark.deep
@pytest.mark.parametrize("method", ["gumbel-max", "grouped", "online"])
def test_b35_full_draws_of_the_large_vocabulary(method: str) -> None:
    """The lighter half of 2^20 ids, by more draws."""
    logits = two_halves(1 << 20, math.log(2), 0.0)
    token = sample_logits(logits, seed=35, method=method, num_samples=5000).token
    assert_share(token >= 1 << 19, 1 / 3)


def joint_table(order: str, noise: RowNoise) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Count (group, member) over 8 groups of 8 equal tokens; canonical groups have 64."""
    size = 64 if order.startswith("mass") else 8
    token = ORDERS[order](torch.zeros(1, 8 * size), noise, size).flatten()
    return token.bincount(minlength=8 * size).numpy().reshape(8, size)


@pytest.mark.parametrize("order", ORDERS)
def test_b36_group_and_member_are_independent(order: str) -> None:
    """One noise for both choices ties the member to the group; the joint law is uniform."""
    draws = 40_000
    table = joint_table(order, row_noise(draws, seed=36))
    cells = table.size
    assert goodness_of_fit(table.ravel(), np.full(cells, 1 / cells)).p_value > FIXED_P
    assert independence(table).p_value > FIXED_P
    assert goodness_of_fit(table.sum(0), np.full(cells // 8, 8 / cells)).p_value > FIXED_P


def test_b36_noise_by_address_gives_the_same_token_in_every_order() -> None:
    """Where noise belongs to tokens or canonical groups, the order of merges changes nothing."""
    noise = row_noise(100, seed=36)
    for family, size in (("max", 8), ("mass", 64)):
        logits = torch.linspace(-3, 3, 8 * size)[None]
        drawn = [f(logits, noise, size) for order, f in ORDERS.items() if order.startswith(family)]
        assert len(drawn) > 1
        assert all(d.equal(drawn[0]) for d in drawn)


class OneCoin(RowNoise):
    """A single coin for all merges."""

    def words(self, units: Tensor, kind: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return super().words(units * 0 if kind == COIN else units, kind)


class GroupNoiseAgain(RowNoise):
    """The words that chose the group choose the member as well."""

    def words(self, units: Tensor, kind: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        a, b, c, d = super().words(units, kind)
        return (a, a, c, c) if kind == GROUP else (a, b, c, d)


class NodeNoiseAgain(RowNoise):
    """The members take the Gumbels of the nodes above."""

    def gumbel(self, token_ids: Tensor) -> Tensor:
        high, _, low, _ = self.words(token_ids % 8 + 1, NODE)
        return gumbel_from_bits(high, low).float()


@pytest.mark.parametrize(
    ("order", "faulty"),
    [
        ("coin online", OneCoin),
        ("coin tree", OneCoin),
        ("mass online", GroupNoiseAgain),
        ("nodes", NodeNoiseAgain),
    ],
)
def test_b36_control_shared_noise_fails(order: str, faulty: type[RowNoise]) -> None:
    """Each way of sharing noise between two choices is told apart by the same table."""
    table = joint_table(order, faulty(*row_noise(40_000, seed=36)))
    law = np.full(table.size, 1 / table.size)
    assert goodness_of_fit(table.ravel(), law).p_value < OVERWHELMING
