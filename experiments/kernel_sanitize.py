"""Small calls of a kernel under compute-sanitizer's four tools.

    python experiments/kernel_sanitize.py               all tools, side by side
    python experiments/kernel_sanitize.py --calls       the calls alone, which a tool runs

The exit status is the number of tools that found something. It writes kernel_sanitize.csv to
experiments/results. PyTorch's allocator, which would hide an access beyond a tensor, is off.

Racecheck does not follow the bytes by which Triton starts warp-specialised partitions. It reports
them, written at `warp_specialize` or at the kernel's end and read at its beginning, also in a
kernel that shares nothing else (`control_kernel`, run beside the others). They are counted apart.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from bench_rows import append
from kernel_heads import COMBINATIONS, answer, exact_head
from kernel_setting import KERNELS, setting
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

TOOLS = "memcheck", "racecheck", "synccheck", "initcheck"
CASES = [
    (form, options, rows)  # rows that fill no tile
    for form, batches in (("hopper", (3, 100, 150, 200)), ("plain", (3, 40)))
    for options in COMBINATIONS
    for rows in batches
]
CONTROL, FINISHED = "control", "all calls returned"
HAZARD = re.compile(
    r"hazard detected.*\n=+ +Write Thread .* in (\S+):(\d+)\n=+ +Read Thread .* in (\S+):(\d+)"
)


@gluon.jit
def control_kernel(out):  # type: ignore[no-untyped-def]
    """Run two partitions that share nothing."""
    gl.warp_specialize([(_store, (out, 0)), (_store, (out, 1))], [1], [24])


@gluon.jit
def _store(out, half):  # type: ignore[no-untyped-def]
    size: gl.constexpr = 32 * gl.num_warps()
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    gl.store(out + half * 128 + gl.arange(0, size, layout=layout), half)


def call(case: tuple[str, tuple[str, ...], int], kernel: str) -> None:
    """Call a form of a kernel with a set of options on a vocabulary of three tiles and a bit."""
    form, options, rows = case
    generator = torch.Generator("cuda").manual_seed(rows)
    head = exact_head(generator, rows, 417, 72, torch.bfloat16, options)
    if form == "plain" or not kernel.startswith("logits"):
        answer(head.calling(kernel), form)
    torch.cuda.synchronize()


def sanitize(tool: str, kernel: str) -> dict[str, Any]:
    """Run the calls under a tool; return how much it found, -1 where it cannot be counted."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1", "--print-limit", "0"]
    if tool == "racecheck":
        command += ["--racecheck-report", "hazard"]
    done = subprocess.run(
        [*command, sys.executable, __file__, "--calls", "--kernel", kernel],
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
    )
    said = re.findall(r"=+ (.*)", done.stdout)
    found = len(re.findall(r"=+ (?:Error|Warning): ", done.stdout))
    excused = sum(starts_partitions(*places) for places in HAZARD.findall(done.stdout))
    if FINISHED not in done.stdout or (done.returncode and not found):
        found = -1
    if found != excused:
        print(*said[:20], *said[-20:], done.stderr[-2000:], sep="\n", flush=True)
    return {
        "kernel": kernel,
        "tool": tool,
        "findings": found,
        "of_starting_partitions": excused,
        "summary": said[-1] if said else "no output",
    }


def starts_partitions(writer: str, written: str, reader: str, read: str) -> bool:
    """Say whether a hazard's write and read, by file and line, are those of Triton's own bytes."""
    return writer == reader and {int(written), int(read)} <= _partition_lines(writer)


def _partition_lines(name: str) -> set[int]:
    """Return the lines of a file where kernels begin, or start partitions, and those before."""
    files = (KERNELS / "matmul" / "hopper.py", Path(__file__))
    lines = next((file.read_text().splitlines() for file in files if file.name == name), [])
    marks = ("def matmul_kernel", "def control_kernel", "gl.warp_specialize(")
    marked = {i for i, line in enumerate(lines, 1) if line.strip().startswith(marks)}
    return marked | {i - 1 for i in marked}


def main() -> None:
    """Compile the kernels in several processes, then run the tools."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--kernel", default="lm_head_max", help="its name in fsresearch.backend")
    parser.add_argument("--tool", nargs="+", default=TOOLS, choices=TOOLS)
    asked = parser.parse_args()
    if asked.calls:
        if asked.kernel == CONTROL:
            control_kernel[(4,)](torch.zeros(256, dtype=torch.int32, device="cuda"), num_warps=4)
            torch.cuda.synchronize()
        else:
            for case in CASES:
                call(case, asked.kernel)
        print(FINISHED)
        return
    with ProcessPoolExecutor(8, mp_context=get_context("spawn")) as compilers:
        list(compilers.map(partial(call, kernel=asked.kernel), CASES))
    with ThreadPoolExecutor() as tools:
        lines = list(tools.map(partial(sanitize, kernel=asked.kernel), asked.tool))
    if "racecheck" in asked.tool:
        lines.append(sanitize("racecheck", CONTROL))
    for line in lines:
        print(*line.values(), sep="\t", flush=True)
    append("kernel_sanitize.csv", [{**line, **setting()} for line in lines])
    sys.exit(sum(line["findings"] != line["of_starting_partitions"] for line in lines))


if __name__ == "__main__":
    main()
