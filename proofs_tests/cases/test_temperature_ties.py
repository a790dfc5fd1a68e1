"""Temperatures at and beyond their ends, greedy rows, and ties."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fsresearch import (
    sample,
    sample_logits,
    sample_logits_without_replacement,
    sample_without_replacement,
)
from fsresearch.schedules.online import online
from fsresearch.schedules.tiled import tiled
from fsresearch.sources import Logits
from fsresearch.summaries import GumbelMax, GumbelTopK
from proofs_tests.cases.helpers import INF, NAMES, NAN, exact_head, over_shards, shards_of

VOCAB = 130
SLOPE = torch.arange(VOCAB).float().div(16).round() - 20
DTYPES = torch.float32, torch.float16, torch.bfloat16, torch.float64


@pytest.mark.parametrize("value", [-1.0, -1e-9, NAN, INF, -INF, 1e-7, -1])
def test_b29_unusable_numbers_are_refused(value: float) -> None:
    """Negative, NaN or infinite temperatures slip through a check for below 0; all are errors."""
    logits, (hidden, weight) = SLOPE[None], exact_head(SLOPE)
    match = r"^temperature must be 0, or finite and at least 1e-06, got "
    for method in NAMES:
        with pytest.raises(ValueError, match=match):
            sample_logits(logits, temperature=value, method=method)
        with pytest.raises(ValueError, match=match):
            sample(hidden, weight, temperature=value, method=method)
    with pytest.raises(ValueError, match=match):
        sample_logits_without_replacement(logits, 2, temperature=value)
    with pytest.raises(ValueError, match=match):
        sample_without_replacement(hidden, weight, 2, temperature=value)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [-1.0, NAN, INF, -INF])
@pytest.mark.parametrize("method", NAMES)
def test_b29_unusable_tensor_values_spoil_their_row(
    method: str, value: float, dtype: torch.dtype
) -> None:
    """On a device the value cannot be read: its row is invalid, with no id of the padding."""
    logits, (hidden, weight) = SLOPE.expand(3, -1), exact_head(SLOPE, rows=3)
    mixed = torch.tensor([1.0, value, 0.5], dtype=dtype)
    good = torch.tensor([1.0, 1.0, 0.5], dtype=dtype)
    options: dict[str, Any] = {"seed": 29, "method": method, "num_samples": 5}
    for draw, inputs in ((sample_logits, (logits,)), (sample, (hidden, weight))):
        got = draw(*inputs, temperature=mixed, **options)
        expected = draw(*inputs, temperature=good, **options)
        assert got.token[1].eq(-1).all()
        assert got.valid.tolist() == [True, False, True]
        assert got.token[[0, 2]].equal(expected.token[[0, 2]])
        assert not draw(*inputs, temperature=mixed[1], **options).valid.any()
        with pytest.raises(ValueError, match=r"^temperature must be .* in row 1$"):
            draw(*inputs, temperature=mixed, check=True, **options)


@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
@pytest.mark.parametrize("method", NAMES)
def test_b29_zero_is_the_argmax(method: str, zero: float) -> None:
    """T = 0 and -0, as number, 0-d or [B], is the lowest id of the maximum, whatever the seed."""
    logits, (hidden, weight) = SLOPE.expand(3, -1), exact_head(SLOPE, rows=3)
    best = int((SLOPE == SLOPE.max()).nonzero()[0])
    temperatures: list[float | Tensor] = [zero]
    temperatures += [torch.tensor(zero, dtype=dtype) for dtype in DTYPES]
    temperatures += [torch.full((3,), zero, dtype=dtype) for dtype in DTYPES]
    for seed, temperature in enumerate(temperatures):
        for drawn in (
            sample_logits(logits, seed=seed, temperature=temperature, method=method),
            sample(hidden, weight, seed=seed, temperature=temperature, method=method),
        ):
            assert (drawn.token == best).all()


@pytest.mark.parametrize("method", NAMES)
def test_b29_a_greedy_row_leaves_its_neighbours_alone(method: str) -> None:
    """In a batch with T = (0, 1, 1/2) every row is what it is alone."""
    logits, seeds = SLOPE.expand(3, -1), torch.tensor([1, 2, 3])
    mixed = sample_logits(
        logits, seed=seeds, method=method, num_samples=4, temperature=torch.tensor([0, 1, 0.5])
    )
    for row, temperature in enumerate((0.0, 1.0, 0.5)):
        alone = sample_logits(
            logits[:1],
            seed=seeds[row : row + 1],
            method=method,
            num_samples=4,
            temperature=temperature,
        )
        assert mixed.token[row].equal(alone.token[0])


def tied(vocab: int, ids: tuple[int, ...], value: float = 21.375) -> Tensor:
    logits = torch.zeros(1, vocab, dtype=torch.bfloat16)
    logits[0, list(ids)] = value
    return logits


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize(
    ("logits", "best"),
    [
        (torch.tensor([[1.0, 1.0, 0.0]]), 0),
        (tied(4096, (5, 130, 4000)), 5),
    ],
    ids=["three", "bfloat16"],
)
def test_b31_greedy_takes_the_lowest_of_ties_in_any_batch(
    logits: Tensor, best: int, method: str
) -> None:
    """A tiny temperature draws among ties; T = 0 never does, alone or beside a sampled row."""
    for seed in range(100):
        mixed = sample_logits(
            logits.expand(2, -1), seed=seed, method=method, temperature=torch.tensor([0.0, 1.0])
        )
        assert mixed.token[0, 0] == best
    assert sample_logits(logits, seed=3, temperature=0.0, method=method).token.item() == best
    tiny = sample_logits(logits, seed=3, temperature=1e-6, num_samples=50).token
    assert len(tiny.unique()) == len(logits[0][logits[0] == logits.max()])


def test_b31_greedy_top_k_is_exactly_k_lowest_first() -> None:
    """The k largest with ties are exactly k, lowest ids first."""
    drawn = sample_logits_without_replacement(tied(4096, (5, 130, 4000)), 2, temperature=0.0)
    assert drawn.token.tolist() == [[5, 130]]


ZEROS = torch.tensor([0.0, -0.0, 0.0])


@pytest.mark.parametrize(
    ("logits", "best"),
    [
        *((torch.zeros(1, vocab), 0) for vocab in (16, 129, 2001, 151_936)),
        (tied(512, (127, 128)), 127),
        (tied(513, (0, 512)), 0),
        (ZEROS.roll(0)[None], 0),
        (ZEROS.roll(1)[None], 0),
        (ZEROS.roll(2)[None], 0),
        (-torch.zeros(1, 300), 0),
    ],
)
def test_b32_ties_go_to_the_lowest_id(logits: Tensor, best: int) -> None:
    """Tiles, reduction orders and ranks pick different ones of equal maxima; the lowest id wins."""
    vocab = logits.shape[1]
    assert sample_logits(logits, temperature=0.0).token.item() == best
    half = vocab // 2
    parts = (0, half), (half, vocab)
    for reducer in (GumbelMax(None), GumbelTopK(None, 1)):
        for width in (64, 128, 256) if vocab < 10_000 else (8192, 65_536):
            for schedule in (online, tiled):
                assert schedule(reducer, Logits(logits), width=width).token.item() == best
        assert over_shards(reducer, (0, half, vocab), shards_of(logits)).token.item() == best
    left, right = (GumbelMax(None).lift(Logits(logits).tile(*part)) for part in parts)
    assert GumbelMax(None).merge(right, left).token.item() == best
