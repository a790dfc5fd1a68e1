"""Sizes of one compile: Triton makes another kernel for them, in which they are constants."""

from __future__ import annotations

from types import SimpleNamespace

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


@pytest.mark.parametrize("rows, vocab, draws", [(1, 600, 5), (3, 1, 5), (3, 600, 1), (1, 1, 1)])
@pytest.mark.parametrize("kernel, form", KERNELS)
def test_one_of_something(kernel: str, form: str, rows: int, vocab: int, draws: int) -> None:
    generator = torch.Generator().manual_seed(0)
    head = heads.exact_head(generator, rows, vocab, 128, torch.bfloat16, ("log mass",))
    head = head._replace(options=head.options._replace(draws=draws))
    with compiling() as kernels:
        heads.answer(head.calling(kernel), form)
    assert kernels
