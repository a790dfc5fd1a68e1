"""Fused kernels: fast ways to make the summaries of ``fsresearch.summaries``."""

if __name__ != "fsresearch.kernels":
    raise ImportError(
        f"{__file__} is fsresearch.kernels, not {__name__}: the root of the checkout is on sys.path"
    )
