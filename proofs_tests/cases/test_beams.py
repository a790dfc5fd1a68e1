"""Beams that are samples without replacement: no duplicates, honest scores, and large frontiers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fsresearch.theory.plackett_luce import ordered_law
from fsresearch.verify.statistics import goodness_of_fit
from fsresearch.without_replacement.stochastic_beam_search import stochastic_beam_search
from proofs_tests.cases.helpers import INF
from proofs_tests.statistics_policy import FIXED_P, false_fail
from proofs_tests.without_replacement.trees import Tree, tree

LEAVES = 0.1, 0.2, 0.3, 0.4


def two_coins(first_is_one: float = 0.7) -> Tree:
    """Return two binary tokens: 00 .1, 01 .2, 10 .3, 11 .4, or with another first coin."""
    rows = {
        (): [1 - first_is_one, first_is_one],
        (0,): [1 / 3, 2 / 3],
        (1,): [3 / 7, 4 / 7],
    }

    def logits_of(prefix: tuple[int, ...]) -> list[float]:
        return [math.log(p) if p else -INF for p in rows[prefix]]

    return tree(logits_of, vocab=2, depth=2, eos=[])


@false_fail(FIXED_P, seeds_vary=False)
def test_b47_ordered_pairs_have_the_plackett_luce_law() -> None:
    """Two of four sequences, 100,000 times, scored with their own log-probabilities."""
    model = two_coins()
    law = ordered_law(np.log(LEAVES), 2)
    counts = np.zeros(16)
    for seed in range(5):
        drawn = stochastic_beam_search(model.step, None, 2, 2, None, rows=20_000, seed=seed)
        leaves = model.numbers(drawn.sequences)
        counts += (leaves[:, 0] * 4 + leaves[:, 1]).bincount(minlength=16).numpy()
        exact = torch.tensor(LEAVES, dtype=torch.float64).log()[leaves]
        torch.testing.assert_close(drawn.log_probs, exact, rtol=0, atol=1e-6)
        assert (drawn.keys[:, 0] > drawn.keys[:, 1]).all()
    chances = [law.get((a, b), 0.0) for a in range(4) for b in range(4)]
    assert goodness_of_fit(counts, chances).p_value > FIXED_P


@pytest.mark.parametrize("k", [4, 5])
def test_b47_as_many_beams_as_sequences_or_more(k: int) -> None:
    """All four once; a fifth is marked as missing, or an error with check."""
    model = two_coins()
    drawn = stochastic_beam_search(model.step, None, k, 2, None, rows=200, seed=3)
    leaves = model.numbers(drawn.sequences[:, :4])
    assert leaves.sort(1).values.equal(torch.arange(4).expand(200, 4))
    assert (drawn.num_valid == 4).all()
    assert (drawn.keys[:, :4].diff(dim=1) < 0).all()
    assert (drawn.keys[:, 4:] == -INF).all()
    assert (drawn.sequences[:, 4:] == -1).all()
    assert drawn.kappa is not None
    assert (drawn.kappa == -INF).all()
    if k > 4:
        with pytest.raises(ValueError, match=r"^num_beams must be at most .* got 5 with 4 in row"):
            stochastic_beam_search(model.step, None, k, 2, None, check=True)


def test_b47_a_branch_without_mass_is_never_taken() -> None:
    """With P(first = 1) = 1 the sequences are 10 and 11, and nothing becomes NaN."""
    model = two_coins(first_is_one=1.0)
    for k in (2, 3):
        drawn = stochastic_beam_search(model.step, None, k, 2, None, rows=200, seed=3)
        assert (
            model.numbers(drawn.sequences[:, :2])
            .sort(1)
            .values.equal(torch.tensor([[0, 1]]).expand(200, 2))
        )
        assert list(model.leaves) == [(1, 0), (1, 1)]
        for values in (drawn.keys, drawn.log_probs, drawn.model_log_probs):
            assert not values.isnan().any()
        assert (drawn.num_valid == 2).all()


@pytest.mark.parametrize("k", [2, 4])
def test_b47_the_best_child_has_its_parents_key(k: int) -> None:
    """The keys after one token are those of the best sequences below it, to the bit."""
    model = two_coins()
    one, two = (
        stochastic_beam_search(model.step, None, k, depth, None, rows=500, seed=6)
        for depth in (1, 2)
    )
    for row in range(500):
        for beam in range(int(one.num_valid[row])):
            below = two.sequences[row, :, 0] == one.sequences[row, beam, 0]
            if below.any():
                assert two.keys[row][below].max() == one.keys[row, beam]


def test_b47_candidates_beyond_2_to_the_24th() -> None:
    """128 beams times 164,000 tokens in one step: four or all of them, none twice."""
    vocab = 164_000
    row = torch.randn(1, vocab, generator=torch.Generator().manual_seed(47))

    def step(prefixes: Tensor, parents: Tensor, state: Any) -> tuple[Tensor, Any]:
        return row.expand(len(prefixes), vocab), state

    drawn = stochastic_beam_search(step, None, 128, 2, None, seed=47, kappa=False)
    assert (drawn.num_valid == 128).all()
    assert drawn.sequences[0].unique(dim=0).shape == (128, 2)
    assert drawn.sequences.min() >= 0
    assert drawn.sequences.max() < vocab
    exact = row[0].double().log_softmax(0)[drawn.sequences].sum(2)
    torch.testing.assert_close(drawn.log_probs, exact, rtol=0, atol=1e-5)
    four = stochastic_beam_search(step, None, 4, 2, None, seed=47, kappa=False)
    assert four.sequences.equal(drawn.sequences[:, :4])


@false_fail(FIXED_P, seeds_vary=False)
def test_sequences_down_to_1e_minus_130_are_drawn_by_route() -> None:
    """Ten routes of mass .1 each; route i has 10**(13 i + 12) sequences of one probability.

    Every sequence is negligible, so a sample of 100 falls on the routes as independent draws do.
    """
    length = 13 * torch.arange(1, 11)

    def step(prefixes: Tensor, parents: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits = torch.zeros(len(prefixes), 11)
        logits[:, 10] = -INF
        if prefixes.shape[1]:
            over = prefixes.shape[1] >= length[prefixes[:, 0].clamp(max=9)]
            logits[over] = -INF
            logits[over, 10] = 0.0
        return logits, state

    drawn = stochastic_beam_search(step, None, 100, 131, 10, rows=3, seed=130, kappa=False)
    assert drawn.finished.all()
    routes = drawn.sequences[..., 0]
    expected = length[routes].double()
    assert drawn.lengths.equal(length[routes] + 1)
    torch.testing.assert_close(drawn.log_probs, -expected * math.log(10), rtol=0, atol=1e-6)
    assert float(drawn.log_probs.min()) < -299
    for row in drawn.sequences:
        assert len(row.unique(dim=0)) == 100
    counts = routes.flatten().bincount(minlength=10).numpy()
    assert goodness_of_fit(counts, [0.1] * 10).p_value > FIXED_P
