"""The assembly of the group kernel, run by a warp on the CPU, against the core."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from fsresearch.kernels.lm_head_group.quads import assembly
from fsresearch.summaries import perturbed_mass
from fsresearch.summaries.base import first_maximum
from proofs_tests.kernels.ptx import LANES, Value, run_warp

ROWS, FIRST = 8, 6400
ROW, STRAND = LANES // 4, LANES % 4
# The tokens of a group that a lane holds, in ascending order.
HELD = np.arange(64).reshape(8, 4, 2).transpose(1, 0, 2).reshape(4, 16)


def a_group(chance: np.random.Generator) -> Value:
    """Return the logits [8, 64] of a group in eight rows, some of which are hard."""
    logits = chance.normal(size=(ROWS, 64)) * chance.choice([0.1, 1, 5, 50], (ROWS, 1))
    logits[chance.random(ROWS) < 0.3] = chance.integers(-2, 3, 64)
    logits[chance.random((ROWS, 64)) < chance.choice([0, 0.3, 0.98], (ROWS, 1))] = -np.inf
    logits[0, 5] = chance.choice([0.0, np.nan])
    return np.asarray(logits, np.float32)


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_a_group_takes_the_lead_as_the_core_says(seed: int, greedy: bool) -> None:
    chance = np.random.default_rng(seed)
    logits, uniform = a_group(chance), chance.random(ROWS, dtype=np.float32)
    cold = chance.random(ROWS) < 0.5 * greedy
    gumbel = np.where(cold, 0, chance.gumbel(size=ROWS)).astype(np.float32)
    best, bound = (
        np.where(chance.random(ROWS) < 0.5, -np.inf, chance.normal(4, 2, ROWS)).astype(np.float32)
        for _ in range(2)
    )
    token, lane = chance.integers(0, 99, 32), chance.integers(4)
    inner = chance.random(32, dtype=np.float32)
    inner[lane == STRAND] = uniform
    known = [best[ROW], token, bound[ROW], gumbel[ROW], inner, logits.max(1)[ROW]]
    known += [FIRST + 2 * STRAND]
    known += [cold[ROW].astype(np.int64), np.full(32, lane)]
    tokens = [logits[ROW, HELD[STRAND, i]] for i in range(16)]
    got_score, got_token = run_warp(assembly(greedy), [np.zeros(32)] * 2 + known + tokens)[:2]

    exact = torch.tensor(logits)
    mass = perturbed_mass._log_masses(exact[:, None])[:, 0].numpy()
    score = np.where(cold, logits.max(1), mass + gumbel)
    weights, _ = perturbed_mass._weights(exact)
    chosen = perturbed_mass._descend(weights, torch.tensor(uniform)).numpy()
    chosen = np.where(cold, first_maximum(exact)[1].numpy(), chosen)
    leads = (score >= bound) & (score > best)
    owner = chosen[ROW] % 8 // 2 == STRAND
    expected = np.where(owner, FIRST + chosen[ROW], -1)
    np.testing.assert_array_equal(got_token, np.where(leads[ROW], expected, token))
    np.testing.assert_allclose(got_score, np.where(leads, score, best)[ROW], rtol=1e-6, atol=1e-6)
