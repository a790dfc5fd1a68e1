"""Memory: calls on an LM head of a million tokens never hold anything of the logits' size.

Two interceptions. A dispatch mode sees the size of every tensor that an operator returns. The
profiler sees every allocation and release below the operators; the maximum of their running sum is
the most that was live at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fsresearch.sampling import log_prob, sample, sample_without_replacement
from fsresearch.summaries import GumbelTopK, PerturbedMass
from fsresearch.tiles import default_width

VOCAB, SIZE, ROWS = 1_000_000, 64, 64
MOST_BYTES = 64 << 20
Head = tuple[Tensor, Tensor]

CALLS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "gumbel-max, scored": lambda hidden, weight: sample(hidden, weight, seed=1, log_prob=True),
    "grouped, scored": lambda hidden, weight: sample(
        hidden, weight, seed=1, method="grouped", log_prob=True
    ),
    "without replacement": lambda hidden, weight: sample_without_replacement(
        hidden, weight, 8, seed=1
    ),
    "log_prob": lambda hidden, weight: log_prob(
        hidden, weight, torch.arange(ROWS * 2).view(ROWS, 2)
    ),
}


class LargestResult(TorchDispatchMode):
    """Remembers the most elements that an operator's result has, and of its storage."""

    def __init__(self, inputs: Head) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0
        self.storage = 0
        self.known = {t.untyped_storage().data_ptr() for t in inputs}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator and look at what it returns."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                self.elements = max(self.elements, tensor.numel())
                self.storage = max(self.storage, tensor.untyped_storage().nbytes())
        return result


@pytest.fixture(scope="module")
def head() -> Head:
    generator = torch.Generator().manual_seed(0)
    weight = torch.empty(VOCAB, SIZE, dtype=torch.bfloat16).normal_(generator=generator)
    return torch.randn(ROWS, SIZE, generator=generator).bfloat16(), weight


def peak_bytes(call: Callable[[], Any], folder: Path) -> int:
    """Return the most bytes that were live at once among those allocated during a call."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        kept = call()
    trace = folder / "trace.json"
    recorded.export_chrome_trace(str(trace))
    del kept
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["name"] == "[memory]"]
    assert events
    live = most = 0
    for event in sorted(events, key=lambda e: e["ts"]):
        live += event["args"]["Bytes"]
        most = max(most, live)
    return most


@pytest.mark.parametrize("name", CALLS)
def test_nothing_of_the_size_of_the_logits_is_held(name: str, head: Head, tmp_path: Path) -> None:
    seen = LargestResult(head)
    with seen:
        most = peak_bytes(lambda: CALLS[name](*head), tmp_path)
    breadth = max(GumbelTopK.breadth, PerturbedMass.breadth)
    tile = ROWS * default_width(ROWS, SIZE) * breadth
    assert seen.elements <= 2 * tile, "no result is larger than a tile or so"
    assert seen.elements < ROWS * VOCAB / 25
    assert seen.storage <= MOST_BYTES
    assert most <= MOST_BYTES


def test_the_interceptions_see_materialised_logits(tmp_path: Path) -> None:
    """The same two, on a call that does hold [B, V]."""
    hidden, weight = torch.zeros(ROWS, 4), torch.zeros(300_000, 4)

    def materialised() -> Tensor:
        return (hidden @ weight.T).argmax(1)

    seen = LargestResult((hidden, weight))
    with seen:
        most = peak_bytes(materialised, tmp_path)
    assert seen.elements == ROWS * 300_000
    assert most >= 4 * ROWS * 300_000
