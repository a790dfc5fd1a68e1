"""What most code does: softmax in memory, then ``torch.multinomial``."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["multinomial"]


def multinomial(
    logits: Tensor,
    num_samples: int = 1,
    *,
    replacement: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Sample tokens by ``torch.multinomial(softmax(logits))``.

    Args:
        logits: floating [B, V].
        num_samples: draws n a row.
        replacement: whether a token may come twice.
        generator: torch's default one if None.

    Returns:
        int64 [B, n].

    >>> multinomial(torch.tensor([[-torch.inf, 0.0, -torch.inf]]), 3)
    tensor([[1, 1, 1]])
    """
    return torch.multinomial(
        torch.softmax(logits, 1), num_samples, replacement=replacement, generator=generator
    )
