"""The options of a call, as bits of one compile-time number: what is off costs nothing."""

from __future__ import annotations

import triton.language as tl

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
