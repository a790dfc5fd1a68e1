"""Sampling without replacement: Gumbel-top-k."""

from fsresearch.without_replacement.gumbel_top_k import gumbel_top_k

__all__ = ["gumbel_top_k"]
