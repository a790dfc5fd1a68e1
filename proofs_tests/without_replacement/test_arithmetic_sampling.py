"""Arithmetic sampling: exact marginals, even coverage, sequences longer than a code's digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fsresearch.verify.statistics import goodness_of_fit
from fsresearch.without_replacement import arithmetic_sampling as module
from fsresearch.without_replacement.arithmetic_sampling import arithmetic_sampling
from proofs_tests.cases.helpers import OVERWHELMING
from proofs_tests.statistics_policy import FIXED_P, false_fail
from proofs_tests.without_replacement.trees import hash_model, hash_step, hashed_logits, ragged

INF, NAN = torch.inf, torch.nan
ROWS, SAMPLES = 20_000, 4


@false_fail(SAMPLES * FIXED_P, seeds_vary=False)
def test_every_sample_has_the_models_law() -> None:
    model = ragged()
    drawn = arithmetic_sampling(model.step, None, SAMPLES, 4, 2, rows=ROWS, seed=1)
    leaves = model.numbers(drawn.sequences)
    for column in leaves.unbind(1):
        counts = column.bincount(minlength=15).numpy()
        assert goodness_of_fit(counts, np.exp(model.log_probs)).p_value > FIXED_P
    exact = torch.from_numpy(model.log_probs)[leaves]
    torch.testing.assert_close(drawn.log_probs, exact, rtol=0, atol=1e-6)
    assert drawn.model_log_probs.equal(drawn.log_probs)
    assert drawn.finished.equal((drawn.sequences == 2).any(2))


@pytest.mark.parametrize("samples", [1, 7, 100])
def test_codes_cover_the_sequences_evenly(samples: int) -> None:
    """A sequence of probability p is drawn floor(n p) or ceil(n p) times."""
    model = ragged()
    drawn = arithmetic_sampling(model.step, None, samples, 4, 2, rows=300, seed=2)
    leaves = model.numbers(drawn.sequences)
    expected = samples * torch.from_numpy(np.exp(model.log_probs))
    counts = torch.stack([row.bincount(minlength=15) for row in leaves])
    assert (counts >= (expected - 1e-5).floor()).all()
    assert (counts <= (expected + 1e-5).ceil()).all()
    gaps = drawn.codes.sort(1).values.diff(dim=1)
    torch.testing.assert_close(gaps, torch.full_like(gaps, 1 / samples), rtol=0, atol=1e-12)
    assert drawn.codes.min() >= 0
    assert drawn.codes.max() < 1


def coins(prefixes: Tensor, parents: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Return a fair coin's logits."""
    return torch.zeros(len(prefixes), 2), state


def late_patterns(seed: int) -> Any:
    """Count the last four of 200 fair coins in 4,000 sequences."""
    drawn = arithmetic_sampling(coins, None, 1, 200, None, rows=4_000, seed=seed)
    last = drawn.sequences[:, 0, -4:]
    return (last * torch.tensor([8, 4, 2, 1])).sum(1).bincount(minlength=16).numpy()


@false_fail(FIXED_P, seeds_vary=False)
def test_a_code_never_runs_out_of_digits() -> None:
    assert goodness_of_fit(late_patterns(3), [1 / 16] * 16).p_value > FIXED_P


def test_control_a_code_without_fresh_digits_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_refresh", lambda drawn, _: drawn.codes)
    assert goodness_of_fit(late_patterns(3), [1 / 16] * 16).p_value < OVERWHELMING


def test_a_cache_follows_its_rows_and_batches_do_not_matter() -> None:
    def cached(prefixes: Tensor, parents: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        codes = codes.index_select(0, parents)
        if prefixes.shape[1]:
            codes = hash_step(codes, prefixes[:, -1])
        return hashed_logits(codes, 40), codes

    seeds = torch.tensor([5, 6, 7])
    rule: dict[str, Any] = {"temperature": 0.8, "top_k": 15, "min_length": 2}
    start = torch.zeros(3, dtype=torch.int64)
    drawn = arithmetic_sampling(cached, start, 5, 6, 1, rows=3, seed=seeds, **rule)
    plain = arithmetic_sampling(hash_model(40), None, 5, 6, 1, rows=3, seed=seeds, **rule)
    assert all(a.equal(b) for a, b in zip(drawn, plain, strict=True))
    assert (drawn.model_log_probs < drawn.log_probs).any()
    for row in range(3):
        alone = arithmetic_sampling(
            hash_model(40), None, 5, 6, 1, seed=seeds[row : row + 1], **rule
        )
        longest = alone.sequences.shape[2]
        assert alone.sequences[0].equal(drawn.sequences[row, :, :longest])
        assert alone.log_probs[0].equal(drawn.log_probs[row])


def test_a_row_without_a_distribution_touches_no_other() -> None:
    def broken(prefixes: Tensor, parents: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits = torch.zeros(len(prefixes), 3)
        if prefixes.shape[1] == 1:
            logits[3] = NAN
        return logits, state

    drawn = arithmetic_sampling(broken, None, 2, 3, None, rows=2, seed=1)
    assert drawn.valid.tolist() == [True, False]
    assert drawn.log_probs[1].isnan().all()
    assert (drawn.sequences[1] == -1).all()
    assert (drawn.lengths == torch.tensor([[3, 3], [0, 0]])).all()
    with pytest.raises(ValueError, match=r"^the logits of row 1, sample 1, step 1 are not a dist"):
        arithmetic_sampling(broken, None, 2, 3, None, rows=2, seed=1, check=True)


def test_a_token_without_mass_is_never_drawn() -> None:
    """Not even by the codes at the ends of [0, 1)."""
    logits = torch.tensor([[-INF, 0.0, -INF, 1.0, -INF]])
    for code in (0.0, 1 - 2.0**-53, 1 / (1 + float(torch.tensor(1.0).exp()))):
        drawn = module._find(logits, logits, torch.tensor([[code]], dtype=torch.float64))
        assert int(drawn.tokens) in (1, 3)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match=r"^num_samples must be at least 1, got 0"):
        arithmetic_sampling(coins, None, 0, 3, None)
    with pytest.raises(ValueError, match=r"^temperature must be above 0"):
        arithmetic_sampling(coins, None, 1, 3, None, temperature=0.0)
