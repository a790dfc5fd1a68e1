"""Sizes that Triton makes kernels of their own for: ones compile; batches are no such sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from proofs_tests.kernels.compiling import compiling
from proofs_tests.without_replacement.experiments import load

heads = SimpleNamespace(**load("kernel_heads"))
KERNELS = [
    *(
        (f"lm_head_{name}", form)
        for name in ("max", "group", "top_k")
        for form in ("hopper", "plain")
    ),
    *((f"logits_{name}", "plain") for name in ("max", "group", "top_k")),
]


def compiled(kernel: str, form: str, rows: int, vocab: int, draws: int) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    head = heads.exact_head(generator, rows, vocab, 128, torch.bfloat16, ("log mass",))
    head = head._replace(options=head.options._replace(draws=draws))
    with compiling() as kernels:
        heads.answer(head.calling(kernel), form)
    return kernels


@pytest.mark.parametrize("rows, vocab, draws", [(3, 1, 5), (3, 600, 1), (1, 1, 1)])
@pytest.mark.parametrize("kernel, form", KERNELS)
def test_one_of_something(kernel: str, form: str, rows: int, vocab: int, draws: int) -> None:
    assert compiled(kernel, form, rows, vocab, draws)


@pytest.mark.parametrize("kernel, form", KERNELS[:6])
def test_a_batch_of_sixteen_runs_the_kernel_of_four(kernel: str, form: str) -> None:
    """Both lay their scratch out alike; a batch that does not may get another kernel."""
    four, sixteen = (
        [made.hash for made in compiled(kernel, form, rows, 600, 5)] for rows in (4, 16)
    )
    assert four == sixteen
