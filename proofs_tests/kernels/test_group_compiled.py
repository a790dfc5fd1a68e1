"""Every configuration of the group kernel compiles for a Hopper GPU, on a machine without one."""

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
    head = heads.exact_head(generator, 64, 600, 128, torch.bfloat16, options)
    with compiling() as kernels, heads.forced(config):
        heads.answer(head._replace(kernel="lm_head_group"), config.form)
    matmul, *others = kernels
    assert len(others) == ("log mass" in options)
    assert matmul.metadata.shared <= SHARED_MEMORY
    return matmul


@pytest.mark.parametrize("config", HOPPER, ids=str)
def test_a_group_costs_a_vote_where_it_cannot_win(config: Config) -> None:
    ptx = compiled(config, ()).asm["ptx"]
    groups = config.block_b * 4 // (32 * config.warps) * (config.block_v // 64)
    assert ptx.count("vote.sync.any") == 2 * groups * config.bands
    assert "wgmma" in ptx


@pytest.mark.parametrize("config", PLAIN, ids=str)
def test_the_plain_form_is_nobodys_assembly(config: Config) -> None:
    assert "vote.sync" not in compiled(config, ()).asm["ptx"]


@pytest.mark.parametrize("config", [HOPPER[-1], PLAIN[-1]], ids=lambda config: config.form)
def test_all_options(config: Config) -> None:
    compiled(config, heads.EVERYTHING)


@pytest.mark.deep
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("options", heads.COMBINATIONS, ids=", ".join)
def test_sets_of_options(options: tuple[str, ...], config: Config) -> None:
    compiled(config, options)
