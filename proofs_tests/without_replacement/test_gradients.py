"""Gradient losses: the published table to four digits, unbiasedness by enumeration, and guards."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fsresearch import log_prob as score
from fsresearch import sample, sample_logits_without_replacement, sample_without_replacement
from fsresearch.without_replacement.gradients import (
    importance_weighted_loss,
    reinforce_loss,
    sum_and_sample_loss,
    unordered_set_loss,
)
from fsresearch.without_replacement.laws import ordered_log_prob, unordered_log_prob
from fsresearch.without_replacement.race import Race, race
from proofs_tests.statistics_policy import false_fail
from proofs_tests.without_replacement.experiments import load

NAN = math.nan
# with replacement, with leave-one-out; sum-and-sample, deterministic and stochastic; the unordered
# set, without and with baseline: variances at k = 1 .. 8
TABLES = {
    0.0: """
        4.3842e-1 nan       4.3842e-1 4.3842e-1 4.3842e-1 nan
        2.1921e-1 7.2750e-3 1.9427e-1 3.2882e-1 1.8789e-1 6.1125e-3
        1.4614e-1 3.2000e-3 1.3022e-1 2.3487e-1 1.0439e-1 2.2625e-3
        1.0961e-1 1.9875e-3 6.9870e-2 1.5658e-1 6.2631e-2 1.1308e-3
        8.7684e-2 1.4250e-3 5.5396e-2 9.3947e-2 3.7579e-2 6.1050e-4
        7.3070e-2 1.1050e-3 1.4280e-2 4.6974e-2 2.0877e-2 3.1650e-4
        6.2631e-2 9.0000e-4 7.4498e-3 1.5658e-2 8.9474e-3 1.2917e-4
        5.4803e-2 7.5804e-4 0         0         0         0""",
    -4.0: """
        3.3557e-2 nan       3.3557e-2 3.3557e-2 3.3557e-2 nan
        1.6778e-2 3.8102e-4 5.0625e-5 1.2779e-3 1.2096e-3 2.9782e-5
        1.1186e-2 2.4578e-4 2.7822e-5 5.0875e-5 4.0436e-5 8.0711e-6
        8.3892e-3 1.8228e-4 1.1619e-5 9.1384e-6 5.1059e-6 1.0555e-6
        6.7114e-3 1.4500e-4 3.7693e-8 5.8425e-7 4.1585e-7 7.9696e-8
        5.5928e-3 1.2042e-4 3.1485e-9 2.6329e-8 2.0121e-8 1.0248e-8
        4.7938e-3 1.0298e-4 1.0352e-9 8.3626e-10 5.2490e-10 2.8549e-10
        4.1946e-3 8.9962e-5 0         0         0         0""",
}
COLUMNS = (
    "with replacement",
    "with replacement, leave-one-out",
    "deterministic sum-and-sample",
    "stochastic sum-and-sample",
    "unordered set",
    "unordered set, baseline",
)


@pytest.fixture(scope="module")
def toy() -> dict[str, Any]:
    return load("gradient_variance")


@pytest.mark.parametrize("eta", TABLES)
def test_the_bernoulli_toy(toy: dict[str, Any], eta: float) -> None:
    """All six columns at all k to four digits, and the means are the exact gradient."""
    expected = np.array([line.split() for line in TABLES[eta].strip().splitlines()], float)
    found = toy["table"](eta)
    for row, figures in zip(found, expected, strict=True):
        for name, figure in zip(COLUMNS, figures, strict=True):
            assert row[name] == pytest.approx(figure, rel=1e-4, abs=1e-25, nan_ok=True), (row, name)
    exact = toy["exact_gradient"](eta)
    assert exact == pytest.approx({0.0: -0.045, -4.0: -0.003179}[eta], rel=2e-4)
    for name in COLUMNS:
        for k in (2, 5, 8):
            assert toy["moments"](name, k, eta).mean == pytest.approx(exact, rel=1e-9)


def test_the_order_of_ties_changes_one_figure(toy: dict[str, Any]) -> None:
    name = "deterministic sum-and-sample"
    for eta in TABLES:
        for k in range(1, 9):
            by_index = toy["moments"](name, k, eta).variance
            by_ones = toy["moments"](name + ", ones first", k, eta).variance
            if (eta, k) == (0.0, 5):
                assert by_ones == pytest.approx(1.9718e-2, rel=1e-4)
            else:
                assert by_ones == pytest.approx(by_index, rel=1e-12)


LOGITS = torch.tensor([1.0, -0.5, 0.3, -2.0, 0.0], dtype=torch.float64)
COSTS = torch.tensor([1.0, 4.0, -2.0, 9.0, 0.5], dtype=torch.float64)


def gradients(loss: Callable[[Tensor, Tensor], Tensor], tokens: Tensor) -> Tensor:
    """Return the gradients [N, 5] with respect to the logits, one a sample [N, k]."""
    logits = LOGITS.expand(len(tokens), -1).clone().requires_grad_()
    chosen = logits.log_softmax(1).gather(1, tokens)
    (gradient,) = torch.autograd.grad(loss(chosen, COSTS[tokens]).sum(), logits)
    return gradient


def exact_gradient() -> Tensor:
    logits = LOGITS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((logits.softmax(0) * COSTS).sum(), logits)
    return gradient


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("baseline", [True, False])
def test_unordered_sets_are_unbiased(k: int, baseline: bool) -> None:
    tokens = torch.tensor(list(combinations(range(5), k)))
    chance = unordered_log_prob(LOGITS.log_softmax(0)[tokens]).exp()
    found = gradients(lambda p, f: unordered_set_loss(p, p, f, baseline=baseline), tokens)
    torch.testing.assert_close(chance @ found, exact_gradient(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_sum_and_sample_is_unbiased(k: int) -> None:
    tokens = torch.tensor(list(permutations(range(5), k)))
    chance = ordered_log_prob(LOGITS.log_softmax(0)[tokens]).exp()
    found = gradients(lambda p, f: sum_and_sample_loss(p, p, f), tokens)
    torch.testing.assert_close(chance @ found, exact_gradient(), rtol=1e-10, atol=1e-12)


def test_a_baseline_that_knows_the_sample_is_biased() -> None:
    """The control: the set's own estimate of the mean cost as the baseline of every member."""
    tokens = torch.tensor(list(combinations(range(5), 2)))
    chance = unordered_log_prob(LOGITS.log_softmax(0)[tokens]).exp()

    def naive(p: Tensor, f: Tensor) -> Tensor:
        mean = (torch.softmax(p.detach(), 1) * f).sum(1, keepdim=True)
        return unordered_set_loss(p, p, f - mean, baseline=False)

    assert (chance @ gradients(naive, tokens) - exact_gradient()).abs().max() > 1e-2


@false_fail(6e-7 * 5, seeds_vary=False)
def test_importance_weights_approach_the_gradient() -> None:
    """Biased at k = 2, hardly at k = 4, exact at k = 5; unbiased where nothing is normalised."""
    rows, errors = 40_000, []
    exact = exact_gradient()
    for k in (2, 4, 5):
        drawn = sample_logits_without_replacement(LOGITS.float().expand(rows, -1), k, seed=k)
        found = gradients(partial(importance_weighted_loss, drawn), drawn.token)
        errors.append(float((found.mean(0) - exact).abs().max()))
    assert errors[0] > 0.05 > errors[1] > errors[2]
    assert errors[2] < 1e-5
    drawn = sample_logits_without_replacement(LOGITS.float().expand(rows, -1), 3, seed=9)
    plain = gradients(
        lambda p, f: importance_weighted_loss(drawn, p, f, baseline=False), drawn.token
    )
    assert plain.isfinite().all()


def test_importance_weights_by_hand() -> None:
    """One sample, with the normaliser of every member: W - w_s + p_s."""
    p = torch.tensor([0.5, 0.25], dtype=torch.float64)
    known = race(p.log())._replace(kappa=torch.tensor(-2.0, dtype=torch.float64))
    q = 1 - np.exp(-p.numpy() * math.exp(2.0))
    w = p.numpy() / q
    f = np.array([1.0, 3.0])
    total = w.sum()
    expected = w / (total - w + p.numpy()) * (f - (w * f).sum() / total)
    leaf = p.log().requires_grad_()
    importance_weighted_loss(known, leaf, torch.from_numpy(f)).backward()
    np.testing.assert_allclose(leaf.grad, expected, rtol=1e-12)  # type: ignore[arg-type]


def test_leave_one_out_by_hand() -> None:
    leaf = torch.zeros(4, requires_grad=True)
    cost = torch.tensor([1.0, 2.0, 4.0, 9.0])
    reinforce_loss(leaf, cost).backward()
    others = (cost.sum() - cost) / 3
    torch.testing.assert_close(leaf.grad, (cost - others) / 4)
    with pytest.raises(ValueError, match="k must be at least 2"):
        reinforce_loss(torch.zeros(3, 1), torch.zeros(3, 1))
    assert reinforce_loss(torch.zeros(3, 1), torch.zeros(3, 1), baseline=False).shape == (3,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_through_a_head_with_padding(dtype: torch.dtype) -> None:
    """A row short of k passes no gradient at its empty places, whose scores are NaN."""
    torch.manual_seed(0)
    hidden = torch.randn(3, 8).to(dtype).requires_grad_()
    weight = torch.randn(6, 8).to(dtype).requires_grad_()
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[1, 2:] = False
    drawn = sample_without_replacement(hidden, weight, 4, seed=2, mask=mask)
    assert drawn.num_valid.tolist() == [4, 2, 4]
    cost = drawn.token.float() ** 2
    for loss in (importance_weighted_loss, unordered_set_loss, sum_and_sample_loss):
        hidden.grad = weight.grad = None
        scores = score(hidden, weight, drawn.token, mask=mask)
        assert scores[1, 2:].isnan().all()
        estimate = loss(drawn, scores, cost.masked_fill(drawn.token < 0, NAN))
        assert estimate.shape == (3,)
        estimate.mean().backward()
        assert hidden.grad is not None and weight.grad is not None
        assert hidden.grad.isfinite().all() and hidden.grad.any()
        assert weight.grad.isfinite().all()
    independent = sample(hidden, weight, num_samples=3, seed=2, mask=mask).token
    reinforce_loss(
        score(hidden, weight, independent, mask=mask), independent.float()
    ).sum().backward()


def test_a_loss_lowers_the_cost() -> None:
    """Fifty steps on one row find the cheapest token."""
    logits = torch.zeros(1, 12, requires_grad=True)
    cost = (torch.arange(12) - 7.0) ** 2
    optimiser = torch.optim.Adam([logits], lr=0.3)
    for step in range(50):
        drawn = sample_logits_without_replacement(logits.detach(), 4, seed=step)
        scores = logits.log_softmax(1).gather(1, drawn.token)
        optimiser.zero_grad()
        unordered_set_loss(drawn, scores, cost[drawn.token]).sum().backward()
        optimiser.step()
    assert float((logits.detach().softmax(1) * cost).sum()) < 0.5


def test_guards() -> None:
    p = torch.log(torch.tensor([[0.5, 0.2]]))
    with pytest.raises(ValueError, match=r"both be \[..., k\]"):
        unordered_set_loss(p, p, torch.zeros(2))
    with pytest.raises(ValueError, match=r"sample's shape \[1, 2\], got \[1, 1\]"):
        sum_and_sample_loss(p, p[:, :1], torch.zeros(1, 1))
    with pytest.raises(ValueError, match="at least 2 for a baseline of the rest"):
        unordered_set_loss(p[:, :1], p[:, :1], torch.zeros(1, 1))
    with pytest.raises(ValueError, match="threshold kappa"):
        importance_weighted_loss(p, p, torch.zeros(1, 2))
    fixed = Race(p.double(), p.double().logsumexp(1), p.double(), p.double()[:, 0], "zero")
    with pytest.raises(ValueError, match="root 'gumbel'"):
        importance_weighted_loss(fixed, p, torch.zeros(1, 2))
    certain = torch.zeros(1, 1)
    assert unordered_set_loss(certain, certain, torch.ones(1, 1)) == 0


@pytest.mark.parametrize(
    "loss",
    [unordered_set_loss, sum_and_sample_loss, importance_weighted_loss],
)
def test_a_row_without_a_distribution_passes_no_gradient(loss: Any) -> None:
    """Its loss is NaN; left out of the mean, it must not spoil what rows share."""
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0], [torch.nan, 0.0, 0.0, 0.0]])
    shared = torch.ones(1, requires_grad=True)
    drawn = sample_logits_without_replacement(logits, 2, seed=1)
    scores = (logits * shared).log_softmax(1).gather(1, drawn.token.clamp(min=0))
    rows = loss(drawn, scores, torch.tensor([[1.0, 3.0], [1.0, 3.0]]))
    assert rows.isnan().tolist() == [False, True]
    (given,) = torch.autograd.grad(rows[0], scores, retain_graph=True)
    assert given[0].ne(0).all()
    assert given[1].eq(0).all()


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (
            ([0.5], torch.ones(1)),
            TypeError,
            r"^log_prob must be a tensor, got \[0.5\] of type list$",
        ),
        ((torch.ones(1), [0.5]), TypeError, r"^cost must be a tensor, got \[0.5\] of type list$"),
        (
            (torch.ones(1).long(), torch.ones(1)),
            TypeError,
            r"^log_prob must be floating, got a ten",
        ),
        (
            (torch.ones(3), torch.ones(3)),
            ValueError,
            r"^log_prob must have the sample's shape \[2\]",
        ),
        ((torch.ones(2), torch.ones(3)), ValueError, r"^log_prob and cost must both be"),
    ],
)
def test_losses_name_what_does_not_fit(given: Any, error: type[Exception], says: str) -> None:
    drawn = race(torch.log(torch.tensor([0.5, 0.25])))._replace(kappa=torch.tensor(-2.0))
    for loss in (unordered_set_loss, sum_and_sample_loss, importance_weighted_loss):
        with pytest.raises(error, match=says):
            loss(drawn, *given)
