"""The group kernel inside an interpreter of Triton programs; see `interpreted`."""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fsresearch import noise
from fsresearch.kernels import philox
from fsresearch.kernels.lm_head_group import lm_head_group
from fsresearch.kernels.lm_head_group.reference import lm_head_group_reference
from proofs_tests.kernels.interpreted import heads, split


@triton.jit
def _bits_kernel(high, low, gumbels, uniforms, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, second = tl.load(high + i).to(tl.uint32), tl.load(low + i).to(tl.uint32)
    tl.store(gumbels + i, philox.gumbel_from_bits(first, second))
    tl.store(uniforms + i, philox.uniform_from_bits(first, second))


def bits_errors() -> tuple[float, float]:
    """Return the largest errors of 64 bits' Gumbels, in 2**-22 max(1, g), and uniforms."""
    generator = torch.Generator().manual_seed(0)
    count = 1 << 14
    high, low = torch.randint(0, 1 << 32, (2, count), generator=generator)
    high >>= torch.randint(0, 33, (count,), generator=generator)
    high[::2] = (1 << 32) - 1 - high[::2]
    high[:4], low[:4] = torch.tensor([0, 0, (1 << 32) - 1, (1 << 32) - 1]), low[0]
    low[:4:2], low[1:4:2] = 0, (1 << 32) - 1
    gumbels, uniforms = torch.empty(2, count)
    _bits_kernel[(count // 1024,)](high, low, gumbels, uniforms, 1024)
    truth = noise.gumbel_from_bits(high, low)
    error = (gumbels - truth).abs() / truth.abs().clamp(min=1)
    wrong = (uniforms - noise.uniform_from_bits(high, low)).abs().max()
    return float(error.max() * 2**22), float(wrong)


def group_heads() -> dict[str, dict[str, Any]]:
    """Return the heads of `interpreted`, and those whose masses are hard."""
    plain = heads()["plain"]

    def biased(bias: Tensor) -> dict[str, Any]:
        return {**plain, "bias": bias}

    gaps = torch.zeros(300)
    gaps[64:192] = -torch.inf
    falling = torch.arange(300.0).mul(-2.0)
    return {
        **heads(),
        "groups without mass": biased(gaps),
        "masses that underflow": biased(falling),
        "large offsets": biased(torch.full((300,), 2.0**16)),
        "small offsets": biased(torch.full((300,), -(2.0**16))),
        "greedy ties": {
            **plain,
            "hidden": plain["hidden"] * 0,
            "temperature": torch.zeros(3),
            "bias": (torch.arange(300) % 7 == 3).float(),
        },
    }


def differences(arguments: dict[str, Any]) -> tuple[float, ...]:
    """Return (tokens that differ from the reference, errors of the log-mass and the score)."""
    tensors, options = split(arguments)
    perturbed, token, mass = lm_head_group(*tensors, *options, form="plain")
    expected_score, expected, expected_mass = lm_head_group_reference(*tensors, options)
    if not torch.equal(mass.isnan(), expected_mass.isnan()):
        return len(token), torch.inf, torch.inf
    errors = [
        float(((a - b) / b.abs().clamp(min=1)).nan_to_num(0.0, 0.0, 0.0).abs().max())
        for a, b in ((mass, expected_mass), (perturbed, expected_score))
    ]
    return int((token != expected).sum()), *errors


def registration() -> set[str]:
    """Return what PyTorch's own check of the operator says: its schema and its fake."""
    tensors, options = split(heads()["plain"])
    tests = "test_schema", "test_faketensor"
    checked = torch.library.opcheck(
        torch.ops.fsresearch.lm_head_group.default, (*tensors, *options, "plain"), test_utils=tests
    )
    return set(checked.values())


if __name__ == "__main__":
    print("registration", *registration(), sep="\t")
    print("bits", *bits_errors(), sep="\t")
    for name, arguments in group_heads().items():
        print(name, *differences(arguments), sep="\t", file=sys.stdout)
