"""Max-stability (Lemma D.1), Philox against published vectors, and words against 60 digits."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from fsresearch.theory import categorical, gumbel, plackett_luce

LOGITS = st.lists(st.floats(-5, 5), min_size=1, max_size=8)


@given(LOGITS, st.floats(-8, 12))
def test_the_maximum_of_a_group_is_gumbel_at_its_log_mass(logits: list[float], x: float) -> None:
    whole = gumbel.log_cdf(x, gumbel.max_location(logits))
    assert gumbel.max_log_cdf(x, logits) == pytest.approx(float(whole), rel=1e-12)


@given(LOGITS, st.floats(-8, 12))
def test_the_argmax_is_softmax_and_independent_of_the_maximum(
    logits: list[float], x: float
) -> None:
    law = categorical.probabilities(logits)
    density = float(gumbel.pdf(x, gumbel.max_location(logits)))
    for token, chance in enumerate(law):
        joint = gumbel.argmax_and_max_density(x, token, logits)
        assert joint == pytest.approx(chance * density, rel=1e-11, abs=1e-300)


@given(LOGITS, LOGITS)
def test_maxima_of_disjoint_groups_merge_as_the_groups_do(
    left: list[float], right: list[float]
) -> None:
    both = gumbel.max_location([gumbel.max_location(left), gumbel.max_location(right)])
    assert both == pytest.approx(gumbel.max_location(left + right), abs=1e-13)


@pytest.mark.parametrize("x", [-1.0, 0.5, 3.0])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_maximum_is_independent_of_the_whole_order(
    x: float, order: tuple[int, int, int]
) -> None:
    logits = np.log([0.6, 0.3, 0.1])
    first, second, third = order
    inner, _ = integrate.quad(
        lambda y: gumbel.pdf(y, logits[second]) * math.exp(gumbel.log_cdf(y, logits[third])),
        -12,
        x,
        epsabs=1e-13,
    )
    joint = float(gumbel.pdf(x, logits[first])) * inner
    law = math.exp(plackett_luce.ordered_log_prob(logits, order))
    assert joint == pytest.approx(law * float(gumbel.pdf(x)), rel=1e-9)


@given(st.floats(1e-12, 1 - 1e-12), st.floats(-20, 20))
def test_the_quantile_inverts_the_distribution(chance: float, location: float) -> None:
    x = gumbel.quantile(chance, location)
    assert math.exp(gumbel.log_cdf(x, location)) == pytest.approx(chance, rel=1e-11)


@pytest.mark.parametrize(
    ("counter", "key", "output"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_philox_gives_the_published_vectors(counter: str, key: str, output: str) -> None:
    words = np.array([int(w, 16) for w in counter.split()], np.uint64)
    low, high = (int(w, 16) for w in key.split())
    got = gumbel.philox4x32(words, (low, high))
    assert [f"{int(w):08x}" for w in got] == output.split()


def test_philox_of_an_array_is_philox_of_each() -> None:
    counters = np.random.default_rng(5).integers(0, 1 << 32, (4, 3, 7), dtype=np.uint64)
    together = gumbel.philox4x32(counters, (1, 2))
    for i, j in np.ndindex(3, 7):
        single = gumbel.philox4x32(counters[:, i, j], (1, 2))
        np.testing.assert_array_equal(together[:, i, j], single)


def test_every_part_of_an_address_changes_the_words() -> None:
    base = {"draw": 0, "position": 0, "kind": 0, "role": 0}
    seen = {tuple(gumbel.address_words(9, 4, **base).tolist())}
    others = [("draw", 1), ("position", 1), ("position", 1 << 32), ("position", 1 << 55)]
    for name, value in [*others, ("kind", 1), ("role", 1), ("role", 31)]:
        seen.add(tuple(gumbel.address_words(9, 4, **{**base, name: value}).tolist()))
    for seed in (-9, 9 + (1 << 32), -1 << 63):
        seen.add(tuple(gumbel.address_words(seed, 4, **base).tolist()))
    assert len(seen) == 11


def test_tokens_sixteen_apart_share_a_call() -> None:
    words = gumbel.address_words(3, 16 + 5)
    more = gumbel.address_words(3, 16 + 5, kind=gumbel.REFINE)
    expected = gumbel.from_words(words, more)
    ids = [64 + 5, 64 + 21, 64 + 37, 64 + 53]
    np.testing.assert_array_equal(gumbel.leaf_noise(3, ids), expected)


ENDS = [0, 1, 63, 65535, 65536, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 2, (1 << 32) - 1]


@given(st.sampled_from(ENDS) | st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))
def test_conversions_are_right_to_the_last_places(word: int, refinement: int) -> None:
    with localcontext(prec=60):
        half = Decimal("0.5")
        fine = (refinement + half) / 2**32
        for got, fraction in (
            (gumbel.from_words(word, refinement), fine if word < 1 << 16 else half),
            (gumbel.from_bits(word, refinement), fine),
        ):
            exact = -(-(1 - (word + fraction) / 2**32).ln()).ln()
            assert float(got) == pytest.approx(float(exact), rel=4e-16, abs=4e-16)


def test_noise_is_finite_and_decreases_in_word_and_refinement() -> None:
    words = np.repeat(np.array(ENDS), 3)
    refinements = np.tile([0, 1 << 31, (1 << 32) - 1], len(ENDS))
    noise = gumbel.from_words(words, refinements)
    assert np.isfinite(noise).all()
    assert (np.diff(noise) <= 0).all()
    assert (np.diff(gumbel.from_bits(words, refinements)) <= 0).all()
