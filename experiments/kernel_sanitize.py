"""Small calls of a kernel under compute-sanitizer's four tools.

    python experiments/kernel_sanitize.py               all tools, side by side
    python experiments/kernel_sanitize.py --calls       the calls alone, which a tool runs

The exit status is the number of tools that found something. It writes kernel_sanitize.csv to
experiments/results. PyTorch's allocator, which would hide an access beyond a tensor, is off.
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

import torch
from bench_rows import append
from kernel_heads import COMBINATIONS, answer, exact_head
from kernel_setting import setting

TOOLS = "memcheck", "racecheck", "synccheck", "initcheck"
CASES = [
    (form, options, rows)  # rows that fill no tile
    for form, batches in (("hopper", (3, 100, 150, 200)), ("plain", (3, 40)))
    for options in COMBINATIONS
    for rows in batches
]


def call(case: tuple[str, tuple[str, ...], int], kernel: str) -> None:
    """Call a form of a kernel with a set of options on a vocabulary of three tiles and a bit."""
    form, options, rows = case
    generator = torch.Generator("cuda").manual_seed(rows)
    head = exact_head(generator, rows, 417, 72, torch.bfloat16, options)
    if form == "plain" or not kernel.startswith("logits"):
        answer(head.calling(kernel), form)
    torch.cuda.synchronize()


def sanitize(tool: str, kernel: str) -> dict[str, str]:
    """Run the calls under a tool, and return what it says in its last line."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1"]
    done = subprocess.run(
        [*command, sys.executable, __file__, "--calls", "--kernel", kernel],
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
    )
    said = re.findall(r"=+ (.*)", done.stdout)
    print(*said[-20:], done.stderr[-2000:], sep="\n", flush=True)
    summary = said[-1] if said else "no output"
    return {"kernel": kernel, "tool": tool, "status": str(done.returncode), "summary": summary}


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
        for case in CASES:
            call(case, asked.kernel)
        return
    with ProcessPoolExecutor(8, mp_context=get_context("spawn")) as compilers:
        list(compilers.map(partial(call, kernel=asked.kernel), CASES))
    with ThreadPoolExecutor() as tools:
        lines = list(tools.map(partial(sanitize, kernel=asked.kernel), asked.tool))
    append("kernel_sanitize.csv", [{**line, **setting()} for line in lines])
    sys.exit(sum(line["status"] != "0" for line in lines))


if __name__ == "__main__":
    main()
