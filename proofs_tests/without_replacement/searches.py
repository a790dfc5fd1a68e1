"""A search of a model that hashes its prefix, under the rules that tests go through."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsresearch.results import BeamSample
from fsresearch.without_replacement.stochastic_beam_search import stochastic_beam_search
from proofs_tests.without_replacement.trees import hash_model

VOCAB, DEPTH, EOS = 50, 7, 3
RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "top_k": 20, "min_length": 3},
    {"temperature": torch.tensor([0.5, 1.0, 3.0]), "top_p": torch.tensor([0.9, 1.0, 0.5])},
    {"mask": torch.arange(3 * VOCAB).view(3, VOCAB) % 7 != 1, "min_p": 0.1},
]


def search(k: int, rows: int = 3, **options: Any) -> BeamSample:
    options = {"seed": 9, "max_length": DEPTH, "eos_id": EOS, **options}
    depth, eos = options.pop("max_length"), options.pop("eos_id")
    return stochastic_beam_search(hash_model(VOCAB), None, k, depth, eos, rows=rows, **options)


def assert_same(left: Any, right: Any) -> None:
    """Compare two samples of one kind, to the bit."""
    for name, a, b in zip(left._fields, left, right, strict=True):
        same = a.equal(b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        assert same, name
