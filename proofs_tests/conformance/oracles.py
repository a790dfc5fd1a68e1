"""What the samplers must answer, in plain NumPy over whole rows that are held in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsresearch import noise as noise_module
from fsresearch.noise import GROUP, RowNoise, gumbel_from_bits

__all__ = ["grouped", "maximum", "strand_tree", "top_k", "walk"]

Singles = NDArray[np.float32]
Integers = NDArray[np.int64]


def maximum(logits: Tensor, noise: RowNoise) -> Integers:
    """Return argmax of logits + noise, int64 [B, n]: lowest id on ties, -1 where invalid."""
    scores = _scores(logits, noise)
    return np.where(_valid(logits)[:, None], scores.argmax(2), -1)


def top_k(logits: Tensor, noise: RowNoise, k: int) -> Integers:
    """Return the k largest of logits + noise in order, int64 [B, k], -1 where there is none."""
    scores = _scores(logits, noise)[:, 0]
    found = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    has_mass = np.take_along_axis(scores, found, 1) > -np.inf
    tokens = np.where(has_mass & _valid(logits)[:, None], found, -1)
    return np.pad(tokens, ((0, 0), (0, k - tokens.shape[1])), constant_values=-1)


def grouped(logits: Tensor, noise: RowNoise) -> tuple[Singles, Integers]:
    """Return (perturbed, token) [B, n] of one Gumbel a group of 64 and a walk inside it."""
    rows, vocab = logits.shape
    padded = np.full((rows, -(-vocab // 64), 64), -np.inf, np.float32)
    padded.reshape(rows, -1)[:, :vocab] = logits.numpy()
    draws = len(noise.draws)
    perturbed = np.full((rows, draws), np.nan, np.float32)
    token = np.full((rows, draws), -1)
    words = noise.words(torch.arange(padded.shape[1]), GROUP)
    gumbel = gumbel_from_bits(words[0], words[2]).float().numpy()
    inner = (words[3].double().numpy() + 0.5) * 2.0**-32 + words[1].double().numpy()
    uniform = (inner * 2.0**-32).astype(np.float32)
    valid = _valid(logits)
    for b in range(rows):
        if not valid[b]:
            empty = bool((logits[b] == -torch.inf).all())
            perturbed[b] = -np.inf if empty else np.nan
            continue
        top = padded[b].max(1)
        shift = np.where(np.isfinite(top), top, np.float32(0))
        relative = torch.from_numpy(padded[b]) - torch.from_numpy(shift)[:, None]
        weights = relative.exp().numpy()
        trees = [strand_tree(group) for group in weights]
        mass = np.array([tree[-1][0] for tree in trees], np.float32)
        log_mass = shift + torch.from_numpy(mass).log().numpy()
        for n in range(draws):
            scores = log_mass + gumbel[b, n]
            group = int(scores.argmax())
            perturbed[b, n] = scores[group]
            token[b, n] = group * 64 + walk(trees[group], uniform[b, n, group])
    return perturbed, token


def strand_tree(weights: Singles) -> list[Singles]:
    """Return the sums of 64 weights, level by level: strands (v % 8) // 2, each in ascending id."""
    strands = [[v for v in range(64) if v % 8 // 2 == s] for s in range(4)]
    levels = [np.array([weights[v] for strand in strands for v in strand], np.float32)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        pairs = [np.float32(below[i] + below[i + 1]) for i in range(0, len(below), 2)]
        levels.append(np.array(pairs, np.float32))
    return levels


def walk(levels: list[Singles], uniform: np.float32) -> int:
    """Walk down from the total with x = uniform * mass, never into a part without mass."""
    x = np.float32(uniform * levels[-1][0])
    node = 0
    for level in levels[-2::-1]:
        left, right = level[2 * node], level[2 * node + 1]
        node = 2 * node
        if not (x < left or right == 0):
            x = np.float32(x - left)
            node += 1
    order = [v for s in range(4) for v in range(64) if v % 8 // 2 == s]
    return order[node]


def _scores(logits: Tensor, noise: RowNoise) -> Singles:
    """Return logits + Gumbels, float32 [B, n, V], with the noise taken token by token."""
    ids = torch.arange(logits.shape[1])
    at = noise.positions.expand(len(logits))
    options: dict[str, Any] = {"position": at, "role": noise.role}
    drawn = [
        noise_module.gumbel(noise.seeds, ids, draw=int(draw), **options) for draw in noise.draws
    ]
    scores: Singles = (logits[:, None] + torch.stack(drawn, 1)).numpy()
    return scores


def _valid(logits: Tensor) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = ((logits < torch.inf).all(1) & (logits > -torch.inf).any(1)).numpy()
    return valid
