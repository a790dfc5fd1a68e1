"""The readable truth beside the kernel: the core, one pass over the vocabulary."""

from __future__ import annotations

from torch import Tensor

from fsresearch.kernels.options import Options
from fsresearch.kernels.references import head, largest_k

__all__ = ["lm_head_top_k_reference"]


def lm_head_top_k_reference(
    hidden: Tensor, weight: Tensor, options: Options
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `lm_head_top_k` returns, from the core.

    >>> import torch
    >>> rows = torch.tensor([7])
    >>> options = Options(3, rows, rows, temperature=torch.zeros(1), draws=2)
    >>> lm_head_top_k_reference(torch.ones(1, 1), torch.arange(3.0)[:, None], options)[:2]
    (tensor([[2., 1.]]), tensor([[2, 1]]))
    """
    return largest_k(head(hidden, weight, options), options)
