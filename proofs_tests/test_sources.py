"""Sources: tiles and single tokens of logits in memory and of an LM head."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fsresearch import sources
from fsresearch.sources import LMHead, Logits, Source
from fsresearch.tiles import default_width
from fsresearch.transforms import Transform

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=100)
@given(
    vocab=st.integers(1, 150),
    padding=st.integers(0, 5),
    first=st.integers(0, 10**6),
    dtype=st.sampled_from(DTYPES),
    data=st.data(),
)
def test_tiles_and_tokens_of_logits(
    vocab: int, padding: int, first: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    raw = normal(2, vocab + padding).to(dtype)
    bias = normal(2, vocab + padding, seed=1)
    source = Logits(raw, Transform(bias=bias), vocab_size=vocab, start=first)
    expected = raw.float() + bias
    assert (source.rows, source.start, source.stop) == (2, first, first + vocab)
    start = data.draw(st.integers(0, vocab - 1))
    stop = data.draw(st.integers(start, vocab))
    tile = source.tile(first + start, first + stop)
    assert (tile.start, tile.logits.dtype) == (first + start, torch.float32)
    assert torch.equal(tile.logits, expected[:, start:stop])
    ids = torch.tensor([[first, first + vocab - 1, first - 1], [-1, first + vocab, first + start]])
    at = source.at(ids)
    assert torch.equal(at[0, :2], expected[0, [0, vocab - 1]])
    assert at[1, 2] == expected[1, start]
    assert (at[[0, 1, 1], [2, 0, 1]] == -torch.inf).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_head_multiplies_in_float32(dtype: torch.dtype) -> None:
    hidden, weight = normal(3, 40).to(dtype), normal(500, 40, seed=1).to(dtype)
    source = LMHead(hidden, weight, start=64)
    expected = hidden.double() @ weight.double().T
    tile = source.tile(64 + 130, 64 + 300)
    assert tile.logits.dtype == torch.float32
    torch.testing.assert_close(tile.logits.double(), expected[:, 130:300], rtol=1e-5, atol=1e-5)
    ids = torch.tensor([[64, 563, 200]] * 3)
    torch.testing.assert_close(
        source.at(ids).double(), expected[:, [0, 499, 136]], rtol=1e-5, atol=1e-5
    )


def test_many_tokens_of_a_head_are_gathered_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden, weight = normal(2, 4), normal(30, 4, seed=1)
    ids = torch.randint(0, 30, (2, 50), generator=torch.Generator().manual_seed(2))
    whole = LMHead(hidden, weight).at(ids)
    monkeypatch.setattr(sources, "_GATHERED_ELEMENTS", 24)
    assert torch.equal(LMHead(hidden, weight).at(ids), whole)


def test_padding_and_ids_outside_a_head_have_no_mass() -> None:
    source = LMHead(normal(1, 4), normal(30, 4), vocab_size=20)
    assert source.stop == 20
    assert source.at(torch.tensor([[20, 29, 30, -1]])).tolist() == [[-torch.inf] * 4]


@pytest.mark.parametrize(
    "source",
    [Logits(torch.zeros(2, 0), start=7), LMHead(torch.zeros(2, 3), torch.zeros(0, 3), start=7)],
    ids=["logits", "head"],
)
def test_an_empty_shard_holds_no_token(source: Source) -> None:
    assert (source.start, source.stop) == (7, 7)
    assert (source.at(torch.tensor([[7, -1], [0, 6]])) == -torch.inf).all()


def test_strides_do_not_matter() -> None:
    big = normal(4, 90)
    view = big[::2, 3:70]
    tile = Logits(view).tile(5, 40)
    assert torch.equal(tile.logits, view.contiguous()[:, 5:40])
    transposed = normal(6, 30).T
    hidden = normal(2, 6, seed=1)
    torch.testing.assert_close(
        LMHead(hidden, transposed).tile(0, 30).logits,
        LMHead(hidden, transposed.contiguous()).tile(0, 30).logits,
    )


def test_default_widths() -> None:
    assert Logits(torch.zeros(64, 9)).width == default_width(64)
    assert LMHead(torch.zeros(1, 4096), torch.zeros(9, 4096)).width == default_width(1, 4096)
