"""The operators of logits in memory on a GPU: the reference's tokens, whatever the strides."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import fsresearch
from fsresearch import backend
from proofs_tests.without_replacement.experiments import load

pytestmark = pytest.mark.gpu

heads = SimpleNamespace(**load("kernel_heads"))
LARGEST_GAP, LARGEST_MASS_ERROR = 4e-6, 2e-5
EACH_KERNEL = pytest.mark.parametrize("kernel", ["logits_max", "logits_group", "logits_top_k"])
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
TEMPERATURES = torch.tensor([0.0, 0.5, 1.0, 2.0, 0.0])


def call(
    kernel: str, rows: int, vocab: int, dtype: torch.dtype = torch.bfloat16, options: Any = ()
) -> Any:
    generator = torch.Generator("cuda").manual_seed(rows + vocab)
    return heads.exact_head(generator, rows, vocab, 24, dtype, options).calling(kernel)


def assert_same(made: Any) -> None:
    """A row may differ by a gap that only logarithms can explain."""
    expected, got = heads.answer(made, "reference"), heads.answer(made, "plain")
    found = heads.differences(made, expected.token, got.token)
    assert len({one.row for one in found}) <= 1, found
    assert all(abs(one.gap) < LARGEST_GAP for one in found), found
    assert heads.mass_error(expected.log_mass, got.log_mass) < LARGEST_MASS_ERROR


@EACH_KERNEL
@pytest.mark.parametrize("options", heads.COMBINATIONS, ids=", ".join)
def test_tokens_are_the_references(options: tuple[str, ...], kernel: str) -> None:
    for rows, vocab in ((1, 63), (3, 5003), (65, 1121)):
        assert_same(call(kernel, rows, vocab, options=options))


@DTYPES
@EACH_KERNEL
def test_any_strides_and_alignment(kernel: str, dtype: torch.dtype) -> None:
    made = call(kernel, 5, 3001, dtype, ("temperatures", "log mass"))
    expected = heads.answer(made, "plain")
    wide = torch.full((5, 3077), torch.inf, dtype=dtype, device="cuda")
    layouts = [wide.clone()[:, left : left + 3001].copy_(made.hidden) for left in (0, 1, 8)]
    for logits in (*layouts, made.hidden.T.contiguous().T):
        got = heads.answer(made._replace(hidden=logits), "plain")
        for ours, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@EACH_KERNEL
def test_more_rows_than_a_grid_has(kernel: str) -> None:
    assert_same(call(kernel, 70_001, 130))


@EACH_KERNEL
def test_broken_rows_and_rows_without_mass(kernel: str) -> None:
    made = call(kernel, 6, 1000, torch.float32, ("log mass",))
    made.hidden[1, 999] = torch.nan
    made.hidden[2, 0] = torch.inf
    made.hidden[3] = -torch.inf
    made.hidden[4, 1:] = -torch.inf
    assert_same(made)
    assert heads.answer(made, "plain").token[1:5, 0].tolist() == [-1, -1, -1, 0]


@EACH_KERNEL
@pytest.mark.parametrize("options", [("log mass",), heads.EVERYTHING], ids=", ".join)
def test_the_operator_is_registered_whole(options: tuple[str, ...], kernel: str) -> None:
    made = call(kernel, 3, 600, options=options)
    heads.answer(made, "plain")
    checked = torch.library.opcheck(
        getattr(torch.ops.fsresearch, kernel).default, (made.hidden, *made.options)
    )
    assert set(checked.values()) == {"SUCCESS"}


def drawn(method: str, device: str, dtype: torch.dtype, temperature: Any) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randint(-12, 13, (5, 5003), generator=generator) / 4).to(device, dtype)
    if isinstance(temperature, Tensor):
        temperature = temperature.to(device)
    if method == "without replacement":
        few = fsresearch.sample_logits_without_replacement(
            logits, 7, seed=9, temperature=temperature
        )
        return few.token, few.log_prob
    sampled = fsresearch.sample_logits(
        logits, seed=9, temperature=temperature, num_samples=3, method=method, log_prob=True
    )
    assert sampled.log_prob is not None
    return sampled.token, sampled.log_prob


FRONT_DOORS = pytest.mark.parametrize("method", ["gumbel-max", "grouped", "without replacement"])


@DTYPES
@FRONT_DOORS
@pytest.mark.parametrize("temperature", [1.0, 0.5, TEMPERATURES], ids=["1", "0.5", "rows"])
def test_the_front_door_draws_the_cpus_tokens(
    temperature: Any, method: str, dtype: torch.dtype
) -> None:
    expected = drawn(method, "cpu", dtype, temperature)
    got = drawn(method, "cuda", dtype, temperature)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)


@FRONT_DOORS
def test_nothing_waits_and_graphs_advance(method: str) -> None:
    logits = torch.randn(9, 20_011, device="cuda", dtype=torch.bfloat16)
    positions = torch.zeros(9, dtype=torch.int64, device="cuda")
    seeds = torch.arange(9, device="cuda")

    def once() -> Tensor:
        if method == "without replacement":
            return fsresearch.sample_logits_without_replacement(
                logits, 4, seed=seeds, position=positions
            ).token
        return fsresearch.sample_logits(logits, seed=seeds, position=positions, method=method).token

    once()
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        eager = []
        for _ in range(3):
            eager.append(once())
            positions += 1
    finally:
        torch.cuda.set_sync_debug_mode("default")
    positions.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = once()
    for expected in eager:
        graph.replay()
        assert captured.equal(expected)
        positions += 1


@EACH_KERNEL
def test_the_door_serves_logits(kernel: str) -> None:
    made = call(kernel, 3, 600)
    assert backend.choose_for_logits(made.hidden, made.options).form == "plain"
