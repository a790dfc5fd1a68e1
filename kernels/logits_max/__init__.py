"""The largest perturbed logit of logits in memory, and its token; path-exact.

The operator returns the state of ``GumbelMax``, and of ``LogNormalizer`` where it is wanted.
"""

from __future__ import annotations

from fsresearch.kernels.logits_max.launch import launch
from fsresearch.kernels.operator import register_logits

__all__ = ["logits_max"]

logits_max = register_logits("logits_max", launch)
