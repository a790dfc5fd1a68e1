"""Compiled code holds a call of a kernel in one graph, also where nothing can run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from fsresearch import backend
from fsresearch.backend import Options


@pytest.fixture(autouse=True)
def _served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels serve tensors on the CPU whose address a GPU could read."""

    def obstacle(form: str, source: Tensor, *rest: Any) -> str | None:
        return f"a form {form} reads 16 bytes" if backend._address(source) % 16 else None

    monkeypatch.setattr(backend, "_obstacle", obstacle)
    monkeypatch.setattr(backend, "_obstacle_for_logits", obstacle)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["max", "group", "top_k"])
@pytest.mark.parametrize("source", ["lm_head", "logits"])
def test_a_call_is_one_node_of_one_graph(source: str, name: str) -> None:
    kernel, graphs = f"{source}_{name}", []

    def call(source: tuple[Tensor, ...], seeds: Tensor) -> Tensor:
        options = Options(source[-1].shape[-1 if len(source) == 1 else 0], seeds, seeds, draws=3)
        token: Tensor = getattr(backend, kernel)(*source, options)[1]
        return token

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return lambda *inputs: (torch.zeros(0),)

    given = torch.zeros(5, 16), torch.zeros(300, 16)
    seeds = torch.arange(5)
    torch.compile(call, fullgraph=True, backend=keep)(
        given[-1:] if source == "logits" else given, seeds
    )
    targets = [str(node.target) for node in graphs[0].graph.nodes]
    assert len(graphs) == 1
    assert targets.count(f"fsresearch.{kernel}.default") == 1
