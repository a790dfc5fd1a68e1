"""Keys of children given their parent's: exact at the maximum, accurate below, of the right law."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from fsresearch.noise import NODE, gumbel_from_bits, words
from fsresearch.theory.gumbel import conditional_keys
from fsresearch.without_replacement.truncated_gumbel import log1mexp, truncate
from proofs_tests.statistics_policy import FIXED_P, FIXED_SIGMA, false_fail

INF, NAN = torch.inf, torch.nan
KEYS = st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=8)


def gumbels(*shape: int, seed: int) -> Tensor:
    """Standard Gumbels float64 of any shape."""
    high, _, low, _ = words(torch.tensor([seed]), torch.arange(math.prod(shape)), kind=NODE)
    return gumbel_from_bits(high, low).view(shape)


@given(keys=KEYS, target=st.floats(-100, 100, width=32), double=st.booleans())
def test_the_largest_is_the_target_to_the_bit_and_the_order_is_kept(
    keys: list[float], target: float, double: bool
) -> None:
    dtype = torch.float64 if double else torch.float32
    free = torch.tensor(keys, dtype=dtype)
    top = torch.tensor(target, dtype=dtype)
    shifted = truncate(free, top)
    assert shifted.dtype == dtype
    assert shifted.max() == top
    assert (shifted[free == free.max()] == top).all()
    order = free.sort(descending=True, stable=True).indices
    assert (shifted[order].diff() <= 0).all()


@given(keys=KEYS, target=st.floats(-100, 100))
def test_the_shift_is_that_of_clocks(keys: list[float], target: float) -> None:
    free = torch.tensor(keys, dtype=torch.float64)
    shifted = truncate(free, torch.tensor(target, dtype=torch.float64))
    oracle = conditional_keys(keys, target)
    np.testing.assert_allclose(shifted.numpy(), oracle, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gap", [1e-3, 1e-5, 1e-6, 1e-7, 3e-8])
@pytest.mark.parametrize("target", [-3.0, 0.25, 4.0, 30.0])
def test_a_runner_up_close_below_the_largest(gap: float, target: float) -> None:
    """Sixty digits as the reference; log1p(-exp) is 40 % off at 1e-7 in float32."""
    free = torch.tensor([0.5, 0.5 - gap], dtype=torch.float64)
    shifted = truncate(free, torch.tensor(target, dtype=torch.float64))
    with localcontext() as context:
        context.prec = 60
        largest, second, top = (Decimal(x) for x in (*free.tolist(), target))
        clock = (-top).exp() - (-largest).exp() + (-second).exp()
        below = float(top + clock.ln())
    assert target - shifted[1].item() == pytest.approx(below, rel=1e-9, abs=4e-15)
    single = torch.tensor(-gap, dtype=torch.float32)
    naive = torch.log1p(-torch.exp(single)).exp()
    if gap <= 1e-7:
        assert abs(naive / gap - 1) > 0.1
    assert log1mexp(single).exp() == pytest.approx(-math.expm1(float(single)), rel=2e-6)


@pytest.mark.parametrize("depth", [0.0, 20.0, 100.0, 300.0, 3000.0])
def test_the_local_scale_keeps_digits_however_deep_the_parent(depth: float) -> None:
    """Keys in float32 differ from float64 by their own spacing; on the global scale by far more."""
    vocab = 1000
    local = torch.randn(vocab, generator=torch.Generator().manual_seed(1)).double() * 2
    local = local.log_softmax(0) + gumbels(vocab, seed=2)
    top = torch.tensor(1.5, dtype=torch.float64)
    best = local.topk(8).indices
    exact = truncate(local, top)[best]
    kept = truncate(local.float(), top.float())[best].double()
    assert (kept - exact).abs().max() < 5e-6
    on_global_scale = truncate((local - depth).float(), (top - depth).float())[best] + depth
    if depth >= 300:
        assert (on_global_scale.double() - exact).abs().max() > 2e-5
    keys = -depth + kept
    assert (keys - (exact - depth)).abs().max() < 1e-5


@given(keys=KEYS, target=st.floats(-40, 40))
def test_shifting_back_restores_the_keys(keys: list[float], target: float) -> None:
    """Where the target is lower, keys come closer and lose digits; the error is of that size."""
    free = torch.tensor(keys, dtype=torch.float64)
    largest = free.max()
    lower = max(float(largest) - target, 0.0)
    shifted = truncate(free, torch.tensor(target, dtype=torch.float64))
    restored = truncate(shifted, largest)
    tolerance = 1e-13 * (1 + free.abs().max() + abs(target))
    visible = largest - free < 25 - lower
    error = (restored - free).abs()[visible]
    assert (error <= tolerance * math.exp(min(lower, 25.0)) * 4).all()
    assert truncate(free, largest).sub(free).abs().max() <= tolerance


def test_rows_without_mass_and_rows_that_are_invalid() -> None:
    keys = torch.tensor(
        [[1.0, -INF, 3.0], [-INF] * 3, [1.0, 2.0, 3.0], [1.0, NAN, 3.0], [1.0, INF, 3.0], [0.0] * 3]
    )
    shifted = truncate(keys, torch.tensor([2.0, 2.0, -INF, 2.0, 2.0, NAN]))
    assert shifted[0].isneginf().tolist() == [False, True, False]
    assert shifted[0, 2] == 2
    assert shifted[1:3].isneginf().all()
    assert shifted[3:].isnan().all()
    assert truncate(torch.tensor([-7.0]), torch.tensor(0.1)) == torch.tensor([0.1])


def test_other_inputs_are_refused() -> None:
    with pytest.raises(TypeError, match="keys must be a floating-point"):
        truncate(torch.tensor([1]), torch.tensor(0.0))
    with pytest.raises(ValueError, match=r"got \[2, 3\] and \[3\]"):
        truncate(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(ValueError, match="n >= 1"):
        truncate(torch.zeros(2, 0), torch.zeros(2))


def test_log1mexp_has_gradients_and_ends() -> None:
    x = torch.tensor([-1e-8, -0.6, -0.7, -40.0], dtype=torch.float64, requires_grad=True)
    log1mexp(x).sum().backward()
    expected = [-1 / math.expm1(-value) for value in x.tolist()]
    np.testing.assert_allclose(x.grad, expected, rtol=1e-12)  # type: ignore[arg-type]
    assert log1mexp(torch.tensor(0.0)) == -INF
    assert log1mexp(torch.tensor(-INF)) == 0
    assert log1mexp(torch.tensor(0.1)).isnan()


def conditioned(root: str, rows: int = 20_000) -> tuple[Tensor, Tensor]:
    """Return (log-probabilities, keys [rows, 4]) of children whose parent's key was drawn first."""
    log_p = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64))
    parent = gumbels(rows, seed=5) if root == "gumbel" else torch.zeros(rows, dtype=torch.float64)
    return log_p, truncate(log_p + gumbels(rows, 4, seed=6), parent)


@false_fail(10 * FIXED_P, seeds_vary=False)
def test_children_of_a_drawn_parent_are_independent_gumbels() -> None:
    log_p, keys = conditioned("gumbel")
    noise = (keys - log_p).numpy()
    for child in noise.T:
        assert stats.kstest(child, "gumbel_r").pvalue > FIXED_P
    correlation = stats.spearmanr(noise).statistic
    assert (abs(correlation - np.eye(4)) < FIXED_SIGMA / math.sqrt(len(noise))).all()


def test_children_of_a_fixed_parent_are_not() -> None:
    log_p, keys = conditioned("zero")
    noise = (keys - log_p).numpy()
    assert stats.kstest(noise[:, 0], "gumbel_r").pvalue < 1e-9
    assert abs(stats.spearmanr(noise).statistic[0, 1]) > FIXED_SIGMA / math.sqrt(len(noise))


def test_independent_noise_below_a_parent_is_not_the_law() -> None:
    """Fresh noise that ignores the parent's key: no child attains it, and some exceed it."""
    log_p, _ = conditioned("gumbel")
    parent = gumbels(1000, seed=5)
    fresh = log_p + gumbels(1000, 4, seed=6)
    assert (fresh.max(1).values > parent).any()
    assert not (fresh == parent[:, None]).any()
