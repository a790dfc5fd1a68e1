"""Other people's ways to sample, for comparison: they hold [B, V] and take torch's generator."""
