"""Estimators: exact means by enumeration, moments by sampling, guards, and two published toys."""

from __future__ import annotations

import math
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from fsresearch import sample_logits_without_replacement
from fsresearch.results import BeamSample, OrderedSample
from fsresearch.theory import plackett_luce as pl
from fsresearch.without_replacement.estimators import (
    horvitz_thompson,
    log_importance_weights,
    self_normalized,
    sum_and_sample,
    unordered_set,
)
from fsresearch.without_replacement.laws import (
    ordered_log_prob,
    set_ratios,
    unordered_log_prob,
)
from fsresearch.without_replacement.race import Race, hindsight, log_inclusion, race
from fsresearch.without_replacement.truncated_gumbel import truncate
from proofs_tests.statistics_policy import FIXED_P, FIXED_SIGMA, false_fail

P = np.array([0.5, 0.3, 0.15, 0.05])
ORACLE = np.log(P)
ROWS = 40_000
LOGITS = st.lists(st.floats(-6, 6), min_size=2, max_size=6)
WIDE = st.lists(st.floats(-40, 40), min_size=2, max_size=5)


def rows_of(logits: np.ndarray, k: int, rows: int = ROWS, seed: int = 1) -> OrderedSample:
    many = torch.from_numpy(logits).float().expand(rows, -1)
    return sample_logits_without_replacement(many, k, seed=seed)


def normalised(logits: Any) -> Tensor:
    return torch.tensor(logits, dtype=torch.float64).log_softmax(-1)


@given(LOGITS, st.data())
def test_laws_of_orders_and_sets_are_the_oracles(logits: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(logits)))
    log_p = normalised(logits)
    orders = pl.ordered_law(logits, k)
    found = ordered_log_prob(log_p[torch.tensor(list(orders))]).exp()
    np.testing.assert_allclose(found, list(orders.values()), rtol=1e-9)
    sets = pl.unordered_law(logits, k)
    found = unordered_log_prob(log_p[torch.tensor(list(sets))]).exp()
    np.testing.assert_allclose(found, list(sets.values()), rtol=1e-9)
    first = set_ratios(log_p[torch.tensor(list(sets))]).first
    for ids, weights in zip(sets, first, strict=True):
        np.testing.assert_allclose(weights, pl.first_given_set(logits, ids), rtol=1e-8)


@given(LOGITS, st.data())
def test_means_over_all_samples_are_exact(logits: list[float], data: st.DataObject) -> None:
    """The unordered set and sum-and-sample, whatever the values; the first varies less.

    To the last digits where the rest is known; elsewhere 1 - p(S) costs some.
    """
    k = data.draw(st.integers(1, len(logits)))
    log_p = normalised(logits)
    values = torch.tensor(data.draw(st.lists(st.floats(-9, 9), min_size=6, max_size=6)))
    values = values[: len(logits)].double()
    exact = float((log_p.exp() * values).sum())
    orders = torch.tensor(list(permutations(range(len(logits)), k)))
    sets = torch.tensor(list(combinations(range(len(logits)), k)))
    of_orders, of_sets = (
        ordered_log_prob(log_p[orders]).exp(),
        unordered_log_prob(log_p[sets]).exp(),
    )
    by_order = sum_and_sample(log_p[orders], values[orders])
    by_set = unordered_set(log_p[sets], values[sets])
    assert float(of_orders @ by_order) == pytest.approx(exact, abs=1e-10)
    assert float(of_sets @ by_set) == pytest.approx(exact, abs=1e-10)
    assert float(of_sets.sum()) == pytest.approx(1, abs=1e-10)
    others = [[v for v in range(len(logits)) if v not in ids] for ids in sets.tolist()]
    known = Race(log_p[sets], torch.stack([log_p[ids].logsumexp(0) for ids in others]))
    chances = unordered_log_prob(known).exp()
    assert float(chances @ unordered_set(known, values[sets])) == pytest.approx(exact, abs=1e-12)
    assert float(chances.sum()) == pytest.approx(1, abs=1e-12)
    spread = float(of_orders @ (by_order - exact) ** 2)
    assert float(of_sets @ (by_set - exact) ** 2) <= spread + 1e-9
    moved = unordered_set(log_p[sets], values[sets] + 5.0)
    torch.testing.assert_close(moved, by_set + 5.0)


@given(WIDE, st.data())
def test_wide_sets_where_the_rest_is_known(logits: list[float], data: st.DataObject) -> None:
    """With the mass that is left, sets keep their digits where 1 - p(S) has none."""
    k = data.draw(st.integers(1, len(logits)))
    log_p = normalised(logits)
    law = pl.unordered_law(logits, k)
    for ids in law:
        others = [v for v in range(len(logits)) if v not in ids]
        known = Race(log_p[list(ids)], log_p[others].logsumexp(0))
        assert float(unordered_log_prob(known).exp()) == pytest.approx(law[ids], rel=1e-9)
        ratios = set_ratios(known)
        np.testing.assert_allclose(ratios.first, pl.first_given_set(logits, ids), rtol=1e-8)
        if k > 1:
            np.testing.assert_allclose(ratios.second.sum(-1), 1, rtol=1e-9)


@pytest.mark.parametrize("ids", list(combinations(range(4), 3)))
def test_a_set_by_the_integral_over_thresholds(ids: tuple[int, ...]) -> None:
    by_integral = pl.set_and_threshold_cdf(ORACLE, ids, math.inf)
    found = float(unordered_log_prob(torch.from_numpy(ORACLE)[list(ids)]).exp())
    assert found == pytest.approx(by_integral, rel=1e-12)


@pytest.mark.parametrize(
    "p", [(0.98, 0.01, 0.005, 0.001), (0.999, 5e-4, 1e-4, 1e-5), (1 - 1e-9, 1e-10, 1e-12, 1e-300)]
)
def test_peaked_sets_where_a_fixed_grid_fails(p: tuple[float, ...]) -> None:
    log_p = torch.tensor([math.log1p(p[0] - 1), *map(math.log, p[1:])], dtype=torch.float64)
    ratios = set_ratios(log_p)
    assert float(ratios.first.sum()) == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(ratios.second.sum(-1), 1, rtol=1e-6)
    leftover = -math.expm1(log_p[0].item()) - sum(p[1:])
    logits = [*log_p.tolist(), math.log(leftover)]
    np.testing.assert_allclose(ratios.first, pl.first_given_set(logits, range(4)), rtol=1e-6)


def test_twelve_tokens_and_no_more() -> None:
    log_p = normalised(np.linspace(-3, 3, 14))
    ratios = set_ratios(log_p[torch.arange(24).view(2, 12) % 13])
    np.testing.assert_allclose(ratios.first.sum(-1), 1, atol=1e-12)
    np.testing.assert_allclose(ratios.second.sum(-1), 1, atol=1e-12)
    with pytest.raises(ValueError, match=r"k must be in \[1, 12\].*got 13"):
        unordered_set(log_p[:13], torch.zeros(13))


def test_tokens_that_are_not_of_one_distribution_are_found() -> None:
    with pytest.raises(ValueError, match=r"must be 1 within 1e-06, got 1\.1"):
        unordered_set(torch.log(torch.tensor([0.6, 0.5])), torch.zeros(2))
    with pytest.raises(ValueError, match="of one distribution"):
        unordered_set(torch.tensor([3.0, 2.0]), torch.zeros(2))


@pytest.mark.parametrize("x", [-800.0, -60.0, -36.0, -1.0, 0.0, 3.0, 700.0])
def test_log_inclusion_at_every_scale(x: float) -> None:
    found = float(log_inclusion(torch.tensor([x]), torch.tensor(0.0)))
    y = math.exp(min(x, 6.0)) if x > -700 else 0.0
    expected = math.log1p(-math.exp(-y)) if y > 0.5 else (math.log(-math.expm1(-y)) if y else x)
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-170)
    certain = log_inclusion(torch.tensor([x, -torch.inf]), torch.tensor(-torch.inf))
    assert certain.tolist() == [0.0, -math.inf]


def weights_of(drawn: Any) -> tuple[Tensor, Tensor]:
    """Return (weights by token [rows, 4], their sums [rows])."""
    weights = log_importance_weights(drawn).exp()
    by_token = torch.zeros(len(weights), 4, dtype=torch.float64)
    by_token.scatter_add_(1, drawn.token, weights)
    return by_token, weights.sum(1)


def within(values: Tensor, exact: float, sigma: float = FIXED_SIGMA) -> bool:
    error = values.std() / math.sqrt(len(values))
    return bool((values.mean() - exact).abs() < sigma * error)


@pytest.mark.parametrize("k, variance", [(2, 0.299), (3, 0.041)])
@false_fail(12 * 6e-7, seeds_vary=False)
def test_weights_by_threshold(k: int, variance: float) -> None:
    """Unbiased, uncorrelated, and of variance below 1 / (k - 1); k = 2 has heavy tails."""
    by_token, total = weights_of(rows_of(ORACLE, k, 4 * ROWS, seed=2))
    assert within(total, 1.0)
    for i in range(4):
        assert within(by_token[:, i], P[i])
    for i, j in combinations(range(4), 2):
        assert within(by_token[:, i] * by_token[:, j], P[i] * P[j])
    assert float(total.var()) == pytest.approx(variance, rel=0.1)
    assert float(total.var()) < 1 / (k - 1)


def at_root(drawn: OrderedSample, target: Tensor) -> Race:
    """Return the race with its keys moved so that the largest is the target."""
    known = race(drawn)
    assert known.keys is not None and known.kappa is not None
    keys = truncate(torch.cat([known.keys, known.kappa[:, None]], 1), target)
    return known._replace(keys=keys[:, :-1], kappa=keys[:, -1], root="zero")


def by_hand(known: Race) -> Tensor:
    """Return p / q without the estimator's guards."""
    assert known.kappa is not None
    return torch.exp(known.log_prob - log_inclusion(known.log_prob, known.kappa))


def test_a_fixed_root_biases_the_weights_and_is_refused() -> None:
    """E[w_0] / p_0 = .76892 for two equal tokens and k = 1 by quadrature; the estimator refuses."""
    drawn = rows_of(np.log([0.5, 0.5]), 1, ROWS)
    fixed = at_root(drawn, torch.zeros(ROWS, dtype=torch.float64))
    weights = torch.where(drawn.token[:, 0] == 0, by_hand(fixed)[:, 0], 0.0) / 0.5
    assert within(weights, 0.76892)
    assert not within(weights, 1.0)
    with pytest.raises(ValueError, match="root 'gumbel', got 'zero'"):
        horvitz_thompson(fixed, torch.zeros(ROWS, 1))
    with pytest.raises(ValueError, match="root 'gumbel', got 'zero'"):
        self_normalized(fixed, torch.zeros(ROWS, 1))
    real = torch.where(drawn.token[:, 0] == 0, by_hand(race(drawn))[:, 0], 0.0) / 0.5
    blocks = real.view(200, -1).mean(1)
    assert 0.8 < float(blocks.median()) < 1.2


@pytest.mark.parametrize(
    "k, ratios", [(2, (0.958, 0.936, 0.895, 0.865)), (3, (0.996, 0.994, 0.987, 0.964))]
)
def test_the_repair_of_a_fixed_root(k: int, ratios: tuple[float, ...]) -> None:
    """A root drawn afterwards, or keys drawn in hindsight, restore what root 0 spoils."""
    rows = 4 * ROWS
    drawn = rows_of(ORACLE, k, rows, seed=3)
    fixed = at_root(drawn, torch.zeros(rows, dtype=torch.float64))
    fresh = race(rows_of(np.zeros(1), 1, rows, seed=99)).keys
    assert fresh is not None and fixed.keys is not None and fixed.kappa is not None
    moved = truncate(torch.cat([fixed.keys, fixed.kappa[:, None]], 1), fresh[:, 0])
    repaired = fixed._replace(keys=moved[:, :-1], kappa=moved[:, -1])
    anew = hindsight(fixed, seed=5)
    assert anew.keys is not None and anew.kappa is not None
    again = fixed._replace(keys=anew.keys[0], kappa=anew.kappa[0])
    for i in range(4):
        chosen = drawn.token == i
        sums = [(by_hand(r) * chosen).sum(1) / P[i] for r in (fixed, repaired, again)]
        assert abs(float(sums[0].mean()) - ratios[i]) < 0.01
        assert within(sums[1], 1.0)
        assert within(sums[2], 1.0)
    assert not within((by_hand(fixed) * (drawn.token == 0)).sum(1) / P[0], 1.0)


@false_fail(8 * FIXED_P, seeds_vary=False)
def test_hindsight_keys_have_the_law_of_the_keys() -> None:
    drawn = rows_of(ORACLE, 3, ROWS, seed=4)
    known, again = race(drawn), hindsight(drawn, seed=4, repeats=2)
    assert known.keys is not None and again.keys is not None
    assert known.kappa is not None and again.kappa is not None
    assert (again.keys.diff(dim=-1) < 0).all()
    for j in range(3):
        assert stats.ks_2samp(known.keys[:, j], again.keys[0, :, j]).pvalue > FIXED_P
    assert stats.ks_2samp(known.kappa, again.kappa[0]).pvalue > FIXED_P
    for other in (known.kappa, again.kappa[1]):
        assert stats.spearmanr(again.kappa[0], other).statistic < 0.9
    heads = drawn.token[:, 0] == 0
    assert stats.ks_2samp(again.keys[0, heads, 0], again.keys[0, ~heads, 0]).pvalue > FIXED_P
    shifted = again.keys[0, :, 0] + 0.05
    assert stats.ks_2samp(known.keys[:, 0], shifted).pvalue < FIXED_P


def test_hindsight_lowers_the_spread() -> None:
    drawn = rows_of(ORACLE, 3, ROWS, seed=6)
    values = drawn.token.double()
    exact = float(P @ np.arange(4))
    once = horvitz_thompson(drawn, values)
    often = horvitz_thompson(hindsight(drawn, seed=6, repeats=8), values).mean(0)
    assert within(once, exact)
    assert within(often, exact)
    assert often.var() < 0.8 * once.var()
    exhausted = hindsight(rows_of(ORACLE, 4, 5), seed=1)
    assert exhausted.kappa is not None
    assert exhausted.kappa.isneginf().all()


@pytest.mark.parametrize(
    "estimator", [horvitz_thompson, self_normalized, unordered_set, sum_and_sample]
)
def test_exact_where_nothing_is_left(estimator: Any) -> None:
    """Also with padding, whose values are not read, and values with more leading axes."""
    logits = torch.full((3, 9), -torch.inf)
    logits[:, [1, 4, 7]] = torch.tensor([40.0, 39.0, 42.0])
    drawn = sample_logits_without_replacement(logits, 5, seed=1)
    values = torch.where(drawn.token < 0, torch.nan, drawn.token.double())
    p = torch.softmax(torch.tensor([40.0, 39.0, 42.0], dtype=torch.float64), 0)
    exact = float(p @ torch.tensor([1.0, 4.0, 7.0], dtype=torch.float64))
    np.testing.assert_allclose(estimator(drawn, values), exact, rtol=1e-6)
    several = estimator(drawn, torch.stack([values, 2 * values]))
    np.testing.assert_allclose(several, [[exact] * 3, [2 * exact] * 3], rtol=1e-6)


@pytest.mark.parametrize("estimator", [self_normalized, unordered_set, sum_and_sample])
def test_weights_that_sum_to_one_move_with_the_values(estimator: Any) -> None:
    drawn = rows_of(ORACLE, 2, 100)
    values = drawn.token.double()
    torch.testing.assert_close(estimator(drawn, values + 7), estimator(drawn, values) + 7)
    off = horvitz_thompson(drawn, values + 7) - horvitz_thompson(drawn, values) - 7
    assert off.abs().max() > 0.1


def test_one_token_has_no_horvitz_thompson() -> None:
    """Its variance would be infinite; also where only one row has k = 1."""
    drawn = rows_of(ORACLE, 1, 10)
    with pytest.raises(ValueError, match="k must be at least 2"):
        horvitz_thompson(drawn, torch.zeros(10, 1))
    ragged = sample_logits_without_replacement(torch.zeros(2, 4), [1, 3], seed=1)
    with pytest.raises(ValueError, match="k must be at least 2"):
        horvitz_thompson(ragged, torch.zeros(2, 3))
    assert self_normalized(ragged, ragged.token.double())[0] == ragged.token[0, 0]


def test_rows_with_numbers_of_their_own_are_estimated_as_alone() -> None:
    logits = torch.from_numpy(ORACLE).float().expand(2, -1)
    both = sample_logits_without_replacement(logits, [2, 3], seed=5)
    for row, k in enumerate([2, 3]):
        alone = sample_logits_without_replacement(logits, k, seed=5)
        for estimator in (horvitz_thompson, self_normalized, unordered_set, sum_and_sample):
            together = estimator(both, both.token.double())[row]
            torch.testing.assert_close(together, estimator(alone, alone.token.double())[row])


def test_both_scales_give_one_race() -> None:
    """Raw scores of a flat sample and normalised keys of a beam, for the same race."""
    drawn = rows_of(ORACLE + 11.0, 2, 50)
    scale = drawn.log_normalizer.double()
    none = torch.zeros(0)
    beams = BeamSample(
        none, none, drawn.log_prob.double(), none, drawn.perturbed.double() - scale[:, None],
        drawn.kappa.double() - scale, none, none, none, drawn.num_valid, "gumbel",
    )  # fmt: skip
    values = drawn.token.double()
    flat, beam = horvitz_thompson(drawn, values), horvitz_thompson(beams, values)
    torch.testing.assert_close(flat, beam)
    confused = race(drawn)._replace(kappa=drawn.kappa.double())
    assert (horvitz_thompson(confused, values) - flat).abs().max() > 1
    with pytest.raises(ValueError, match="threshold kappa"):
        horvitz_thompson(beams._replace(kappa=None), values)
    with pytest.raises(ValueError, match="root 'gumbel'"):
        horvitz_thompson(beams._replace(root="zero"), values)
    assert race(beams._replace(num_valid=drawn.num_valid - 1)).log_rest.isneginf().all()
    with pytest.raises(TypeError, match="drawn must be"):
        race([0.5])  # type: ignore[arg-type]


@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_a_mean_under_another_temperature(tau: float) -> None:
    logits = ORACLE / tau
    drawn = rows_of(logits, 3, ROWS, seed=8)
    values = drawn.token.double()
    target = torch.from_numpy(ORACLE)[drawn.token]
    exact = float(P @ np.arange(4))
    assert within(horvitz_thompson(drawn, values, log_target=target), exact)
    weighed = self_normalized(drawn, values, log_target=target)
    assert abs(float(weighed.mean()) - exact) < 0.1
    ratio = torch.exp(target - drawn.log_prob.double())
    assert within(unordered_set(drawn, values * ratio), exact)


def test_rows_that_are_not_distributions_stay_nan() -> None:
    logits = torch.zeros(2, 5)
    logits[0, 1] = torch.nan
    drawn = sample_logits_without_replacement(logits, 3, seed=1)
    values = torch.ones(2, 3)
    for estimator in (horvitz_thompson, self_normalized, unordered_set, sum_and_sample):
        found = estimator(drawn, values)
        assert found[0].isnan()
        assert found[1].isfinite()
    assert ordered_log_prob(drawn)[0].isnan()


def test_values_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"values must be \[..., 2\]"):
        sum_and_sample(torch.log(torch.tensor([0.5, 0.2])), torch.zeros(3))


@pytest.mark.parametrize(
    ("values", "target", "error", "says"),
    [
        ([1.0, 2.0], None, TypeError, r"^values must be a tensor, got \[1.0, 2.0\] of type list$"),
        (torch.ones(3), None, ValueError, r"^values must be \[..., 2\] .* got shape \[3\]$"),
        (torch.tensor(1.0), None, ValueError, r"^values must be \[..., 2\] .* got shape \[\]$"),
        (torch.ones(3, 2), None, ValueError, r"^values must be \[..., 2\] .* got shape \[3, 2\]$"),
        (torch.ones(2), "1", TypeError, r"^log_target must be a tensor, got '1' of type str$"),
        (torch.ones(2), torch.ones(3, 2), ValueError, r"^log_target must be \[..., 2\] like the"),
    ],
)
def test_values_that_do_not_fit_are_named(
    values: Any, target: Any, error: type[Exception], says: str
) -> None:
    drawn = race(torch.log(torch.tensor([[0.5, 0.25], [0.1, 0.2]])))
    drawn = drawn._replace(kappa=torch.tensor([-2.0, -3.0]))
    with pytest.raises(error, match=says):
        horvitz_thompson(drawn, values, log_target=target)


def test_what_is_no_sample_is_named() -> None:
    with pytest.raises(TypeError, match=r"got a tensor of torch.int64, shape \[2\]$"):
        race(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match=r"^repeats must be in \[1, 4294967296\], got 0$"):
        hindsight(torch.log(torch.tensor([0.5, 0.25])), repeats=0)
