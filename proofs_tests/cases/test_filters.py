"""Filters at and beyond their ends: ties, off values, boundaries, references, rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fsresearch import sample, sample_logits
from fsresearch.truncation import kept
from proofs_tests.cases.helpers import (
    INF,
    NAMES,
    NAN,
    assert_law,
    assert_share,
    assert_uniform,
    exact_head,
)


def normal(vocab: int, rows: int = 1, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_b22_padding_is_not_among_the_largest(temperature: float, method: str) -> None:
    """Padding at 0 outranks real logits of -8; a top-k above the real ids keeps those alone."""
    logits = torch.full((260,), -8.0)
    logits[250:] = 0
    hidden, weight = exact_head(logits)
    for filters in ({"top_k": 300}, {"top_k": 255}, {"top_k": torch.tensor([250])}, {"top_p": 1.0}):
        options: dict[str, Any] = {"seed": 22, "method": method, "vocab_size": 250, **filters}
        drawn = sample(
            hidden,
            weight,
            temperature=temperature,
            num_samples=20_000 if temperature else 3,
            log_prob=True,
            **options,
        )
        if temperature:
            assert_uniform(drawn.token, 250)
        assert drawn.token.max() < 250
        assert drawn.log_prob is not None
        torch.testing.assert_close(
            drawn.log_prob, torch.full_like(drawn.log_prob, -5.521461), rtol=0, atol=2e-6
        )


FILTERS: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.1},
    "all": {"top_k": 5, "top_p": 0.9, "min_p": 0.1},
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("vocab", [100, 128, 300])
def test_b24_a_row_of_nan_stays_invalid_under_a_filter(vocab: int, method: str, name: str) -> None:
    """A filter that drops NaN makes a bad row look good; it stays invalid, others are untouched."""
    logits = torch.zeros(4, vocab)
    options: dict[str, Any] = {"seed": 24, "method": method, **FILTERS[name]}
    expected = sample_logits(logits, **options).token
    for bad in (NAN, INF):
        for ids in (slice(None), slice(7, 8)):
            spoilt = logits.clone()
            spoilt[2, ids] = bad
            drawn = sample_logits(spoilt, **options)
            assert drawn.valid.tolist() == [True, True, False, True]
            assert drawn.token[2].item() == -1
            assert drawn.token[[0, 1, 3]].equal(expected[[0, 1, 3]])
    hidden, weight = exact_head(logits[0], rows=4)
    hidden[2] = NAN
    assert sample(hidden, weight, **options).token[[0, 1, 3]].equal(expected[[0, 1, 3]])
    with pytest.raises(ValueError, match=r"^row 2 is not a distribution"):
        sample(hidden, weight, **options, check=True)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("method", NAMES)
def test_b27_a_row_without_a_finite_logit_stays_invalid(method: str, name: str) -> None:
    """Masks that leave nothing, and a filter behind them: -1 and valid False in that row alone."""
    mask = torch.ones(4, 130, dtype=torch.bool)
    mask[1] = False
    for temperature in (1.0, 0.0):
        options: dict[str, Any] = {"seed": 27, "method": method, "temperature": temperature}
        drawn = sample_logits(torch.zeros(4, 130), mask=mask, **options, **FILTERS[name])
        clean = sample_logits(torch.zeros(4, 130), **options, **FILTERS[name])
        assert drawn.token[1].item() == -1
        assert drawn.valid.tolist() == [True, False, True, True]
        assert drawn.token[[0, 2, 3]].equal(clean.token[[0, 2, 3]])


def test_b31_top_k_of_one_is_the_lowest_of_ties() -> None:
    """Keeping all tied maxima draws among them; exactly one is kept, the lowest id."""
    ties = torch.zeros(1, 4096, dtype=torch.bfloat16)
    ties[0, [5, 130, 4000]] = 21.375
    for logits, best in ((torch.tensor([[1.0, 1.0, 0.0]]), 0), (ties, 5)):
        for method in NAMES:
            for seed in range(25):
                rows = logits.expand(2, -1)
                temperature = torch.tensor([1.0, 0.0])
                token = sample_logits(
                    rows, seed=seed, top_k=1, temperature=temperature, method=method
                ).token
                assert token.tolist() == [[best], [best]]


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_b37_ties_at_the_threshold_are_decided_alike_in_every_batch(rows: int, method: str) -> None:
    """An engine kept k or all tied tokens by batch size; exactly k, lowest ids, in each."""
    row = torch.tensor([1.0, 2.0, 2.0, 2.0, 3.0])
    law = torch.tensor([-INF, 2, 2, -INF, 3], dtype=torch.float64).softmax(0)
    options: dict[str, Any] = {"seed": 37, "top_k": 3, "method": method}
    options["num_samples"] = 200_000 // rows // (1 if method != "gumbel-max" else 4)
    assert_law(sample_logits(row.expand(rows, -1), **options).token, law)
    assert_law(sample(*exact_head(row, rows), **options).token, law)


OFF: list[Any] = [None, 128, 129, 10**9, torch.tensor(128), torch.tensor([128, 10**9])]


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("off", OFF)
def test_b39_all_of_the_vocabulary_is_no_filter(off: int | Tensor | None, method: str) -> None:
    """A k of V or above crashed or was refused; it keeps everything, to the same token."""
    logits = normal(128, rows=2)
    options: dict[str, Any] = {"seed": 39, "method": method, "num_samples": 50}
    expected = sample_logits(logits, **options).token
    assert sample_logits(logits, top_k=off, **options).token.equal(expected)


def test_b39_rows_have_a_k_of_their_own() -> None:
    """A disabled row indexed V in a mixed batch; every row keeps its k, and 1 is the argmax."""
    logits = normal(128, rows=5)
    k = torch.tensor([1, 64, 127, 128, 200])
    assert kept(logits, top_k=k).sum(1).tolist() == [1, 64, 127, 128, 128]
    options: dict[str, Any] = {"num_samples": 20_000, "method": "grouped"}
    seeds = torch.arange(5)
    together = sample_logits(logits, seed=seeds, top_k=k, **options).token
    assert (together[0] == logits[0].argmax()).all()
    for row in range(5):
        alone = slice(row, row + 1)
        drawn = sample_logits(logits[alone], seed=seeds[alone], top_k=int(k[row]), **options)
        assert together[row].equal(drawn.token[0])


@pytest.mark.parametrize("bad", [0, -1, -2])
def test_b39_zero_and_below_are_refused(bad: int) -> None:
    """0 and -1 mean "off" in some engines and "nothing" in others: they are errors here."""
    for value in (bad, torch.tensor([bad, 3])):
        with pytest.raises(ValueError, match=rf"^top_k must be at least 1, got {bad}"):
            sample_logits(normal(128, rows=2), top_k=value, check=True)


@pytest.mark.parametrize("bad", [1.5, True, "2"])
def test_b39_a_k_that_is_no_integer_is_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"^top_k must be an integer"):
        sample_logits(normal(128), top_k=bad)


@pytest.mark.parametrize("method", NAMES)
def test_b40_one_keeps_every_token(method: str) -> None:
    """At p = 1 small probabilities were zeroed; tokens 20.7 below stay, and ids are the same."""
    logits = torch.full((1, 21), -20.7)
    logits[0, 0] = 0
    options: dict[str, Any] = {"seed": 40, "method": method, "num_samples": 1000}
    expected = sample_logits(logits, **options).token
    for one in (1.0, torch.tensor(1.0), torch.ones(1, dtype=torch.float64)):
        assert sample_logits(logits, top_p=one, **options).token.equal(expected)
    assert kept(logits, top_p=torch.ones(1)).all()
    assert kept(torch.tensor([[0.0, -100.0]]), top_p=1.0).all()


def test_b40_just_below_one_is_in_range() -> None:
    """A float32 sum ends below p = 0.9999999 and the search returned V."""
    logits = normal(32_000, rows=2)
    keep = kept(logits, top_p=0.9999999)
    mass = logits.double().softmax(1).masked_fill(~keep, 0.0).sum(1)
    assert (mass >= 0.9999999 - 1e-12).all()
    assert sample_logits(logits, top_p=0.9999999, seed=40).valid.all()


@pytest.mark.parametrize("tiny", [0.0, 1e-8, 1e-4])
def test_b40_a_tiny_p_leaves_the_argmax(tiny: float) -> None:
    """At p = 0 everything was masked; the token that crosses p stays, so one always does."""
    logits = normal(1000, rows=3)
    for p in (tiny, torch.tensor([tiny] * 3)):
        keep = kept(logits, top_p=p)
        assert keep.sum(1).eq(1).all()
        assert keep.int().argmax(1).equal(logits.argmax(1))


def test_b40_equality_keeps_no_token_more() -> None:
    """Of (1/4, 1/8, 1/8, 1/2), p = 3/4 keeps ids 3 and 0, with 2/3 and 1/3."""
    logits = torch.tensor([[0.25, 0.125, 0.125, 0.5]]).log()
    assert kept(logits, top_p=0.75).tolist() == [[True, False, False, True]]
    token = sample_logits(logits, top_p=0.75, seed=40, num_samples=100_000, method="grouped").token
    assert_share(token == 3, 2 / 3)
    assert set(token[0].tolist()) == {0, 3}


@pytest.mark.parametrize("name", ["top_p", "min_p"])
@pytest.mark.parametrize("bad", [-0.1, 1.1, 1.0000001, NAN, INF])
def test_b40_b42_numbers_out_of_range_are_refused(bad: float, name: str) -> None:
    options: dict[str, Any] = {name: bad}
    with pytest.raises(ValueError, match=rf"^{name} must be .* got {bad}$"):
        sample_logits(normal(9), **options)


def test_b42_the_reference_is_the_likeliest_token_of_the_row() -> None:
    """The threshold came from id 0, or from raw logits; it is min_p of the row's own maximum."""
    logits = torch.tensor([[-5.0, 0.0, -1.0, -3.0], [2.0, 0.0, -1.0, -3.0]])
    for min_p in (0.3, torch.tensor(0.3), torch.tensor([0.3, 0.3])):
        keep = kept(logits, min_p=min_p)
        assert keep.tolist() == [[False, True, True, False], [True, False, False, False]]
    drawn = sample_logits(logits, min_p=0.3, seed=42, num_samples=50_000, method="grouped").token
    assert_share(drawn[0] == 1, 0.7310586)
    assert set(drawn[0].tolist()) == {1, 2}
    assert (drawn[1] == 0).all()


@pytest.mark.parametrize("method", NAMES)
def test_b42_zero_is_off_and_one_keeps_the_ties_of_the_maximum(method: str) -> None:
    """Neither end may empty a row."""
    logits = normal(200, rows=2)
    logits[0] = 3
    options: dict[str, Any] = {"seed": 42, "method": method, "num_samples": 20}
    expected = sample_logits(logits, **options).token
    for off in (0.0, torch.zeros(2)):
        assert sample_logits(logits, min_p=off, **options).token.equal(expected)
    keep = kept(logits, min_p=1.0)
    assert keep[0].all()
    assert keep[1].nonzero().flatten().tolist() == [int(logits[1].argmax())]
    assert sample_logits(logits, min_p=1.0, **options).token[0].equal(expected[0])


def spiked() -> Tensor:
    """Return logits of 32,000 tokens: one of 45 %, 20 a little above the rest."""
    weights = np.full(32_000, 1.0)
    weights[100:120] = 1.5
    weights *= 0.55 / np.delete(weights, 9).sum()
    weights[9] = 0.45
    return torch.from_numpy(np.log(weights).astype(np.float32))[None]


@pytest.mark.parametrize("k", [21, 5])
def test_b43_a_peaked_row_keeps_exactly_k(k: int) -> None:
    """Outlier buffers built from statistics collapse beside a token of 45 % and keep all of V."""
    expected = [9, *range(100, 100 + k - 1)]
    for top_k in (k, torch.tensor([k])):
        assert kept(spiked(), top_k=top_k).nonzero()[:, 1].tolist() == expected


def test_b43_the_token_that_crosses_p_is_kept() -> None:
    """A search that stops at 0.89999 drops the token that reaches p = 0.9."""
    for seed in range(20):
        logits = normal(500, seed=seed) * 2
        law = logits.double().softmax(1)[0]
        chosen = law[kept(logits, top_p=0.9)[0]]
        assert chosen.sum() >= 0.9
        assert chosen.sum() - chosen.min() < 0.9
        assert chosen.min() > law[~kept(logits, top_p=0.9)[0]].max()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_b44_parameters_belong_to_the_row_whatever_the_draws(dtype: torch.dtype) -> None:
    """Read by output position, parameters are another row's when a row has several outputs."""
    logits, seeds = normal(64, rows=2), torch.tensor([1, 2])
    drawn = sample_logits(
        logits,
        seed=seeds,
        top_k=torch.tensor([1, 64], dtype=dtype),
        temperature=torch.tensor([0.0, 1.0]),
        min_p=torch.tensor([0.9, 0.0]),
        num_samples=5,
    ).token
    assert (drawn[0] == logits[0].argmax()).all()
    assert drawn[1].equal(sample_logits(logits[1:], seed=seeds[1:], num_samples=5).token[0])
    with pytest.raises(ValueError, match=r"^top_k must be 0-d or \[2\], got shape \[5\]"):
        sample_logits(logits, top_k=torch.ones(5, dtype=dtype), num_samples=5)


def test_top_p_is_taken_of_what_the_others_leave() -> None:
    """Of (.4, .3, .2, .1), p = .75 keeps three; of the first three, of mass .9, it keeps two."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert kept(logits, top_p=0.75).sum() == 3
    assert kept(logits, top_k=3, top_p=0.75).sum() == 2
    assert kept(logits, min_p=0.3, top_p=0.75).sum() == 2
    options: dict[str, Any] = {"top_k": 3, "top_p": 0.75, "min_p": 0.3, "num_samples": 50_000}
    token = sample_logits(logits, seed=1, method="grouped", **options).token
    assert_share(token == 0, 4 / 7)
