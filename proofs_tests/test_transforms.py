"""Transforms: their order, tiles and single tokens alike, packed masks, temperatures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fsresearch.sources import Logits
from fsresearch.transforms import Transform, inverse_temperature
from proofs_tests.strategies import GENERATORS, masks


def packed(mask: Tensor) -> Tensor:
    """Return bool [..., V] as int32 [..., ceil(V / 32)], lowest bit first."""
    filled = torch.nn.functional.pad(mask, (0, -mask.shape[-1] % 32))
    bits = filled.unflatten(-1, (-1, 32)).long() << torch.arange(32)
    word: Tensor = bits.sum(-1).to(torch.int32)
    return word


@st.composite
def transforms(draw: st.DrawFn, rows: int, vocab: int) -> Transform:
    rng = draw(GENERATORS)
    shape = (vocab,) if draw(st.booleans()) else (rows, vocab)
    bias = torch.from_numpy(rng.normal(size=shape)).to(
        draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    )
    mask = draw(masks(rows, vocab))
    temperature = torch.from_numpy(rng.uniform(0.1, 3, rows)).float()
    return Transform(
        draw(st.sampled_from([None, 0.5, -2.0])),
        draw(st.sampled_from([None, 1.0, 30.0])),
        draw(st.sampled_from([None, bias])),
        draw(st.sampled_from([None, mask, packed(mask)])),
        draw(st.sampled_from([None, 0.25, inverse_temperature(temperature)])),
    )


def in_order(transform: Transform, logits: Tensor) -> Tensor:
    """The five steps, one after the other, in float64."""
    values = logits.double()
    if transform.logit_scale is not None:
        values = values * transform.logit_scale
    if transform.softcap is not None:
        values = transform.softcap * torch.tanh(values / transform.softcap)
    if transform.bias is not None:
        values = values + transform.bias.double()
    if transform.mask is not None:
        allowed = transform.mask
        if allowed.dtype == torch.int32:
            every = torch.arange(logits.shape[1])
            allowed = (allowed[..., every // 32] >> (every % 32) & 1).bool()
        values = values.masked_fill(~allowed, -torch.inf)
    if transform.inverse_temperature is not None:
        values = values * transform.inverse_temperature
    return values


@settings(max_examples=150)
@given(data=st.data(), rows=st.integers(1, 4), vocab=st.integers(1, 200))
def test_steps_in_order_on_tiles_and_on_tokens(data: Any, rows: int, vocab: int) -> None:
    transform = data.draw(transforms(rows, vocab))
    logits = torch.from_numpy(data.draw(GENERATORS).normal(size=(rows, vocab))).float() * 5
    whole = transform.apply(logits, 0)
    assert whole.dtype == torch.float32
    torch.testing.assert_close(whole.double(), in_order(transform, logits), rtol=1e-5, atol=1e-5)
    start = data.draw(st.integers(0, vocab - 1))
    stop = data.draw(st.integers(start + 1, vocab))
    tile = transform.apply(logits[:, start:stop], start)
    torch.testing.assert_close(tile, whole[:, start:stop], rtol=1e-6, atol=1e-6)
    tokens = torch.randint(0, vocab, (rows, 7), generator=torch.Generator().manual_seed(start))
    at = transform.apply_at(logits.gather(1, tokens), tokens)
    torch.testing.assert_close(at, whole.gather(1, tokens), rtol=1e-6, atol=1e-6)


def test_the_order_matters_and_is_scale_softcap_bias_mask_temperature() -> None:
    transform = Transform(
        logit_scale=2.0,
        softcap=3.0,
        bias=torch.tensor([0.0, 1.0, 0.0]),
        mask=torch.tensor([True, True, False]),
        inverse_temperature=0.5,
    )
    capped = 3 * torch.tanh(torch.tensor(4.0 / 3))
    expected = torch.tensor([[capped * 0.5, (capped + 1) * 0.5, -torch.inf]])
    torch.testing.assert_close(transform.apply(torch.full((1, 3), 2.0), 0), expected)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 64, 95, 130])
def test_packed_masks_are_their_bits(vocab: int) -> None:
    mask = torch.rand(3, vocab, generator=torch.Generator().manual_seed(vocab)) < 0.5
    transform = Transform(mask=packed(mask))
    for start in range(0, vocab, 7):
        for stop in range(start + 1, vocab + 1, 5):
            assert torch.equal(transform.allowed(start, stop), mask[:, start:stop])
    one_for_all = Transform(mask=packed(mask[0]))
    assert torch.equal(one_for_all.allowed(0, vocab), mask[0])
    every = torch.arange(vocab).expand(3, -1)
    kept = transform.apply_at(torch.zeros(3, vocab), every) == 0
    assert torch.equal(kept, mask)


def test_the_sign_bit_of_a_packed_word_is_token_31() -> None:
    word = torch.tensor([-(2**31)], dtype=torch.int32)
    allowed = Transform(mask=word).allowed(0, 32)
    assert allowed.nonzero().flatten().tolist() == [31]


def test_nothing_to_do_changes_nothing() -> None:
    logits = torch.tensor([[1.0, -torch.inf, torch.nan]])
    assert Transform().apply(logits, 5) is logits


def test_inverse_temperatures() -> None:
    assert inverse_temperature(1.0) is None
    assert inverse_temperature(0) is None
    assert inverse_temperature(3.0) == float(torch.tensor(1 / 3, dtype=torch.float32))
    bad = torch.tensor([torch.nan, torch.inf, -1.0, 1e-7])
    inverse = inverse_temperature(bad)
    assert isinstance(inverse, Tensor) and inverse.isnan().all()
    good = inverse_temperature(torch.tensor([3.0, 0.0, 1e-6], dtype=torch.float64))
    assert isinstance(good, Tensor)
    assert good.tolist() == [[inverse_temperature(3.0)], [1.0], [1e6]]
    assert good.dtype == torch.float32


def test_a_temperature_off_the_range_spoils_its_row_alone() -> None:
    source = Logits(
        torch.zeros(3, 4),
        Transform(inverse_temperature=inverse_temperature(torch.tensor([1.0, -1.0, 0.0]))),
    )
    assert source.tile(0, 4).logits.isnan().all(1).tolist() == [False, True, False]
