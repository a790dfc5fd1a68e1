"""The k largest perturbed logits of logits in memory, in order; path-exact.

The operator returns the state of ``GumbelTopK`` with k = ``draws``, at most `LONGEST`, and of
``LogNormalizer`` where it is wanted. Without seeds there is one column, the largest logit.
"""

from __future__ import annotations

from fsresearch.kernels.logits_top_k.launch import launch
from fsresearch.kernels.operator import register_logits

__all__ = ["logits_top_k"]

logits_top_k = register_logits("logits_top_k", launch)
