"""Compile kernels for a GPU that is not there, through the launchers that would run them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from fsresearch.kernels import flags

__all__ = ["compiling"]


class _Hopper:
    """As much of a driver as compilation asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling() -> Iterator[list[Any]]:
    """Let a launch on CPU tensors compile for a Hopper GPU, and collect the compiled kernels."""
    kernels: list[Any] = []
    run, bits = JITFunction.run, flags.bits

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernels.append(run(self, *args, grid=grid, warmup=True, **options))
        return kernels[-1]

    def with_ptx(*args: Any) -> int:
        return int(bits(*args)) | int(flags.PTX.value)

    with (
        patch.object(JITFunction, "run", compile_only),
        patch.object(flags, "bits", with_ptx),
        patch.object(driver, "_active", _Hopper()),
    ):
        yield kernels
