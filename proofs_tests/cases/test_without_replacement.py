"""Draws without replacement: no duplicates, and no more tokens than there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fsresearch import sample_logits_without_replacement, sample_without_replacement
from fsresearch.results import OrderedSample
from proofs_tests.cases.helpers import INF, exact_head


def finite_only(vocab: int, ids: list[int]) -> Tensor:
    logits = torch.full((1, vocab), -INF)
    logits[0, ids] = 0
    return logits


def test_b45_large_rows_have_no_duplicates() -> None:
    """Large rows return some id twice; 1000 of 30,000 ids in each of 600 rows all differ."""
    drawn = sample_logits_without_replacement(torch.zeros(1, 30_000).expand(600, -1), 1000, seed=45)
    ids = drawn.token.sort(1).values
    assert (ids.diff(dim=1) > 0).all()
    assert ids.min() >= 0
    assert ids.max() < 30_000
    assert (drawn.num_valid == 1000).all()
    assert (drawn.perturbed.diff(dim=1) <= 0).all()
    assert (drawn.kappa <= drawn.perturbed[:, -1]).all()


@pytest.mark.parametrize(
    ("vocab", "ids", "k"),
    [
        (10, [4], 5),
        (300, [3, 140, 299], 3),
        (300, [3, 140, 299], 4),
        (257, list(range(257)), 257),
        (1, [0], 1),
    ],
)
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_b45_only_tokens_with_mass(vocab: int, ids: list[int], k: int, temperature: float) -> None:
    """Fewer than k tokens with mass are filled up in silence; the rest is -1, or an error."""
    logits = finite_only(vocab, ids)
    options: dict[str, Any] = {"seed": 45, "temperature": temperature}
    drawn = sample_logits_without_replacement(logits, k, **options)
    assert_support(drawn, ids, k)
    hidden, weight = exact_head(torch.zeros(vocab))
    mask = logits == 0
    assert_support(sample_without_replacement(hidden, weight, k, mask=mask, **options), ids, k)
    if k <= len(ids):
        checked = sample_logits_without_replacement(logits, k, check=True, **options)
        assert checked.token.equal(drawn.token)
    else:
        match = f"^k must be at most .*, got {k} with {len(ids)} in row 0"
        with pytest.raises(ValueError, match=match):
            sample_logits_without_replacement(logits, k, check=True, **options)
        with pytest.raises(ValueError, match=match):
            sample_without_replacement(hidden, weight, k, mask=mask, check=True, **options)


def assert_support(drawn: OrderedSample, ids: list[int], k: int) -> None:
    """All finite ids once, then -1 with scores of -inf."""
    found = min(k, len(ids))
    assert drawn.num_valid.item() == found
    assert sorted(drawn.token[0, :found].tolist()) == ids
    assert drawn.token[0, found:].tolist() == [-1] * (k - found)
    assert drawn.perturbed[0, :found].isfinite().all()
    assert (drawn.perturbed[0, found:] == -INF).all()
    assert (drawn.log_prob[0, found:] == -INF).all()
    assert drawn.kappa.item() == -INF


@pytest.mark.parametrize("k", [0, -1, 258])
def test_b45_impossible_k_is_refused(k: int) -> None:
    """No token, or more than the vocabulary, is a ValueError."""
    hidden, weight = exact_head(torch.zeros(257))
    match = rf"^k must be in \[1, 257\], got {k}$"
    with pytest.raises(ValueError, match=match):
        sample_logits_without_replacement(torch.zeros(1, 257), k)
    with pytest.raises(ValueError, match=match):
        sample_without_replacement(hidden, weight, k)
