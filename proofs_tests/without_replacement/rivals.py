"""Other samplers of pairs and beams: one that is right by other means, one that is wrong."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

from proofs_tests.without_replacement.trees import Tree


def trie_pairs(model: Tree, count: int, seed: int) -> Tensor:
    """Draw pairs one after the other: walk down by the mass that is left, then take the leaf's out.

    Source: Shi, Bieber, Sutton, "Incremental sampling without replacement for sequence models",
    ICML 2020.
    """
    rng = np.random.default_rng(seed)
    places = {leaf: i for i, leaf in enumerate(model.leaves)}
    full: dict[tuple[int, ...], float] = defaultdict(float)
    for leaf, log_prob in model.leaves.items():
        for n in range(len(leaf) + 1):
            full[leaf[:n]] += math.exp(log_prob)
    pairs = []
    for uniforms in rng.random((count, 2, 4)):
        left = dict(full)
        drawn = []
        for walk in uniforms:
            node: tuple[int, ...] = ()
            for u in walk:
                if node in places:
                    break
                children = [(*node, token) for token in range(3) if (*node, token) in full]
                mass = np.cumsum([left[child] for child in children])
                node = children[int(np.searchsorted(mass, u * mass[-1], side="right"))]
            for n in range(len(node) + 1):
                left[node[:n]] -= full[node]
            left[node] = 0.0
            drawn.append(places[node])
        pairs.append(drawn)
    return torch.tensor(pairs)


def naive_beam(model: Tree, k: int, depth: int, eos: int, rows: int, seed: int) -> Tensor:
    """Beam search with fresh Gumbels on the total log-probability at every step."""
    generator = torch.Generator().manual_seed(seed)
    sequences = torch.empty(rows, 1, 0, dtype=torch.int64)
    totals = torch.zeros(rows, 1)
    done = torch.zeros(rows, 1, dtype=torch.bool)
    for _ in range(depth):
        log_p = model.table[model.code(sequences)].log_softmax(-1)
        vocab = log_p.shape[2]
        log_p = log_p.masked_fill(done[..., None], -torch.inf)
        log_p[..., eos] = log_p[..., eos].masked_fill(done, 0.0)
        phi = (totals[..., None] + log_p).flatten(1)
        noise = -torch.empty_like(phi).exponential_(generator=generator).log()
        chosen = (phi + noise).topk(min(k, phi.shape[1]), dim=1).indices
        parents, tokens = chosen // vocab, chosen % vocab
        tokens = tokens.masked_fill(done.gather(1, parents), -1)
        totals, done = phi.gather(1, chosen), done.gather(1, parents) | (tokens == eos)
        old = sequences.gather(1, parents[..., None].expand(-1, -1, sequences.shape[2]))
        sequences = torch.cat([old, tokens[..., None]], 2)
    return model.numbers(sequences)
