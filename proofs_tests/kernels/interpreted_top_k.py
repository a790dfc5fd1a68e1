"""The top-k kernel inside an interpreter of Triton programs; see `interpreted`."""

from __future__ import annotations

import sys
from typing import Any

import torch

from fsresearch.kernels.lm_head_top_k import lm_head_top_k
from fsresearch.kernels.lm_head_top_k.reference import lm_head_top_k_reference
from proofs_tests.kernels.interpreted import heads, split

SIZES = 1, 2, 17, 64


def top_heads() -> dict[str, dict[str, Any]]:
    """Return the heads of `interpreted`, and those where order, ties and size are hard."""
    found = {name: {**head, "draws": 3} for name, head in heads().items()}
    plain = found["plain"]
    few = torch.zeros(3, 300, dtype=torch.bool)
    few[:, 250:252] = True
    return {
        **found,
        "greedy rows": {**plain, "temperature": torch.tensor([0.0, 1.0, 0.0]), "draws": 5},
        "ties": {
            **plain,
            "hidden": plain["hidden"] * 0,
            "temperature": torch.zeros(3),
            "bias": (torch.arange(300) % 7 == 3).float(),
        },
        "fewer than k": {**plain, "mask": few, "draws": 4},
        "rising": {**plain, "bias": torch.arange(300.0), "draws": 4},
        **{
            f"k = {k}": {**plain, "weight": plain["weight"][:140], "draws": k, "log_mass": False}
            for k in SIZES
        },
    }


def differences(arguments: dict[str, Any]) -> tuple[float, ...]:
    """Return (tokens that differ from the reference, errors of the log-mass and the scores)."""
    tensors, options = split(arguments)
    perturbed, token, mass = lm_head_top_k(*tensors, *options, form="plain")
    expected_score, expected, expected_mass = lm_head_top_k_reference(*tensors, options)
    errors = []
    for got, truth in ((mass, expected_mass), (perturbed, expected_score)):
        same = (got == truth) | (got.isnan() & truth.isnan())
        error = ((got - truth).abs() / truth.abs().clamp(min=1)).masked_fill(same, 0.0)
        errors.append(float(error.nan_to_num(torch.inf).max()) if got.numel() else 0.0)
    return int((token != expected).sum()), *errors


def prefixes_differ() -> int:
    """Count scores and tokens that change when k does."""
    tensors, options = split(top_heads()["greedy rows"])
    *many, _ = lm_head_top_k(*tensors, *options._replace(draws=6), form="plain")
    *fewer, _ = lm_head_top_k(*tensors, *options._replace(draws=5), form="plain")
    return sum(int((a[:, :5] != b).sum()) for a, b in zip(many, fewer, strict=True))


def registration() -> set[str]:
    """Return what PyTorch's own check of the operator says: its schema and its fake."""
    tensors, options = split(top_heads()["plain"])
    tests = "test_schema", "test_faketensor"
    checked = torch.library.opcheck(
        torch.ops.fsresearch.lm_head_top_k.default, (*tensors, *options, "plain"), test_utils=tests
    )
    return set(checked.values())


if __name__ == "__main__":
    print("registration", *registration(), sep="\t")
    print("prefixes", prefixes_differ(), sep="\t")
    for name, arguments in top_heads().items():
        print(name, *differences(arguments), sep="\t", file=sys.stdout)
