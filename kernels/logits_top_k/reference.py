"""The readable truth beside the kernel: the core, one pass over the vocabulary."""

from __future__ import annotations

from torch import Tensor

from fsresearch.kernels.options import Options
from fsresearch.kernels.references import held, largest_k

__all__ = ["logits_top_k_reference"]


def logits_top_k_reference(logits: Tensor, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `logits_top_k` returns, from the core.

    >>> import torch
    >>> rows = torch.tensor([7])
    >>> options = Options(3, rows, rows, temperature=torch.zeros(1), draws=2)
    >>> logits_top_k_reference(torch.arange(3.0)[None], options)[:2]
    (tensor([[2., 1.]]), tensor([[2, 1]]))
    """
    return largest_k(held(logits, options), options)
