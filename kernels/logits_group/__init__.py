"""The largest perturbed log-mass of the groups of logits in memory, and a token of that group.

Law-exact. The operator returns the state of ``PerturbedMass``; greedy rows return that of
``GumbelMax`` without noise.
"""

from __future__ import annotations

from fsresearch.kernels.logits_group.launch import launch
from fsresearch.kernels.operator import register_logits

__all__ = ["logits_group"]

logits_group = register_logits("logits_group", launch)
