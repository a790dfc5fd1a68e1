"""Losses whose gradient estimates that of the expected cost E[f(x)], x drawn from a model.

Every loss has a row's estimate of the gradient as its gradient: weights and costs are constants,
and log-probabilities carry the gradient. Its value means nothing. Rows are returned one by one, so
that a caller takes the mean or weighs them.

=========================== ============================ ============== ===================
loss                        samples                      unbiased       baseline
=========================== ============================ ============== ===================
`reinforce_loss`            with replacement             yes            mean of the others
`importance_weighted_loss`  without, with a threshold    no, consistent weighted mean
`unordered_set_loss`        without, k of at most 12     yes            the set without s
`sum_and_sample_loss`       without, in order            yes            none
=========================== ============================ ============== ===================

Draw with `sample_without_replacement`, score the tokens again with the differentiable `log_prob`,
and give both to a loss. Scores of empty places (token -1) may be NaN and are not read. A row that
is not a distribution has a loss of NaN, and passes no gradient.

Source: Kool, van Hoof and Welling, "Estimating Gradients for Discrete Random Variables by Sampling
without Replacement", ICLR 2020, and "Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch import checks
from fsresearch.without_replacement.estimators import (
    log_importance_weights,
    sum_and_sample_weights,
)
from fsresearch.without_replacement.laws import set_ratios
from fsresearch.without_replacement.race import Drawn, Race, alone, race

__all__ = [
    "importance_weighted_loss",
    "reinforce_loss",
    "sum_and_sample_loss",
    "unordered_set_loss",
]


def reinforce_loss(log_prob: Tensor, cost: Tensor, *, baseline: bool = True) -> Tensor:
    """Return mean_j (f_j - b_j) log p_j of independent samples, b_j the mean cost of the others.

    Args:
        log_prob: float [..., k], of k samples with replacement, with gradient.
        cost: float [..., k].
        baseline: whether to subtract b_j; it needs k >= 2.

    Returns:
        [...] of log_prob's dtype.

    Raises:
        ValueError: If shapes differ, or k is 1 with a baseline.

    Source: Williams, "Simple Statistical Gradient-Following Algorithms", 1992; Kool et al., 2019.

    >>> log_prob = torch.log(torch.tensor([0.5, 0.25])).requires_grad_()
    >>> reinforce_loss(log_prob, torch.tensor([1.0, 3.0])).backward()
    >>> log_prob.grad
    tensor([-1.,  1.])
    """
    cost = _costs(log_prob, cost)
    count = log_prob.shape[-1]
    if baseline:
        if count < 2:
            raise ValueError("k must be at least 2 for a baseline of the other samples, got 1")
        cost = (cost - cost.mean(-1, keepdim=True)) * (count / (count - 1))
    return _loss(cost / count, log_prob)


def importance_weighted_loss(
    drawn: Drawn, log_prob: Tensor, cost: Tensor, *, baseline: bool = True
) -> Tensor:
    """Return the self-normalised loss, sum_s w_s / W_s (f_s - b) log p_s with w_s = p_s / q_s.

    W_s = W - w_s + p_s, where W is the sum of the weights: in the normaliser s counts with its
    probability, as if it were certain to be in the sample. b = sum w f / W.

    Args:
        drawn: an OrderedSample, a BeamSample, or a Race with a threshold.
        log_prob: float [..., k], the same tokens' log-probabilities, with gradient.
        cost: float [..., k].
        baseline: whether to subtract b.

    Returns:
        [...] of log_prob's dtype.

    Raises:
        ValueError: If shapes differ, there is no threshold, or the root was not drawn.

    Source: Kool, van Hoof, Welling, 2019.

    >>> log_prob = torch.log(torch.tensor([0.5, 0.25])).requires_grad_()
    >>> drawn = race(log_prob)._replace(kappa=torch.tensor(-2.0))
    >>> importance_weighted_loss(drawn, log_prob, torch.tensor([1.0, 3.0])).backward()
    >>> log_prob.grad
    tensor([-0.4718,  0.4929])
    """
    known = race(drawn)
    cost = _costs(log_prob, cost, known)
    weights = torch.exp(log_importance_weights(known))
    total = weights.sum(-1, keepdim=True)
    if baseline:
        cost = cost - (weights * _read(weights, cost)).sum(-1, keepdim=True) / total
    return _loss(weights / (total - weights + torch.exp(known.log_prob)), log_prob, cost)


def unordered_set_loss(
    drawn: Drawn, log_prob: Tensor, cost: Tensor, *, baseline: bool = True
) -> Tensor:
    """Return sum_s p_s R(S, s) (f_s - b_s) log p_s: unbiased, and of low variance for small k.

    b_s = p_s f_s + sum_s' p_s' R(S, s'; without s) f_s' estimates the mean cost from the rest of
    the set, as a sample of the domain without s. Its mean is the same for every s, so it changes no
    gradient on average.

    Args:
        drawn: an OrderedSample, a BeamSample, a Race or log-probabilities [..., k].
        log_prob: float [..., k], the same tokens' log-probabilities, with gradient.
        cost: float [..., k].
        baseline: whether to subtract b_s; it needs k >= 2.

    Returns:
        [...] of log_prob's dtype.

    Raises:
        ValueError: If shapes differ, k exceeds 12, k is 1 in some row with a baseline, or the
            weights do not sum to 1 within 1e-6.

    Source: Kool, van Hoof, Welling, ICLR 2020.

    >>> log_prob = torch.log(torch.tensor([0.5, 0.25])).requires_grad_()
    >>> unordered_set_loss(log_prob, log_prob, torch.tensor([1.0, 3.0])).backward()
    >>> log_prob.grad
    tensor([-0.6000,  0.6000])
    """
    known = race(drawn)
    cost = _costs(log_prob, cost, known)
    ratios = set_ratios(known)
    if baseline and alone(known):
        raise ValueError("k must be at least 2 for a baseline of the rest of the set, got 1")
    if baseline:
        read = _read(ratios.first, cost)
        cost = read - (ratios.second * read[..., None, :]).sum(-1)
    return _loss(ratios.first, log_prob, cost)


def sum_and_sample_loss(drawn: Drawn, log_prob: Tensor, cost: Tensor) -> Tensor:
    """Return sum_{j<k} p_j f_j log p_j + (1 - sum_{j<k} p_j) f_k log p_k, unbiased.

    Args:
        drawn: an OrderedSample, a BeamSample, a Race or log-probabilities [..., k] in order; the
            first k - 1 may have been chosen instead of drawn.
        log_prob: float [..., k], the same tokens' log-probabilities, with gradient.
        cost: float [..., k].

    Returns:
        [...] of log_prob's dtype.

    Raises:
        ValueError: If shapes differ.

    Source: Liu et al., "Rao-Blackwellized Stochastic Gradients for Discrete Distributions", ICML
    2019.

    >>> log_prob = torch.log(torch.tensor([0.5, 0.25])).requires_grad_()
    >>> sum_and_sample_loss(log_prob, log_prob, torch.tensor([1.0, 3.0])).backward()
    >>> log_prob.grad
    tensor([0.5000, 1.5000])
    """
    known = race(drawn)
    cost = _costs(log_prob, cost, known)
    return _loss(sum_and_sample_weights(known), log_prob, cost)


def _costs(log_prob: Tensor, cost: Tensor, known: Race | None = None) -> Tensor:
    """Return costs in float64 and without gradient, checked against scores and sample."""
    for name, value in (("log_prob", log_prob), ("cost", cost)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {checks.shown(value)}")
    if not log_prob.is_floating_point():
        raise TypeError(f"log_prob must be floating, got a tensor of {log_prob.dtype}")
    if log_prob.dim() == 0 or log_prob.shape[-1] == 0 or cost.shape != log_prob.shape:
        raise ValueError(
            "log_prob and cost must both be [..., k] with k >= 1, "
            f"got {list(log_prob.shape)} and {list(cost.shape)}"
        )
    if known is not None and known.log_prob.shape != log_prob.shape:
        raise ValueError(
            f"log_prob must have the sample's shape {list(known.log_prob.shape)}, "
            f"got {list(log_prob.shape)}"
        )
    return cost.detach().double()


def _loss(weights: Tensor, log_prob: Tensor, cost: Tensor | None = None) -> Tensor:
    """Return sum_s weight f log p over the last axis, reading nothing where the weight is 0.

    A term that is NaN passes no gradient, so that rows left out of a sum do not spoil the others.
    """
    factor = weights if cost is None else weights * _read(weights, cost)
    scores = _read(weights, log_prob)
    broken = factor.isnan() | scores.isnan()
    terms = factor.to(log_prob.dtype).masked_fill(broken, 0.0) * scores.masked_fill(broken, 0.0)
    return terms.masked_fill(broken, torch.nan).sum(-1)


def _read(weights: Tensor, values: Tensor) -> Tensor:
    return values.masked_fill(weights == 0, 0.0)
