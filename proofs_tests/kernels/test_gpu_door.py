"""The front door on a GPU: the CPU's tokens, in graphs, in compiled code, without waiting."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from fsresearch import backend, sample
from fsresearch.results import Sample

pytestmark = pytest.mark.gpu

ROWS, VOCAB, DEPTH = 70, 5003, 128
TEMPERATURES = torch.tensor([0.0, 0.5, 1.0, 2.0]).repeat(18)[:ROWS]


def head(dtype: torch.dtype, device: str = "cuda") -> tuple[Tensor, Tensor]:
    """Return an exact-matmul head, the same on every device."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randint(-2, 3, (ROWS, DEPTH), generator=generator) / 8
    weight = torch.randint(-2, 3, (VOCAB, DEPTH), generator=generator)
    return hidden.to(device, dtype), weight.to(device, dtype)


def tensors(*shape: int, low: int = -3, high: int = 4, seed: int = 6) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


CALLS: dict[str, dict[str, Any]] = {
    "plain": {"seed": 5},
    "tensors of seeds and positions": {
        "seed": tensors(ROWS, low=-(1 << 62), high=1 << 62),
        "position": tensors(ROWS, low=0, high=1 << 55),
    },
    "0-d seed and position": {"seed": torch.tensor(9), "position": torch.tensor(3)},
    "one temperature": {"seed": 5, "temperature": 0.5},
    "greedy": {"temperature": 0.0},
    "0-d temperature": {"seed": 5, "temperature": torch.tensor(2.0)},
    "temperatures": {"seed": 5, "temperature": TEMPERATURES},
    "many draws": {"seed": 5, "num_samples": 6, "temperature": TEMPERATURES},
    "another role": {"seed": 5, "role": 31},
    "bias, mask": {
        "seed": 5,
        "bias": tensors(VOCAB).float(),
        "mask": tensors(VOCAB, low=0, high=2).bool(),
    },
    "bias and bits by row": {
        "seed": 5,
        "bias": tensors(ROWS, VOCAB).bfloat16(),
        "mask": tensors(ROWS, -(-VOCAB // 32), low=-(1 << 31), high=1 << 31).int(),
    },
    "scale and softcap": {"seed": 5, "logit_scale": 0.5, "softcap": 8.0},
    "padding": {"seed": 5, "vocab_size": VOCAB - 17},
}


def drawn(device: str, dtype: torch.dtype, options: dict[str, Any]) -> Sample:
    there: dict[str, Any] = {
        k: v.to(device) if isinstance(v, Tensor) else v for k, v in options.items()
    }
    return sample(*head(dtype, device), log_prob=True, **there)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_tokens_are_the_cpus(dtype: torch.dtype, name: str) -> None:
    got, expected = (drawn(device, dtype, CALLS[name]) for device in ("cuda", "cpu"))
    assert backend.choose(*head(dtype)).form != "reference"
    assert got.token.is_cuda
    for ours, theirs in zip(got, expected, strict=True):
        assert ours is not None
        assert theirs is not None
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_nothing_waits_for_the_device(name: str, dtype: torch.dtype) -> None:
    """Once compiled, a call with tensors on the device reads nothing back."""
    options: dict[str, Any] = {
        k: v.cuda() if isinstance(v, Tensor) else v for k, v in CALLS[name].items()
    }
    hidden, weight = head(dtype)
    expected = sample(hidden, weight, **options).token
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        token = sample(hidden, weight, **options).token
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert token.equal(expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_compiled_code_draws_the_eager_tokens(dtype: torch.dtype) -> None:
    """One graph, no recompilation for new seeds and positions."""
    hidden, weight = head(dtype)
    temperature = TEMPERATURES.cuda()

    def step(seeds: Tensor, positions: Tensor) -> Tensor:
        return sample(hidden, weight, seed=seeds, position=positions, temperature=temperature).token

    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(step, fullgraph=True)
    counted = torch.compile(step, fullgraph=True, backend=counter)
    for seed in range(4):
        seeds = torch.arange(seed, seed + ROWS, device="cuda")
        positions = torch.full((ROWS,), seed, device="cuda")
        expected = step(seeds, positions)
        assert compiled(seeds, positions).equal(expected)
        assert counted(seeds, positions).equal(expected)
    assert counter.frame_count == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_graphs_of_several_options_advance(dtype: torch.dtype) -> None:
    """A captured call with many options replays with new positions and temperatures."""
    hidden, weight = head(dtype)
    positions = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
    temperature = TEMPERATURES.cuda()
    options: dict[str, Any] = {
        "seed": torch.arange(ROWS, device="cuda"),
        "position": positions,
        "temperature": temperature,
        "mask": tensors(VOCAB, low=0, high=2).bool().cuda(),
        "num_samples": 2,
        "log_prob": True,
    }
    eager = []
    for _ in range(5):
        eager.append(sample(hidden, weight, **options))
        positions += 1
        temperature.copy_(temperature.roll(1))
    positions.zero_()
    temperature.copy_(TEMPERATURES)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = sample(hidden, weight, **options)
    for expected in eager:
        graph.replay()
        assert captured.token.equal(expected.token)
        assert captured.log_prob is not None
        assert expected.log_prob is not None
        assert captured.log_prob.equal(expected.log_prob)
        positions += 1
        temperature.copy_(temperature.roll(1))
