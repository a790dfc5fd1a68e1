"""Planted faults: each check that a correct sampler passes rejects the fault it is there for.

A fault is a small variant of a sampler or of its noise. The correct sampler is run through the same
check, with the false-fail rate that is declared; the fault must be rejected at ``VARYING_P``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fsresearch.noise import COIN, RowNoise
from fsresearch.schedules.online import online
from fsresearch.schedules.tiled import tiled
from fsresearch.sources import Logits
from fsresearch.summaries import CoinFlip, GumbelMax, Reducer
from fsresearch.summaries.gumbel_max import PerturbedMaximum
from fsresearch.theory.numerics import tail_probability
from fsresearch.tiles import Tile
from fsresearch.verify import binomial
from proofs_tests.conformance.checks import check_independence, check_law, rows_of_one_law
from proofs_tests.conversions import appendix_j, of_24_bits, specified
from proofs_tests.statistics_policy import FIXED_P, VARYING_P, false_fail

Factory = Callable[[RowNoise], Reducer[Any]]


class Faulty(RowNoise):
    """Row noise with one fault."""

    def words(self, units: Tensor, kind: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return words; here without a fault."""
        return RowNoise(*self).words(units, kind)


class OneCoin(Faulty):
    """The same coin for every cut."""

    def words(self, units: Tensor, kind: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return words whose coins forget where they were tossed."""
        return super().words(units * 0 if kind == COIN else units, kind)


class RankLocal(Faulty):
    """Noise addressed by a token's place in its shard of 4096 tokens."""

    def words(self, units: Tensor, kind: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the words of the first shard for every shard."""
        return super().words(units % (SHARD // 4), kind)

    def gumbel_groups(self, row: Tensor, draw: Tensor, group: Tensor) -> Tensor:
        """Return the noise of the first shard for every shard."""
        return super().gumbel_groups(row, draw, group % (SHARD // 64))


class SeedPlusDraw(Faulty):
    """Draw d of seed s takes the words of draw 0 of seed s + d."""

    def words(self, units: Tensor, kind: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return words of one draw after another, each under its own key."""
        first = self.draws[:1] * 0
        drawn = [
            RowNoise(self.seeds + draw, self.positions, first, self.role).words(units, kind)
            for draw in self.draws
        ]
        a, b, c, d = (torch.cat(lane, 1) for lane in zip(*drawn, strict=True))
        return a, b, c, d

    def gumbel_groups(self, row: Tensor, draw: Tensor, group: Tensor) -> Tensor:
        """Return the noise of draw 0 under the sums."""
        summed = self.seeds[row] + self.draws[draw]
        alone = RowNoise(summed, self.positions.expand(len(self.seeds))[row], self.draws[:1] * 0)
        return alone.gumbel_groups(torch.arange(len(row)), torch.zeros_like(draw), group)


class HalfPrecisionMaxima(GumbelMax):
    """Tile maxima kept in bfloat16."""

    def lift(self, tile: Tile) -> PerturbedMaximum:
        """Round the winner's score."""
        state = super().lift(tile)
        return state._replace(perturbed=state.perturbed.bfloat16().float())


SHARD = 4096
INDEPENDENT_ROWS = 20_000


def faulty(noise_class: type[Faulty], make: Callable[[RowNoise], Reducer[Any]]) -> Factory:
    return lambda noise: make(noise_class(*noise))


@false_fail(2 * FIXED_P, seeds_vary=False)
def test_one_coin_for_all_merges() -> None:
    check_law(CoinFlip, rows=2048)
    with pytest.raises(AssertionError, match="ChiSquare"):
        check_law(faulty(OneCoin, CoinFlip), rows=2048, p=VARYING_P)


@false_fail(FIXED_P, seeds_vary=False)
def test_rank_local_noise() -> None:
    """With one noise for two shards of equal logits every tie goes to the first shard."""
    draws, logits = 512, torch.zeros(1, 2 * SHARD)

    def second_shard(make: Factory) -> float:
        reducer = make(rows_of_one_law(1, 1, draws))
        token = reducer.draw(tiled(reducer, Logits(logits), cuts=[SHARD]))
        return binomial(int((token >= SHARD).sum()), draws, 0.5).p_value

    assert second_shard(GumbelMax) > FIXED_P
    assert second_shard(faulty(RankLocal, GumbelMax)) < VARYING_P


def test_rank_local_noise_changes_the_path() -> None:
    """A shard that starts at another cut answers otherwise; addressed noise does not."""
    noise, logits = rows_of_one_law(2, 64), torch.zeros(64, 2 * SHARD)
    whole = GumbelMax(noise).lift(Tile(logits, 0))

    def over_shards(reducer: GumbelMax) -> Tensor:
        token: Tensor = tiled(reducer, Logits(logits), width=SHARD).token
        return token

    assert torch.equal(over_shards(GumbelMax(noise)), whole.token)
    assert not torch.equal(over_shards(GumbelMax(RankLocal(*noise))), whole.token)


@false_fail(3 * FIXED_P, seeds_vary=False)
def test_streams_that_are_sums() -> None:
    """Draw 1 of a seed is draw 0 of the next; each draw by itself has the right law."""
    check_law(faulty(SeedPlusDraw, GumbelMax), rows=256)
    check_independence(GumbelMax, p=FIXED_P / 2)
    with pytest.raises(AssertionError, match="ChiSquare"):
        check_independence(faulty(SeedPlusDraw, GumbelMax), p=VARYING_P)


ENDS = np.concatenate([np.arange(3000), 2**31 + np.arange(-50, 50), 2**32 - np.arange(3000, 0, -1)])


def test_the_uniform_of_appendix_j_reaches_one() -> None:
    assert np.isfinite(specified(ENDS, ENDS)).all()
    assert np.isposinf(appendix_j(ENDS, ENDS)).any()


def test_the_uniform_of_appendix_j_draws_what_has_no_chance() -> None:
    """At a tail of -100 the exact chance is 5e-39; infinite noise gives it one row in 250."""
    assert tail_probability(specified, -100.0) < 1e-12
    assert tail_probability(appendix_j, -100.0) > 1e-3


@pytest.mark.parametrize("tail, exact", [(-18.0, 1.99223e-3), (-20.0, 2.70085e-4)])
def test_a_tail_of_24_bits(tail: float, exact: float) -> None:
    assert tail_probability(specified, tail) == pytest.approx(exact, rel=1e-3)
    assert tail_probability(of_24_bits, tail) < exact / 10


@false_fail(1e-8, seeds_vary=False)
def test_the_largest_of_many_scores_shows_24_bits() -> None:
    """Equal logits: 24 bits never exceed 16.64, which specified noise does 18 times of 2400."""
    vocab, rows = 1 << 17, 2400
    logits = torch.zeros(1, vocab)
    specified_hits = 0
    for seed in range(rows // 48):
        noise = rows_of_one_law(seed, 1, draws=48)
        state = online(GumbelMax(noise), Logits(logits), width=8192)
        specified_hits += int((state.perturbed > 16.64).sum())
    expected = -np.expm1(-vocab * np.exp(-16.64))
    assert binomial(specified_hits, rows, expected).p_value > 1e-8
    assert specified_hits > 0
    word = np.arange(0, 1 << 32, 4099)
    assert of_24_bits(word, word).max() < 16.64
    assert binomial(0, rows, expected).p_value < 1e-7


@false_fail(FIXED_P, seeds_vary=False)
def test_maxima_in_half_precision() -> None:
    """At a score of 1000 bfloat16 has steps of 4: tiles tie and the first one wins."""
    vocab, draws = 1 << 16, 512
    logits = torch.full((1, vocab), 1000.0)

    def upper_half(make: Factory) -> float:
        reducer = make(rows_of_one_law(3, 1, draws))
        token = reducer.draw(online(reducer, Logits(logits), width=1024))
        return binomial(int((token >= vocab // 2).sum()), draws, 0.5).p_value

    assert upper_half(GumbelMax) > FIXED_P
    assert upper_half(HalfPrecisionMaxima) < VARYING_P
