"""The matmul pipelines that every LM-head kernel shares; an epilogue is their parameter."""
