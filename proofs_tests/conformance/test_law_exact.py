"""Every reducer, and the tree: tokens have the law softmax.

The law of every small tree of coins is enumerated: a coin's threshold is found by bisection on its
word, so nothing is sampled (test_perturbed_mass does this for choices inside groups). Then all
reducers of ``REDUCERS`` draw, and calibrated tests compare the counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, permutations, product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsresearch.hierarchy import LogMassTree
from fsresearch.noise import GROUP_SIZE
from fsresearch.sources import Logits
from fsresearch.summaries import REDUCERS, CoinFlip, GumbelTopK
from fsresearch.summaries.coin_flip import LocalSample
from fsresearch.theory import merge, plackett_luce
from fsresearch.theory.categorical import probabilities, total_variation
from fsresearch.tiles import Tile
from fsresearch.verify import combine, goodness_of_fit
from proofs_tests.conformance.checks import (
    check_independence,
    check_law,
    law_cases,
    rows_of_one_law,
)
from proofs_tests.conformance.forced import forced
from proofs_tests.statistics_policy import FIXED_P, false_fail

LAST = 2**32 - 1


@pytest.mark.parametrize("name", REDUCERS)
@false_fail(2 * FIXED_P, seeds_vary=False)
def test_tokens_follow_softmax(name: str) -> None:
    check_law(REDUCERS[name])


@pytest.mark.parametrize("name", [name for name in REDUCERS if name != "GumbelTopK"])
@false_fail(2 * FIXED_P, seeds_vary=False)
def test_draws_and_neighbouring_seeds_are_independent(name: str) -> None:
    check_independence(REDUCERS[name])


@pytest.mark.parametrize("tree", list(merge.all_trees(range(4))), ids=str)
@pytest.mark.parametrize("empty", [(), (0,), (1,), (3,), (0, 1), (1, 2), (2, 3), (0, 1, 3)])
def test_coins_give_the_enumerated_law(tree: merge.Tree, empty: Sequence[int]) -> None:
    bounds = [0, 2, 3, 5, 6]
    groups = [range(start, stop) for start, stop in pairwise(bounds)]
    logits = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.25, -3.0])
    for part in empty:
        logits[groups[part].start : groups[part].stop] = -torch.inf
    law = coin_law(tree, logits, groups)
    values = logits.double().numpy()
    expected = merge.enumerated_law(tree, values, [list(group) for group in groups])
    assert total_variation(law, expected) < 1e-6
    assert total_variation(law, probabilities(values)) < 1e-6
    assert (law[np.isneginf(values)] == 0).all()


def coin_law(tree: merge.Tree, logits: Tensor, groups: Sequence[range]) -> NDArray[np.float64]:
    """Return the law of CoinFlip over a tree: every outcome of local draws and coins, weighted.

    A local draw has the law softmax of its part; a coin's chance is read off the merge itself.
    """
    locals_ = [_local_law(logits, group) for group in groups]
    law = np.zeros(len(logits))
    for chosen in product(*([v for v, _ in local] for local in locals_)):
        chance = math.prod(dict(local)[v] for local, v in zip(locals_, chosen, strict=True))
        for token, path in _coin_outcomes(tree, logits, groups, chosen):
            law[token] += chance * path
    return law


def _local_law(logits: Tensor, group: range) -> list[tuple[int, float]]:
    values = logits[group.start : group.stop].double().numpy()
    if np.isneginf(values).all():
        return [(-1, 1.0)]
    return list(zip(group, probabilities(values).tolist(), strict=True))


def _coin_outcomes(
    tree: merge.Tree, logits: Tensor, groups: Sequence[range], chosen: Sequence[int]
) -> list[tuple[int, float]]:
    """Return (token, chance of the coins) of every outcome whose chance is not zero."""

    def with_coin(coin: int) -> CoinFlip:
        return CoinFlip(forced((coin, 0, LAST // 2, 0), winners=chosen))

    def is_heads(left: LocalSample, right: LocalSample, heads: LocalSample, coin: int) -> bool:
        return torch.equal(with_coin(coin).merge(left, right).token, heads.token)

    def outcomes(node: merge.Tree) -> list[tuple[LocalSample, float]]:
        if isinstance(node, int):
            group = groups[node]
            part = logits[None, group.start : group.stop]
            return [(with_coin(0).lift(Tile(part, group.start)), 1.0)]
        found: list[tuple[LocalSample, float]] = []
        for (left, before), (right, path) in product(outcomes(node[0]), outcomes(node[1])):
            heads = with_coin(0).merge(left, right)
            tails = with_coin(LAST).merge(left, right)
            if torch.equal(heads.token, tails.token):
                found.append((heads, before * path))
                continue
            share = _threshold(partial(is_heads, left, right, heads))
            found += [(heads, before * path * share), (tails, before * path * (1 - share))]
        return found

    return [(int(state.token), path) for state, path in outcomes(tree)]


def _threshold(holds: Callable[[int], bool]) -> float:
    """Return the share of 32-bit words for which a predicate holds that holds up to some word."""
    low, high = 0, LAST + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if holds(middle) else (low, middle)
    return low / 2.0**32


@pytest.mark.parametrize("fan_out", [64, 2, (64, 2), (7, 3)], ids=str)
@false_fail(FIXED_P, seeds_vary=False)
def test_the_tree_follows_softmax(fan_out: int | tuple[int, ...]) -> None:
    outcomes = []
    for seed, (logits, _) in enumerate(law_cases()):
        tree = LogMassTree(Logits(logits), fan_out)
        tokens = tree.draw(rows_of_one_law(seed, 1, draws=4096))[0]
        counts = torch.bincount(tokens, minlength=logits.shape[1])
        outcomes.append(goodness_of_fit(counts.numpy(), probabilities(logits[0].double().numpy())))
    outcome = combine(outcomes)
    assert outcome.p_value > FIXED_P, outcome


@pytest.mark.parametrize("k", [1, 3, 4])
@false_fail(FIXED_P, seeds_vary=False)
def test_the_k_largest_have_the_plackett_luce_law(k: int) -> None:
    logits = torch.tensor([[1.0, -torch.inf, 0.0, -1.5, 0.5]])
    rows = 20_000
    reducer = GumbelTopK(rows_of_one_law(k, rows), k)
    left, right = (
        reducer.lift(Tile(logits[:, part].expand(rows, -1), part.start or 0))
        for part in (slice(None, 2), slice(2, None))
    )
    tokens = reducer.draw(reducer.merge(left, right))
    law = plackett_luce.ordered_law(logits[0].double().numpy(), k)
    assert set(law) == set(permutations([0, 2, 3, 4], k))
    seen = dict.fromkeys(law, 0)
    for order in map(tuple, tokens.tolist()):
        seen[order] += 1
    outcome = goodness_of_fit(list(seen.values()), list(law.values()))
    assert outcome.p_value > FIXED_P, outcome


@false_fail(FIXED_P, seeds_vary=False)
def test_the_set_of_k_has_its_law() -> None:
    k, rows = 4, 20_000
    logits = torch.linspace(0, 1, 6)
    reducer = GumbelTopK(rows_of_one_law(10, rows), k)
    chosen = reducer.draw(reducer.lift(Tile(logits.expand(rows, -1), 0))).sort(1).values
    assert (chosen.diff(dim=1) > 0).all()
    law = plackett_luce.unordered_law(logits.double().numpy(), k)
    seen = dict.fromkeys(law, 0)
    for ids in map(tuple, chosen.tolist()):
        seen[ids] += 1
    outcome = goodness_of_fit(list(seen.values()), list(law.values()))
    assert outcome.p_value > FIXED_P, outcome


def test_the_cases_put_no_mass_at_every_place() -> None:
    patterns = {
        tuple(bool((part == -torch.inf).all()) for part in logits[0].split(GROUP_SIZE))
        for logits, _ in law_cases()
    }
    assert patterns == set(product([False, True], repeat=4)) - {(True,) * 4}
