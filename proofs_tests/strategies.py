"""Hypothesis strategies: logits, masks, noise, partitions of the vocabulary and merge trees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from fsresearch.noise import RowNoise
from fsresearch.theory.merge import Tree
from proofs_tests.logit_rows import ROW_KINDS, stack

__all__ = [
    "Case",
    "cases",
    "cuts",
    "logits",
    "masks",
    "merge_trees",
    "row_noises",
    "vocab_sizes",
    "widths",
]

INT64 = st.integers(-(2**63), 2**63 - 1)
GENERATORS = st.integers(0, 2**32 - 1).map(np.random.default_rng)
MAX_TILES = 10


class Case(NamedTuple):
    """A sampling problem and several ways to cut it.

    Attributes:
        logits: float32 [B, V].
        noise: of the B rows.
        width: tokens a tile.
        cuts: ascending ids to cut at.
        tree: how the parts between cuts merge, leaves numbered from the left.
        ordered_tree: the same number of leaves, in order.
        rows: some of the rows, in any order.
    """

    logits: Tensor
    noise: RowNoise
    width: int
    cuts: list[int]
    tree: Tree
    ordered_tree: Tree
    rows: list[int]


@st.composite
def cases(draw: st.DrawFn, *, step: int = 1, max_vocab: int = 5000) -> Case:
    """A case whose inner cuts and width are multiples of step."""
    vocab = draw(vocab_sizes(max_vocab))
    rows = draw(st.integers(1, 4))
    inner = draw(cuts(vocab, step))
    return Case(
        draw(logits(rows, vocab)),
        draw(row_noises(rows)),
        draw(widths(vocab, step)),
        inner,
        draw(merge_trees(len(inner) + 1)),
        draw(merge_trees(len(inner) + 1, ordered=True)),
        draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows, unique=True)),
    )


def vocab_sizes(largest: int = 5000) -> st.SearchStrategy[int]:
    """Sizes off the grid, and those beside a power of two or a group's end."""
    edges = [
        v + d for v in (1, 32, 64, 128, 1024, 4096) for d in (-1, 0, 1) if 0 < v + d <= largest
    ]
    return st.one_of(
        st.sampled_from(edges), st.integers(1, min(70, largest)), st.integers(1, largest)
    )


@st.composite
def logits(draw: st.DrawFn, rows: int, vocab: int) -> Tensor:
    """Rows float32 [B, V] of any kinds: ties, -inf, NaN, +inf, huge, tiny, one token, none."""
    kinds = draw(st.lists(st.sampled_from(sorted(ROW_KINDS)), min_size=rows, max_size=rows))
    return stack(kinds, vocab, draw(GENERATORS))


@st.composite
def masks(draw: st.DrawFn, rows: int, vocab: int) -> Tensor:
    """Boolean masks [V] or [B, V], from all forbidden to all allowed."""
    shape = (vocab,) if draw(st.booleans()) else (rows, vocab)
    allowed = draw(st.sampled_from([0.0, 0.02, 0.5, 0.98, 1.0]))
    return torch.from_numpy(draw(GENERATORS).random(shape) < allowed)


@st.composite
def row_noises(draw: st.DrawFn, rows: int, max_draws: int = 2) -> RowNoise:
    """Noise with any seeds, positions (one or one a row), draw numbers and role."""
    seeds = draw(st.lists(INT64, min_size=rows, max_size=rows))
    many = draw(st.booleans())
    at = st.integers(0, 2**56 - 1)
    positions = draw(st.lists(at, min_size=rows, max_size=rows) if many else at)
    draws = draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=max_draws, unique=True))
    role = draw(st.integers(0, 31))
    return RowNoise(torch.tensor(seeds), torch.tensor(positions), torch.tensor(draws), role)


@st.composite
def cuts(draw: st.DrawFn, vocab: int, step: int = 1, most: int = 5) -> list[int]:
    """Ascending multiples of step in [0, vocab], some of them possibly equal: empty parts."""
    places = st.integers(0, vocab // step)
    return sorted(step * place for place in draw(st.lists(places, max_size=most)))


@st.composite
def widths(draw: st.DrawFn, vocab: int, step: int = 1) -> int:
    """A tile width in [1, vocab] that is a multiple of step and leaves not too many tiles."""
    fewest = max(math.ceil(vocab / (MAX_TILES * step)), 1)
    most = max(math.ceil(vocab / step), fewest)
    return step * draw(st.integers(fewest, most) | st.integers(fewest, min(fewest + 3, most)))


@st.composite
def merge_trees(draw: st.DrawFn, parts: int, *, ordered: bool = False) -> Tree:
    """A bracketing of the parts 0 .. parts - 1, in their order or shuffled."""
    leaves: Sequence[Tree] = range(parts)
    nodes = list(leaves if ordered else draw(st.permutations(leaves)))
    while len(nodes) > 1:
        at = draw(st.integers(0, len(nodes) - 2))
        nodes[at : at + 2] = [(nodes[at], nodes[at + 1])]
    return nodes[0]
