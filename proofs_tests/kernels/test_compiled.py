"""Every kernel and configuration compiles for a Hopper GPU, on a machine without one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from fsresearch.kernels.matmul.configs import HOPPER, PLAIN, Config  # noqa: E402
from proofs_tests.kernels.compiling import compiling  # noqa: E402
from proofs_tests.without_replacement.experiments import load  # noqa: E402

heads = SimpleNamespace(**load("kernel_heads"))

CONFIGS = [*HOPPER, *PLAIN]
SHARED_MEMORY = 227 * 1024
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def compiled(config: Config, options: tuple[str, ...], dtype: Any = None) -> Any:
    """Compile what a call of several tiles launches; return the kernel with the matmul."""
    generator = torch.Generator().manual_seed(0)
    shape = (600, 128) if "padding" in options else (512, 256)
    head = heads.exact_head(generator, 64, *shape, dtype or torch.bfloat16, options)
    with compiling() as kernels, heads.forced(config):
        heads.answer(head, config.form)
    matmul, *others = kernels
    assert len(others) == ("log mass" in options)
    assert matmul.metadata.shared <= SHARED_MEMORY
    assert config.form == "plain" or "wgmma" in matmul.asm["ptx"]
    return matmul


def spilled(kernel: Any, config: Config, folder: Path) -> float:
    """Return a thread's stack, which holds what registers could not, in accumulators."""
    file = folder / "kernel.cubin"
    file.write_bytes(kernel.asm["cubin"])
    said = subprocess.run([CUOBJDUMP, "-res-usage", file], capture_output=True, text=True).stdout
    accumulator = 4 * config.block_b * config.block_v / (32 * config.warps)
    return int(re.findall(r"STACK:(\d+)", said)[0]) / accumulator


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_greedy(config: Config, tmp_path: Path) -> None:
    assert spilled(compiled(config, ("greedy",)), config, tmp_path) == 0


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_all_options(config: Config) -> None:
    compiled(config, heads.EVERYTHING)


@pytest.mark.parametrize("config", [HOPPER[0], PLAIN[0]], ids=lambda config: config.form)
@pytest.mark.parametrize("option", ["none", *heads.COMPILED])
def test_each_option_alone(option: str, config: Config) -> None:
    compiled(config, () if option == "none" else (option,))


@pytest.mark.parametrize("config", HOPPER, ids=str)
def test_an_accumulator_stays_in_registers(config: Config, tmp_path: Path) -> None:
    """A spilled one costs everything; some words of the rows' state cost little.

    Threads of three bands have 160 registers, and half as many accumulators.
    """
    most = 0.3 if config.bands == 1 else 0.6
    assert spilled(compiled(config, ()), config, tmp_path) <= most


@pytest.mark.deep
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("options", heads.COMBINATIONS, ids=", ".join)
def test_sets_of_options(options: tuple[str, ...], config: Config) -> None:
    compiled(config, options)


@pytest.mark.deep
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_other_dtypes(dtype: torch.dtype, config: Config) -> None:
    if config.form == "hopper" and dtype == torch.float32:
        pytest.skip("the backend gives float32 to the plain form")
    compiled(config, (), dtype)
