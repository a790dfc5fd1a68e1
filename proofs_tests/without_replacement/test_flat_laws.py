"""Gumbel-top-k as a law: orders, sets, keys, gaps and the tail, and what each check rejects."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fsresearch import sample_logits_without_replacement
from fsresearch.noise import gumbel
from fsresearch.results import OrderedSample
from fsresearch.theory import plackett_luce as pl
from fsresearch.theory.numerics import tail_probability
from fsresearch.verify.statistics import binomial, goodness_of_fit, independence
from fsresearch.without_replacement.race import log_left, race
from proofs_tests.conversions import of_24_bits
from proofs_tests.statistics_policy import FIXED_P, FIXED_SIGMA, false_fail

P = np.array([0.5, 0.3, 0.15, 0.05])
ORACLE = np.log(P)
REJECTED = 1e-9
FIGURES = {
    1: [0.5, 0.3, 0.15, 0.05],
    2: [0.828837, 0.668731, 0.372180, 0.130252],
    3: [0.974485, 0.930079, 0.791922, 0.303514],
}


def rows_of(logits: np.ndarray, k: int, rows: int, seed: int = 1) -> OrderedSample:
    many = torch.from_numpy(logits).float().expand(rows, -1)
    return sample_logits_without_replacement(many, k, seed=seed)


def order_fit(orders: Iterable[tuple[int, ...]], logits: np.ndarray, k: int) -> float:
    """Return the p-value of orders under the Plackett-Luce law."""
    law = pl.ordered_law(logits, k)
    seen = Counter(orders)
    assert set(seen) <= set(law)
    return goodness_of_fit([seen[order] for order in law], list(law.values())).p_value


def tuples(tokens: Tensor) -> list[tuple[int, ...]]:
    return [tuple(row) for row in tokens.tolist()]


@pytest.mark.parametrize("vocab, k", [(4, 2), (5, 2), (6, 2), (4, 4)])
@false_fail(FIXED_P, seeds_vary=False)
def test_orders(vocab: int, k: int) -> None:
    logits = np.linspace(-1.5, 1.5, vocab)
    drawn = rows_of(logits, k, 20_000, seed=vocab + 10 * k)
    assert order_fit(tuples(drawn.token), logits, k) > FIXED_P


def test_other_orders_are_rejected() -> None:
    """Controls: the same sets by falling probability, and keys of a wrong temperature."""
    logits = np.linspace(-1.5, 1.5, 4)
    drawn = rows_of(logits, 2, 20_000)
    resorted = tuples(drawn.token.sort(1, descending=True).values)
    assert order_fit(resorted, logits, 2) < REJECTED
    assert order_fit(tuples(rows_of(logits * 0.9, 2, 20_000).token), logits, 2) < REJECTED


@pytest.mark.parametrize("k", FIGURES)
@false_fail(2 * FIXED_P, seeds_vary=False)
def test_sets_and_inclusion(k: int) -> None:
    rows = 20_000
    np.testing.assert_allclose(pl.inclusion_probabilities(ORACLE, k), FIGURES[k], atol=6e-7)
    assert sum(pl.inclusion_probabilities(ORACLE, k)) == pytest.approx(k, abs=1e-12)
    token = rows_of(ORACLE, k, rows).token
    law = pl.unordered_law(ORACLE, k)
    seen = Counter(tuples(token.sort(1).values))
    assert goodness_of_fit([seen[ids] for ids in law], list(law.values())).p_value > FIXED_P
    included = (token[..., None] == torch.arange(4)).any(1).double().mean(0).numpy()
    error = np.sqrt(np.array(FIGURES[k]) * (1 - np.array(FIGURES[k])) / rows)
    assert (abs(included - FIGURES[k]) < FIXED_SIGMA * error).all()
    if k == 2:
        assert (abs(included - k * P) > FIXED_SIGMA * error)[[0, 2, 3]].all(), "not k p_i"


def key_fits(keys: Tensor, kappa: Tensor, log_remaining: Tensor, token: Tensor) -> list[float]:
    """Return p-values: the maximum, its independence of the order, the gaps, theirs of each other.

    Args:
        keys: normalised keys [rows, k].
        kappa: [rows].
        log_remaining: log of the mass left before arrivals 1 .. k + 1, [rows, k + 1].
        token: [rows, k].
    """
    largest = keys[:, 0].numpy()
    fits = [stats.kstest(largest, "gumbel_r").pvalue]
    quartile = np.searchsorted(np.quantile(largest, [0.25, 0.5, 0.75]), largest)
    order = np.unique(np.array(tuples(token)), axis=0, return_inverse=True)[1].ravel()
    table = np.zeros((4, order.max() + 1), dtype=int)
    np.add.at(table, (quartile, order), 1)
    fits.append(independence(table[table.sum(1) > 0]).p_value)
    clocks = torch.exp(-torch.cat([keys, kappa[:, None]], 1))
    gaps = (clocks.diff(dim=1) * torch.exp(log_remaining[:, 1:])).numpy()
    fits += [stats.kstest(gap, "expon").pvalue for gap in gaps.T]
    fits += [
        stats.spearmanr(gaps[:, i], gaps[:, j]).pvalue
        for i in range(gaps.shape[1])
        for j in range(i)
    ]
    return fits


def remaining(drawn: OrderedSample) -> Tensor:
    known = race(drawn)
    return torch.cat([log_left(known), known.log_rest[:, None]], 1)


@false_fail(5 * FIXED_P, seeds_vary=False)
def test_keys_and_gaps() -> None:
    drawn = rows_of(ORACLE, 2, 20_000, seed=3)
    known = race(drawn)
    assert known.keys is not None and known.kappa is not None
    fits = key_fits(known.keys, known.kappa, remaining(drawn), drawn.token)
    assert min(fits) > FIXED_P, fits


def test_wrong_roots_scales_and_thresholds_are_rejected() -> None:
    """Controls: root 0, raw scores taken for keys, and the k-th key taken for kappa."""
    drawn = rows_of(ORACLE + 1.0, 2, 20_000, seed=3)
    known = race(drawn)
    assert known.keys is not None and known.kappa is not None
    left = remaining(drawn)
    at_zero = known.keys - known.keys[:, :1]
    assert key_fits(at_zero, known.kappa, left, drawn.token)[0] < REJECTED
    raw = key_fits(drawn.perturbed.double(), drawn.kappa.double(), left, drawn.token)
    assert max(raw[0], *raw[2:4]) < REJECTED
    late = key_fits(known.keys[:, :1], known.keys[:, 1], left, drawn.token)
    assert late[2] > FIXED_P
    assert key_fits(known.keys[:, :1], known.kappa, left, drawn.token)[2] < REJECTED


@false_fail(FIXED_P, seeds_vary=False)
def test_permuted_logits_give_permuted_tokens_in_law() -> None:
    """Noise belongs to ids, so that only the law can follow a permutation."""
    permutation = torch.tensor([2, 0, 3, 1])
    logits = torch.from_numpy(ORACLE)
    plain = rows_of(ORACLE, 2, 20_000, seed=5)
    moved = rows_of(logits[permutation].numpy(), 2, 20_000, seed=6)
    law = pl.ordered_law(ORACLE, 2)
    table = []
    for tokens in (plain.token, permutation[moved.token]):
        seen = Counter(tuples(tokens))
        table.append([seen[order] for order in law])
    assert independence(table).p_value > FIXED_P
    unmoved = Counter(tuples(moved.token))
    assert independence([table[0], [unmoved[order] for order in law]]).p_value < REJECTED


def test_clocks_and_powers_of_uniforms_give_the_same_ids() -> None:
    """Largest u**(1/p) and earliest Exp(p) are other names for the largest key."""
    rows, vocab, k = 200, 30, 6
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(7))
    seeds = torch.arange(rows)
    drawn = sample_logits_without_replacement(logits, k, seed=seeds)
    clock = np.exp(-gumbel(seeds, torch.arange(vocab)).double().numpy())
    p = torch.softmax(logits.double(), 1).numpy()
    uniform = np.exp(-clock)
    for score in (p / clock, np.log(uniform) / p, uniform ** (1 / p)):
        ids = np.argsort(-score, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(ids, drawn.token.numpy())
    wrong = np.argsort(-(uniform**p), axis=1)[:, :k]
    assert not np.array_equal(wrong, drawn.token.numpy())


def tail_hits(depth: float, tail: int, rows: int) -> int:
    """Return in how many rows a token of the tail comes before the head, in samples of 3."""
    logits = torch.full((1, 1 + tail), -depth)
    logits[0, 0] = 0.0
    hits = 0
    for part in torch.arange(rows).split(8):
        noise_seeds = part * 1_000_003 + 17
        drawn = sample_logits_without_replacement(logits.expand(len(part), -1), 3, seed=noise_seeds)
        hits += int((drawn.token[:, 0] != 0).sum())
    return hits


@false_fail(FIXED_P, seeds_vary=False)
def test_the_tail() -> None:
    depth, tail, rows = 13.0, 1 << 16, 400
    odds = tail * math.exp(-depth)
    assert binomial(tail_hits(depth, tail, rows), rows, odds / (1 + odds)).p_value > FIXED_P


@pytest.mark.deep
@false_fail(FIXED_P, seeds_vary=False)
def test_the_deep_tail_which_24_bits_would_lose() -> None:
    depth, tail, rows = 18.0, 1 << 20, 2000
    odds = tail * math.exp(-depth)
    hits = tail_hits(depth, tail, rows)
    assert binomial(hits, rows, odds / (1 + odds)).p_value > FIXED_P
    lost = tail_probability(of_24_bits, -depth, vocab=tail + 1)
    assert binomial(hits, rows, lost).p_value < REJECTED
