"""Keys of very improbable sequences, against arithmetic with as many digits as it takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal, localcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from fsresearch import noise
from fsresearch.without_replacement.stochastic_beam_search import stochastic_beam_search


def test_keys_keep_their_digits_at_log_probability_minus_3000() -> None:
    """300 uniform choices among e^10 tokens, against clocks with 1,600 digits."""
    vocab, steps, k = 22_026, 300, 2

    def uniform(prefixes: Tensor, parents: Tensor, state: Any) -> tuple[Tensor, Any]:
        return torch.zeros(1, 1).expand(len(prefixes), vocab), state

    seeds = torch.tensor([77])
    drawn = stochastic_beam_search(uniform, None, k, steps, None, seed=seeds, kappa=False)
    assert drawn.log_probs.max() < -2999
    assert drawn.log_probs.sub(-steps * torch.tensor(vocab).double().log()).abs().max() < 1e-6
    lineage = list(range(k))
    path: list[Sequence[int]] = []
    for t in reversed(range(steps)):
        path.append([int(drawn.backpointers[t, 0, beam]) for beam in lineage])
        lineage = list(path[-1])
    path.reverse()
    with localcontext(prec=1_600):
        root = noise.words(seeds, torch.tensor([0]), kind=noise.NODE)
        clocks = [_clock(int(root[0]), int(root[2]))] * k
        for t in range(steps):
            ends = path[t + 1] if t + 1 < steps else range(k)
            clocks = [
                _child_clock(seeds, t, rank, int(drawn.tokens[t, 0, end]), vocab, clock)
                for rank, end, clock in zip(path[t], ends, clocks, strict=True)
            ]
    exact = [-float(clock.ln()) for clock in clocks]
    errors = [abs(a - b) for a, b in zip(drawn.keys[0].tolist(), exact, strict=True)]
    assert max(errors) < 1e-5


BRANCH = [[0.0, -3000.0], [-torch.inf, 1.0, 0.0, 2.0, -3.0], [-torch.inf, 0.5, 0.1, 0.0, 1.0]]


@pytest.mark.parametrize(
    ("rows", "k", "limit"),
    [([[0.0, -80.0]] * 39, 39, 1e-5), (BRANCH, 8, 2e-4)],
    ids=["chain", "branch"],
)
def test_keys_near_minus_3000_keep_their_digits(
    rows: list[list[float]], k: int, limit: float
) -> None:
    """Where float32 has steps of 2.4e-4, which only a single logit of -3000 shows."""
    table = torch.full((len(rows), 5), -torch.inf)
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = torch.tensor(values)

    def model(prefixes: Tensor, parents: Tensor, state: Any) -> tuple[Tensor, Any]:
        return table[prefixes.shape[1]].expand(len(prefixes), 5), state

    seeds = torch.tensor([78])
    drawn = stochastic_beam_search(model, None, k, len(rows), 0, seed=seeds, kappa=False)
    expected = _searched(seeds, [_probabilities(row) for row in table], k)
    assert list(expected) == [tuple(v for v in s if v >= 0) for s in drawn.sequences[0].tolist()]
    assert drawn.keys.min() < -2900
    errors = [abs(a - b) for a, b in zip(drawn.keys[0].tolist(), expected.values(), strict=True)]
    assert max(errors) < limit


def _searched(
    seeds: Tensor, laws: list[dict[int, Decimal]], k: int
) -> dict[tuple[int, ...], float]:
    """Search by clocks with 100 digits, 0 ending a sequence; return the k first and their keys."""
    root = noise.words(seeds, torch.tensor([0]), kind=noise.NODE)
    with localcontext(prec=100):
        beams: dict[tuple[int, ...], tuple[Decimal, Decimal]] = {
            (): (_clock(int(root[0]), int(root[2])), Decimal(1))
        }
        for t, law in enumerate(laws):
            grown: dict[tuple[int, ...], tuple[Decimal, Decimal]] = {}
            for rank, (prefix, (clock, mass)) in enumerate(beams.items()):
                if prefix[-1:] == (0,):
                    grown[prefix] = clock, mass
                    continue
                waits = {v: e / law[v] / mass for v, e in _exponentials(seeds, t, rank, law)}
                first = min(waits.values())
                for v, wait in waits.items():
                    grown[*prefix, v] = wait - first + clock, mass * law[v]
            beams = dict(sorted(grown.items(), key=lambda item: item[1][0])[:k])
        return {prefix: -float(clock.ln()) for prefix, (clock, _) in beams.items()}


def _probabilities(logits: Tensor) -> dict[int, Decimal]:
    """Return softmax, of the tokens with mass."""
    weights = {v: Decimal(x).exp() for v, x in enumerate(logits.tolist()) if x > -torch.inf}
    total = sum(weights.values(), Decimal(0))
    return {v: weight / total for v, weight in weights.items()}


def _exponentials(
    seeds: Tensor, position: int, rank: int, tokens: Iterable[int]
) -> list[tuple[int, Decimal]]:
    """Return the tokens' exponentials at a step, below the beam of a rank."""
    ids = torch.tensor(list(tokens))
    leaf, more = _leaf_words(seeds, position, rank, ids)
    return [
        (token, _exponential(word, low))
        for token, word, low in zip(ids.tolist(), leaf.tolist(), more.tolist(), strict=True)
    ]


def _leaf_words(seeds: Tensor, position: int, rank: int, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens' words and those that refine them, each [N]."""
    units, lanes = noise.leaf_address(ids)
    places = torch.arange(len(ids))
    address: dict[str, Any] = {"draw": rank, "position": position}
    leaf, more = (
        torch.stack(noise.words(seeds, units, kind=kind, **address))[lanes, 0, places]
        for kind in (noise.LEAF, noise.REFINE)
    )
    return leaf, more


def _exponential(word: int, refinement: int) -> Decimal:
    """Return the exponential of a word, with the bits that refine a small one."""
    if word < noise.REFINE_BELOW:
        return _clock(word, refinement)
    with localcontext(prec=60):
        return -(1 - (word + Decimal("0.5")) / 2**32).ln()


def _clock(high: int, low: int) -> Decimal:
    """Return the exponential of 64 bits, to 40 digits."""
    with localcontext(prec=60):
        return -(1 - (2**32 * high + low + Decimal("0.5")) / 2**64).ln()


def _child_clock(
    seeds: Tensor, position: int, rank: int, token: int, vocab: int, parent: Decimal
) -> Decimal:
    """Return a child's clock, shifted so that the first of its siblings rings with the parent.

    On the scale of whole sequences a child at depth t + 1 has the rate vocab**-(t + 1).
    """
    leaf, more = _leaf_words(seeds, position, rank, torch.arange(vocab))
    first = int(leaf.argmin())
    waited = _exponential(int(leaf[token]), int(more[token])) - _exponential(
        int(leaf[first]), int(more[first])
    )
    return waited * Decimal(vocab) ** (position + 1) + parent
