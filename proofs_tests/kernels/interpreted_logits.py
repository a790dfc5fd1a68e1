"""The kernels of logits in memory inside an interpreter of Triton programs; see `interpreted`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

from fsresearch.kernels.options import Options
from proofs_tests.kernels.interpreted import heads


def calls(k: int = 1) -> dict[str, tuple[torch.Tensor, Options]]:
    """Return the logits of the heads of `interpreted`, and their options, by what each is about."""
    found = {}
    for name, arguments in heads().items():
        rest = dict(arguments)
        logits = rest.pop("hidden") @ rest.pop("weight").T
        options = Options(**{"vocab_size": logits.shape[1], **rest})
        if k > 1:
            options = options._replace(draws=1 if options.seeds is None else k)
        found[name] = logits, options
    logits, options = found["plain"]
    apart = torch.empty(3, 650)[:, 1:601:2]
    found["columns apart"] = apart.copy_(logits), options
    wide = torch.full((3, 320), 99.0)
    wide[:, :300] = logits
    found["padding"] = wide, options
    return found


def differences(kernel: Any, reference: Any, logits: torch.Tensor, options: Options) -> Any:
    """Return (tokens that differ from the reference, largest error of the log-mass)."""
    _, token, mass = kernel(logits, *options)
    _, expected, expected_mass = reference(logits, options)
    if not torch.equal(mass.isnan(), expected_mass.isnan()):
        return len(token), torch.inf
    error = (mass - expected_mass).nan_to_num(0.0, 0.0, 0.0).abs().max()
    return int((token != expected).sum()), float(error)


def registration(kernel: Any, logits: torch.Tensor, options: Options) -> set[str]:
    """Return what PyTorch's own check of the operator says: its schema and its fake."""
    tests = "test_schema", "test_faketensor"
    return set(torch.library.opcheck(kernel, (logits, *options), test_utils=tests).values())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        folder = importlib.import_module(f"fsresearch.kernels.{name}")
        truth = importlib.import_module(f"fsresearch.kernels.{name}.reference")
        kernel, reference = getattr(folder, name), getattr(truth, f"{name}_reference")
        every = calls(5 if name.endswith("top_k") else 1)
        print(name, "registration", *registration(kernel, *every["plain"]), sep="\t")
        for about, call in every.items():
            print(name, about, *differences(kernel, reference, *call), sep="\t")
