"""One step of a stochastic beam: whose children follow, with which keys."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fsresearch.without_replacement.frontier import Beams, Children, select

INF = torch.inf


def frontier(seed: int, rows: int, width: int, depth: float) -> tuple[Beams, Children]:
    """Return random beams at log-probabilities near -depth, with their children in order."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    log_probs = -depth + normal(rows, width)
    keys = (log_probs + 2 * normal(rows, width)).sort(1, descending=True).values
    ids = torch.arange(width)
    beams = Beams(
        ids.expand(rows, 1, width).mT,
        keys,
        log_probs,
        log_probs - 1,
        torch.ones(rows, width, dtype=torch.int64),
        torch.rand(rows, width, generator=generator) < 0.3,
    )
    local = (3 * normal(rows, width, width)).sort(2, descending=True).values
    missing = torch.rand(rows, width, width, generator=generator) < 0.2
    missing[..., 0] = False
    local = local.masked_fill(missing.sort(2).values, -INF)
    tokens = ids.expand(rows, width, width).masked_fill(local == -INF, -1)
    return beams, Children(local, tokens, -local.abs(), -local.abs() - 1)


@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 6),
    depth=st.sampled_from([0.0, 1.0, 30.0, 3000.0, 1e5]),
)
def test_the_best_child_has_its_parents_key_and_none_exceeds_it(
    seed: int, width: int, depth: float
) -> None:
    """To the bit; ended beams stand for themselves; the w best come in order, with their sums."""
    beams, children = frontier(seed, 4, width, depth)
    growing = ~beams.finished
    made, places, tokens = select(beams, children, growing, width, (99,))
    parents = beams.keys.gather(1, places)
    assert (made.keys <= parents).all()
    assert (made.keys.diff(dim=1) <= 0).all()
    assert made.keys[:, 0].equal(beams.keys[:, 0])
    grown = growing.gather(1, places)
    assert made.keys[~grown].equal(parents[~grown])
    assert (tokens[~grown] == -1).all()
    first = tokens == 0
    assert made.keys[first].equal(parents[first])
    added = children.log_probs.flatten(1).gather(1, places * width + tokens.clamp(min=0))
    expected = beams.log_probs.gather(1, places) + added.masked_fill(~grown, 0.0)
    assert made.log_probs.equal(expected)
    assert made.prefixes[..., 0].equal(places)
    assert made.prefixes[..., 1].equal(tokens.masked_fill(~grown, 99))


@given(seed=st.integers(0, 2**32 - 1), width=st.integers(2, 6))
def test_the_best_come_from_the_best(seed: int, width: int) -> None:
    """Without the last beam the others have the same successors: widths are nested."""
    beams, children = frontier(seed, 3, width, 10.0)
    made, places, tokens = select(beams, children, ~beams.finished, width, ())
    fewer = Beams(*(field[:, :-1] for field in beams))
    theirs = Children(*(field[:, :-1, :-1] for field in children))
    narrow, at, less = select(fewer, theirs, ~fewer.finished, width - 1, ())
    assert narrow.keys.equal(made.keys[:, :-1])
    assert at.equal(places[:, :-1])
    assert less.equal(tokens[:, :-1])


def test_equal_keys_keep_the_order_of_parents() -> None:
    """Two parents with one key: their best children follow in the parents' order."""
    beams, children = frontier(1, 1, 3, 5.0)
    beams = beams._replace(keys=torch.full_like(beams.keys, 2.0), finished=beams.finished & False)
    _, places, tokens = select(beams, children, ~beams.finished, 3, ())
    assert places.tolist() == [[0, 1, 2]]
    assert tokens.tolist() == [[0, 0, 0]]
