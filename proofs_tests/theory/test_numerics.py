"""The distance of the version-1 noise from softmax is under its bound, and its tail is right."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

from fsresearch import noise
from fsresearch.theory import categorical, gumbel, numerics

K16, K18, K20 = 1 << 16, 1 << 18, 1 << 20

REGIMES = {
    "flat at zero": ([(0.0, K18)], K16),
    "flat at zero, small": ([(0.0, 1024)], K16),
    "flat at a hundred": ([(100.0, K18)], K16),
    "flat at a thousand": ([(1000.0, K18)], K16),
    "flat at minus sixty": ([(-60.0, K18)], K16),
    "threshold 64": ([(100.0, K18)], 64),
    "threshold 64, a million tokens": ([(1000.0, K20)], 64),
    "never refined": ([(0.0, K18)], 0),
    "a few heads eight above": ([(108.0, 64), (100.0, K18 - 64)], K16),
    "head first, tail 12.5 below": ([(100.0, 1), (87.5, K18 - 1)], K16),
    "head last, tail 12.5 below": ([(87.5, K18 - 1), (100.0, 1)], K16),
    "four levels": ([(60.0, 16), (58.5, 1000), (57.25, 4000), (52.0, 60_000)], K16),
}


@pytest.mark.parametrize(("blocks", "threshold"), REGIMES.values(), ids=REGIMES.keys())
def test_the_distance_is_under_the_bound(blocks: numerics.Blocks, threshold: int) -> None:
    vocab = sum(count for _, count in blocks)
    winner = categorical.log_normalizer([x + math.log(n) for x, n in blocks])
    spacing = numerics.score_spacing(winner)
    distance = numerics.token_law_distance(blocks, refine_below=threshold)
    bound = numerics.total_variation_bound(vocab, spacing, refine_below=threshold)
    assert distance.value + distance.remainder <= bound
    assert distance.remainder < 1e-9 or threshold == 0
    assert distance.value > spacing / 100


@pytest.mark.parametrize(
    ("blocks", "threshold", "figure"),
    [
        (REGIMES["never refined"][0], 0, K18 / 2**35),
        (REGIMES["threshold 64, a million tokens"][0], 64, K20 / 2**35),
    ],
)
def test_without_refinement_word_ties_are_the_distance(
    blocks: numerics.Blocks, threshold: int, figure: float
) -> None:
    distance = numerics.token_law_distance(blocks, refine_below=threshold)
    assert distance.value == pytest.approx(figure, rel=0.02)


def test_stated_ceilings_hold_for_any_vocabulary() -> None:
    for ceiling, top in ((2e-6, 127.0), (8.4e-6, 1023.0)):
        spacing = numerics.score_spacing(top)
        bounds = [numerics.total_variation_bound(1 << e, spacing) for e in range(1, 28)]
        assert max(bounds) <= ceiling


def test_ties_to_even_cost_up_to_a_quarter_more() -> None:
    """Scores spaced twice as wide as Gumbels take three values and one in turn, not two each."""
    distance = numerics.token_law_distance([(-30.0, K18)])
    spacing = numerics.score_spacing(math.log(K18) - 30)
    assert spacing == 2 * numerics.score_spacing(math.log(K18))
    assert distance.value > numerics.total_variation_bound(K18, spacing)
    assert distance.value <= numerics.total_variation_bound(K18, 1.25 * spacing)


def test_a_logit_lost_to_rounding_costs_a_second_eighth() -> None:
    """Half a spacing is lost at every word, on top of the ties: u / 8 becomes u / 4, no more."""
    lost = float(np.float32(0.49 * 2.0**-20))
    distance = numerics.token_law_distance([(0.0, K18 // 2), (lost, K18 // 2)])
    spacing = numerics.score_spacing(math.log(K18))
    assert distance.value > numerics.total_variation_bound(K18, spacing)
    assert distance.value <= numerics.total_variation_bound(K18, 2 * spacing)


@pytest.mark.parametrize("logits", [(0.0, 0.0), (0.0, 1.0, 0.5), (1.0, 0.25, 2.0)])
def test_the_sum_agrees_with_listing_every_tuple_of_scores(logits: tuple[float, ...]) -> None:
    """Here scores are a quarter apart: every joint outcome can be listed, and ties are common."""
    base = 3 * 2.0**20
    values = (base + np.arange(-16, 200) / 4).astype(np.float32)
    joint, cells = np.ones(()), np.indices((len(values),) * len(logits), np.int16)
    for logit in logits:
        above = numerics.survival(gumbel.from_words, values, base + logit)
        joint = np.multiply.outer(joint, np.diff(1 - above, prepend=0.0))
    law = np.bincount(np.argmax(cells, axis=0).ravel(), joint.ravel())
    expected = categorical.total_variation(law, categorical.probabilities(logits))
    distance = numerics.token_law_distance([(base + logit, 1) for logit in logits])
    assert expected > 0.001
    assert distance.value == pytest.approx(expected, abs=1e-9)


def test_equal_logits_may_be_cut_into_blocks() -> None:
    whole = numerics.token_law_distance([(1000.0, 4096)])
    cut = numerics.token_law_distance([(1000.0, 96), (1000.0, 3000), (1000.0, 1000)])
    assert cut.value == pytest.approx(whole.value, abs=1e-10)


@pytest.mark.parametrize("blocks", [[], [(0.1, 5)], [(math.inf, 5)], [(math.nan, 1)], [(0.0, 0)]])
def test_what_is_no_block_is_refused(blocks: numerics.Blocks) -> None:
    with pytest.raises(ValueError):
        numerics.token_law_distance(blocks)


def torch_conversion(word: numerics.Integers, refinement: numerics.Integers) -> numerics.Singles:
    pair = torch.as_tensor(word), torch.as_tensor(refinement)
    return np.asarray(noise.gumbel_from_words(*pair).numpy(), np.float32)


UNREFINED = partial(gumbel.from_words, refine_below=0)
TAILS = [(-16.5, 0.00886706), (-18.0, 0.00199223), (-20.0, 2.70085e-4), (-24.0, 4.948e-6)]


@pytest.mark.parametrize(("tail", "figure"), TAILS)
@pytest.mark.parametrize("conversion", [gumbel.from_words, torch_conversion])
def test_refined_words_keep_the_tail(
    conversion: numerics.Conversion, tail: float, figure: float
) -> None:
    mass = 131_071 * math.exp(tail)
    got = numerics.tail_probability(conversion, tail)
    assert got == pytest.approx(mass / (1 + mass), rel=1e-5)
    assert got == pytest.approx(figure, rel=5e-5)


@pytest.mark.parametrize(("tail", "figure"), [(-20.0, 2.6994e-4), (-24.0, 1.40e-6)])
def test_unrefined_words_lose_the_tail(tail: float, figure: float) -> None:
    assert numerics.tail_probability(UNREFINED, tail) == pytest.approx(figure, rel=2e-3)


def test_a_24_bit_uniform_is_told_apart_at_once() -> None:
    def coarse(word: numerics.Integers, refinement: numerics.Integers) -> numerics.Floats:
        return gumbel.from_words(word | 255, refinement, refine_below=0)

    assert numerics.tail_probability(coarse, -18.0) == pytest.approx(1.6e-4, rel=0.05)


def test_the_torch_noise_is_this_noise() -> None:
    ids = np.arange(100_000)
    for seed, address in ((7, {}), (-5, {"draw": 3, "position": (1 << 40) + 77, "role": 5})):
        ours = gumbel.leaf_noise(seed, ids, **address)
        theirs = noise.gumbel(torch.tensor([seed]), torch.as_tensor(ids), **address)[0].numpy()
        allowed = 2.0**-22 * np.maximum(1, np.abs(ours))
        assert (np.abs(theirs - ours) <= allowed).all()
