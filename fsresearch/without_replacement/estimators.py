"""Estimates of F = sum_i p_i f_i from a sample without replacement.

Each is a sum over the sample of weights times values, with weights that know only the sample.

==================== ============== ================ ===============================
estimator            unbiased       weights sum to 1 needs
==================== ============== ================ ===============================
`horvitz_thompson`   yes            no               threshold of a drawn root, k > 1
`self_normalized`    no, consistent yes              threshold of a drawn root
`unordered_set`      yes            yes              k of at most 12
`sum_and_sample`     yes            yes              the order
==================== ============== ================ ===============================

Where the weights do not sum to 1, a constant added to the values changes the error. Where nothing
is left outside the sample, all of them are exact.

Values have the sample's shape [..., k], or further leading axes; those at empty places are not
read. To estimate under other probabilities r, unbiased estimators take values times r / p.

Source: Kool, van Hoof and Welling, "Stochastic Beams and Where to Find Them", ICML 2019, and
"Estimating Gradients for Discrete Random Variables by Sampling without Replacement", ICLR 2020.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch import checks
from fsresearch.without_replacement.laws import set_ratios
from fsresearch.without_replacement.race import Drawn, Race, alone, log_inclusion, race

__all__ = [
    "horvitz_thompson",
    "log_importance_weights",
    "self_normalized",
    "sum_and_sample",
    "unordered_set",
]


def horvitz_thompson(drawn: Drawn, values: Tensor, *, log_target: Tensor | None = None) -> Tensor:
    """Return sum_s (p_s / q_s) f_s, unbiased, with q_s the inclusion given the threshold.

    Its variance is at most sum_i p_i f_i**2 / (k - 1). With k = 1 it is infinite.

    Args:
        drawn: an OrderedSample, a BeamSample, or a Race with a threshold.
        values: float [..., k].
        log_target: [..., k], log-probabilities to take the mean under instead, for example those
            at temperature 1 of a sample at another.

    Returns:
        float64 [...].

    Raises:
        ValueError: If k is 1 in some row, there is no threshold, or the root was not drawn.

    Source: Horvitz and Thompson, "A Generalization of Sampling Without Replacement from a Finite
    Universe", 1952; Kool, van Hoof, Welling, ICML 2019.

    >>> log_prob = torch.log(torch.tensor([[0.5, 0.3]]))
    >>> drawn = race(log_prob)._replace(kappa=torch.tensor([-2.0]))
    >>> horvitz_thompson(drawn, torch.tensor([[1.0, 2.0]]))
    tensor([1.1861], dtype=torch.float64)
    """
    known = race(drawn)
    log_weights = log_importance_weights(known, log_target=log_target)
    if known.log_prob.shape[-1] < 2 or alone(known):
        raise ValueError(
            "k must be at least 2 for horvitz_thompson, whose variance is infinite at 1"
        )
    return weighted_sum(torch.exp(log_weights), values)


def self_normalized(drawn: Drawn, values: Tensor, *, log_target: Tensor | None = None) -> Tensor:
    """Return sum_s w_s f_s / sum_s w_s with w_s = p_s / q_s: biased, and usually far less noisy.

    The bias vanishes as k grows to the size of the support.

    Args:
        drawn: as for `horvitz_thompson`; k = 1 is allowed.
        values: float [..., k].
        log_target: as for `horvitz_thompson`.

    Returns:
        float64 [...].

    Raises:
        ValueError: If there is no threshold, or the root was not drawn.

    Source: Kool, van Hoof, Welling, ICML 2019.

    >>> log_prob = torch.log(torch.tensor([[0.5, 0.3]]))
    >>> drawn = race(log_prob)._replace(kappa=torch.tensor([-2.0]))
    >>> self_normalized(drawn, torch.tensor([[1.0, 2.0]]))
    tensor([1.3964], dtype=torch.float64)
    """
    log_weights = log_importance_weights(race(drawn), log_target=log_target)
    return weighted_sum(log_weights.softmax(-1), values)


def unordered_set(drawn: Drawn, values: Tensor) -> Tensor:
    """Return sum_s p_s R(S, s) f_s, unbiased, whose weights sum to 1 and know only the set.

    R(S, s) is the probability of the rest of the set without s in the domain, over that of the set;
    the weight is the probability that s came first given the set. The best choice for small k.

    Args:
        drawn: an OrderedSample, a BeamSample, a Race or log-probabilities [..., k].
        values: float [..., k].

    Returns:
        float64 [...].

    Raises:
        ValueError: If k exceeds 12, or the weights do not sum to 1 within 1e-6.

    Source: Kool, van Hoof, Welling, ICLR 2020.

    >>> unordered_set(torch.log(torch.tensor([0.3, 0.5])), torch.tensor([12.0, 1.0]))
    tensor(5.5833, dtype=torch.float64)
    """
    return weighted_sum(set_ratios(drawn).first, values)


def sum_and_sample(drawn: Drawn, values: Tensor) -> Tensor:
    """Return sum_{j<k} p_j f_j + (1 - sum_{j<k} p_j) f_k, unbiased; j counts arrivals.

    All but the last token are summed, and the last stands for everything else. Good where the first
    tokens hold most of the mass, poor where they do not. It is also right where the first k - 1
    were chosen, the most probable say, and only the last was drawn.

    Args:
        drawn: an OrderedSample, a BeamSample, a Race or log-probabilities [..., k] in order.
        values: float [..., k].

    Returns:
        float64 [...].

    Source: Liu, Regier, Tripuraneni, Jordan and McAuliffe, "Rao-Blackwellized Stochastic Gradients
    for Discrete Distributions", ICML 2019; Kool, van Hoof, Welling, ICLR 2020.

    >>> sum_and_sample(torch.log(torch.tensor([0.3, 0.5])), torch.tensor([10.0, 1.0]))
    tensor(3.7000, dtype=torch.float64)
    """
    return weighted_sum(sum_and_sample_weights(race(drawn)), values)


def log_importance_weights(drawn: Drawn, *, log_target: Tensor | None = None) -> Tensor:
    """Return log(p_s / q_s), float64 [..., k], -inf at empty places.

    Args:
        drawn: an OrderedSample, a BeamSample, or a Race with a threshold.
        log_target: [..., k], replaces log p_s in the numerator.

    Raises:
        ValueError: If there is no threshold, or the root was not drawn.

    >>> log_importance_weights(torch.zeros(1, 2).log_softmax(1))
    Traceback (most recent call last):
    ValueError: drawn must have a threshold kappa; hindsight() draws one for any ordered sample
    """
    known = race(drawn)
    if known.root != "gumbel":
        raise ValueError(
            f"drawn must have root 'gumbel', got {known.root!r}: with a fixed root the threshold "
            "has another law and the weights are biased; hindsight() draws new keys for the sample"
        )
    if known.kappa is None:
        raise ValueError(
            "drawn must have a threshold kappa; hindsight() draws one for any ordered sample"
        )
    log_p = known.log_prob
    if log_target is not None:
        if not isinstance(log_target, Tensor):
            raise TypeError(f"log_target must be a tensor, got {checks.shown(log_target)}")
        _check_like("log_target", log_target, log_p)
        log_p = log_target.detach().double()
    log_weights = log_p - log_inclusion(known.log_prob, known.kappa)
    return log_weights.masked_fill(known.log_prob == -torch.inf, -torch.inf)


def sum_and_sample_weights(known: Race) -> Tensor:
    """Return p_s, and for the last token all that is not in the others, float64 [..., k].

    >>> sum_and_sample_weights(race(torch.log(torch.tensor([0.3, 0.5]))))
    tensor([0.3000, 0.7000], dtype=torch.float64)
    """
    last = (known.log_prob != -torch.inf).sum(-1, keepdim=True).sub(1).clamp(min=0)
    weights = torch.exp(known.log_prob)
    return weights.scatter_add(-1, last, torch.exp(known.log_rest)[..., None])


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Return the sum of weights times values over the last axis, not reading where weights are 0.

    >>> weighted_sum(torch.tensor([0.5, 0.0]), torch.tensor([2.0, torch.nan]))
    tensor(1., dtype=torch.float64)
    """
    if not isinstance(values, Tensor):
        raise TypeError(f"values must be a tensor, got {checks.shown(values)}")
    _check_like("values", values, weights)
    known = torch.where(weights == 0, 0.0, values.double())
    return (weights.double() * known).sum(-1)


def _check_like(name: str, values: Tensor, sample: Tensor) -> None:
    """Raise unless values [..., k] fit a sample, with or without further leading axes."""
    size = sample.shape[-1]
    try:
        fits = values.dim() > 0 and values.shape[-1] == size
        torch.broadcast_shapes(values.shape, sample.shape)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} must be [..., {size}] like the sample {list(sample.shape)}, "
            f"got shape {list(values.shape)}"
        )
