"""The methods that users can ask for by name, and the one pass that serves them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from fsresearch.heads import run_kernel
from fsresearch.hierarchy import LogMassTree
from fsresearch.noise import GROUP_SIZE, RowNoise
from fsresearch.results import Sample
from fsresearch.sources import Source
from fsresearch.summaries import (
    CoinFlip,
    GumbelMax,
    LogNormalizer,
    PerturbedMass,
    Product,
    Reducer,
)
from fsresearch.summaries.gumbel_max import PerturbedMaximum
from fsresearch.summaries.log_normalizer import LogMass

__all__ = ["METHODS", "Method", "draw"]

_DRAWN_ELEMENTS = 64 * 6144


class Method(NamedTuple):
    """A method that users can ask for by name.

    Attributes:
        name: what ``method=`` takes.
        exactness: "path-exact" (the token of one full pass) or "law-exact" (its distribution).
        memory: temporaries beside the result, in B rows, V tokens of vocabulary, T tokens a tile.
        source: the statement it implements.
        summary: one sentence.
        reducer: makes its reducer from the rows' noise and whether the log-mass is wanted; None
            for the tree.
        carries_log_mass: whether its summaries hold the log-mass, so that it costs nothing more.
        returns_perturbed: whether its winner has a score with a law of its own.
        tokens_a_word: how many tokens of a tile one word of noise serves.
    """

    name: str
    exactness: str
    memory: str
    source: str
    summary: str
    reducer: Callable[[RowNoise, bool], Reducer[Any]] | None
    carries_log_mass: bool
    returns_perturbed: bool
    tokens_a_word: int = 1


METHODS: Final[dict[str, Method]] = {
    method.name: method
    for method in (
        Method(
            "gumbel-max",
            "path-exact",
            "O(B T)",
            "FlashSampling, Theorem 2.1, Algorithms I.1 and 1",
            "The largest logit plus Gumbel noise, one Gumbel a token.",
            lambda noise, _: GumbelMax(noise),
            carries_log_mass=False,
            returns_perturbed=True,
        ),
        Method(
            "grouped",
            "law-exact",
            "O(B T)",
            "FlashSampling, Lemmas D.1 and D.2, Algorithms I.2 and I.4",
            "One Gumbel a group of 64 tokens, then a choice inside the winning group.",
            lambda noise, log_mass: PerturbedMass(noise, keep_log_mass=log_mass),
            carries_log_mass=True,
            returns_perturbed=True,
            tokens_a_word=GROUP_SIZE // 4,
        ),
        Method(
            "online",
            "law-exact",
            "O(B T)",
            "FlashSampling, Lemma D.3, Algorithm I.3",
            "A running sample, replaced by a tile's own with a coin of their masses.",
            lambda noise, _: CoinFlip(noise),
            carries_log_mass=True,
            returns_perturbed=False,
        ),
        Method(
            "hierarchical",
            "law-exact",
            "O(B V / 64)",
            "FlashSampling, Lemma D.2 level by level",
            "A tree of log-masses, built once; each draw walks down it.",
            None,
            carries_log_mass=True,
            returns_perturbed=False,
        ),
    )
}


def draw(
    source: Source,
    noise: RowNoise,
    method: Method,
    greedy: Tensor | bool,
    log_prob: bool,
    schedule: Callable[[Reducer[Any], Source], Any],
    score: Callable[[Tensor], Tensor],
) -> Sample:
    """Draw by a method in one pass; greedy rows are an argmax beside it.

    Args:
        source: where the logits come from.
        noise: the rows' noise and draws.
        method: one of METHODS.
        greedy: for all rows, or bool [B, 1].
        log_prob: whether to fill the optional fields of the Sample.
        schedule: how to reduce the source.
        score: the transformed logits of tokens [B, n], for log-probabilities.

    >>> from fsresearch.schedules.online import online
    >>> from fsresearch.sources import Logits
    >>> source = Logits(torch.zeros(1, 9))
    >>> noise = RowNoise(torch.tensor([7]), torch.tensor(0), torch.arange(2))
    >>> draw(source, noise, METHODS["gumbel-max"], False, False, online, source.at)[:2]
    (tensor([[2, 8]]), tensor([True]))
    """
    drawn = _fused(source, noise, method, greedy, log_prob)
    if drawn is None:
        run = _walk if method.reducer is None and greedy is not True else _reduce
        drawn = run(source, noise, method, greedy, log_prob, schedule)
    token, perturbed, log_mass, argmax = drawn
    if argmax is not None:
        token = _where(greedy, argmax.token, token)
    token = token.expand(-1, len(noise.draws))
    valid = token[:, 0] >= 0
    if not log_prob:
        return Sample(token, valid)
    log_normalizer = LogNormalizer().draw(LogMass(log_mass))
    log_probs = score(token) - log_normalizer[:, None]
    if not method.returns_perturbed:
        return Sample(token, valid, log_probs, log_normalizer)
    if argmax is not None:
        perturbed = _where(greedy, argmax.perturbed, perturbed)
    perturbed = perturbed.expand(token.shape).masked_fill(~valid[:, None], torch.nan)
    return Sample(token, valid, log_probs, log_normalizer, perturbed)


def _where(greedy: Tensor | bool, argmax: Tensor, drawn: Tensor) -> Tensor:
    """Take the argmax of greedy rows and the draw of the others."""
    return torch.where(greedy, argmax, drawn) if isinstance(greedy, Tensor) else argmax


class _Drawn(NamedTuple):
    """What a run gives: argmax only where rows are greedy, log_mass only where it is wanted."""

    token: Tensor
    perturbed: Tensor
    log_mass: Tensor
    argmax: PerturbedMaximum | None


def _fused(
    source: Source, noise: RowNoise, method: Method, greedy: Tensor | bool, log_prob: bool
) -> _Drawn | None:
    """Run a kernel's fast lift where one serves, greedy rows included; else None."""
    drawn = run_kernel(method.name, source, noise, greedy, log_prob)
    if drawn is None:
        return None
    perturbed, token, log_mass = drawn
    return _Drawn(token, perturbed, log_mass, None)


def _reduce(
    source: Source,
    noise: RowNoise,
    method: Method,
    greedy: Tensor | bool,
    log_prob: bool,
    schedule: Callable[[Reducer[Any], Source], Any],
) -> _Drawn:
    """Run samplers, argmax and log-mass side by side over one pass."""
    samplers = [] if greedy is True else _samplers(source, noise, method, log_prob)
    argmax = [] if greedy is False else [GumbelMax(None)]
    weigh = log_prob and not (method.carries_log_mass and samplers)
    total = [LogNormalizer()] if weigh else []
    states = schedule(Product(*samplers, *argmax, *total), source)
    sampled = states[: len(samplers)] or states[:1]
    token = torch.cat([state.token for state in sampled], 1)
    perturbed = token
    if method.returns_perturbed:
        perturbed = torch.cat([state.perturbed for state in sampled], 1)
    weighed = states[-1] if weigh else states[0]
    log_mass = weighed.log_mass if log_prob else token
    return _Drawn(token, perturbed, log_mass, states[len(samplers)] if argmax else None)


def _walk(
    source: Source,
    noise: RowNoise,
    method: Method,
    greedy: Tensor | bool,
    log_prob: bool,
    schedule: Callable[[Reducer[Any], Source], Any],
) -> _Drawn:
    """Build the tree and walk down it."""
    tree = LogMassTree(source)
    token = tree.draw(noise)
    argmax = None if greedy is False else schedule(GumbelMax(None), source)
    return _Drawn(token, token, tree.levels[-1], argmax)


def _samplers(
    source: Source, noise: RowNoise, method: Method, log_prob: bool
) -> list[Reducer[Any]]:
    """Return a reducer for every few draws, so that a tile's noise stays small; the tree has none.

    Only the first keeps the log-mass, and only where it is wanted.
    """
    if method.reducer is None:
        return []
    widest = source.width * method.reducer(noise, False).breadth
    width = min(widest, -(-(source.stop - source.start) // GROUP_SIZE) * GROUP_SIZE)
    few = max(_DRAWN_ELEMENTS * method.tokens_a_word // max(source.rows * width, 1), 1)
    parts = noise.draws.split(few)
    return [
        method.reducer(noise._replace(draws=part), log_prob and not i)
        for i, part in enumerate(parts)
    ]
