"""The readable truth beside the kernel: the core, one pass over the vocabulary."""

from __future__ import annotations

from torch import Tensor

from fsresearch.kernels.options import Options
from fsresearch.kernels.references import best_group, head

__all__ = ["lm_head_group_reference"]


def lm_head_group_reference(
    hidden: Tensor, weight: Tensor, options: Options
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `lm_head_group` returns, from the core.

    >>> import torch
    >>> options = Options(1000, torch.tensor([7]), torch.tensor(0), draws=4)
    >>> lm_head_group_reference(torch.zeros(1, 1), torch.zeros(1000, 1), options)[1]
    tensor([[476, 985,  93, 724]])
    """
    return best_group(head(hidden, weight, options), options)
