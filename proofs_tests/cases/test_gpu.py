"""The cases that a GPU can show, through the front door.

Heads in bfloat16 take the kernel for Hopper where there is one, heads in float32 the plain one; the
CPU, or arithmetic, says what is right.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from fsresearch import (
    backend,
    noise,
    sample,
    sample_logits,
    sample_logits_without_replacement,
    sample_without_replacement,
)
from proofs_tests.cases.helpers import (
    INF,
    NAN,
    assert_law,
    assert_share,
    assert_uniform,
    exact_head,
)

pytestmark = pytest.mark.gpu

DTYPES = torch.bfloat16, torch.float32
BOTH = pytest.mark.parametrize("dtype", DTYPES, ids=["bfloat16", "float32"])
Head = tuple[Tensor, Tensor]


def gpu_head(logits: Tensor, dtype: torch.dtype, rows: int = 1) -> Head:
    """Return a head on the GPU whose product is exactly logits [V] in every row."""
    hidden, weight = (tensor.to("cuda", dtype) for tensor in exact_head(logits, rows))
    assert backend.choose(hidden, weight).form != "reference"
    return hidden, weight


def integers(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    """Return small integers on the GPU, whose matmuls are exact."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator, device="cuda").to(dtype)


def on_cpu(call: Callable[..., Any], *tensors: Tensor, **options: Any) -> Tensor:
    """Return the tokens of the same call on the CPU, on the GPU."""
    there = {k: v.cpu() if isinstance(v, Tensor) else v for k, v in options.items()}
    token: Tensor = call(*(tensor.cpu() for tensor in tensors), **there).token
    return token.cuda()


@BOTH
@pytest.mark.parametrize(("level", "rare"), [(-16.5, 0.00886706), (-18.0, 0.00199223)])
def test_b01_the_tail_is_sampled(level: float, rare: float, dtype: torch.dtype) -> None:
    """131,071 tokens far below one: they win as often as they should, and all alike."""
    logits = torch.full((131_072,), level)
    logits[0] = 0
    head = gpu_head(logits, dtype, rows=250)
    token = sample(*head, seed=1, num_samples=400).token.flatten()
    assert_share(token != 0, rare)
    winners = token[token != 0] - 1
    assert_uniform((winners * 16 // 131_071).cpu(), 16)


@pytest.mark.deep
@BOTH
def test_b01_the_deepest_tail_is_refined(dtype: torch.dtype) -> None:
    """24 nats down, 32 bits of noise are not enough: midpoints alone give a third of the hits."""
    logits = torch.full((131_072,), -24.0)
    logits[0] = 0
    head = gpu_head(logits, dtype, rows=512)
    hits = sum(
        int((sample(*head, seed=1, position=step, num_samples=512).token != 0).sum())
        for step in range(80)
    )
    expected = 80 * 512 * 512 * 4.948e-6
    assert abs(hits - expected) < 5 * expected**0.5


@BOTH
def test_b04_shards_draw_the_noise_of_global_ids(dtype: torch.dtype) -> None:
    """Noise keyed by local columns favours a rank; shards' winners merge to the whole head's."""
    hidden, weight = gpu_head(torch.zeros(8192), dtype, rows=1024)
    options = backend.Options(
        vocab_size=8192,
        seeds=noise.derive_seeds(4, 1024).cuda(),
        positions=torch.zeros(1024, dtype=torch.int64, device="cuda"),
    )
    whole = backend.lm_head_max(hidden, weight, options)[1]
    for ranks in (2, 4, 8):
        size = 8192 // ranks
        shards = [
            backend.lm_head_max(
                hidden,
                weight[start : start + size],
                options._replace(vocab_size=size, start=start),
            )
            for start in range(0, 8192, size)
        ]
        scores, tokens = (torch.cat([shard[i] for shard in shards], 1) for i in (0, 1))
        assert tokens.gather(1, scores.argmax(1, keepdim=True)).equal(whole)
    assert_share(whole >= 4096, 0.5)


@BOTH
def test_b06_a_request_gives_its_token_in_any_batch(dtype: torch.dtype) -> None:
    """Seed 7 at step 3, alone and at three places of larger batches, and the first of eight."""
    head = gpu_head(-(torch.arange(5000) % 8).float(), dtype)
    alone = sample(*head, seed=torch.tensor([7], device="cuda"), position=3).token
    for batch in (2, 16, 17, 32, 33, 64, 65, 129):
        for place in {0, min(5, batch - 1), batch - 1}:
            seeds = torch.arange(100, 100 + batch, device="cuda")
            steps = torch.arange(batch, device="cuda")
            seeds[place], steps[place] = 7, 3
            for draws in (1, 8):
                drawn = sample(
                    head[0].expand(batch, -1),
                    head[1],
                    seed=seeds,
                    position=steps,
                    num_samples=draws,
                )
                assert drawn.token[place, 0] == alone[0, 0], (batch, place, draws)


@BOTH
def test_b08_rows_of_a_scalar_seed_have_their_own_noise(dtype: torch.dtype) -> None:
    """About half a pair of 64 rows agrees."""
    token = sample(*gpu_head(torch.zeros(4096), dtype, rows=64), seed=3).token[:, 0].tolist()
    assert sum(a == b for a, b in combinations(token, 2)) <= 6


@BOTH
def test_b11_every_64_bit_seed_is_its_own(dtype: torch.dtype) -> None:
    """Seeds and positions at the ends of their ranges give what the CPU gives, all different."""
    seeds = [1, 1 + 2**31, 1 + 2**32, 1 + 2**40, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1]
    given = torch.tensor([*seeds, 5, -1, -2, -5, -(2**63)], device="cuda")
    head = gpu_head(torch.zeros(4096), dtype, rows=len(given))
    for position in (0, 2**32 - 1, 2**56 - 1):
        options: dict[str, Any] = {"seed": given, "position": position, "num_samples": 8}
        token = sample(*head, **options).token
        assert token.equal(on_cpu(sample, *head, **options))
        assert len(set(map(tuple, token.tolist()))) == len(given)


@BOTH
def test_b12_replays_of_a_graph_take_new_noise(dtype: torch.dtype) -> None:
    """64 replays are 64 steps of eager calls, and again after the positions are set back."""
    head = gpu_head(torch.zeros(4096), dtype, rows=4)
    step = torch.zeros(4, dtype=torch.int64, device="cuda")
    draw = partial(sample, *head, seed=5, position=step, log_prob=True)
    eager = []
    for _ in range(64):
        eager.append(draw().token)
        step += 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        token = draw().token
    for turn in range(2):
        step.zero_()
        for replay in range(64):
            graph.replay()
            assert token.equal(eager[replay]), (turn, replay)
            step += 1
    assert len({tuple(t.flatten().tolist()) for t in eager}) == 64


@BOTH
def test_b14_roles_share_no_noise(dtype: torch.dtype) -> None:
    """The same seeds and positions in 32 roles: tokens of equal logits agree by chance alone."""
    head = gpu_head(torch.zeros(4096), dtype, rows=64)
    drawn = [sample(*head, seed=14, role=role).token for role in range(32)]
    agree = sum(int((a == b).sum()) for a, b in combinations(drawn, 2))
    assert agree <= 30, "496 pairs of 64 tokens, 7.75 expected"


@BOTH
@pytest.mark.parametrize("vocab", [1, 2, 3, 7, 127, 128, 129, 255, 256, 257, 1000, 40_001])
def test_b15_padding_of_a_tile_never_wins(vocab: int, dtype: torch.dtype) -> None:
    """Lanes beyond V at 0 would beat logits of -50; the last token at -49 wins."""
    logits = torch.full((vocab,), -50.0)
    logits[-1] = -49
    head = gpu_head(logits, dtype, rows=3)
    assert (sample(*head, temperature=0.0).token == vocab - 1).all()
    token = sample(*head, seed=15, num_samples=50).token
    assert token.min() >= 0
    assert token.max() < vocab


@BOTH
def test_b15_a_vocabulary_off_the_grid_is_uniform(dtype: torch.dtype) -> None:
    """129 equal logits of -50."""
    head = gpu_head(torch.full((129,), -50.0), dtype, rows=64)
    assert_uniform(sample(*head, seed=15, num_samples=320).token.cpu(), 129)


def weights_in_other_places(weight: Tensor) -> dict[str, Tensor]:
    """Return views of the same weight with other strides and alignments, NaN around it."""
    vocab, depth = weight.shape

    def inside(rows: int, columns: int) -> Tensor:
        return torch.full((rows, columns), NAN, device="cuda").to(weight.dtype)

    columns, rows, shifted = inside(vocab, depth + 16), inside(2 * vocab, depth), inside(1, 1)
    shifted = inside(1, weight.numel() + 1)[0, 1:].view(vocab, depth)
    return {
        "transposed": weight.T.contiguous().T,
        "columns of a wider one": columns[:, :depth].copy_(weight),
        "every other row": rows[::2].copy_(weight),
        "off by one element": shifted.copy_(weight),
        "odd pitch": inside(vocab, depth + 5)[:, :depth].copy_(weight),
    }


@BOTH
def test_b16_strides_and_alignment_do_not_matter(dtype: torch.dtype) -> None:
    """Views give the contiguous tensors' tokens, and stay as they were."""
    hidden, weight = integers(5, 64, dtype=dtype), integers(300, 64, dtype=dtype, seed=1)
    expected = sample(hidden, weight, seed=16, log_prob=True)
    for name, view in weights_in_other_places(weight).items():
        drawn = sample(hidden, view, seed=16, log_prob=True)
        assert drawn.token.equal(expected.token), name
        assert view.equal(weight), name
    steps = torch.stack([hidden] * 3, 1)[:, 1]
    columns = hidden.T.contiguous().T
    for view in (steps, columns):
        assert sample(view, weight, seed=16).token.equal(expected.token)
    repeated = sample(hidden[:1].expand(5, -1), weight, seed=16).token
    assert repeated.equal(sample(hidden[:1].repeat(5, 1), weight, seed=16).token)


@BOTH
def test_b16_strides_of_options_do_not_matter(dtype: torch.dtype) -> None:
    """Bias, masks, seeds, positions and temperatures that are views give the same tokens."""
    hidden, weight = integers(5, 64, dtype=dtype), integers(300, 64, dtype=dtype, seed=1)
    bias, bits = integers(5, 300, dtype=torch.float32), integers(5, 10, dtype=torch.int32)
    rows = integers(5, dtype=torch.int64, seed=2)
    options: dict[str, Any] = {
        "bias": bias,
        "mask": bits | 1,
        "seed": rows,
        "position": rows.abs(),
        "temperature": rows.abs().float() / 2,
    }
    expected = sample(hidden, weight, **options).token
    for name, value in options.items():
        spread = torch.stack([value] * 2, -1)[..., 0]
        assert not spread.is_contiguous()
        assert sample(hidden, weight, **{**options, name: spread}).token.equal(expected), name
    allowed = integers(300, 5, dtype=torch.int32).bool()
    drawn = sample(hidden, weight, mask=allowed.T, seed=16).token
    assert drawn.equal(sample(hidden, weight, mask=allowed.T.contiguous(), seed=16).token)


@BOTH
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("size", [1, 3, 8, 15, 16, 17, 63, 64, 65, 100, 300, 511, 576, 2880])
def test_b17_any_hidden_size_gives_exact_products(size: int, rows: int, dtype: torch.dtype) -> None:
    """Pitches off the grid of 16 bytes, tiles that end inside a row, and NaN behind every row."""
    hidden, weight = integers(rows, size, dtype=dtype), integers(260, size, dtype=dtype, seed=1)
    truth = hidden.double() @ weight.double().T
    first = (truth == truth.amax(1, keepdim=True)).int().argmax(1, keepdim=True)
    seeds = torch.arange(rows, device="cuda")
    perturbed = truth.float() + noise.gumbel(seeds, torch.arange(260, device="cuda"))
    for pad in (0, 5, 8):
        behind = torch.full((rows + 260, size + pad), NAN, device="cuda").to(dtype)
        h = behind[:rows, :size].copy_(hidden)
        w = behind[rows:, :size].copy_(weight)
        assert sample(h, w, temperature=0.0).token.equal(first), pad
        assert sample(h, w, seed=seeds).token.equal(perturbed.argmax(1, keepdim=True)), pad


def test_b19_row_offsets_beyond_31_bits() -> None:
    """Three rows of a weight a thousand million elements apart are read where they lie."""
    pitch = (1 << 30) + 8
    buffer = torch.empty((1 << 31) + 100, dtype=torch.bfloat16, device="cuda")
    weight = buffer.as_strided((3, 64), (pitch, 1)).zero_()
    weight[2, 0] = 100
    hidden = torch.ones(2, 64, dtype=torch.bfloat16, device="cuda")
    for form in backend.FORMS[:2]:
        if form == "hopper" and backend.choose(hidden, weight).form != "hopper":
            continue
        options = backend.Options(vocab_size=3)
        assert (backend.lm_head_max(hidden, weight, options, form=form)[1] == 2).all()
    logits = buffer.as_strided((3, 64), (pitch, 1))
    assert sample_logits(logits, seed=19).token[2].item() == 0


@pytest.mark.parametrize("form", backend.FORMS[:2])
def test_b19_large_weight(form: str) -> None:
    """The last row of a weight with more than 2^31 elements is found."""
    weight = torch.zeros(262_145, 8200, dtype=torch.bfloat16, device="cuda")
    weight[-1] = 1
    hidden = torch.ones(1, 8200, dtype=torch.bfloat16, device="cuda")
    if form == "hopper" and backend.choose(hidden, weight).form != "hopper":
        pytest.skip("no Hopper GPU")
    options = backend.Options(
        vocab_size=len(weight),
        seeds=torch.tensor([19], device="cuda"),
        positions=torch.tensor([0], device="cuda"),
    )
    for given in (options, options._replace(seeds=None, positions=None)):
        assert backend.lm_head_max(hidden, weight, given, form=form)[1].item() == 262_144


def test_b19_offsets_of_row_options_beyond_31_bits() -> None:
    """A bias [B, V] of more than 2^31 elements: the last row's is its own."""
    rows, vocab = 16, (1 << 27) + 64
    hidden = torch.zeros(rows, 8, dtype=torch.bfloat16, device="cuda")
    weight = torch.zeros(vocab, 8, dtype=torch.bfloat16, device="cuda")
    bias = torch.zeros(rows, vocab, dtype=torch.bfloat16, device="cuda")
    bias[-1, -1] = 200
    token = sample(hidden, weight, bias=bias, seed=19).token
    assert token[-1].item() == vocab - 1
    assert (token[:-1] != vocab - 1).all()


@pytest.mark.deep
def test_b19_many_rows() -> None:
    """2^24 + 8 rows of 128 one-hot logits: the last rows give their own ids."""
    rows = (1 << 24) + 8
    ids = torch.arange(rows, device="cuda")[:, None] % 128
    logits = torch.zeros(rows, 128, dtype=torch.bfloat16, device="cuda").scatter_(1, ids, 100.0)
    assert sample_logits(logits, temperature=0.0).token[-16:].equal(ids[-16:])
    assert sample_logits(logits[-16:], seed=19).token.equal(ids[-16:])


@BOTH
def test_b21_an_empty_batch_gives_empty_results(dtype: torch.dtype) -> None:
    """A grid of no programs must not crash, or touch the generator."""
    state = torch.cuda.get_rng_state()
    hidden, weight = integers(0, 64, dtype=dtype), integers(100, 64, dtype=dtype)
    for seed in (3, torch.zeros(0, dtype=torch.int64, device="cuda")):
        drawn = sample(hidden, weight, seed=seed, num_samples=3, log_prob=True)
        assert drawn.token.shape == (0, 3)
        assert drawn.token.is_cuda
    assert torch.cuda.get_rng_state().equal(state)


@BOTH
def test_b22_padded_ids_are_not_sampled(dtype: torch.dtype) -> None:
    """Ten rows of padding at 0 outrank logits of -8: ids stay below 250 and are uniform."""
    logits = torch.full((260,), -8.0)
    logits[250:] = 0
    head = gpu_head(logits, dtype, rows=64)
    assert (sample(*head, vocab_size=250, temperature=0.0).token == 0).all()
    drawn = sample(*head, vocab_size=250, seed=22, num_samples=320, log_prob=True)
    assert_uniform(drawn.token.cpu(), 250)
    assert drawn.log_prob is not None
    torch.testing.assert_close(drawn.log_prob, torch.full_like(drawn.log_prob, -5.521461))


@BOTH
def test_b23_maxima_keep_float32(dtype: torch.dtype) -> None:
    """131,072 logits of 100: tile maxima in bfloat16 would tie and favour low ids by 6 %."""
    head = gpu_head(torch.full((131_072,), 100.0), dtype, rows=250)
    assert_share(sample(*head, seed=23, num_samples=400).token < 65_536, 0.5)


@BOTH
@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("vocab", [100, 128, 300])
def test_b24_a_row_of_nan_is_invalid_alone(
    vocab: int, temperature: float, dtype: torch.dtype
) -> None:
    """NaN in one hidden row: -1 there, and the other rows as without it."""
    hidden, weight = gpu_head(torch.zeros(vocab), dtype, rows=4)
    options: dict[str, Any] = {"seed": 24, "temperature": temperature, "num_samples": 3}
    clean = sample(hidden, weight, **options, log_prob=True)
    hidden[2] = NAN
    drawn = sample(hidden, weight, **options, log_prob=True)
    assert drawn.valid.tolist() == [True, True, False, True]
    assert (drawn.token[2] == -1).all()
    others = torch.tensor([0, 1, 3], device="cuda")
    for got, expected in zip(drawn, clean, strict=True):
        assert got is not None
        assert expected is not None
        assert got[others].equal(expected[others])
    for scores in drawn[2:]:
        assert scores is not None
        assert scores[2].isnan().all()


@BOTH
@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("place", [0, 1, 127, 128, 129, 299])
def test_b25_one_bad_logit_makes_its_row_invalid(
    place: int, bad: float, temperature: float, dtype: torch.dtype
) -> None:
    """The policy does not depend on where a NaN or +inf lies, nor on a token 30 nats above."""
    logits = torch.zeros(300)
    logits[200] = 30
    head = gpu_head(logits, dtype, rows=3)
    bias = torch.zeros(3, 300, device="cuda")
    bias[1, place] = bad
    drawn = sample(*head, bias=bias, seed=25, temperature=temperature, num_samples=2)
    assert drawn.token.tolist() == [[200, 200], [-1, -1], [200, 200]]
    assert drawn.valid.tolist() == [True, False, True]


@BOTH
@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("packed", [True, False])
def test_b27_a_row_without_a_token_is_invalid(
    packed: bool, temperature: float, dtype: torch.dtype
) -> None:
    """All masked, by booleans or by bits: -1, valid False and NaN, the other rows unaffected."""
    head = gpu_head(torch.zeros(130), dtype, rows=4)
    allowed = torch.ones(4, 130, dtype=torch.bool, device="cuda")
    allowed[1] = False
    mask = torch.where(allowed[:, :5], -1, 0).int() if packed else allowed
    options: dict[str, Any] = {"seed": 27, "temperature": temperature, "log_prob": True}
    drawn, clean = sample(*head, mask=mask, **options), sample(*head, **options)
    assert drawn.valid.tolist() == [True, False, True, True]
    assert drawn.token[1].item() == -1
    assert drawn.token[[0, 2, 3]].equal(clean.token[[0, 2, 3]])
    assert drawn.log_prob is not None
    assert drawn.log_prob[1].isnan().all()


@BOTH
def test_b28_masked_ids_are_never_sampled(dtype: torch.dtype) -> None:
    """Forty of fifty ids are masked, the first and the last among them; ten million draws."""
    logits = torch.zeros(50)
    allowed = torch.zeros(50, dtype=torch.bool)
    allowed[torch.randperm(48, generator=torch.Generator().manual_seed(28))[:10] + 1] = True
    head = gpu_head(logits, dtype, rows=4096)
    counts = torch.zeros(50, dtype=torch.int64)
    for step in range(10):
        drawn = sample(*head, mask=allowed.cuda(), seed=28, position=step, num_samples=256)
        counts += drawn.token.flatten().bincount(minlength=50).cpu()
    assert (counts[~allowed] == 0).all()
    place = allowed.cumsum(0)[counts.nonzero()[:, 0]] - 1
    assert_law(place.repeat_interleave(counts[allowed]), torch.full((10,), 0.1))


@pytest.mark.deep
def test_b28_a_token_without_mass_among_four() -> None:
    """Two hundred million draws of (.33, .34, 0, .33): none of the third."""
    law = torch.tensor([0.33, 0.34, 0.0, 0.33]).log()
    hidden = torch.ones(65_536, 8, device="cuda") / 8
    weight = law[:, None].expand(-1, 8).contiguous().cuda()
    counts = torch.zeros(4, dtype=torch.int64, device="cuda")
    for step in range(48):
        drawn = sample(hidden, weight, seed=28, position=step, num_samples=64)
        counts += drawn.token.flatten().bincount(minlength=4)
    assert counts[2] == 0


@BOTH
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_b29_bad_temperatures_make_their_rows_invalid(
    kind: torch.dtype, dtype: torch.dtype
) -> None:
    """Zero and -0 are greedy; what is no temperature is an invalid row; padding never wins."""
    values = torch.tensor([0.0, -0.0, -1.0, NAN, INF, -INF, 1.0, 0.5]).to(kind)
    hidden, weight = gpu_head(torch.zeros(130), dtype, rows=8)
    drawn = sample(hidden, weight, temperature=values.cuda(), seed=29, num_samples=3)
    assert drawn.valid.tolist() == [True, True, False, False, False, False, True, True]
    assert (drawn.token[:2] == 0).all()
    assert (drawn.token[2:6] == -1).all()
    assert drawn.token.max() < 130
    for number in (6, 7):
        one = sample(hidden, weight, temperature=float(values[number]), seed=29, num_samples=3)
        assert drawn.token[number].equal(one.token[number])


@BOTH
def test_b31_greedy_rows_take_the_lowest_of_ties(dtype: torch.dtype) -> None:
    """Ties in different tiles, alone and beside sampled rows."""
    logits = torch.zeros(4096)
    logits[torch.tensor([5, 130, 4000])] = 21.375
    head = gpu_head(logits, dtype, rows=3)
    assert (sample(*head, temperature=0.0).token == 5).all()
    mixed = torch.tensor([0.0, 1.0, 0.0], device="cuda")
    drawn = torch.cat([sample(*head, temperature=mixed, seed=s).token for s in range(100)], 1)
    assert (drawn[[0, 2]] == 5).all()
    assert set(drawn[1].tolist()) == {5, 130, 4000}


@BOTH
@pytest.mark.parametrize("vocab", [16, 129, 2001, 151_936])
def test_b32_ties_give_the_lowest_id(vocab: int, dtype: torch.dtype) -> None:
    """All equal; then only a pair across a tile's edge, and the ends, with zeros of both signs."""
    hidden, weight = gpu_head(torch.zeros(vocab), dtype, rows=65)
    assert (sample(hidden, weight, temperature=0.0).token == 0).all()
    for low, high in ((min(127, vocab - 2), min(128, vocab - 1)), (0, vocab - 1)):
        weight.zero_()
        weight[:, 0] = -1
        weight[low, 0], weight[high, 0] = -0.0, 0.0
        assert (sample(hidden, weight, temperature=0.0).token == low).all()


@BOTH
def test_b35_half_of_a_million_tokens(dtype: torch.dtype) -> None:
    """Cumulative sums collapse here; half at 0.6875 and half at 0 share as they should."""
    logits = torch.zeros(1 << 20)
    logits[: 1 << 19] = 0.6875
    token = sample(*gpu_head(logits, dtype, rows=256), seed=35, num_samples=390).token
    assert_share(token >= 1 << 19, 1 / (1 + 2.718281828459045**0.6875))


def test_b37_to_b44_filters_keep_what_they_keep_on_the_cpu() -> None:
    """Per-row filters, temperatures and several draws: the CPU's tokens."""
    generator = torch.Generator().manual_seed(37)
    logits = (torch.randn(6, 64, generator=generator) * 8).round() / 4
    options: dict[str, Any] = {
        "temperature": torch.tensor([0.0, 1.0, 1.0, 0.5, 2.0, 1.0]),
        "top_k": torch.tensor([1, 64, 3, 10, 200, 5]),
        "top_p": torch.tensor([1.0, 0.9, 1.0, 0.5, 0.8, 0.0]),
        "min_p": torch.tensor([0.9, 0.0, 0.0, 0.1, 0.0, 1.0]),
    }
    there = {name: value.cuda() for name, value in options.items()}
    token = sample_logits(logits.cuda(), seed=37, num_samples=200, **there).token
    assert token.equal(on_cpu(sample_logits, logits, seed=37, num_samples=200, **options))


def test_b45_samples_without_replacement_repeat_nothing() -> None:
    """1000 of 30,000 equal tokens in 600 rows; and more than there are end in -1."""
    hidden = torch.zeros(600, 16, device="cuda")
    drawn = sample_without_replacement(
        hidden, torch.zeros(30_000, 16, device="cuda"), 1000, seed=45
    )
    ordered = drawn.token.sort(1).values
    assert (ordered[:, 1:] > ordered[:, :-1]).all()
    logits = torch.full((1, 300), -INF, device="cuda")
    logits[0, [3, 130, 299]] = 0
    few = sample_logits_without_replacement(logits, 4, seed=45)
    assert few.num_valid.item() == 3
    assert sorted(few.token[0].tolist()) == [-1, 3, 130, 299]


@BOTH
def test_races_between_programs_show_in_no_repeat(dtype: torch.dtype) -> None:
    """200 calls of 989 rows give the same ids, all in range."""
    hidden, weight = integers(989, 64, dtype=dtype), integers(3200, 64, dtype=dtype, seed=1)
    first = sample(hidden, weight, seed=1, log_prob=True)
    assert first.token.min() >= 0
    assert first.token.max() < 3200
    for _ in range(200):
        again = sample(hidden, weight, seed=1, log_prob=True)
        assert again.token.equal(first.token)
        assert again.log_normalizer is not None
        assert first.log_normalizer is not None
        assert again.log_normalizer.equal(first.log_normalizer)


@BOTH
def test_more_draws_extend_fewer(dtype: torch.dtype) -> None:
    """The first draws do not change with their number."""
    head = gpu_head(torch.zeros(5000), dtype, rows=33)
    seven = sample(*head, seed=7, num_samples=7).token
    for draws in range(1, 7):
        assert sample(*head, seed=7, num_samples=draws).token.equal(seven[:, :draws])
