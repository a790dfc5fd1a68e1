"""The k largest perturbed logits of an LM head in order, fused with the matmul; path-exact.

The operator returns the state of ``GumbelTopK`` with k = ``draws``, at most `LONGEST`, and of
``LogNormalizer`` where it is wanted. Without seeds there is one column, the largest logit.
"""

from __future__ import annotations

from fsresearch.kernels.lm_head_top_k.launch import launch
from fsresearch.kernels.operator import register

__all__ = ["lm_head_top_k"]

lm_head_top_k = register("lm_head_top_k", launch, light=192)
