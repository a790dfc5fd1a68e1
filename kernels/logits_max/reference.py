"""The readable truth beside the kernel: the core, one pass over the vocabulary."""

from __future__ import annotations

from torch import Tensor

from fsresearch.kernels.options import Options
from fsresearch.kernels.references import held, largest

__all__ = ["logits_max_reference"]


def logits_max_reference(logits: Tensor, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `logits_max` returns, from the core.

    >>> import torch
    >>> logits_max_reference(torch.tensor([[1.0, 2.0]]), Options(2))[:2]
    (tensor([[2.]]), tensor([[1]]))
    """
    return largest(held(logits, options), options)
