"""Small sequence models whose every sequence can be listed, and one that hashes its prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Prefix = tuple[int, ...]
Floats = NDArray[np.float64]


class Tree(NamedTuple):
    """A model as a table of the next token's logits.

    Attributes:
        table: float32 [(V + 1)**depth, V], the logits after every prefix, by its code.
        leaves: every sequence and its log-probability.
    """

    table: Tensor
    leaves: dict[Prefix, float]

    def step(self, prefixes: Tensor, parents: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Look the logits up: a step without a cache."""
        return self.table[self.code(prefixes)], state

    def code(self, prefixes: Tensor) -> Tensor:
        """Number prefixes [..., t] whose padding is -1."""
        powers = (self.table.shape[1] + 1) ** torch.arange(prefixes.shape[-1])
        return ((prefixes + 1) * powers).sum(-1)

    def numbers(self, sequences: Tensor) -> Tensor:
        """Number sequences [B, k, L] by their place among the leaves; -1 for none of them."""
        places = torch.full((len(self.table) * (self.table.shape[1] + 1),), -1)
        places[[int(self.code(torch.tensor(leaf))) for leaf in self.leaves]] = torch.arange(
            len(self.leaves)
        )
        return places[self.code(sequences)]

    @property
    def log_probs(self) -> Floats:
        """The leaves' log-probabilities in order."""
        return np.array(list(self.leaves.values()))


def tree(
    logits_of: Callable[[Prefix], Sequence[float]], vocab: int, depth: int, eos: Sequence[int]
) -> Tree:
    """List a model: logits_of gives the logits after a prefix; depth is the maximal length."""
    table = torch.zeros((vocab + 1) ** depth, vocab)
    made = Tree(table, {})
    frontier: dict[Prefix, float] = {(): 0.0}
    while frontier:
        grown: dict[Prefix, float] = {}
        for prefix, log_prob in frontier.items():
            row = np.asarray(logits_of(prefix), dtype=np.float32)
            code = int(made.code(torch.tensor(prefix, dtype=torch.int64)))
            table[code] = torch.from_numpy(row)
            exact = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
            for token in np.flatnonzero(np.isfinite(row)).tolist():
                longer, total = (*prefix, token), log_prob + float(exact[token])
                ended = token in eos or len(longer) == depth
                (made.leaves if ended else grown)[longer] = total
        frontier = grown
    return made


def ragged() -> Tree:
    """Return 15 sequences of one to four tokens over {0, 1, 2}, of which 2 ends a sequence."""
    rng = np.random.default_rng(15)
    rows = {p: rng.normal(size=3) for n in range(4) for p in product((0, 1), repeat=n)}
    for without_one in ((0,), (1, 1), (0, 0), (1, 0, 0), (1, 1, 0), (0, 0, 0)):
        rows[without_one][1] = -np.inf
    return tree(lambda prefix: rows[prefix].tolist(), vocab=3, depth=4, eos=[2])


def flat(probabilities: Sequence[float]) -> Tree:
    """Return one token a sequence."""
    return tree(lambda _: np.log(probabilities).tolist(), len(probabilities), 1, [])


def hashed_logits(codes: Tensor, vocab: int) -> Tensor:
    """Return float32 [R, V] that depend on every bit of codes int64 [R]."""
    ids = torch.arange(vocab, device=codes.device) * 0x9E3779B9
    mixed = codes[:, None] * 0x5851F42D + ids
    mixed = (mixed ^ mixed >> 15) * 0x2C1B3C6D & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) & 0xFFFF
    return mixed.float() * (4 / 0xFFFF)


def hash_step(codes: Tensor, tokens: Tensor) -> Tensor:
    """Return the code of prefixes one token longer."""
    return (codes * 0x27D4EB2F + tokens + 1 ^ codes >> 17) & 0x7FFFFFFFFFFF


def hash_model(vocab: int) -> Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]]:
    """Return a step whose logits hash the whole prefix, computed from the prefix alone."""

    def step(prefixes: Tensor, parents: Tensor, state: Any) -> tuple[Tensor, Any]:
        codes = torch.zeros(len(prefixes), dtype=torch.int64)
        for tokens in prefixes.unbind(1):
            codes = hash_step(codes, tokens)
        return hashed_logits(codes, vocab), state

    return step
