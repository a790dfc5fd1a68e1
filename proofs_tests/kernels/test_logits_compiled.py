"""The kernels of logits in memory compile for a Hopper GPU, on a machine without one."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from fsresearch.kernels.options import Options
from proofs_tests.kernels.compiling import compiling

KERNELS = "logits_max", "logits_group", "logits_top_k"
ROWS, VOCAB = 64, 4096


def compiled(name: str, logits: torch.Tensor, **options: Any) -> str:
    """Compile a kernel as a call would; return its PTX."""
    launch = importlib.import_module(f"fsresearch.kernels.{name}.launch").launch
    rows = torch.zeros(ROWS, dtype=torch.int64)
    with compiling() as kernels:
        launch(logits, Options(VOCAB, rows, rows, **options), 132)
    return str(kernels[0].asm["ptx"])


@pytest.mark.parametrize("name", KERNELS)
def test_rows_are_loaded_in_vectors_and_ahead(name: str) -> None:
    ptx = compiled(name, torch.empty(ROWS, VOCAB, dtype=torch.bfloat16))
    sizes = set(re.findall(r"cp\.async\.c[ag]\S* \[.*?\], \[.*?\], (0x\w+)", ptx))
    assert sizes == {"0x10" if name == "logits_group" else "0x8"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", KERNELS)
def test_rows_that_are_not_aligned(name: str, dtype: torch.dtype) -> None:
    compiled(name, torch.empty(ROWS, VOCAB + 1, dtype=dtype)[:, 1:])


@pytest.mark.deep
@pytest.mark.parametrize("name", KERNELS)
def test_all_options(name: str) -> None:
    options = {
        "temperature": torch.ones(ROWS),
        "bias": torch.zeros(ROWS, VOCAB),
        "mask": torch.zeros(VOCAB // 32, dtype=torch.int32),
        "softcap": 3.0,
        "logit_scale": 0.5,
        "draws": 3,
        "log_mass": True,
    }
    compiled(name, torch.empty(ROWS, VOCAB), **options)
