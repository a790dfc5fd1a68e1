"""What an estimator needs of a sample without replacement, on one scale.

Sampling without replacement is a race: token i arrives at the clock E_i = exp(-key_i), which is
Exponential with rate p_i, and the sample is the first k arrivals. The threshold kappa is the key of
arrival k + 1, so that all k tokens are used, none is spent on the threshold, and the literature's
k that "uses k - 1" is ours plus one.

Samples come on two scales. The scores of an `OrderedSample` are raw: log-probability plus
log-normaliser plus noise. The keys of a `BeamSample` are log-probability plus noise. Subtracting
a log-probability from a threshold of the other scale is an error that nothing shows, so every
estimator goes through `race`, which puts both on the second scale in float64.

Source: Kool, van Hoof and Welling, "Stochastic Beams and Where to Find Them", ICML 2019; Shi,
Bieber and Singh, "Incremental Sampling Without Replacement for Sequence Models", ICML 2020.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from fsresearch import checks
from fsresearch.addresses import WORDS
from fsresearch.arguments import row_noise
from fsresearch.noise import NODE, gumbel_from_bits
from fsresearch.results import BeamSample, OrderedSample
from fsresearch.without_replacement.truncated_gumbel import log1mexp

__all__ = ["Drawn", "Race", "hindsight", "log_inclusion", "race"]

_ROUNDING = 1e-3
_FIRST_UNIT = 1 << 31


class Race(NamedTuple):
    """The first k arrivals; rows may have any leading shape.

    Attributes:
        log_prob: float64 [..., k], in order of arrival, normalised; -inf after the last token.
        log_rest: float64 [...], the log-mass of all tokens not drawn; -inf where none is left.
        keys: float64 [..., k], log-probability plus Gumbel, or None where only the order is known.
        kappa: float64 [...], the (k+1)-th largest key, -inf where none is left; or None.
        root: "gumbel" if the largest key has the law of a Gumbel, as `log_inclusion` needs.
    """

    log_prob: Tensor
    log_rest: Tensor
    keys: Tensor | None = None
    kappa: Tensor | None = None
    root: str = "gumbel"


Drawn: TypeAlias = OrderedSample | BeamSample | Race | Tensor


def race(drawn: Drawn) -> Race:
    """Return a sample as a Race, in float64 and without gradients.

    Where kappa says that the support is exhausted, or the mass exceeds 1 by no more than the
    rounding of float32, the log-probabilities are shifted to sum to 1 and nothing is left. A greedy
    row (temperature 0) is no race: it has no noise, and weights by threshold mean nothing there.

    Args:
        drawn: an OrderedSample; a BeamSample; a Race, which is returned as it is; or a tensor
            [..., k] of log-probabilities in order, of which only the order is then known.

    Raises:
        TypeError: If it is none of these.

    >>> from fsresearch import sample_logits_without_replacement
    >>> drawn = sample_logits_without_replacement(torch.zeros(1, 4), 2, seed=3)
    >>> race(drawn).log_prob.exp(), race(drawn).log_rest.exp()
    (tensor([[0.2500, 0.2500]], dtype=torch.float64), tensor([0.5000], dtype=torch.float64))
    """
    if isinstance(drawn, Race):
        return drawn
    if isinstance(drawn, OrderedSample):
        scale = drawn.log_normalizer.double()
        keys = drawn.perturbed.double() - scale[..., None]
        kappa = drawn.kappa.double() - scale
        return _complete(drawn.log_prob, keys, kappa, drawn.kappa == -torch.inf, "gumbel")
    if isinstance(drawn, BeamSample):
        exhausted = drawn.num_valid < drawn.log_probs.shape[-1]
        if drawn.kappa is not None:
            exhausted = exhausted | (drawn.kappa == -torch.inf)
        return _complete(drawn.log_probs, drawn.keys, drawn.kappa, exhausted, drawn.root)
    if isinstance(drawn, Tensor) and drawn.is_floating_point() and drawn.dim():
        nowhere = torch.zeros(drawn.shape[:-1], dtype=torch.bool, device=drawn.device)
        return _complete(drawn, None, None, nowhere, "gumbel")
    got = type(drawn).__name__
    if isinstance(drawn, Tensor):
        got = f"a tensor of {drawn.dtype}, shape {list(drawn.shape)}"
    raise TypeError(
        "drawn must be an OrderedSample, a BeamSample, a Race or a tensor of log-probabilities "
        f"[..., k], got {got}"
    )


def log_inclusion(log_prob: Tensor, kappa: Tensor) -> Tensor:
    """Return log q, q = P(key > kappa) = 1 - exp(-exp(log_prob - kappa)).

    Given all other keys, a token is in the sample with this probability, if kappa is the threshold
    of a race whose root was drawn. Both arguments must be on one scale.

    Args:
        log_prob: float [..., k].
        kappa: float [...]; at -inf every token with mass is in.

    Returns:
        float64 [..., k].

    Source: Kool, van Hoof, Welling, ICML 2019.

    >>> log_inclusion(torch.tensor([-1.0, -50.0]), torch.tensor(-2.0)).exp()
    tensor([9.3401e-01, 1.4252e-21], dtype=torch.float64)
    """
    phi, threshold = log_prob.double(), kappa.double()[..., None]
    ahead = phi - threshold
    log_q = torch.where(ahead < -37.0, ahead, log1mexp(-torch.exp(ahead)))
    certain = torch.where(phi == -torch.inf, phi, 0.0 * phi)
    return torch.where(threshold == -torch.inf, certain, log_q)


def hindsight(
    drawn: Drawn,
    *,
    repeats: int = 1,
    seed: int | Tensor | None = None,
    position: int | Tensor = 0,
    role: int = 0,
) -> Race:
    """Draw fresh keys and a fresh threshold given the order of a sample, which they leave alone.

    The time to arrival j + 1 is Exponential with the mass that is left, independent of the order.
    Averaging an estimator over repeats takes out the noise of kappa without another model call,
    and gives a sample whose root was fixed the threshold that `horvitz_thompson` needs. Gap j of
    repeat r reads the words of kind NODE at unit 2**31 + j and draw r, which no sampler reads, so
    the seed may be that of the sample.

    Args:
        drawn: a sample; its own keys, if any, are not used.
        repeats: how many independent sets of keys n.
        seed: as for `sample`; all leading axes of the sample count as one axis of rows.
        position: as for `sample`.
        role: as for `sample`.

    Returns:
        A Race with one leading axis more, of n repeats.

    Raises:
        TypeError, ValueError: Naming the argument at fault.

    Source: Shi, Bieber, Singh, ICML 2020.

    >>> again = hindsight(torch.log(torch.tensor([[0.5, 0.3]])), repeats=3, seed=1)
    >>> again.keys.shape, again.kappa.shape, bool((again.keys[..., -1] > again.kappa).all())
    (torch.Size([3, 1, 2]), torch.Size([3, 1]), True)
    """
    known = race(drawn)
    repeats = checks.integer("repeats", repeats, 1, WORDS)
    shape = known.log_prob.shape
    left = torch.cat([log_left(known), known.log_rest[..., None]], -1)
    rows = known.log_rest.numel()
    noise = row_noise(seed, position, role, repeats, rows, left.device)
    units = torch.arange(_FIRST_UNIT, _FIRST_UNIT + shape[-1] + 1, device=left.device)
    high, _, low, _ = noise.words(units, NODE)
    drawn_gaps = torch.exp(-gumbel_from_bits(high, low)).movedim(1, 0)
    gaps = drawn_gaps.reshape(len(drawn_gaps), *left.shape) * torch.exp(-left)
    keys = -torch.log(gaps.cumsum(-1))
    many = len(drawn_gaps)
    return Race(
        known.log_prob.expand(many, *shape),
        known.log_rest.expand(many, *shape[:-1]),
        keys[..., :-1],
        keys[..., -1],
    )


def log_left(known: Race) -> Tensor:
    """Return the log-mass left before every arrival, float64 [..., k].

    It is summed from what is left, rest and later arrivals: a difference from 1 would lose it.

    >>> log_left(race(torch.log(torch.tensor([0.5, 0.3])))).exp()
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    parts = torch.cat([known.log_prob, known.log_rest[..., None]], -1)
    return parts.flip(-1).logcumsumexp(-1).flip(-1)[..., :-1]


def alone(known: Race) -> bool:
    """Return whether some row holds one token only, with more left outside.

    >>> alone(race(torch.log(torch.tensor([[0.5]])))), alone(race(torch.zeros(1, 1)))
    (True, False)
    """
    one = (known.log_prob > -torch.inf).sum(-1) == 1
    return bool((one & (known.log_rest > -torch.inf)).any())


def _complete(
    log_prob: Tensor, keys: Tensor | None, kappa: Tensor | None, exhausted: Tensor, root: str
) -> Race:
    """Find the mass that is left, and repair the rounding of float32 where none is."""
    values = log_prob.detach().double()
    total = values.logsumexp(-1)
    whole = (exhausted | (total > 0)) & (total.abs() < _ROUNDING)
    values = torch.where(whole[..., None], values - total[..., None], values)
    largest, place = values.max(-1, keepdim=True)
    others = torch.exp(values.scatter(-1, place, -torch.inf)).sum(-1)
    rest = torch.exp(log1mexp(largest[..., 0].clamp(max=0.0))) - others
    log_rest = torch.log(rest.clamp(min=0.0)).masked_fill(exhausted | whole, -torch.inf)
    log_rest = log_rest.masked_fill(total.isnan(), torch.nan)
    return Race(
        values,
        log_rest,
        None if keys is None else keys.detach().double(),
        None if kappa is None else kappa.detach().double(),
        root,
    )
