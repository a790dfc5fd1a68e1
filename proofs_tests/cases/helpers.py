"""What the cases share: exact LM heads, simulated ranks, and the two tests of law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fsresearch import METHODS
from fsresearch.noise import RowNoise, derive_seeds
from fsresearch.schedules.online import online
from fsresearch.schedules.tiled import merge_tree
from fsresearch.sources import Logits, Source
from fsresearch.summaries import Reducer
from fsresearch.verify.statistics import binomial, goodness_of_fit
from proofs_tests.statistics_policy import FIXED_P, FIXED_SIGMA

NAMES = tuple(METHODS)
INF, NAN = torch.inf, torch.nan
OVERWHELMING = 1e-9


def exact_head(logits: Tensor, rows: int = 1, hidden_size: int = 16) -> tuple[Tensor, Tensor]:
    """Return bfloat16 (hidden, weight) whose product is exactly logits [V] in every row."""
    weight = torch.zeros(len(logits), hidden_size, dtype=torch.bfloat16)
    weight[:, 0] = logits
    assert torch.equal(weight[:, 0].float(), logits.float()), "not representable in bfloat16"
    hidden = torch.zeros(rows, hidden_size, dtype=torch.bfloat16)
    hidden[:, 0] = 1
    return hidden, weight


def row_noise(draws: int, seed: int = 0, rows: int = 1) -> RowNoise:
    return RowNoise(derive_seeds(seed, rows), torch.tensor(0), torch.arange(draws))


def over_shards(
    reducer: Reducer[Any],
    cuts: Sequence[int],
    source: Callable[[int, int], Source],
    width: int | None = None,
) -> Any:
    """Reduce source(start, stop) between neighbouring cuts as ranks would, and merge."""
    shards = [source(a, b) for a, b in pairwise(cuts)]
    return merge_tree(reducer, [online(reducer, shard, width=width) for shard in shards])


def shards_of(logits: Tensor) -> Callable[[int, int], Source]:
    """Return the ranks' sources of logits [B, V]."""
    return lambda a, b: Logits(logits[:, a:b], start=a)


def p_value(token: Tensor, probabilities: ArrayLike) -> float:
    """Return the chi-square p-value of drawn tokens; an id outside the vocabulary gives 0."""
    law = torch.as_tensor(probabilities)
    if int(token.min()) < 0 or int(token.max()) >= len(law):
        return 0.0
    return goodness_of_fit(token.flatten().bincount(minlength=len(law)).numpy(), law).p_value


def assert_law(token: Tensor, probabilities: ArrayLike) -> None:
    assert p_value(token, probabilities) > FIXED_P


def assert_uniform(token: Tensor, vocab: int) -> None:
    assert_law(token, torch.full((vocab,), 1 / vocab, dtype=torch.float64))


def assert_share(hits: Tensor, probability: float) -> None:
    """Check how often a bool tensor is True."""
    outcome = binomial(int(hits.sum()), hits.numel(), probability)
    assert abs(outcome.sigma) < FIXED_SIGMA or outcome.p_value > FIXED_P, outcome


def share_p_value(hits: Tensor, probability: float) -> float:
    return binomial(int(hits.sum()), hits.numel(), probability).p_value
