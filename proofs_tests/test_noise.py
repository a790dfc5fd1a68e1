"""The noise: known answers, addresses, accuracy over all words, and independence of place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fsresearch import noise
from fsresearch.noise import COIN, GROUP, LEAF, NODE, REFINE, REFINE_BELOW, SEED, RowNoise
from fsresearch.theory import gumbel as theory
from proofs_tests.strategies import INT64, row_noises

LAST = 2**32 - 1
BOUND = 2.0**-22
KINDS = LEAF, GROUP, COIN, SEED, REFINE, NODE


def seed_of(low: int, high: int) -> Tensor:
    """Return the seed whose words are these, int64 [1]."""
    bits = high << 32 | low
    return torch.tensor([bits - (1 << 64) if bits >> 63 else bits])


def test_philox_known_answers_through_addresses() -> None:
    """Counters of the published vectors that are addresses; test_noise_vectors has all three."""
    zero = noise.words(torch.tensor([0]), torch.tensor([0]))
    assert [int(w) for w in zero] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    key = seed_of(0xA4093822, 0x299F31D0)
    columns = [torch.tensor([[w]]) for w in (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)]
    third = noise._philox((key[:, None] & LAST, key[:, None] >> 32 & LAST), tuple(columns), (1, 1))
    assert [int(w) for w in third] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]
    ones = torch.tensor([[LAST]])
    second = noise._philox((ones, ones), (ones,) * 4, (1, 1))
    assert [int(w) for w in second] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@settings(max_examples=100)
@given(
    seed=INT64,
    units=st.lists(st.integers(0, LAST), min_size=1, max_size=9),
    draw=st.integers(0, LAST),
    position=st.integers(0, 2**56 - 1) | st.just(2**56 - 1),
    kind=st.sampled_from(KINDS),
    role=st.integers(0, 31),
)
def test_words_follow_the_address_layout(
    seed: int, units: list[int], draw: int, position: int, kind: int, role: int
) -> None:
    ours = noise.words(
        torch.tensor([seed]),
        torch.tensor(units),
        draw=draw,
        position=position,
        kind=kind,
        role=role,
    )
    expected = theory.address_words(seed, units, draw=draw, position=position, kind=kind, role=role)
    assert np.array_equal(torch.cat(ours).numpy(), expected.astype(np.int64))


def test_rows_have_their_own_seeds_draws_positions_and_units() -> None:
    seeds = torch.tensor([5, -1, 2**62])
    draw, position = torch.tensor([0, 9, LAST]), torch.tensor([2**56 - 1, 0, 2**33 + 1])
    units = torch.tensor([[0, 1], [7, LAST], [3, 3]])
    drawn = torch.stack(noise.words(seeds, units, draw=draw, position=position), 2)
    for row in range(3):
        alone = noise.words(
            seeds[row : row + 1], units[row], draw=int(draw[row]), position=int(position[row])
        )
        assert torch.equal(drawn[row], torch.stack(alone, 2)[0])


def test_different_addresses_give_different_words() -> None:
    seeds, unit = torch.tensor([11]), torch.tensor([6])
    addresses = [
        {"kind": kind, "role": role, "draw": draw, "position": position}
        for kind in KINDS
        for role in (0, 1, 31)
        for draw in (0, 1)
        for position in (0, 1, 2**32, 2**55)
    ]
    drawn = [tuple(int(w) for w in noise.words(seeds, unit, **address)) for address in addresses]
    assert len(set(drawn)) == len(addresses)
    assert not any(set(one) & set(other) for one, other in combinations(drawn, 2))


def test_seeds_that_differ_in_one_bit_give_different_words() -> None:
    seeds = torch.tensor([0] + [1 << bit for bit in range(63)] + [-(2**63), -1, 2**63 - 1])
    first = noise.words(seeds, torch.tensor([0]))[0]
    assert len(first.unique()) == len(seeds)


def test_derived_seeds_are_64_bits_of_their_address() -> None:
    expected = theory.address_words(-9, [0, 1, 2], kind=SEED)
    low, high = expected[0], expected[1]
    seeds = noise.derive_seeds(-9, 3)
    assert seeds.tolist() == (high << np.uint64(32) | low).astype(np.int64).tolist()
    assert torch.equal(noise.derive_seeds(torch.tensor(-9), torch.tensor([2, 0])), seeds[[2, 0]])
    assert len(torch.cat([noise.derive_seeds(s, 1000) for s in (0, 1, 2**32)]).unique()) == 3000


def words_to_check() -> Iterator[tuple[str, Tensor]]:
    """Yield named stretches of ascending words."""
    yield "all words, evenly", torch.arange(0, 1 << 32, 1021)
    yield "the smallest", torch.arange(1 << 17)
    yield "the threshold", torch.arange(REFINE_BELOW - 4096, REFINE_BELOW + 4096)
    yield "the middle", torch.arange(2**31 - 100_000, 2**31 + 100_000)
    yield "the largest", torch.arange(2**32 - 200_000, 2**32)
    for power in range(1, 33):
        at = 1 << power
        yield f"around 2**{power}", torch.arange(max(at - 300, 0), min(at + 300, 1 << 32))


def relative_error(ours: Tensor, exact: np.ndarray) -> float:
    return float((np.abs(ours.double().numpy() - exact) / np.maximum(1, np.abs(exact))).max())


@pytest.mark.parametrize("more", [0, LAST // 3, LAST])
def test_gumbels_are_accurate_finite_and_monotone_over_words(more: int) -> None:
    for name, word in words_to_check():
        ours = noise.gumbel_from_words(word, torch.tensor(more))
        assert ours.dtype == torch.float32
        assert ours.isfinite().all(), name
        assert (ours.diff() <= 0).all(), name
        exact = theory.from_words(word.numpy(), np.full(len(word), more))
        assert relative_error(ours, exact) <= BOUND, name


def test_gumbels_of_the_refined_tail() -> None:
    more = torch.cat(
        [torch.arange(3000), torch.arange(0, 1 << 32, 1 << 20), LAST - torch.arange(9)]
    )
    more = more.unique()
    for word in (0, 1, 2, 255, 4095, REFINE_BELOW - 1):
        ours = noise.gumbel_from_words(torch.tensor(word), more)
        assert ours.isfinite().all()
        assert (ours.diff() <= 0).all()
        exact = theory.from_words(np.full(len(more), word), more.numpy())
        assert relative_error(ours, exact) <= BOUND
    tops = noise.gumbel_from_words(torch.tensor([0, 0, 1]), torch.tensor([0, LAST, 0]))
    assert tops[0] > 45 and tops[1] >= tops[2] > 22


def test_refinement_joins_both_sides_of_the_threshold() -> None:
    below = noise.gumbel_from_words(torch.tensor(REFINE_BELOW - 1), torch.tensor([0, LAST]))
    above = noise.gumbel_from_words(torch.tensor(REFINE_BELOW), torch.tensor(0))
    assert below[0] >= below[1] >= above
    unused = noise.gumbel_from_words(torch.full((2,), REFINE_BELOW), torch.tensor([0, LAST]))
    assert unused[0] == unused[1]


def test_gumbels_of_64_bits() -> None:
    high = torch.cat(
        [torch.arange(0, 1 << 32, 4093), torch.arange(2000), LAST - torch.arange(2000)]
    )
    for low in (0, LAST // 2, LAST):
        ours = noise.gumbel_from_bits(high, torch.tensor(low)).numpy()
        exact = theory.from_bits(high.numpy(), np.full(len(high), low))
        assert np.isfinite(ours).all()
        assert (np.abs(ours - exact) <= 1e-11 * np.maximum(1, np.abs(exact))).all()
        uniform = noise.uniform_from_bits(high, torch.tensor(low))
        assert ((uniform > 0) & (uniform <= 1)).all()


@pytest.mark.parametrize("offset", [0, 1, 3, 15, 17])
def test_a_gumbel_is_bitwise_equal_wherever_it_is_computed(offset: int) -> None:
    """Vector loops and their tails give the same bits: widths 1 to 70, aligned or not."""
    rng = np.random.default_rng(offset)
    bits = np.concatenate([rng.integers(0, 1 << 32, 400), rng.integers(0, 1 << 17, 112)])
    word = torch.from_numpy(rng.permutation(bits))
    more = torch.from_numpy(rng.integers(0, 1 << 32, len(word)))
    one_by_one = torch.stack(
        [noise.gumbel_from_words(w, m) for w, m in zip(word, more, strict=True)]
    )
    for width in range(1, 71):
        tiles = [
            noise.gumbel_from_words(w, m)
            for w, m in zip(word[offset:].split(width), more[offset:].split(width), strict=True)
        ]
        assert torch.equal(torch.cat(tiles), one_by_one[offset:])
    square = noise.gumbel_from_words(word.view(2, -1).T, more.view(2, -1).T)
    assert torch.equal(square.T.reshape(-1), one_by_one)


@settings(max_examples=60)
@given(
    drawn=st.integers(1, 3).flatmap(row_noises),
    start=st.integers(0, 200) | st.integers(0, 2**36 - 400),
    width=st.integers(1, 300),
)
def test_a_tile_is_its_tokens(drawn: RowNoise, start: int, width: int) -> None:
    ids = torch.arange(start, start + width)
    tile = drawn.gumbel_tile(start, start + width)
    for column, draw in enumerate(drawn.draws):
        alone = noise.gumbel(
            drawn.seeds,
            ids,
            draw=int(draw),
            position=drawn.positions.expand(len(tile)),
            role=drawn.role,
        )
        assert torch.equal(tile[:, column], alone)
    assert torch.equal(drawn.gumbel(ids.expand(tile.shape).contiguous()), tile)


def test_tiles_of_every_width_and_offset_join_to_one() -> None:
    drawn = RowNoise(torch.tensor([1, 2]), torch.tensor(0), torch.tensor([0, 5]))
    whole = drawn.gumbel_tile(0, 700)
    for width in range(1, 71):
        start = width * 7 % 130
        for at in (start, start + width):
            assert torch.equal(drawn.gumbel_tile(at, at + width), whole[..., at : at + width])


def test_tiles_refine_their_rare_small_words() -> None:
    """Among two million words about 32 are small; all of them are the tail's."""
    drawn = RowNoise(torch.arange(8), torch.tensor(0), torch.tensor([0]))
    units = torch.arange(1 << 16)
    leaf = torch.stack(drawn.words(units, LEAF), 3)[:, 0]
    rows, unit, lane = (leaf < REFINE_BELOW).nonzero(as_tuple=True)
    assert len(rows) > 10
    tokens = unit // 16 * 64 + lane * 16 + unit % 16
    for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
        tile = drawn.gumbel_tile(token - 2, token + 1)[row, 0, 2]
        exact = theory.leaf_noise(row, [token])[0]
        assert abs(tile.item() - exact) <= BOUND * exact


@pytest.mark.parametrize("kind, role", [(-1, 0), (6, 0), (0, -1), (0, 32)])
def test_kinds_and_roles_out_of_range(kind: int, role: int) -> None:
    with pytest.raises(ValueError, match=r"must be in \[0"):
        noise.words(torch.tensor([0]), torch.tensor([0]), kind=kind, role=role)
