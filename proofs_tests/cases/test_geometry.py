"""Shapes and memory: padding, strides, odd sizes, large offsets, empty batches, half precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fsresearch import (
    log_prob,
    noise,
    sample,
    sample_logits,
    sample_logits_without_replacement,
    sample_without_replacement,
)
from fsresearch.schedules.tiled import merge_tree
from fsresearch.sources import LMHead, Logits
from fsresearch.summaries import GumbelMax, PerturbedMass
from fsresearch.theory.categorical import probabilities
from proofs_tests.cases.helpers import (
    INF,
    NAMES,
    NAN,
    OVERWHELMING,
    assert_law,
    assert_share,
    assert_uniform,
    exact_head,
    over_shards,
    row_noise,
    share_p_value,
)


@pytest.mark.parametrize("vocab", [1, 2, 3, 7, 127, 128, 129, 255, 256, 257, 1000, 40001])
def test_b15_lanes_beyond_the_vocabulary_never_win(vocab: int) -> None:
    """Padding lanes at 0 beat logits of -50; the best real id is the last, whatever V."""
    logits = torch.full((vocab,), -50.0)
    logits[-1] = -49
    head = exact_head(logits)
    assert sample(*head, temperature=0.0).token.item() == vocab - 1
    for method in NAMES:
        token = sample(*head, seed=15, method=method, num_samples=20).token
        assert ((token >= 0) & (token < vocab)).all()


@pytest.mark.parametrize("method", NAMES)
def test_b15_a_vocabulary_of_one_more_than_the_tile_is_uniform(method: str) -> None:
    """At V = 129 and equal logits of -50 every id has the same chance, and there are no others."""
    head = exact_head(torch.full((129,), -50.0))
    assert_uniform(sample(*head, seed=15, method=method, num_samples=20_000).token, 129)


def integers(*shape: int, seed: int = 0) -> Tensor:
    """Return whole numbers in [-2, 2] as bfloat16, whose products are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).bfloat16()


def buffered(values: Tensor, columns: int) -> Tensor:
    """Return values as a view of a wider buffer that holds NaN elsewhere."""
    buffer = torch.full((len(values), columns), NAN, dtype=values.dtype)
    buffer[:, : values.shape[1]] = values
    return buffer[:, : values.shape[1]]


def shifted(values: Tensor) -> Tensor:
    """Return values one element into a buffer, so that the address is not aligned."""
    buffer = torch.full((values.numel() + 1,), NAN, dtype=values.dtype)
    buffer[1:] = values.flatten()
    return buffer[1:].view(values.shape)


def every_other(values: Tensor) -> Tensor:
    buffer = torch.full((2 * len(values), values.shape[1]), NAN, dtype=values.dtype)
    buffer[::2] = values
    return buffer[::2]


def middle_of_three(values: Tensor) -> Tensor:
    buffer = torch.full((len(values), 3, values.shape[1]), NAN, dtype=values.dtype)
    buffer[:, 1] = values
    return buffer[:, 1]


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda values: values.t().contiguous().t(),
    "wider rows": lambda values: buffered(values, values.shape[1] + 16),
    "every other row": every_other,
    "unaligned": shifted,
    "middle of three": middle_of_three,
}


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_b16_strides_do_not_change_tokens(layout: str, method: str) -> None:
    """Row strides taken for granted read the wrong rows; every view gives the contiguous tokens."""
    view = LAYOUTS[layout]
    hidden, weight, logits = integers(5, 64), integers(300, 64, seed=1), integers(5, 1001, seed=2)
    given = view(hidden), view(weight), view(logits)
    before = [g.clone() for g in given]
    for temperature in (1.0, 0.0):
        options: dict[str, Any] = {
            "seed": 16,
            "method": method,
            "temperature": temperature,
            "num_samples": 4,
        }
        expected = sample(hidden, weight, **options).token
        assert sample(given[0], weight, **options).token.equal(expected)
        assert sample(hidden, given[1], **options).token.equal(expected)
        expected = sample_logits(logits, **options).token
        assert sample_logits(given[2], **options).token.equal(expected)
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


def test_b16_rows_of_stride_zero_are_rows() -> None:
    """A row expanded over the batch is read as that row each time."""
    hidden, weight = integers(1, 64), integers(300, 64, seed=1)
    repeated = sample(hidden.expand(5, -1), weight, seed=16).token
    assert repeated.equal(sample(hidden.repeat(5, 1), weight, seed=16).token)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("size", [1, 3, 8, 15, 16, 17, 63, 64, 65, 100, 300, 511, 576, 2880])
def test_b17_any_hidden_size_gives_exact_products(size: int, rows: int) -> None:
    """Row pitches off the grid give wrong products; ids are those of float64, beside NaN."""
    hidden, weight = integers(rows, size), integers(260, size, seed=1)
    truth = hidden.double() @ weight.double().T
    views = buffered(hidden, size + 5), buffered(weight, size + 3)
    first = (truth == truth.amax(1, keepdim=True)).int().argmax(1, keepdim=True)
    assert sample(*views, temperature=0.0).token.equal(first)
    seeds = torch.arange(rows)
    perturbed = truth.float() + noise.gumbel(seeds, torch.arange(260))
    assert sample(*views, seed=seeds).token.equal(perturbed.argmax(1, keepdim=True))


def test_b19_row_offsets_beyond_31_bits() -> None:
    """Offsets in 32 bits wrap past 2^31 elements; row 2 of a 4 GB view is read where it lies."""
    pitch = (1 << 30) + 8
    buffer = torch.empty((1 << 31) + 100, dtype=torch.bfloat16)
    logits = buffer.as_strided((3, 64), (pitch, 1))
    logits.zero_()
    winners = torch.tensor([[5], [17], [63]])
    logits.scatter_(1, winners, 100.0)
    for temperature in (1.0, 0.0):
        assert sample_logits(logits, seed=19, temperature=temperature).token.equal(winners)


@pytest.mark.deep
def test_b19_many_rows() -> None:
    """2^24 + 8 rows of 128 one-hot logits: the last rows give their own ids."""
    rows = (1 << 24) + 8
    ids = torch.arange(rows)[:, None] % 128
    logits = torch.zeros(rows, 128, dtype=torch.bfloat16).scatter_(1, ids, 100.0)
    assert sample_logits(logits, temperature=0.0).token.equal(ids)
    assert sample_logits(logits[-16:], seed=19).token.equal(ids[-16:])


@pytest.mark.deep
def test_b19_large_weight() -> None:
    """The last row of a weight with more than 2^31 elements is found."""
    weight = torch.zeros(262_145, 8200, dtype=torch.bfloat16)
    weight[-1] = 1
    hidden = torch.ones(1, 8200, dtype=torch.bfloat16)
    for temperature in (1.0, 0.0):
        assert sample(hidden, weight, seed=19, temperature=temperature).token.item() == 262_144


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("seed", [torch.zeros(0, dtype=torch.int64), None, 3])
def test_b21_an_empty_batch_gives_empty_results(
    seed: Tensor | None, temperature: float, method: str
) -> None:
    """A grid of no rows must not crash or touch the generator: B = 0 gives int64 [0, n]."""
    state = torch.get_rng_state()
    hidden, weight, logits = torch.zeros(0, 64), torch.zeros(100, 64), torch.zeros(0, 100)
    for draws in (1, 3):
        options: dict[str, Any] = {"num_samples": draws, "log_prob": True, "check": True}
        common = {"seed": seed, "method": method, "temperature": temperature, **options}
        for drawn in (sample(hidden, weight, **common), sample_logits(logits, **common)):
            assert drawn.token.shape == (0, draws)
            assert drawn.token.dtype == torch.int64
            assert drawn.log_prob is not None
            assert drawn.log_prob.shape == (0, draws)
    for ordered in (
        sample_without_replacement(hidden, weight, 2, seed=seed, temperature=temperature),
        sample_logits_without_replacement(logits, 2, seed=seed, temperature=temperature),
    ):
        assert ordered.token.shape == ordered.log_prob.shape == (0, 2)
    assert log_prob(hidden, weight, torch.zeros(0, 2, dtype=torch.int64)).shape == (0, 2)
    assert torch.get_rng_state().equal(state)


def test_b21_no_draws_or_no_vocabulary_are_refused() -> None:
    """No draws and V = 0 are a ValueError that says so."""
    hidden, weight = torch.zeros(2, 4), torch.zeros(5, 4)
    for rows in (2, 0):
        with pytest.raises(ValueError, match=r"^num_samples must be in \[1, 4294967296\], got 0"):
            sample(hidden[:rows], weight, num_samples=0)
        with pytest.raises(ValueError, match=r"^weight must be .* V >= 1, got shape"):
            sample(hidden[:rows], weight[:0])
        with pytest.raises(ValueError, match=r"^weight must be .* V >= 1, got shape"):
            sample_without_replacement(hidden[:rows], weight[:0], 1)
        with pytest.raises(ValueError, match=r"^weight must be .* V >= 1, got shape"):
            log_prob(hidden[:rows], weight[:0], torch.zeros(rows, dtype=torch.int64))
        for refused in (sample_logits, sample_logits_without_replacement):
            extra = (1,) if refused is sample_logits_without_replacement else ()
            with pytest.raises(ValueError, match=r"^logits must be .* V >= 1, got shape"):
                refused(torch.zeros(rows, 0), *extra)


def padded_head() -> tuple[Tensor, Tensor]:
    """Return a head of 250 tokens at -8 and 10 rows of padding at 0."""
    logits = torch.zeros(260)
    logits[:250] = -8
    return exact_head(logits)


@pytest.mark.parametrize("method", NAMES)
def test_b22_padded_ids_are_not_sampled(method: str) -> None:
    """Rows beyond the tokenizer at 0 outrank logits of -8; ids stay below 250 and are uniform."""
    head = padded_head()
    assert sample(*head, vocab_size=250, temperature=0.0).token.item() == 0
    drawn = sample(*head, vocab_size=250, seed=22, method=method, num_samples=20_000, log_prob=True)
    assert_uniform(drawn.token, 250)
    assert drawn.log_prob is not None
    torch.testing.assert_close(drawn.log_prob, torch.full((1, 20_000), -5.521461))
    unpadded = sample(*head, seed=22, method=method, num_samples=200).token
    assert (unpadded >= 250).float().mean() > 0.9


def test_b22_a_permutation_of_all_tokens_has_no_padding() -> None:
    """Drawing all 250 tokens without replacement gives each once."""
    drawn = sample_without_replacement(*padded_head(), 250, vocab_size=250, seed=22, check=True)
    assert drawn.token[0].sort().values.equal(torch.arange(250))
    assert drawn.kappa.item() == -INF


@pytest.mark.parametrize("reducer", [GumbelMax, PerturbedMass])
def test_b22_padding_in_the_last_shard(reducer: type[GumbelMax] | type[PerturbedMass]) -> None:
    """Two ranks, the padding on the second, give the tokens of one."""
    hidden, weight = padded_head()
    sampler = reducer(row_noise(200, seed=22))

    def shard(start: int, stop: int) -> LMHead:
        return LMHead(hidden, weight[start:stop], vocab_size=min(stop, 250) - start, start=start)

    two, one = (over_shards(sampler, cuts, shard) for cuts in ((0, 128, 260), (0, 260)))
    assert two.token.equal(one.token)
    assert two.token.max() < 250


@pytest.mark.parametrize(("reducer", "draws"), [(GumbelMax, 768), (PerturbedMass, 8192)])
def test_b23_maxima_keep_float32(
    reducer: type[GumbelMax] | type[PerturbedMass], draws: int
) -> None:
    """Tile maxima kept in bfloat16 tie and favour low tiles by 6 %; ours divide evenly."""
    hidden, weight = exact_head(torch.full((131_072,), 100.0))
    source, low, low_rounded = LMHead(hidden, weight), [], []
    for seed in range(8):
        sampler = reducer(row_noise(draws // 8, seed=seed))
        states = [sampler.lift(source.tile(a, a + 2048)) for a in range(0, 131_072, 2048)]
        rounded = [s._replace(perturbed=s.perturbed.bfloat16().float()) for s in states]
        low.append(merge_tree(sampler, states).token < 65_536)
        low_rounded.append(merge_tree(sampler, rounded).token < 65_536)
    assert_share(torch.cat(low), 0.5)
    if reducer is PerturbedMass:
        assert share_p_value(torch.cat(low_rounded), 0.5) < OVERWHELMING


@pytest.mark.deep
def test_b23_full_draws() -> None:
    """As above, by 100,000 draws through the front door."""
    head = exact_head(torch.full((131_072,), 100.0))
    assert_share(sample(*head, seed=23, num_samples=100_000).token < 65_536, 0.5)


@pytest.mark.parametrize(
    ("method", "draws"),
    [("gumbel-max", 100), ("grouped", 3000), ("online", 100), ("hierarchical", 20_000)],
)
def test_b23_one_hot_float16(method: str, draws: int) -> None:
    """An impossible id must not appear from float16 logits of a one-hot distribution."""
    logits = torch.full((1, 151_936), -INF, dtype=torch.float16)
    logits[0, 77_777] = 0
    token = sample_logits(logits, seed=23, method=method, num_samples=draws).token
    assert (token == 77_777).all()


@pytest.mark.parametrize("method", NAMES)
def test_b23_bfloat16_logits_are_taken_as_they_are(method: str) -> None:
    """The law is the softmax of the rounded values, with no second rounding."""
    logits = torch.tensor([[0.0, -math.log(4)]]).bfloat16()
    token = sample_logits(logits, seed=23, method=method, num_samples=100_000).token
    assert_law(token, probabilities(logits[0].double().numpy()))
    wrong = logits.float().exp().bfloat16().double()[0]
    assert not torch.allclose(wrong / wrong.sum(), logits.double().softmax(1)[0], atol=1e-5)
    assert Logits(logits).tile(0, 2).logits.dtype == torch.float32
