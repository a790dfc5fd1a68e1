"""The largest perturbed logit of an LM head and its token, fused with the matmul; path-exact.

The operator returns the state of ``GumbelMax``, and of ``LogNormalizer`` where it is wanted.
"""

from __future__ import annotations

from fsresearch.kernels.lm_head_max.launch import launch
from fsresearch.kernels.operator import register

__all__ = ["lm_head_max"]

lm_head_max = register("lm_head_max", launch)
