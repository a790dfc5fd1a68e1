"""Sampling without replacement: Gumbel-top-k, stochastic beams, and estimators over both."""
