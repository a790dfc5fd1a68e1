"""The invariance checks see faults that only some shapes and strides show."""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch.sampling import sample_logits
from fsresearch.verify import BUDGETS, verify
from fsresearch.verify.sampler import adapt

GROUP = 64


def padded(logits: Tensor) -> Tensor:
    """Pad to whole groups: a copy, unless there is nothing to add."""
    missing = -logits.shape[1] % GROUP
    if not missing:
        return logits
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)


def by_strides(logits: Tensor, seed: int) -> Tensor:
    """Return an exact sample, and trust rows of whole groups to be contiguous."""
    rows = padded(logits)
    return sample_logits(rows.as_strided(rows.shape, (rows.shape[1], 1)), seed=seed).token


def by_shape(logits: Tensor, seed: int) -> Tensor:
    """Return an exact sample of rows in whole groups."""
    return sample_logits(padded(logits), seed=seed).token


def test_a_stride_that_is_taken_for_granted_is_seen() -> None:
    """Of rows that need padding, this sampler reads a contiguous copy: they cannot tell."""
    check, budget = ["invariance/memory layout"], BUDGETS["quick"]._replace(seconds=1e9)
    (finding,) = verify(adapt(by_strides), budget=budget, checks=check).findings
    assert finding.status == "failed"
    for view in ("a slice of wider rows", "every second row", "a transposed matrix"):
        assert view in finding.sentence
    (finding,) = verify(adapt(by_shape), budget=budget, checks=check).findings
    assert finding.status == "passed"
