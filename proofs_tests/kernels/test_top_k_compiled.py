"""Every configuration of the top-k kernel compiles for a Hopper GPU, on a machine without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from fsresearch.kernels.matmul.configs import HOPPER, PLAIN, Config
from proofs_tests.kernels.compiling import compiling
from proofs_tests.without_replacement.experiments import load

heads = SimpleNamespace(**load("kernel_heads"))
CONFIGS = [*HOPPER, *PLAIN]
SHARED_MEMORY = 227 * 1024


def compiled(config: Config, options: tuple[str, ...]) -> Any:
    """Compile what a call launches; return the kernel with the matmul."""
    generator = torch.Generator().manual_seed(0)
    head = heads.exact_head(generator, 64, 600, 128, torch.bfloat16, (*options, "draws"))
    with compiling() as kernels, heads.forced(config):
        heads.answer(head._replace(kernel="lm_head_top_k"), config.form)
    matmul, _, *others = kernels
    assert len(others) == ("log mass" in options)
    assert matmul.metadata.shared <= SHARED_MEMORY
    return matmul


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_lists_in_memory_are_the_hopper_forms(config: Config) -> None:
    ptx = compiled(config, ()).asm["ptx"]
    assert ("atom.relaxed.gpu.global.max.u64" in ptx) == (config.form == "hopper")
    assert "wgmma" in ptx or config.form == "plain"


@pytest.mark.parametrize("config", [HOPPER[-1], PLAIN[-1]], ids=lambda config: config.form)
def test_all_options(config: Config) -> None:
    compiled(config, heads.EVERYTHING)


@pytest.mark.deep
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("options", heads.COMBINATIONS, ids=", ".join)
def test_sets_of_options(options: tuple[str, ...], config: Config) -> None:
    compiled(config, options)
