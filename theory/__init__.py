"""The laws that the samplers must obey, as slow and plain float64 NumPy.

Nothing here knows of the samplers and no sampler imports it, so that neither can hide the other's
fault. ``categorical`` holds softmax and its factorisation over groups, ``gumbel`` the Gumbel law,
max-stability and a second implementation of the addressed noise, ``merge`` the law of every tree
of coins and the maximum over a partition, ``plackett_luce`` sampling without replacement, and
``numerics`` the distance between the law that finite words give and softmax.
"""

from __future__ import annotations

if __name__ != "fsresearch.theory":
    raise ImportError(f"this package is fsresearch.theory; it was imported as {__name__!r}")
