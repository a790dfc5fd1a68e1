"""What figures of the kernels were measured on and with."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

import torch

__all__ = ["setting"]

KERNELS = Path(__file__).parents[1] / "kernels"


def setting() -> dict[str, str]:
    """Return the device, torch, triton, and a digest of the source in kernels/."""
    digest = hashlib.sha256()
    for file in sorted(KERNELS.rglob("*.py")):
        digest.update(file.relative_to(KERNELS).as_posix().encode() + file.read_bytes())
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "triton": version("triton"),
        "kernels": digest.hexdigest()[:12],
    }
