"""The one door to the kernels: says whether they can run here.

No kernel exists yet, so every call is served by the PyTorch core, on any device.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

__all__ = ["triton_available"]


def triton_available() -> bool:
    """Say whether Triton is installed and a CUDA device is there to run its kernels.

    Triton itself is not imported.

    >>> triton_available() <= torch.cuda.is_available()
    True
    """
    return torch.cuda.is_available() and find_spec("triton") is not None
