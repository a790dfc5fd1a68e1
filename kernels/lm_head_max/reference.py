"""The readable truth beside the kernel: the core, one pass over the vocabulary."""

from __future__ import annotations

from torch import Tensor

from fsresearch.kernels.options import Options
from fsresearch.kernels.references import head, largest

__all__ = ["lm_head_max_reference"]


def lm_head_max_reference(
    hidden: Tensor, weight: Tensor, options: Options
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `lm_head_max` returns, from the core.

    >>> import torch
    >>> lm_head_max_reference(torch.ones(1, 1), torch.tensor([[1.0], [2.0]]), Options(2))[:2]
    (tensor([[2.]]), tensor([[1]]))
    """
    return largest(head(hidden, weight, options), options)
