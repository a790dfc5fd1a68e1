"""The largest perturbed log-mass of an LM head's groups and a token of that group; law-exact.

The operator returns the state of ``PerturbedMass``; greedy rows return that of ``GumbelMax``
without noise.
"""

from __future__ import annotations

from fsresearch.kernels.lm_head_group.launch import launch
from fsresearch.kernels.operator import register

__all__ = ["lm_head_group"]

lm_head_group = register("lm_head_group", launch)
