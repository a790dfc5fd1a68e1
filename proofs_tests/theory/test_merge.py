"""Every tree of coins over every partition is exact, and maxima merge to the maximum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsresearch.theory import categorical, merge

Case = tuple[list[float], list[list[int]], merge.Tree]


@st.composite
def merges(draw: st.DrawFn, tokens: int = 10, parts: int = 6) -> Case:
    """Logits, a partition (empty and massless groups included) and a tree over its parts."""
    logit = st.one_of(st.floats(-30, 30), st.just(-math.inf))
    logits = draw(st.lists(logit, min_size=1, max_size=tokens))
    logits[draw(st.integers(0, len(logits) - 1))] = draw(st.floats(-30, 30))
    count = draw(st.integers(1, parts))
    owner = draw(st.lists(st.integers(0, count - 1), min_size=len(logits), max_size=len(logits)))
    groups = [[v for v, k in enumerate(owner) if k == part] for part in range(count)]
    forest: list[merge.Tree] = list(draw(st.permutations(range(count))))
    while len(forest) > 1:
        at = draw(st.integers(0, len(forest) - 2))
        forest[at : at + 2] = [(forest[at], forest[at + 1])]
    return logits, groups, forest[0]


@given(merges())
def test_every_tree_over_every_partition_gives_softmax(case: Case) -> None:
    logits, groups, tree = case
    law = merge.merge_law(tree, logits, groups)
    np.testing.assert_allclose(law, categorical.probabilities(logits), rtol=1e-12, atol=1e-300)


@settings(max_examples=40)
@given(merges(tokens=6, parts=4))
def test_listing_every_outcome_gives_softmax(case: Case) -> None:
    logits, groups, tree = case
    law = merge.enumerated_law(tree, logits, groups)
    np.testing.assert_allclose(law, categorical.probabilities(logits), rtol=1e-12, atol=1e-300)


def test_all_bracketings_of_five_parts_agree() -> None:
    logits = [0.0, -1.0, 3.0, -math.inf, 1.5, -2.0, 0.5]
    groups = [[0, 1], [2], [3], [4, 6], [5]]
    trees = list(merge.all_trees(range(5)))
    assert len(trees) == 14
    assert merge.left_fold(5) in trees
    for tree in trees:
        law = merge.merge_law(tree, logits, groups)
        np.testing.assert_allclose(law, categorical.probabilities(logits), rtol=1e-13)


def test_a_wrong_coin_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check has power: a coin that ignores the running mass is far from softmax."""
    monkeypatch.setattr(merge, "right_chance", lambda left, right: 0.5)
    logits, groups = [0.0, 0.0, 0.0], [[0], [1], [2]]
    law = merge.merge_law(merge.left_fold(3), logits, groups)
    assert categorical.total_variation(law, [1 / 3] * 3) > 0.15


def test_a_part_without_mass_tosses_no_coin() -> None:
    assert merge.right_chance(-1e6, -math.inf) == 0
    assert merge.right_chance(-math.inf, -1e6) == 1
    assert merge.right_chance(-math.inf, -math.inf) == 0
    empty = [-math.inf, -math.inf]
    np.testing.assert_array_equal(merge.merge_law((0, 1), empty, [[0], [1]]), [0, 0])
    np.testing.assert_array_equal(merge.enumerated_law((0, 1), empty, [[0], [1]]), [0, 0])


@given(st.floats(-700, 700), st.floats(-700, 700))
def test_the_two_chances_of_a_coin_sum_to_one(left: float, right: float) -> None:
    both = merge.right_chance(left, right) + merge.right_chance(right, left)
    assert both == pytest.approx(1, abs=3e-16)


@given(st.data())
def test_the_maximum_over_a_partition_is_the_lowest_best_id(data: st.DataObject) -> None:
    scores = data.draw(st.lists(st.sampled_from([-math.inf, 0.0, 1.0, 1.5]), min_size=1))
    size = len(scores)
    owner = data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    groups = [[v for v in range(size) if owner[v] == part] for part in range(6)]
    order = data.draw(st.permutations(groups))
    assert merge.argmax_of_parts(scores, order) == merge.argmax(scores) == int(np.argmax(scores))


@pytest.mark.parametrize("tree", [0, (0, 0), ((0, 1), 2)])
def test_a_tree_must_hold_every_part_once(tree: merge.Tree) -> None:
    with pytest.raises(ValueError, match="tree"):
        merge.merge_law(tree, [0.0, 0.0], [[0], [1]])
