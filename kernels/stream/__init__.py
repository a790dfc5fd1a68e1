"""The streaming pipeline of logits in memory; an epilogue is its parameter."""
