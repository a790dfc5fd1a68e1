"""Keys of very improbable sequences, against arithmetic with as many digits as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext
from typing import Any

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
    units, lanes = noise.leaf_address(torch.arange(vocab))
    address: dict[str, Any] = {"draw": rank, "position": position}
    leaf, more = (
        torch.stack(noise.words(seeds, units, kind=kind, **address))[lanes, 0, torch.arange(vocab)]
        for kind in (noise.LEAF, noise.REFINE)
    )

    def exponential(at: int) -> Decimal:
        word = int(leaf[at])
        if word < noise.REFINE_BELOW:
            return _clock(word, int(more[at]))
        with localcontext(prec=60):
            return -(1 - (word + Decimal("0.5")) / 2**32).ln()

    waited = exponential(token) - exponential(int(leaf.argmin()))
    return waited * Decimal(vocab) ** (position + 1) + parent
