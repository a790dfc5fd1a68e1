"""The materialised baseline: softmax, prefix sum, and a search for a uniform number.

Source: FlashSampling, Algorithm A.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["inverse_cdf"]


def inverse_cdf(
    logits: Tensor, num_samples: int = 1, *, generator: torch.Generator | None = None
) -> Tensor:
    """Sample tokens by inverting the cumulative mass, in float64.

    Float64 keeps the steps of rare tokens, which a float32 prefix sum loses. A token without mass
    has a step of width zero and is never found.

    Args:
        logits: floating [B, V].
        num_samples: draws n a row.
        generator: torch's default one if None.

    Returns:
        int64 [B, n].

    Source: FlashSampling, Algorithm A.1.

    >>> inverse_cdf(torch.tensor([[-torch.inf, 0.0, -torch.inf]]), 3)
    tensor([[1, 1, 1]])
    """
    cumulative = torch.softmax(logits.double(), 1).cumsum(1)
    uniform = torch.rand(
        len(logits), num_samples, dtype=torch.float64, device=logits.device, generator=generator
    )
    total = cumulative[:, -1:]
    sought = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, sought, right=True)
