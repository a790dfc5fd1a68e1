"""Groups that cannot win are left out on the CPU; the answer is that of all groups, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fsresearch.noise import LEAF, RowNoise
from fsresearch.summaries import GumbelMax, PerturbedMass
from fsresearch.summaries.base import first_maximum
from fsresearch.tiles import Tile

SCALES = 0.0, 1.0, 3.0, 10.0, 100.0, 1e3, 1e6, 1e30, 1e38


def case(seed: int) -> tuple[Tile, RowNoise]:
    """Return a tile off the grid, of any scale, with masks, NaN and infinities in turn."""
    generator = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    rows, draws, width, start = integer(1, 5), integer(1, 4), integer(1, 2000), integer(0, 300)
    logits = torch.randn(rows, width, generator=generator) * SCALES[seed % len(SCALES)]
    if seed % 4 == 1:
        logits[
            torch.rand(rows, width, generator=generator) < (0.7, 0.995)[seed % 8 > 4]
        ] = -torch.inf
    special = {3: torch.nan, 5: torch.inf, 7: -torch.inf}
    if seed % 11 in special:
        logits[0, width // 2] = special[seed % 11]
    if seed % 13 == 0:
        logits[0] = -torch.inf
    if seed % 17 == 0:
        logits[:, : width // 2] += 60.0
    seeds = torch.randint(0, 1 << 62, (rows,), generator=generator)
    return Tile(logits, start), RowNoise(seeds, torch.tensor(5), torch.arange(draws))


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.nan_to_num(-7.0), b.nan_to_num(-7.0)) and torch.equal(a.isnan(), b.isnan())


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_the_winner_is_that_of_all_tokens(first: int) -> None:
    for seed in range(first, first + 50):
        tile, noise = case(seed)
        state = GumbelMax(noise).lift(tile)
        scores = tile.logits[:, None] + noise.gumbel_tile(tile.start, tile.stop)
        perturbed, token = first_maximum(scores, tile.start)
        assert torch.equal(state.token, token), seed
        assert same(state.perturbed, perturbed), seed


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_the_group_is_that_of_all_groups(first: int) -> None:
    for seed in range(first, first + 50):
        tile, noise = case(seed)
        tile = tile._replace(start=tile.start // 64 * 64)
        some, every = PerturbedMass(noise, keep_log_mass=False), PerturbedMass(noise)
        assert torch.equal(some.lift(tile).token, every.lift(tile).token), seed
        assert same(some.lift(tile).perturbed, every.lift(tile).perturbed), seed


@pytest.mark.parametrize("rest", [0, 1, 2**16 - 1, 2**32 - 1])
def test_a_word_of_zero_bounds_nothing(rest: int) -> None:
    """The token whose word is 0 is perturbed whatever its logit, also among masked tokens."""

    class OneZero(RowNoise):
        """Word 0 at token 70, another word elsewhere; Gumbels as the words say, unrefined."""

        def words(self, units: Tensor, kind: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            assert kind == LEAF
            word = torch.where(units == 16 + 6, 0, rest).expand(1, 1, -1)
            return word, word, word, word

        def gumbel_groups(self, row: Tensor, draw: Tensor, group: Tensor) -> Tensor:
            noise = torch.zeros(len(row), 64)
            noise[group == 1, 6] = 45.0
            return noise

    noise = OneZero(torch.tensor([1]), torch.tensor(0), torch.tensor([0]))
    logits = torch.zeros(1, 256)
    logits[0, 70] = -40.0
    logits[0, [86, 102, 118, 3]] = -torch.inf
    assert GumbelMax(noise).lift(Tile(logits, 0)).token.item() == 70
