"""Where the time of one shape goes: kernels of a call, what each option adds, and the host.

For every variant the kernels that one call launches with their microseconds, and for each kernel
that Triton compiled its registers, spills and shared memory. What the noise costs is `sampled` less
`greedy`; what the log-normaliser and the other options cost is theirs less `sampled`. Then come the
microseconds of Python that an eager call takes, on a head so small that the GPU waits for them.

    python experiments/kernel_profile.py 151936 4096 256
    python experiments/kernel_profile.py --small        the host's part on the CPU, to look at

It appends to kernel_profile.csv and kernel_overhead.csv in experiments/results.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from bench_rows import append
from kernel_setting import setting
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import fsresearch
from fsresearch import backend
from fsresearch.backend import Options

CALLS = 20


def variants(hidden: Tensor, weight: Tensor) -> dict[str, Callable[[], Any]]:
    """Return the calls that are profiled, by name."""
    rows, vocab = len(hidden), len(weight)
    device = hidden.device
    plain = Options(
        vocab_size=vocab,
        seeds=torch.randint(-(1 << 62), 1 << 62, (rows,), device=device),
        positions=torch.zeros(rows, dtype=torch.int64, device=device),
    )
    warm = torch.full((rows,), 0.7, device=device)
    bias = torch.zeros(vocab, device=device)
    packed = torch.full((-(-vocab // 32),), -1, dtype=torch.int32, device=device)
    options = {
        "greedy": Options(vocab_size=vocab),
        "sampled": plain,
        "log mass": plain._replace(log_mass=True),
        "temperatures": plain._replace(temperature=warm),
        "bias": plain._replace(bias=bias),
        "packed mask": plain._replace(mask=packed),
        "all four": plain._replace(log_mass=True, temperature=warm, bias=bias, mask=packed),
    }
    calls: dict[str, Callable[[], Any]] = {"cublas": lambda: hidden @ weight.T}
    for name, option in options.items():
        calls[name] = partial(backend.lm_head_max, hidden, weight, option)
    return calls


def kernel_times(call: Callable[[], Any]) -> list[tuple[str, float, float]]:
    """Return (name, launches a call, microseconds a call) of the kernels of a call."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    events = [
        e for e in recorded.key_averages() if e.self_device_time_total > 0 and e.count >= CALLS
    ]
    return [(e.key, e.count / CALLS, e.self_device_time_total / CALLS) for e in events]


def compiled_kernels() -> dict[int, dict[str, Any]]:
    """Return what Triton's loader says of the kernels in this process, by their identity."""
    from triton.compiler import CompiledKernel

    found = {}
    for kernel in gc.get_objects():
        if type(kernel) is CompiledKernel and getattr(kernel, "n_regs", None) is not None:
            found[id(kernel)] = {
                "kernel": kernel.metadata.name,
                "warps": kernel.metadata.num_warps,
                "registers": kernel.n_regs,
                "spills": kernel.n_spills,
                "shared_bytes": kernel.metadata.shared,
            }
    return found


def profile_shape(vocab: int, depth: int, rows: int) -> list[dict[str, Any]]:
    """Profile every variant of a shape."""
    weight = torch.randn(vocab, depth, device="cuda", dtype=torch.bfloat16) / depth**0.5
    hidden = torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16)
    lines: list[dict[str, Any]] = []
    for name, call in variants(hidden, weight).items():
        before = compiled_kernels()
        times = kernel_times(call)
        new = [kernel for key, kernel in compiled_kernels().items() if key not in before]
        for kernel, launches, microseconds in times:
            made = next((one for one in new if one["kernel"] == kernel), {})
            line = {"vocab": vocab, "depth": depth, "rows": rows, "variant": name}
            line |= {"kernel": kernel[:60], "launches": launches}
            line |= {"microseconds": f"{microseconds:.1f}"}
            details = ("warps", "registers", "spills", "shared_bytes")
            lines.append({**line, **{detail: made.get(detail, "") for detail in details}})
            print(*lines[-1].values(), sep="\t", flush=True)
        total = sum(microseconds for *_, microseconds in times)
        print(f"{name}: {total:.1f} us, {sum(n for _, n, _ in times):.0f} launches", flush=True)
    return lines


def host_calls(device: str) -> dict[str, Callable[[], Any]]:
    """Return calls on a small head, by name: the operator, the door, and the front door."""
    rows, vocab, depth = 64, 1024, 64
    hidden = torch.randn(rows, depth, device=device, dtype=torch.bfloat16)
    weight = torch.randn(vocab, depth, device=device, dtype=torch.bfloat16)
    seeds = torch.arange(rows, device=device)
    positions = torch.zeros(rows, dtype=torch.int64, device=device)
    options = Options(seeds=seeds, positions=positions, vocab_size=vocab)
    calls: dict[str, Callable[[], Any]] = {
        "torch.mm": lambda: hidden @ weight.T,
        "backend.lm_head_max": lambda: backend.lm_head_max(hidden, weight, options),
        "fsresearch.sample": lambda: fsresearch.sample(
            hidden, weight, seed=seeds, position=positions
        ),
    }
    form = backend.choose(hidden, weight).form
    if form != "reference":
        backend.lm_head_max(hidden, weight, options)
        operator = torch.ops.fsresearch.lm_head_max
        calls["operator"] = lambda: operator(hidden, weight, *options, form)
    return calls


def host_microseconds(call: Callable[[], Any], calls: int, wait: Callable[[], Any]) -> float:
    """Return the least mean time to issue a call over ten runs of so many, without waiting."""
    best = float("inf")
    for _ in range(10):
        wait()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - began) / calls)
    return best * 1e6


def main() -> None:
    """Profile a shape and the host."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", type=int, nargs="*", default=[151_936, 4096, 256], help="V D B")
    parser.add_argument("--small", action="store_true", help="the host's part on the CPU")
    asked = parser.parse_args()
    if not asked.small:
        append(
            "kernel_profile.csv", [{**line, **setting()} for line in profile_shape(*asked.shape)]
        )
    device, calls = ("cpu", 1) if asked.small else ("cuda", 100)
    wait: Callable[[], Any] = torch.cuda.synchronize if device == "cuda" else time.time
    lines = []
    for name, call in host_calls(device).items():
        microseconds = host_microseconds(call, calls, wait)
        lines.append({"call": name, "microseconds": f"{microseconds:.1f}", **setting()})
        print(f"{name}: {microseconds:.1f} us of Python a call")
    if not asked.small:
        append("kernel_overhead.csv", lines)


if __name__ == "__main__":
    main()
