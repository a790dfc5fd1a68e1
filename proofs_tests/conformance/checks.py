"""The two suites as functions of a reducer's factory; they raise AssertionError where it fails.

``check_path`` compares the tokens of many cuts, schedules, merge trees and batches with those of
one full pass. ``check_law`` compares the law of the tokens with softmax, with parts that hold no
mass at every place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsresearch.noise import GROUP_SIZE, RowNoise, derive_seeds
from fsresearch.schedules.online import online
from fsresearch.schedules.tiled import tiled
from fsresearch.sources import Logits
from fsresearch.summaries import Reducer
from fsresearch.theory.categorical import probabilities
from fsresearch.theory.merge import Tree
from fsresearch.tiles import Tile
from fsresearch.verify import ChiSquare, combine, goodness_of_fit, independence
from proofs_tests.statistics_policy import FIXED_P
from proofs_tests.strategies import Case

__all__ = [
    "check_independence",
    "check_law",
    "check_neutral",
    "check_path",
    "law_cases",
    "merge_as",
    "of_rows",
    "part_states",
    "rows_of_one_law",
]

_BINS = 24

Factory = Callable[[RowNoise], Reducer[Any]]


def check_path(make: Factory, case: Case) -> Tensor:
    """Return the tokens of one full pass, having found them under every way to cut the case."""
    reducer, source = make(case.noise), Logits(case.logits)
    tokens = reducer.draw(reducer.lift(Tile(case.logits, 0)))
    states = part_states(reducer, case.logits, case.cuts)
    tree = case.ordered_tree if reducer.ordered else case.tree
    found = {
        "online, one width": reducer.draw(online(reducer, source, width=case.width)),
        "tiled, one width": reducer.draw(tiled(reducer, source, width=case.width)),
        "online, cuts": reducer.draw(online(reducer, source, cuts=case.cuts)),
        "tiled, cuts": reducer.draw(tiled(reducer, source, cuts=case.cuts)),
        "merge tree": reducer.draw(merge_as(tree, reducer, states)),
    }
    for way, others in found.items():
        assert torch.equal(others, tokens), f"{way} changes tokens from {tokens} to {others}"
    some = make(of_rows(case.noise, case.rows))
    alone = some.draw(online(some, Logits(case.logits[case.rows]), width=case.width))
    assert torch.equal(alone, tokens[case.rows]), "another batch changes tokens"
    return tokens


def check_neutral(make: Factory, case: Case) -> None:
    """Assert that the empty summary changes nothing on either side."""
    reducer = make(case.noise)
    state = reducer.lift(Tile(case.logits, 0))
    nothing = reducer.empty(len(case.logits), case.logits.device)
    for merged in (reducer.merge(nothing, state), reducer.merge(state, nothing)):
        for before, after in zip(state, merged, strict=True):
            assert torch.equal(before.nan_to_num(7.0), after.nan_to_num(7.0))
            assert before.dtype == after.dtype


def check_law(make: Factory, *, rows: int = 4096, p: float = FIXED_P) -> None:
    """Assert that first tokens have the law softmax, over all `law_cases` and two schedules.

    Null hypothesis: so they have. A correct reducer fails with probability 2 p.
    """
    for number, schedule in enumerate((online, tiled)):
        outcomes: list[ChiSquare] = []
        for seed, (logits, cuts) in enumerate(law_cases()):
            noise = rows_of_one_law(1000 * number + seed, rows)
            reducer = make(noise)
            state = schedule(reducer, Logits(logits.expand(rows, -1)), cuts=cuts)
            outcomes.append(_fit(reducer.draw(state)[:, 0], logits))
        outcome = combine(outcomes)
        assert outcome.p_value > p, f"{schedule.__name__}: {outcome}"


def check_independence(make: Factory, *, rows: int = 20_000, p: float = FIXED_P) -> None:
    """Assert that two draws of a row, and the draws of neighbouring seeds, are independent.

    Null hypothesis: so they are. A correct reducer fails with probability 2 p. The second pair
    shows streams that are sums: draw 1 of a seed beside draw 0 of the next.
    """
    logits = torch.linspace(0, 2, 3 * GROUP_SIZE)[None].expand(rows, -1)

    def bins(seeds: Tensor) -> Tensor:
        reducer = make(RowNoise(seeds, torch.tensor(0), torch.arange(2)))
        return reducer.draw(tiled(reducer, Logits(logits), width=GROUP_SIZE)) % _BINS

    seeds = torch.arange(rows) * 1000 + 17
    here, neighbour = bins(seeds), bins(seeds + 1)
    for other in (here[:, 0], neighbour[:, 0]):
        pairs = torch.bincount(here[:, 1] * _BINS + other, minlength=_BINS**2)
        outcome = independence(pairs.view(_BINS, _BINS).numpy())
        assert outcome.p_value > p, outcome


def law_cases() -> Iterator[tuple[Tensor, list[int]]]:
    """Yield (logits float32 [1, V], cuts): four parts, each set of them without mass in turn."""
    rng = np.random.default_rng(5)
    parts, vocab = 4, 4 * GROUP_SIZE - 13
    cuts = [part * GROUP_SIZE for part in range(1, parts)]
    bounds = [0, *cuts, vocab]
    for empty in range(2**parts - 1):
        values = rng.normal(size=vocab) * 1.5
        for part, (start, stop) in enumerate(pairwise(bounds)):
            if empty >> part & 1:
                values[start:stop] = -np.inf
        yield torch.from_numpy(values.astype(np.float32))[None], cuts
    yield torch.zeros(1, vocab), [0, 0, GROUP_SIZE, GROUP_SIZE, 2 * GROUP_SIZE]


def rows_of_one_law(seed: int, rows: int, draws: int = 1) -> RowNoise:
    """Return the noise of many rows with seeds of their own."""
    return RowNoise(derive_seeds(seed, rows), torch.tensor(seed), torch.arange(draws))


def part_states(reducer: Reducer[Any], logits: Tensor, cuts: Sequence[int]) -> list[Any]:
    """Return the summary of every part between cuts, empty parts included."""
    bounds = [0, *cuts, logits.shape[1]]
    return [
        reducer.lift(Tile(logits[:, start:stop], start))
        if start < stop
        else reducer.empty(len(logits), logits.device)
        for start, stop in pairwise(bounds)
    ]


def merge_as(tree: Tree, reducer: Reducer[Any], states: Sequence[Any]) -> Any:
    """Merge states along a tree whose leaves are their numbers."""
    if isinstance(tree, int):
        return states[tree]
    left, right = (merge_as(child, reducer, states) for child in tree)
    return reducer.merge(left, right)


def of_rows(noise: RowNoise, rows: Sequence[int]) -> RowNoise:
    """Return the noise of some rows."""
    positions = noise.positions if noise.positions.dim() == 0 else noise.positions[list(rows)]
    return noise._replace(seeds=noise.seeds[list(rows)], positions=positions)


def _fit(tokens: Tensor, logits: Tensor) -> ChiSquare:
    assert (tokens >= 0).all(), "a row that is a distribution has no token"
    counts = torch.bincount(tokens, minlength=logits.shape[1])
    return goodness_of_fit(counts.numpy(), probabilities(logits[0].double().numpy()))
