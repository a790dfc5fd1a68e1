"""Time of the fused LM-head kernel beside the bare matmul and the samplers that users have.

Candidates are replayed as CUDA graphs, round-robin within one process, each after a read of a large
buffer that flushes the L2; the figures are medians. One run covers one (vocab, depth) and appends
to a CSV, so that a table can be made in parts:

    python -m experiments.kernel_speed 151936 4096 --rows 1 64 128 256 --csv speed.csv
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fsresearch.backend import lm_head_max

FIELDS = (
    "vocab",
    "depth",
    "rows",
    "candidate",
    "microseconds",
    "ratio",
    "floor_microseconds",
    "gigabytes_per_second",
    "teraflops",
    "temporary_bytes",
    "device",
    "torch",
    "triton",
)


def candidates(hidden: Tensor, weight: Tensor, compiled: bool) -> dict[str, Callable[[], Any]]:
    """Return what is timed, by name; the first is the yardstick."""
    rows, vocab = len(hidden), len(weight)
    device = hidden.device
    seeds = torch.randint(-(1 << 62), 1 << 62, (rows,), device=device)
    positions = torch.zeros(rows, dtype=torch.int64, device=device)
    warm = torch.full((rows,), 0.7, device=device)
    bias = torch.zeros(vocab, device=device)
    packed = torch.full((-(-vocab // 32),), -1, dtype=torch.int32, device=device)
    logits = torch.empty((rows, vocab), dtype=hidden.dtype, device=device)

    def softmax(scores: Tensor) -> Tensor:
        return torch.softmax(scores.float(), 1)

    probabilities = torch.compile(softmax) if compiled else softmax
    return {
        "cublas": lambda: torch.mm(hidden, weight.T, out=logits),
        "multinomial": lambda: torch.multinomial(
            probabilities(torch.mm(hidden, weight.T, out=logits)), 1
        ),
        "sampled": lambda: lm_head_max(hidden, weight, seeds=seeds, positions=positions),
        "greedy": lambda: lm_head_max(hidden, weight, seeds=None, positions=None),
        "options": lambda: lm_head_max(
            hidden,
            weight,
            seeds=seeds,
            positions=positions,
            temperature=warm,
            bias=bias,
            mask=packed,
            log_mass=True,
        ),
    }


def capture(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, int]:
    """Return a graph of one call and the memory it takes beside its inputs."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    stream.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    memory = torch.cuda.max_memory_allocated() - before
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph, memory


def measure(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, int]]:
    """Return (median microseconds, temporary bytes) of every candidate, interleaved."""
    graphs = {name: capture(call) for name, call in calls.items()}
    flush = torch.zeros(1 << 28, dtype=torch.int8, device="cuda").view(torch.int32)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(rounds + 3):
        events = {}
        for name, (graph, _) in graphs.items():
            flush.sum()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            events[name] = begin, end
        torch.cuda.synchronize()
        if index >= 3:
            for name, (begin, end) in events.items():
                times[name].append(begin.elapsed_time(end) * 1e3)
    return {name: (statistics.median(times[name]), graphs[name][1]) for name in calls}


def read_bandwidth(weight: Tensor) -> float:
    """Return gigabytes a second of a streaming read of the weight, the best of ten."""
    flat = weight.view(torch.int32)
    best = float("inf")
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.sum(flat, dtype=torch.int32)
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end))
    return weight.numel() * weight.element_size() / best / 1e6


def main() -> None:
    """Measure one (vocab, depth) over batches and append to the CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vocab", type=int)
    parser.add_argument("depth", type=int)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 128, 256])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", nargs="+", help="names of candidates, the yardstick first")
    parser.add_argument("--compiled", action="store_true", help="compile the softmax")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    import triton

    weight = torch.randn(options.vocab, options.depth, device="cuda", dtype=torch.bfloat16)
    weight /= options.depth**0.5
    floor = weight.numel() * 2 / read_bandwidth(weight) / 1e3
    lines: list[tuple[Any, ...]] = []
    for rows in options.rows:
        hidden = torch.randn(rows, options.depth, device="cuda", dtype=torch.bfloat16)
        calls = candidates(hidden, weight, options.compiled)
        if options.only:
            calls = {name: calls[name] for name in options.only}
        measured = measure(calls, options.rounds)
        yardstick = next(iter(measured.values()))[0]
        for name, (microseconds, memory) in measured.items():
            seconds = microseconds / 1e6
            lines.append(
                (
                    options.vocab,
                    options.depth,
                    rows,
                    name,
                    f"{microseconds:.1f}",
                    f"{microseconds / yardstick:.3f}",
                    f"{floor:.1f}",
                    f"{weight.numel() * 2 / seconds / 1e9:.0f}",
                    f"{2 * rows * weight.numel() / seconds / 1e12:.0f}",
                    memory,
                    torch.cuda.get_device_name(),
                    torch.__version__,
                    triton.__version__,
                )
            )
            print(*lines[-1][:10], flush=True)
    if options.csv:
        fresh = not options.csv.exists()
        with options.csv.open("a", newline="") as file:
            writer = csv.writer(file)
            if fresh:
                writer.writerow(FIELDS)
            writer.writerows(lines)


if __name__ == "__main__":
    main()
