"""Baselines: the materialised samplers have the law they claim and never draw what has no mass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fsresearch.baselines.inverse_cdf import inverse_cdf
from fsresearch.baselines.multinomial import multinomial
from fsresearch.theory.categorical import probabilities
from fsresearch.verify import goodness_of_fit, independence
from proofs_tests.statistics_policy import FIXED_P, false_fail

Sampler = Callable[..., Tensor]
BOTH = pytest.mark.parametrize("sampler", [inverse_cdf, multinomial])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@BOTH
@false_fail(2 * FIXED_P, seeds_vary=False)
def test_the_law(sampler: Sampler) -> None:
    """Null hypothesis: draws are independent with the law softmax."""
    logits = torch.linspace(-3, 3, 100)
    logits[[0, 50, 99]] = -torch.inf
    drawn = sampler(logits.expand(2, -1), 20_000, generator=seeded())
    assert drawn.shape == (2, 20_000) and drawn.dtype == torch.int64
    counts = torch.bincount(drawn.flatten(), minlength=100).numpy()
    assert goodness_of_fit(counts, probabilities(logits.double().numpy())).p_value > FIXED_P
    pairs = torch.bincount(drawn[0] % 20 * 20 + drawn[1] % 20, minlength=400).view(20, 20)
    assert independence(pairs.numpy()).p_value > FIXED_P


@BOTH
def test_what_has_no_mass_is_never_drawn(sampler: Sampler) -> None:
    for token in (0, 1, 63, 99):
        logits = torch.full((3, 100), -torch.inf)
        logits[:, token] = -50.0
        assert (sampler(logits, 500, generator=seeded()) == token).all()


@BOTH
def test_the_generator_decides(sampler: Sampler) -> None:
    logits = torch.zeros(2, 1000)
    first, again = (sampler(logits, 8, generator=seeded(3)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, sampler(logits, 8, generator=seeded(4)))


def test_the_largest_uniform_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix sum that ends above or below 1 must not lead past the last token with mass."""
    logits = torch.cat([torch.randn(1000, generator=seeded()), torch.full((9,), -torch.inf)])[None]
    for uniform in (0.0, 1 - 2.0**-53, 1.0):
        monkeypatch.setattr(
            torch,
            "rand",
            lambda *shape, uniform=uniform, **kw: torch.full(shape, uniform, dtype=kw["dtype"]),
        )
        assert inverse_cdf(logits).item() == (0 if uniform == 0 else 999)


def test_float64_keeps_a_tail_that_float32_sums_lose() -> None:
    """Each tail token is worth less than half a step of a float32 sum that starts at the head."""
    vocab = 1 << 16
    logits = torch.full((1, vocab), -17.5)
    logits[0, 0] = 0.0
    drawn = inverse_cdf(logits, 20_000, generator=seeded())
    mass = (vocab - 1) * torch.exp(torch.tensor(-17.5, dtype=torch.float64))
    chance = float(mass / (1 + mass))
    tail = int((drawn > 0).sum())
    assert goodness_of_fit([20_000 - tail, tail], [1 - chance, chance]).p_value > FIXED_P


def test_without_replacement_no_token_comes_twice() -> None:
    drawn = multinomial(torch.zeros(4, 50), 50, replacement=False, generator=seeded())
    assert torch.equal(drawn.sort(1).values, torch.arange(50).expand(4, -1))
