"""Path-exact reducers, and PerturbedMass on its canonical groups: the token of one full pass.

Every reducer of ``REDUCERS`` that declares itself path-exact runs through this suite. The oracles
take the noise token by token and hold whole rows.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from fsresearch.noise import COIN, GROUP, LEAF, NODE, REFINE, SEED, RowNoise
from fsresearch.sampling import sample, sample_logits
from fsresearch.schedules.online import online
from fsresearch.schedules.tiled import tiled
from fsresearch.sources import LMHead, Logits
from fsresearch.summaries import REDUCERS
from proofs_tests.conformance import oracles
from proofs_tests.conformance.checks import check_neutral, check_path, of_rows
from proofs_tests.strategies import Case, cases

PROBE = RowNoise(torch.tensor([0]), torch.tensor(0), torch.tensor([0]))
PATH_EXACT = [name for name, make in REDUCERS.items() if make(PROBE).exactness == "path"]
INVARIANT = [*PATH_EXACT, "PerturbedMass"]
ORACLES: dict[str, Callable[[Tensor, RowNoise], NDArray[np.int64]]] = {
    "GumbelMax": oracles.maximum,
    "GumbelTopK": lambda logits, noise: oracles.top_k(logits, noise, 4),
    "PerturbedMass": lambda logits, noise: oracles.grouped(logits, noise)[1],
}
some = settings(max_examples=40, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", INVARIANT)
def test_tokens_are_those_of_one_full_pass(name: str) -> None:
    compare_with_one_full_pass(name, 200)


@pytest.mark.deep
@pytest.mark.parametrize("name", INVARIANT)
def test_tokens_of_many_cases_are_those_of_one_full_pass(name: str) -> None:
    compare_with_one_full_pass(name, 5000)


def compare_with_one_full_pass(name: str, examples: int) -> None:
    """Compare tokens under all cuts, schedules, trees and batches with one pass and the oracle."""
    make = REDUCERS[name]

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(case=cases(step=make(PROBE).granularity))
    def holds(case: Case) -> None:
        tokens = check_path(make, case)
        if name in ORACLES:
            assert torch.equal(tokens, torch.from_numpy(ORACLES[name](case.logits, case.noise)))

    holds()


@pytest.mark.parametrize("name", REDUCERS)
def test_the_empty_summary_is_neutral(name: str) -> None:
    @some
    @given(case=cases(max_vocab=300))
    def holds(case: Case) -> None:
        check_neutral(REDUCERS[name], case)

    holds()


@pytest.mark.parametrize("name", PATH_EXACT)
def test_tiles_of_one_token(name: str) -> None:
    vocab = 600
    noise = RowNoise(torch.tensor([3, 4]), torch.tensor([1, 2]), torch.arange(2))
    source = Logits(torch.linspace(0, 3, vocab).expand(2, -1))
    reducer = REDUCERS[name](noise)
    tokens = reducer.draw(online(reducer, source, width=vocab))
    assert torch.equal(reducer.draw(online(reducer, source, width=1)), tokens)
    assert torch.equal(reducer.draw(tiled(reducer, source, width=1)), tokens)


@some
@given(case=cases(), kind=st.sampled_from([LEAF, GROUP, COIN, SEED, REFINE, NODE]))
def test_words_are_bitwise_equal_everywhere(case: Case, kind: int) -> None:
    units = torch.arange(case.logits.shape[1])
    everywhere = torch.stack(case.noise.words(units, kind))
    at = [0, *case.cuts, len(units)]
    parts = [torch.stack(case.noise.words(units[start:stop], kind)) for start, stop in pairwise(at)]
    assert torch.equal(torch.cat(parts, 3), everywhere)
    alone = torch.stack(of_rows(case.noise, case.rows).words(units.flip(0), kind))
    assert torch.equal(alone.flip(3), everywhere[:, case.rows])


@some
@given(
    rows=st.integers(1, 9),
    hidden_size=st.sampled_from([1, 3, 16, 63]),
    vocab=st.integers(1, 700),
    width=st.integers(8, 700),
    power=st.integers(-2, 2),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_through_a_head_whose_products_are_exact(
    rows: int, hidden_size: int, vocab: int, width: int, power: int, seed: int, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(seed)
    hidden = torch.from_numpy(rng.integers(-2, 3, (rows, hidden_size))).to(dtype)
    weight = torch.from_numpy(rng.integers(-2, 3, (vocab, hidden_size))).to(dtype)
    logits = (hidden.double() @ weight.double().T).float()
    options: dict[str, Any] = {"seed": seed, "temperature": 2.0**power, "num_samples": 2}
    whole = sample_logits(logits, **options).token
    assert torch.equal(sample(hidden, weight, **options).token, whole)
    grouped = sample_logits(logits, method="grouped", **options).token
    assert torch.equal(sample(hidden, weight, method="grouped", **options).token, grouped)
    noise = RowNoise(torch.arange(rows) + seed, torch.tensor(seed), torch.arange(2))
    for name in INVARIANT:
        reducer = REDUCERS[name](noise)
        tile = -(-width // reducer.granularity) * reducer.granularity
        through_head = reducer.draw(tiled(reducer, LMHead(hidden, weight), width=tile))
        assert torch.equal(through_head, reducer.draw(online(reducer, Logits(logits))))
