"""The readable truth beside the kernel: the core, one pass over the vocabulary."""

from __future__ import annotations

from torch import Tensor

from fsresearch.kernels.options import Options
from fsresearch.kernels.references import best_group, held

__all__ = ["logits_group_reference"]


def logits_group_reference(logits: Tensor, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `logits_group` returns, from the core.

    >>> import torch
    >>> options = Options(1000, torch.tensor([7]), torch.tensor(0), draws=4)
    >>> logits_group_reference(torch.zeros(1, 1000), options)[1]
    tensor([[476, 985,  93, 724]])
    """
    return best_group(held(logits, options), options)
