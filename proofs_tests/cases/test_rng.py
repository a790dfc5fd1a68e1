"""Randomness: the ends of the uniform, its tail, and streams that must not collide."""

from __future__ import annotations

import math
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fsresearch import noise, sample, sample_logits
from fsresearch.noise import DRAFT, RESIDUAL, TARGET, RowNoise
from fsresearch.schedules.online import online
from fsresearch.sources import Logits
from fsresearch.summaries import GumbelMax, GumbelTopK, PerturbedMass
from fsresearch.theory import gumbel, numerics
from fsresearch.verify.statistics import goodness_of_fit
from proofs_tests.cases.helpers import (
    INF,
    NAMES,
    OVERWHELMING,
    assert_law,
    assert_share,
    exact_head,
    over_shards,
    p_value,
    row_noise,
    shards_of,
    share_p_value,
)

TAIL_VOCAB = 131_072
LAST_WORD = 2**32 - 1


def tail_mass(tail: float) -> float:
    odds = (TAIL_VOCAB - 1) * math.exp(tail)
    return odds / (1 + odds)


def tail_tokens(tail: float, method: str, draws: int) -> Tensor:
    logits = torch.full((TAIL_VOCAB,), tail)
    logits[0] = 0
    hidden, weight = exact_head(logits)
    return sample(hidden, weight, method=method, seed=18, num_samples=draws).token[0]


def assert_spread(token: Tensor) -> None:
    """The tail's tokens fall evenly on 16 buckets of ids."""
    hits = token[token > 0]
    buckets = ((hits - 1) * 16 // (TAIL_VOCAB - 1)).bincount(minlength=16)
    assert goodness_of_fit(buckets.numpy(), np.full(16, 1 / 16)).p_value > 1e-4


@pytest.mark.parametrize(
    ("method", "tail", "draws"),
    [
        ("gumbel-max", -16.5, 600),
        ("grouped", -18.0, 10_000),
        ("hierarchical", -18.0, 100_000),
    ],
)
def test_b01_tail_is_drawn(method: str, tail: float, draws: int) -> None:
    """Coarse uniforms cap the noise and starve 131,071 rare tokens; their mass is e.g. 0.00199."""
    token = tail_tokens(tail, method, draws)
    assert_share(token > 0, tail_mass(tail))
    assert_spread(token)


@pytest.mark.deep
@pytest.mark.parametrize("tail", [-16.5, -18.0])
def test_b01_full_draws(tail: float) -> None:
    """As above, by 100,000 draws of Gumbel-max."""
    token = tail_tokens(tail, "gumbel-max", 100_000)
    assert_share(token > 0, tail_mass(tail))
    assert_spread(token)


def coarse(word: numerics.Integers, refinement: numerics.Integers, *, bits: int) -> numerics.Floats:
    """Gumbels of a uniform with few bits, as broken samplers make them."""
    return gumbel.from_words(word | (1 << 32 - bits) - 1, refinement, refine_below=0)


def ours(word: numerics.Integers, refinement: numerics.Integers) -> numerics.Floats:
    pair = torch.as_tensor(word), torch.as_tensor(refinement)
    return noise.gumbel_from_words(*pair).numpy().astype(np.float64)


@pytest.mark.parametrize("tail", [-16.5, -18.0, -20.0, -24.0])
def test_b01_tail_of_the_conversion(tail: float) -> None:
    """The tail's mass follows from the conversion alone, without sampling error."""
    got = numerics.tail_probability(ours, tail)
    assert got == pytest.approx(tail_mass(tail), rel=1e-3)


@pytest.mark.parametrize(("bits", "tail"), [(23, -16.5), (24, -18.0), (31, -20.0), (32, -24.0)])
def test_b01_control_coarse_uniforms_fail(bits: int, tail: float) -> None:
    """Uniforms of 23, 24, 31 and 32 bits are told apart, the last only by the deepest tail."""
    got = numerics.tail_probability(partial(coarse, bits=bits), tail)
    assert abs(got / tail_mass(tail) - 1) > 3e-3


def test_b02_conversion_is_finite_and_monotone_at_its_ends() -> None:
    """A uniform of exactly 1 makes the noise infinite; no word may, and none may stand alone."""
    word = torch.tensor([0, 1, 2, 2**16 - 1, 2**16, 2**31 - 1, 2**31, LAST_WORD - 1, LAST_WORD])
    words = word.repeat_interleave(3)
    more = torch.tensor([0, 2**31, LAST_WORD]).repeat(len(word))
    single = noise.gumbel_from_words(words, more).double()
    double = noise.gumbel_from_bits(words, more)
    for values, bits in ((single, 64), (double, 64)):
        assert values.isfinite().all()
        assert (values.diff() <= 0).all()
        assert values.max() <= math.log(2.0**bits) + 1
    first, zero = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    for top in (noise.gumbel_from_words(zero, first), noise.gumbel_from_words(first, zero)):
        assert top.diff()[1:].abs().max() < 1.2
    assert single.min() <= -2.95


def address_of(wanted: list[int], seed: int) -> tuple[int, int, int, int]:
    """Return the Philox counter that gives the wanted words: the cipher run backwards."""
    key = np.array([seed & LAST_WORD, seed >> 32], dtype=object)
    weyl = np.array([0x9E3779B9, 0xBB67AE85], dtype=object)
    m0, m1 = 0xD2511F53, 0xCD9E8D57
    c0, c1, c2, c3 = wanted
    for i in reversed(range(10)):
        k0, k1 = (key + i * weyl) & LAST_WORD
        a, b = c3 * pow(m0, -1, 1 << 32) & LAST_WORD, c1 * pow(m1, -1, 1 << 32) & LAST_WORD
        c0, c1, c2, c3 = a, (b * m1 >> 32) ^ c0 ^ k0, b, (a * m0 >> 32) ^ c2 ^ k1
    return c0, c1, c2, c3


@pytest.mark.parametrize("extreme", [0, LAST_WORD])
@pytest.mark.parametrize("lane", range(4))
def test_b02_extreme_words_never_win_for_a_masked_token(extreme: int, lane: int) -> None:
    """An extreme word on a masked token makes NaN or wins; where one hits, it is not drawn."""
    generator, seed = np.random.default_rng(lane), 5
    while True:
        wanted = [int(w) for w in generator.integers(0, 1 << 32, 4)]
        wanted[lane] = extreme
        unit, draw, low, high = address_of(wanted, seed)
        if high >> 24 & 7 == noise.LEAF and unit < 1 << 29:
            break
    rows = RowNoise(
        torch.tensor([seed]),
        torch.tensor(low | (high & 0xFFFFFF) << 32),
        torch.tensor([draw]),
        high >> 27,
    )
    token = unit // 16 * 64 + lane * 16 + unit % 16
    start = unit // 16 * 64
    assert int(rows.words(torch.tensor([unit]), noise.LEAF)[lane]) == extreme
    for reducer in (GumbelMax(rows), GumbelTopK(rows, 64)):
        logits = torch.zeros(1, 64)
        drawn = online(reducer, Logits(logits, start=start))
        assert drawn.perturbed.isfinite().all()
        assert (int(drawn.token[0, 0]) == token) == (extreme == 0)
        logits[0, token - start] = -INF
        drawn = online(reducer, Logits(logits, start=start))
        assert token not in drawn.token
        assert not drawn.perturbed.isnan().any()
        kept = drawn.token[drawn.token >= 0]
        assert ((kept >= start) & (kept < start + 64)).all()


def test_b04_shards_do_not_share_noise() -> None:
    """Noise keyed by the local column makes ranks tie; shard 1 must win half, as on one device."""
    logits, rows = torch.zeros(1, 8192), row_noise(2048, seed=4)
    sampler = GumbelMax(rows)
    whole = online(sampler, Logits(logits), width=512).token
    for shards in (2, 4, 8):
        cuts = range(0, 8193, 8192 // shards)
        assert torch.equal(over_shards(sampler, cuts, shards_of(logits), 512).token, whole)
    assert_share(whole >= 4096, 0.5)
    few = GumbelMax(row_noise(256, seed=4))
    local = [online(few, Logits(logits[:, :4096]), width=512) for _ in range(2)]
    second_wins = local[1].perturbed > local[0].perturbed
    assert share_p_value(second_wins, 0.5) < OVERWHELMING


EIGHT_LEVELS = -(torch.arange(5000) * 7 % 8).float()


@pytest.mark.parametrize("method", ["gumbel-max", "grouped", "hierarchical"])
def test_b06_a_request_does_not_depend_on_its_batch(method: str) -> None:
    """Noise that depends on the place in a batch changes a seeded request; its tokens are fixed."""
    hidden, weight = exact_head(EIGHT_LEVELS)
    draw = partial(sample, weight=weight, method=method)
    alone = draw(hidden, seed=torch.tensor([7]), position=3, num_samples=8).token
    for batch in (2, 16, 17, 32, 33, 64, 65, 129):
        for place in {0, min(5, batch - 1), batch - 1}:
            seeds, positions = torch.arange(100, 100 + batch), torch.arange(batch)
            seeds[place], positions[place] = 7, 3
            token = draw(hidden.expand(batch, -1), seed=seeds, position=positions).token
            assert token[place] == alone[0, 0], (batch, place)


@pytest.mark.parametrize("method", NAMES)
def test_b06_the_first_of_many_draws_is_the_only_one(method: str) -> None:
    """Drawing eight times must not change the first draw."""
    draw = partial(sample_logits, EIGHT_LEVELS[None], seed=7, position=3, method=method)
    assert draw(num_samples=8).token[:, :1].equal(draw().token)


@pytest.mark.parametrize(("reducer", "widths"), [(GumbelMax, (1000, 77)), (PerturbedMass, (1024,))])
def test_b06_tile_widths_do_not_matter(
    reducer: type[GumbelMax] | type[PerturbedMass], widths: tuple[int, ...]
) -> None:
    """A tile width chosen by tuning must not change the token."""
    sampler = reducer(row_noise(8, seed=7, rows=3))
    source = Logits(EIGHT_LEVELS.expand(3, -1))
    whole = sampler.draw(online(sampler, source))
    for width in (64, 128, 256, *widths):
        assert sampler.draw(online(sampler, source, width=width)).equal(whole)


@pytest.mark.parametrize("method", NAMES)
def test_b08_a_scalar_seed_gives_rows_their_own_noise(method: str) -> None:
    """One seed for all rows must not make equal rows draw equal tokens: about 0.5 pairs agree."""
    logits = torch.zeros(64, 4096)
    token = sample_logits(logits, seed=3, method=method).token[:, 0]
    assert sum(int(a == b) for a, b in combinations(token, 2)) <= 6
    same = sample_logits(logits, seed=torch.full((64,), 3), method=method).token
    assert (same == same[0]).all()


SEEDS = [1, 1 + 2**31, 1 + 2**32, 1 + 2**40, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1]
SEEDS += [5, -1, -2, -5, -(2**63)]


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("method", NAMES)
def test_b11_every_64_bit_seed_is_its_own(method: str, as_tensor: bool) -> None:
    """Seeds cut to 32 bits or clamped collide; all of the int64 range is distinct streams."""
    draw = partial(sample_logits, torch.zeros(1, 4096), num_samples=8, method=method)
    seeds = [torch.tensor([seed]) if as_tensor else seed for seed in SEEDS]
    drawn = {tuple(draw(seed=seed).token[0].tolist()) for seed in seeds}
    assert len(drawn) == len(SEEDS)


@pytest.mark.parametrize("seed", [2**63, 2**64, -(2**63) - 1])
def test_b11_seeds_beyond_64_bits_are_refused(seed: int) -> None:
    """A seed out of range must not wrap, clamp or overflow; it is a ValueError."""
    with pytest.raises(ValueError, match=f"^seed must be in .* got {seed}$"):
        sample_logits(torch.zeros(1, 8), seed=seed)


@pytest.mark.parametrize("seed", [1.5, "3", True, torch.tensor(3.0)])
def test_b11_seeds_that_are_no_integers_are_refused(seed: int) -> None:
    """A float or a string is a TypeError."""
    with pytest.raises(TypeError, match=r"^seed must be .*int"):
        sample_logits(torch.zeros(1, 8), seed=seed)


@pytest.mark.gpu
@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("advances", ["position", "seed"])
def test_b12_replays_of_a_graph_take_new_noise(advances: str, method: str) -> None:
    """A seed baked into a CUDA graph repeats one token; 64 replays are 64 steps of eager calls."""
    logits = torch.zeros(4, 4096, device="cuda")
    step = torch.zeros(4, dtype=torch.int64, device="cuda")
    given: dict[str, Any] = {"seed": 5, "position": step}
    if advances == "seed":
        given, step = {"seed": step}, step.copy_(torch.arange(0, 4000, 1000))
    first = step.clone()
    draw = partial(sample_logits, logits, method=method, **given)
    eager = []
    for _ in range(64):
        eager.append(draw().token)
        step += 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        token = draw().token
    for turn in range(2):
        step.copy_(first)
        for replay in range(64):
            graph.replay()
            assert token.equal(eager[replay]), (turn, replay)
            step += 1
    assert len({tuple(t.flatten().tolist()) for t in eager}) == 64


@pytest.mark.gpu
def test_b12_capture_without_a_seed_is_refused() -> None:
    """Drawing a seed on the host would bake it in: capture with seed None raises."""
    logits = torch.zeros(1, 64, device="cuda")
    with pytest.raises(RuntimeError, match=r"^seed must be given"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            sample_logits(logits)


def speculated(target: Tensor, draft: Tensor, residual_role: int) -> tuple[Tensor, Tensor]:
    """Return (tokens, accepted) of one speculative step, drawn 131,072 times."""
    draws, seed = 131_072, torch.tensor([14])
    draw = partial(sample_logits, seed=seed, num_samples=draws)
    proposed = draw(draft.log()[None].float(), role=DRAFT).token[0]
    coins, *_ = noise.words(
        seed.expand(draws), torch.tensor([0]), draw=torch.arange(draws), role=TARGET
    )
    uniform = (coins[:, 0].double() + 0.5) * 2.0**-32
    accepted = uniform < (target / draft)[proposed]
    residual = (target - draft).clamp(min=0)
    recovered = draw(residual.log()[None].float(), role=residual_role).token[0]
    return torch.where(accepted, proposed, recovered), accepted


@pytest.mark.parametrize(
    ("target", "draft", "accepted"),
    [((0.1, 0.6, 0.3), (0.1, 0.3, 0.6), 0.7), ((0.1, 0.5, 0.4), (0.6, 0.3, 0.1), 0.5)],
)
def test_b14_roles_keep_speculative_decoding_exact(
    target: tuple[float, ...], draft: tuple[float, ...], accepted: float
) -> None:
    """A residual drawn with the draft's noise shuns what the draft liked; roles keep the target."""
    p, q = (torch.tensor(law, dtype=torch.float64) for law in (target, draft))
    token, taken = speculated(p, q, RESIDUAL)
    assert_law(token, p)
    assert_share(taken, accepted)
    if target[1] == 0.6:
        assert (token[~taken] == 1).all()


def test_b14_control_one_role_for_both_fails() -> None:
    """With the draft's role for the residual too, the marginal drifts visibly."""
    p = torch.tensor([0.1, 0.5, 0.4], dtype=torch.float64)
    token, _ = speculated(p, torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64), DRAFT)
    assert p_value(token, p) < OVERWHELMING


def test_b14_roles_share_no_noise() -> None:
    """The same seed and position in two roles give unrelated noise."""
    ids, seed = torch.arange(64), torch.tensor([14])
    drawn = [noise.gumbel(seed, ids, role=role) for role in range(32)]
    assert all((a != b).all() for a, b in combinations(drawn, 2))
