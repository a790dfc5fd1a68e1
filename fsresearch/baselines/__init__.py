"""Other people's ways to sample, for comparison: they hold [B, V] and take torch's generator."""

from fsresearch.baselines.inverse_cdf import inverse_cdf
from fsresearch.baselines.multinomial import multinomial

__all__ = ["inverse_cdf", "multinomial"]
