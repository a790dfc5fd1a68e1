"""The law of merging local samples by coins along any tree, and the maximum over any partition.

A summary of a part is its log-mass L and an exact local sample. Two summaries merge by a coin
that takes the right sample with probability exp(L_B) / (exp(L_A) + exp(L_B)); a part without mass
tosses none. Lemma D.3 says that every tree of such merges is exact; here the law is computed two
ways that use nothing of softmax over the union: by mixing laws up the tree, and by listing every
outcome of all local draws and all coins.

Source: FlashSampling, Lemmas D.3, D.4 and D.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fsresearch.theory.categorical import (
    Groups,
    check_partition,
    group_log_masses,
    probabilities,
)

__all__ = [
    "Tree",
    "all_trees",
    "argmax",
    "argmax_of_parts",
    "enumerated_law",
    "left_fold",
    "merge_law",
    "right_chance",
]

Floats = NDArray[np.float64]
Tree = int | tuple["Tree", "Tree"]


def merge_law(tree: Tree, logits: ArrayLike, groups: Groups) -> Floats:
    """Return the law of the token that a tree of coins gives, float64 [V].

    Args:
        tree: a leaf is a number of a group, a node is a pair (left, right).
        logits: float64 [V].
        groups: a partition of range(V), each group a leaf; parts may be empty or without mass.

    Returns:
        The law; all zeros where no logit is finite.

    Raises:
        ValueError: If the groups are no partition or the tree does not hold each exactly once.

    Source: FlashSampling, Lemma D.3 and Theorem D.4.

    >>> merge_law(((0, 1), 2), [0.0, 0.0, 0.0, 0.0], [[0], [1, 3], [2]]).round(12).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    values, masses = _checked(tree, logits, groups)

    def walk(node: Tree) -> tuple[float, Floats]:
        if isinstance(node, int):
            return masses[node], _local_law(values, groups[node])
        (left_mass, left), (right_mass, right) = walk(node[0]), walk(node[1])
        take_left, take_right = _chances(left_mass, right_mass)
        return _add_masses(left_mass, right_mass), take_left * left + take_right * right

    return walk(tree)[1]


def enumerated_law(tree: Tree, logits: ArrayLike, groups: Groups) -> Floats:
    """Return the same law by listing every outcome of the local samples and the coins.

    The cost is the product of the groups' sizes times two to the number of coins.

    Raises:
        ValueError: If the groups are no partition or the tree does not hold each exactly once.

    >>> enumerated_law((1, 0), [0.0, math.log(3.0)], [[0], [1]]).round(12).tolist()
    [0.25, 0.75]
    """
    values, masses = _checked(tree, logits, groups)
    locals_ = [_local_law(values, group) for group in groups]
    choices = [np.flatnonzero(local).tolist() or [-1] for local in locals_]
    terms: list[list[float]] = [[] for _ in values]
    for tokens in product(*choices):
        chance = math.prod(locals_[k][z] for k, z in enumerate(tokens) if z >= 0)
        for token, coins, _ in _outcomes(tree, tokens, masses):
            if token >= 0:
                terms[token].append(float(chance * coins))
    return np.array([math.fsum(term) for term in terms], dtype=np.float64)


def right_chance(left_mass: float, right_mass: float) -> float:
    """Return the chance that a coin takes the right part, from the two log-masses.

    A part without mass tosses no coin: the other is taken, and the left one if both are empty.

    Source: FlashSampling, Lemma D.3.

    >>> right_chance(0.0, math.log(3.0)), right_chance(5.0, -math.inf)
    (0.75, 0.0)
    """
    if right_mass == -math.inf:
        return 0.0
    if left_mass == -math.inf:
        return 1.0
    if right_mass > left_mass:
        return 1.0 / (1.0 + math.exp(left_mass - right_mass))
    odds = math.exp(right_mass - left_mass)
    return odds / (1.0 + odds)


def left_fold(parts: int) -> Tree:
    """Return the tree of a streaming pass: (((0, 1), 2), ...).

    Source: FlashSampling, Algorithm I.3.

    >>> left_fold(4)
    (((0, 1), 2), 3)
    """
    tree: Tree = 0
    for part in range(1, parts):
        tree = (tree, part)
    return tree


def all_trees(parts: Sequence[int]) -> Iterator[Tree]:
    """Yield every bracketing of the parts in their order (the Catalan number of them).

    >>> list(all_trees([0, 1, 2]))
    [(0, (1, 2)), ((0, 1), 2)]
    """
    if len(parts) == 1:
        yield parts[0]
    for cut in range(1, len(parts)):
        yield from product(all_trees(parts[:cut]), all_trees(parts[cut:]))


def argmax(scores: ArrayLike) -> int:
    """Return the lowest id of the largest score.

    >>> argmax([1.0, 3.0, 3.0])
    1
    """
    best, values = 0, np.asarray(scores).tolist()
    for token, score in enumerate(values):
        if score > values[best]:
            best = token
    return best


def argmax_of_parts(scores: ArrayLike, groups: Groups) -> int:
    """Return the winner among the parts' winners, the lowest id on ties.

    Raises:
        ValueError: If the groups are no partition.

    Source: FlashSampling, Lemma D.5.

    >>> argmax_of_parts([1.0, 3.0, 3.0], [[2, 0], [1], []])
    1
    """
    values = np.asarray(scores).tolist()
    check_partition(groups, len(values))
    winners = [min(group, key=lambda v: (-values[v], v)) for group in groups if group]
    return min(winners, key=lambda v: (-values[v], v))


def _outcomes(
    node: Tree, tokens: Sequence[int], masses: Sequence[float]
) -> Iterator[tuple[int, float, float]]:
    """Yield (token, chance of these coins, log-mass) for every outcome under a node."""
    if isinstance(node, int):
        yield tokens[node], 1.0, masses[node]
        return
    below = (_outcomes(child, tokens, masses) for child in node)
    for (left, left_path, left_mass), (right, right_path, right_mass) in product(*below):
        both = left_path * right_path
        mass = _add_masses(left_mass, right_mass)
        take_left, take_right = _chances(left_mass, right_mass)
        yield left, both * take_left, mass
        yield right, both * take_right, mass


def _chances(left_mass: float, right_mass: float) -> tuple[float, float]:
    """Return both sides' chances, each computed itself: one minus the other would lose a tail."""
    if left_mass == right_mass == -math.inf:
        return 1.0, 0.0
    return right_chance(right_mass, left_mass), right_chance(left_mass, right_mass)


def _add_masses(left: float, right: float) -> float:
    high, low = max(left, right), min(left, right)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def _local_law(values: Floats, group: Sequence[int]) -> Floats:
    """Return softmax inside the group and zero elsewhere; all zeros if the group has no mass."""
    law = np.zeros(len(values))
    if np.isfinite(values[list(group)]).any():
        law[list(group)] = probabilities(values[list(group)])
    return law


def _checked(tree: Tree, logits: ArrayLike, groups: Groups) -> tuple[Floats, list[float]]:
    values = np.asarray(logits, np.float64)
    masses = group_log_masses(values, groups).tolist()
    if sorted(_leaves(tree)) != list(range(len(groups))):
        raise ValueError(f"tree must hold each of {len(groups)} groups once, got {tree}")
    return values, masses


def _leaves(node: Tree) -> list[int]:
    return [node] if isinstance(node, int) else [*_leaves(node[0]), *_leaves(node[1])]
