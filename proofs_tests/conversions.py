"""Conversions of words to Gumbels, falling in the word: the specified one, and known bad ones."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fsresearch.noise import gumbel_from_words

__all__ = ["appendix_j", "of_24_bits", "specified", "unrefined"]

Words = NDArray[np.int64]
Singles = NDArray[np.float32]


def specified(word: Words, refinement: Words) -> Singles:
    """Convert as the library does, in tensors."""
    gumbels = gumbel_from_words(torch.from_numpy(word), torch.from_numpy(refinement))
    return np.asarray(gumbels.numpy(), np.float32)


def unrefined(word: Words, refinement: Words) -> Singles:
    """Convert midpoints of 32 bits, without refinement."""
    return np.asarray(-np.log(-np.log1p(-(word + 0.5) * 2.0**-32)), np.float32)


def of_24_bits(word: Words, refinement: Words) -> Singles:
    """Convert the float32 uniforms u = 1 - k / 2**24 by -log(-log(u)); k = 1 is the last."""
    step = np.minimum((word >> 8) + 1, (1 << 24) - 1)
    return np.asarray(-np.log(-np.log1p(-step * 2.0**-24)), np.float32)


def appendix_j(word: Words, refinement: Words) -> Singles:
    """Convert u = (r + 1) / (2**32 + 1) in float32 by -log(-log(u)), with r falling in the word."""
    uniform = (torch.from_numpy(2**32 - 1 - word).float() + 1) / (2.0**32 + 1)
    return np.asarray((-torch.log(-torch.log(uniform))).numpy(), np.float32)
