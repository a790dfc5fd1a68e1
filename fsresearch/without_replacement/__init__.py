"""Sampling without replacement: Gumbel-top-k."""
