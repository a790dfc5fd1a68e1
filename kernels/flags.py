"""The options of a call, as bits of one compile-time number: what is off costs nothing."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from fsresearch.kernels.options import Options

__all__ = [
    "BIAS",
    "BIAS_BY_ROW",
    "EVEN_VOCAB",
    "INVERSE",
    "LOG_MASS",
    "MANY_DRAWS",
    "MASK",
    "MASK_BY_ROW",
    "PACKED",
    "PTX",
    "SAMPLED",
    "SCALE",
    "SOFTCAP",
    "TEMPERATURE",
    "bits",
]

SAMPLED = tl.constexpr(1)
TEMPERATURE = tl.constexpr(2)
SCALE = tl.constexpr(4)
SOFTCAP = tl.constexpr(8)
BIAS = tl.constexpr(16)
BIAS_BY_ROW = tl.constexpr(32)
MASK = tl.constexpr(64)
MASK_BY_ROW = tl.constexpr(128)
PACKED = tl.constexpr(256)
LOG_MASS = tl.constexpr(512)
MANY_DRAWS = tl.constexpr(1024)
EVEN_VOCAB = tl.constexpr(2048)
PTX = tl.constexpr(4096)
INVERSE = tl.constexpr(8192)


def bits(options: Options, block_v: int, weight: Tensor) -> int:
    """Return the number of a call on tiles of so many tokens.

    >>> bits(Options(vocab_size=128), 128, torch.zeros(1)) == EVEN_VOCAB.value
    True
    """
    bias, mask = options.bias, options.mask
    on = {
        SAMPLED: options.seeds is not None,
        TEMPERATURE: options.temperature is not None,
        INVERSE: options.temperature is None and options.inverse != 1.0,
        SCALE: options.logit_scale is not None,
        SOFTCAP: options.softcap is not None,
        BIAS: bias is not None,
        BIAS_BY_ROW: bias is not None and bias.dim() == 2,
        MASK: mask is not None,
        MASK_BY_ROW: mask is not None and mask.dim() == 2,
        PACKED: mask is not None and mask.dtype == torch.int32,
        LOG_MASS: options.log_mass,
        MANY_DRAWS: options.columns > 1,
        EVEN_VOCAB: options.vocab_size % block_v == 0,
        PTX: weight.is_cuda and torch.version.hip is None,
    }
    return sum(flag.value for flag, is_on in on.items() if is_on)
