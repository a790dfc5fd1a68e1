"""The noise: known answers, addresses, accuracy over all words, and independence of place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fsresearch import noise
from fsresearch.noise import COIN, GROUP, LEAF, NODE, REFINE, REFINE_BELOW, SEED, RowNoise
from fsresearch.philox import philox
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
    third = philox((key[:, None] & LAST, key[:, None] >> 32 & LAST), tuple(columns), (1, 1))
    assert [int(w) for w in third] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]
    ones = torch.tensor([[LAST]])
    second = philox((ones, ones), (ones,) * 4, (1, 1))
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
    start=st.integers(0, 200) | st.integers(0, 2**34 - 400),
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


ONE, PAIR = torch.tensor([7]), torch.tensor([7, 8])
BAD_ADDRESSES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"kind": -1}, ValueError, r"^kind must be in \[0, 5\], got -1$"),
    ({"kind": 6}, ValueError, r"^kind must be in \[0, 5\], got 6$"),
    ({"kind": True}, TypeError, r"^kind must be an integer .* got True of type bool$"),
    ({"role": -1}, ValueError, r"^role must be in \[0, 31\], got -1$"),
    ({"role": 32}, ValueError, r"^role must be in \[0, 31\], got 32$"),
    ({"role": 1.0}, TypeError, r"^role must be an integer .* got 1.0 of type float$"),
    ({"seeds": 7}, TypeError, r"^seeds must be a tensor of int64, got 7 of type int$"),
    ({"seeds": torch.tensor(7)}, ValueError, r"^seeds must be \[B\], got shape \[\]$"),
    ({"seeds": PAIR[None]}, ValueError, r"^seeds must be \[B\], got shape \[1, 2\]$"),
    ({"seeds": PAIR.int()}, TypeError, r"^seeds must be int64, got a tensor of torch.int32$"),
    ({"seeds": PAIR.double()}, TypeError, r"^seeds must be int64, got a tensor of torch.float64$"),
    ({"seeds": PAIR > 7}, TypeError, r"^seeds must be int64, got a tensor of torch.bool$"),
    ({"units": [1, 2]}, TypeError, r"^units must be a tensor of int64, got \[1, 2\] of type list$"),
    ({"units": PAIR.int()}, TypeError, r"^units must be int64, got a tensor of torch.int32$"),
    ({"units": PAIR.float()}, TypeError, r"^units must be int64, got a tensor of torch.float32$"),
    ({"units": torch.tensor(3)}, ValueError, r"^units must be \[T\] or \[2, T\], got shape \[\]$"),
    ({"units": PAIR.view(1, 2)}, ValueError, r"^units must be .* got shape \[1, 2\]$"),
    ({"units": PAIR - 8}, ValueError, r"^units must be in \[0, 4294967296\), got -1$"),
    ({"units": PAIR + LAST}, ValueError, r"^units must be in \[0, 4294967296\), got 4294967303$"),
    ({"units": PAIR.to("meta")}, ValueError, r"^units must be on cpu .* got meta$"),
    ({"units": PAIR.to_sparse()}, TypeError, r"^units must be a dense tensor"),
    ({"draw": -1}, ValueError, r"^draw must be in \[0, 4294967295\], got -1$"),
    ({"draw": 2**32}, ValueError, r"^draw must be in \[0, 4294967295\], got 4294967296$"),
    ({"draw": True}, TypeError, r"^draw must be an integer .* got True of type bool$"),
    ({"draw": 1.0}, TypeError, r"^draw must be an integer .* got 1.0 of type float$"),
    ({"draw": PAIR - 8}, ValueError, r"^draw must be in \[0, 4294967296\), got -1$"),
    ({"draw": torch.arange(3)}, ValueError, r"^draw must be 0-d or \[2\], got shape \[3\]$"),
    ({"draw": PAIR.float()}, TypeError, r"^draw must be int64 or int32, got a tensor of"),
    ({"position": -1}, ValueError, r"^position must be in \[0, 72057594037927935\], got -1$"),
    ({"position": 2**56}, ValueError, r"^position must be in .* got 72057594037927936$"),
    ({"position": PAIR << 53}, ValueError, r"^position must be in .* got 72057594037927936$"),
    ({"position": PAIR > 7}, TypeError, r"^position must be int64 or int32, got a tensor of"),
]


@pytest.mark.parametrize(("bad", "error", "says"), BAD_ADDRESSES)
def test_what_is_no_address_is_an_error(
    bad: dict[str, Any], error: type[Exception], says: str
) -> None:
    """Silently it would be other noise, at words that another address may own."""
    with pytest.raises(error, match=says):
        noise.words(**{"seeds": PAIR, "units": PAIR, **bad})
    if "kind" not in bad:
        ids = {"token_ids" if name == "units" else name: value for name, value in bad.items()}
        if "4294967296" not in says or "units" not in bad:
            with pytest.raises(error, match=says.replace("units", "token_ids")):
                noise.gumbel(**{"seeds": PAIR, "token_ids": PAIR, **ids})


def test_tokens_go_as_far_as_units_do() -> None:
    last = 2**34 - 1
    exact = theory.leaf_noise(7, [last])
    assert abs(noise.gumbel(ONE, torch.tensor([last])).item() - exact[0]) < BOUND * abs(exact[0])
    for bad in (-1, last + 1):
        with pytest.raises(
            ValueError, match=rf"^token_ids must be in \[0, 17179869184\), got {bad}$"
        ):
            noise.gumbel(ONE, torch.tensor([bad]))


def test_narrow_draws_and_positions_are_the_same_numbers() -> None:
    at = torch.tensor([3, 2**31 - 1])
    wide = noise.gumbel(PAIR, PAIR, draw=at, position=at)
    assert noise.gumbel(PAIR, PAIR, draw=at.int(), position=at.int()).equal(wide)
    for row in range(2):
        alone: dict[str, Any] = {"draw": at[row], "position": at[row].int()}
        assert noise.gumbel(PAIR[row : row + 1], PAIR, **alone).equal(wide[row : row + 1])


@pytest.mark.parametrize(
    ("seed", "rows", "error", "says"),
    [
        (1.0, 2, TypeError, r"^seed must be an integer .* got 1.0 of type float$"),
        (True, 2, TypeError, r"^seed must be an integer .* got True of type bool$"),
        (2**63, 2, ValueError, r"^seed must be in .* got 9223372036854775808$"),
        (torch.tensor(1).int(), 2, TypeError, r"^seed must be int64, got a tensor of torch.int32$"),
        (torch.tensor([1]), 2, ValueError, r"^seed must be an int or 0-d, got shape \[1\]$"),
        (1, -1, ValueError, r"^rows must be in \[0, 4294967296\], got -1$"),
        (1, 2.0, TypeError, r"^rows must be an integer .* got 2.0 of type float$"),
        (
            1,
            torch.tensor([1]).int(),
            TypeError,
            r"^rows must be int64, got a tensor of torch.int32$",
        ),
        (1, torch.tensor([-1]), ValueError, r"^rows must be in \[0, 4294967296\), got -1$"),
        (1, torch.tensor([[1], [2]]), ValueError, r"^rows must be \[T\] or \[1, T\], got shape"),
    ],
)
def test_what_derives_no_seeds(seed: Any, rows: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        noise.derive_seeds(seed, rows)


def test_what_is_no_word() -> None:
    word = torch.arange(3)
    for bad in (word.int(), word.float(), word.double(), word > 1):
        for convert in (noise.gumbel_from_words, noise.gumbel_from_bits, noise.uniform_from_bits):
            for pair in ((bad, word), (word, bad)):
                with pytest.raises(
                    TypeError, match=r"^(word|refinement|high|low) must be int64, got"
                ):
                    convert(*pair)
    for beyond in (-1, 2**32):
        with pytest.raises(ValueError, match=rf"^word must be in .* got {beyond}$"):
            noise.gumbel_from_words(torch.tensor(beyond), word)
    with pytest.raises(TypeError, match=r"^token_ids must be int64"):
        noise.leaf_address(word.int())


def test_values_on_a_device_are_not_read() -> None:
    """Shapes and dtypes are; a meta tensor has no values that could be."""
    far = PAIR.to("meta")
    assert noise.gumbel(far, far, draw=far, position=far).shape == (2, 2)
    with pytest.raises(TypeError, match=r"^token_ids must be int64"):
        noise.gumbel(far, far.int())


def test_noise_compiles_into_one_graph() -> None:
    ids = torch.arange(5)
    drawn = torch.compile(noise.gumbel, fullgraph=True, backend="eager")
    assert drawn(PAIR, ids, draw=PAIR, position=3).equal(
        noise.gumbel(PAIR, ids, draw=PAIR, position=3)
    )
