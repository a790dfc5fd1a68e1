"""What the bench asks of a sampler: one request, one answer, and what the sampler says it can do.

A sampler is any callable that takes logits; `adapt` reads from its signature what else it takes.
Checks that need more than a sampler offers are not applicable to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

__all__ = ["FEATURES", "Drawn", "Request", "Sampler", "adapt"]

FEATURES: Final[dict[str, str]] = {
    "seed": "takes an integer seed for a call",
    "row-seeds": "takes an int64 seed for every row",
    "position": "takes the position of a decoding step, with noise of its own",
    "temperature": "takes a temperature",
    "greedy": "promises the argmax, the lowest id on ties, at temperature 0",
    "num-samples": "draws several times from a row in one call",
    "cheap-draws": "promises that further draws from one row cost little",
    "width": "takes a tile width, a multiple of 64",
    "shards": "takes a number of shards that the vocabulary is cut into",
    "vocab-size": "takes the number of ids that are no padding",
    "scores": "returns the winning score, a Gumbel around the log-normaliser",
    "log-prob": "returns log-probabilities and the log-normaliser",
    "half-logits": "takes bfloat16 logits and promises the token of the same float32 values",
    "empty-batch": "promises to accept no rows",
    "without-replacement": "draws k different tokens in order",
    "threshold": "returns kappa, the (k+1)-th largest score",
    "batch-invariant": "promises that a row's token does not depend on its batch",
    "draw-prefix": "promises that fewer draws are a prefix of more",
    "tile-invariant": "promises that the token does not depend on the tile width",
    "shard-invariant": "promises that the token does not depend on the shards",
    "order-prefix": "promises that k tokens are a prefix of k + 1",
    "marks-invalid": "promises token -1 for a row that is no distribution, others unaffected",
}

_PARAMETERS = {
    "seed": ("seed",),
    "row-seeds": ("seeds",),
    "position": ("position", "positions"),
    "temperature": ("temperature",),
    "num-samples": ("num_samples", "n"),
    "vocab-size": ("vocab_size",),
    "without-replacement": ("k",),
}


class Request(NamedTuple):
    """One call of a sampler; a field is set only where the sampler has its feature.

    Attributes:
        logits: float32 or bfloat16 [B, V].
        num_samples: independent draws a row.
        seed: an integer, int64 [B] (one a row), or None.
        position: of the decoding step.
        temperature: a number, at least 0.
        k: how many tokens without replacement; 0 draws with replacement.
        width: tokens a tile, or None.
        shards: equal parts of the vocabulary, summarised each on its own.
        vocab_size: ids at or above it are padding, or None.
        details: whether scores and log-probabilities are wanted.
    """

    logits: Tensor
    num_samples: int = 1
    seed: int | Tensor | None = None
    position: int = 0
    temperature: float = 1.0
    k: int = 0
    width: int | None = None
    shards: int = 1
    vocab_size: int | None = None
    details: bool = False


class Drawn(NamedTuple):
    """What a sampler gives.

    Attributes:
        token: int64 [B, n], or [B, k] without replacement.
        perturbed: winning scores [B, n], or None.
        log_prob: [B, n], or None.
        log_normalizer: [B], or None.
        kappa: [B], or None.
    """

    token: Tensor
    perturbed: Tensor | None = None
    log_prob: Tensor | None = None
    log_normalizer: Tensor | None = None
    kappa: Tensor | None = None


@dataclass(frozen=True)
class Sampler:
    """A sampler as the bench sees it.

    Attributes:
        name: what the report calls it.
        draw: answers a request.
        features: names in FEATURES.
        about: version and the like, for the report.

    Raises:
        ValueError: If a feature has no meaning here.

    >>> greedy = Sampler("argmax", lambda request: Drawn(request.logits.argmax(1, keepdim=True)))
    >>> greedy.draw(Request(torch.tensor([[0.0, 1.0]]))).token
    tensor([[1]])
    """

    name: str
    draw: Callable[[Request], Drawn]
    features: frozenset[str] = frozenset()
    about: str = ""

    def __post_init__(self) -> None:
        unknown = sorted(self.features - FEATURES.keys())
        if unknown:
            raise ValueError(f"features must be among {', '.join(FEATURES)}; got {unknown}")


def adapt(
    function: Callable[..., Any], *, name: str | None = None, features: Iterable[str] = ()
) -> Sampler:
    """Make a Sampler of a callable that takes logits [B, V] and returns tokens [B] or [B, n].

    Parameters named seed, seeds (int64 [B]), position, temperature, num_samples, vocab_size and k
    are used where the callable has them; with k it draws without replacement. It may also return
    an object with the fields of Drawn.

    Args:
        function: the callable.
        name: its own name if None.
        features: what it promises beyond its signature, names in FEATURES.

    >>> def mine(logits, seed):
    ...     generator = torch.Generator().manual_seed(seed)
    ...     return torch.multinomial(logits.softmax(1), 1, generator=generator)
    >>> sorted(adapt(mine, features=["cheap-draws"]).features)
    ['cheap-draws', 'seed']
    """
    taken = inspect.signature(function).parameters
    named = {
        feature: parameter
        for feature, parameters in _PARAMETERS.items()
        for parameter in parameters
        if parameter in taken
    }

    def draw(request: Request) -> Drawn:
        values: dict[str, Any] = {
            "seed": request.seed,
            "row-seeds": request.seed,
            "position": request.position,
            "temperature": request.temperature,
            "num-samples": request.num_samples,
            "vocab-size": request.vocab_size,
            "without-replacement": request.k or 1,
        }
        given = {parameter: values[feature] for feature, parameter in named.items()}
        return _drawn(function(request.logits, **given))

    label = str(name or getattr(function, "__name__", type(function).__name__))
    return Sampler(label, draw, frozenset([*named, *features]))


def _drawn(answer: Any) -> Drawn:
    """Read tokens, and whatever came with them, from a callable's answer."""
    token, other = answer, {}
    if hasattr(answer, "token"):
        token = answer.token
        other = {field: getattr(answer, field, None) for field in Drawn._fields[1:]}
    token = torch.as_tensor(token)
    return Drawn(token[:, None] if token.dim() == 1 else token, **other)
