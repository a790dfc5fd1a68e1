"""The project's samplers, as the bench sees them: the front door, and the reducers over tiles."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import fsresearch
from fsresearch.arguments import row_noise
from fsresearch.sampling import METHODS, sample_logits, sample_logits_without_replacement
from fsresearch.schedules.online import online
from fsresearch.schedules.tiled import merge_tree
from fsresearch.sources import Logits
from fsresearch.summaries import GumbelTopK, Reducer
from fsresearch.tiles import tile_cuts
from fsresearch.verify.sampler import Drawn, Request, Sampler

__all__ = ["OWN", "over_tiles"]

_COMMON = {
    "seed",
    "row-seeds",
    "position",
    "temperature",
    "greedy",
    "vocab-size",
    "log-prob",
    "half-logits",
    "empty-batch",
    "batch-invariant",
    "marks-invalid",
}
_CUT = {"width", "shards", "tile-invariant", "shard-invariant"}
_MANY = {"num-samples", "draw-prefix"}


def over_tiles(reducer: Reducer[Any], request: Request) -> Any:
    """Reduce logits over tiles of the requested width, in the requested number of shards.

    >>> from fsresearch.summaries import GumbelMax
    >>> over_tiles(GumbelMax(None), Request(torch.arange(200.0)[None], width=64, shards=2)).token
    tensor([[199]])
    """
    vocab = request.logits.shape[1]
    groups = -(-vocab // 64)
    size = -(-groups // request.shards) * 64
    cuts = tile_cuts(0, vocab, size)
    states = [
        online(
            reducer,
            Logits(request.logits[:, start : start + size], start=start),
            width=request.width,
        )
        for start in cuts[:-1]
    ]
    return merge_tree(reducer, states)


def _sample(method: str, request: Request) -> Drawn:
    """Draw by a method of the front door; over tiles or shards, by its reducer."""
    if request.width is None and request.shards == 1:
        made = sample_logits(
            request.logits,
            seed=request.seed,
            position=request.position,
            method=method,
            temperature=request.temperature,
            vocab_size=request.vocab_size,
            num_samples=request.num_samples,
            log_prob=request.details,
        )
        return Drawn(made.token, made.perturbed, made.log_prob, made.log_normalizer)
    noise = row_noise(
        request.seed,
        request.position,
        0,
        request.num_samples,
        len(request.logits),
        request.logits.device,
    )
    make = METHODS[method].reducer
    if make is None:
        raise ValueError(f"{method} has no tiles")
    reducer = make(noise, False)
    return Drawn(reducer.draw(over_tiles(reducer, request)))


def _top_k(request: Request) -> Drawn:
    """Draw without replacement; without a k, the first token."""
    k = request.k or 1
    if request.width is None and request.shards == 1:
        made = sample_logits_without_replacement(
            request.logits,
            k,
            seed=request.seed,
            position=request.position,
            temperature=request.temperature,
            vocab_size=request.vocab_size,
        )
        return Drawn(made.token, made.perturbed, made.log_prob, made.log_normalizer, made.kappa)
    rows, device = len(request.logits), request.logits.device
    noise = row_noise(request.seed, request.position, 0, 1, rows, device)
    return Drawn(over_tiles(GumbelTopK(noise, k), request).token)


_FEATURES = {
    "gumbel-max": {*_MANY, *_CUT, "scores"},
    "grouped": {*_MANY, *_CUT, "scores"},
    "online": {*_MANY, "width"},
    "hierarchical": {*_MANY, "cheap-draws"},
}

OWN: dict[str, Sampler] = {
    name: Sampler(
        name,
        partial(_sample, name),
        frozenset(_COMMON | features),
        f"fsresearch {fsresearch.__version__}, torch {torch.__version__}",
    )
    for name, features in _FEATURES.items()
}
OWN["gumbel-top-k"] = Sampler(
    "gumbel-top-k",
    _top_k,
    frozenset(_COMMON | _CUT | {"scores", "without-replacement", "threshold", "order-prefix"}),
    OWN["gumbel-max"].about,
)
