"""Time of the kernels beside the bare matmul and the samplers that users have.

Candidates are replayed as CUDA graphs, round-robin within one run, each after a read of a large
buffer that flushes the L2; figures are medians. The floor is the time to read the weight at the
best bandwidth that a streaming read reached in the same run. Runs replace what the CSV holds of
their shape, batches and candidates, so that a table can be made in parts:

    python experiments/kernel_speed.py measure 151936 4096 --rows 1 64 128 256
    python experiments/kernel_speed.py logits           logits in memory, in kernel_logits_speed.csv
    python experiments/kernel_speed.py table            prints the table of the README
    python experiments/kernel_speed.py figures          draws kernel_ratio.png, kernel_roofline.png

All files are in experiments/results.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from importlib.util import find_spec
from itertools import product
from multiprocessing import get_context
from typing import Any

import torch
import triton
import triton.language as tl
from bench_rows import RESULTS, read
from kernel_setting import setting
from torch import Tensor

from fsresearch import backend
from fsresearch.backend import Options

FILE = "kernel_speed.csv"
LOGITS_FILE = "kernel_logits_speed.csv"
KEY = "vocab", "depth", "rows", "candidate"
ROWS = (1, 2, 3, 4, 8, 16, 32, 64, 65, 96, 128, 160, 192, 255, 256, 512)
SHAPES = ((151_936, 4096), (128_256, 8192), (49_152, 576), (262_144, 3840))
YARDSTICK = "cublas"
# What a reader of the table compares: the candidates that end in a token, ours first.
SHOWN = {
    "sampled": "fused",
    "options": "fused, all options",
    "greedy": "fused, greedy",
    "grouped": "fused, groups",
    "top-k": "fused, 16 best",
    "multinomial": "multinomial",
    "flashinfer": "FlashInfer",
    "flashinfer top-k top-p": "FlashInfer top-k top-p",
}
OURS = "sampled", "options", "greedy", "grouped", "top-k"
Call = Callable[[], Any]


def candidates(hidden: Tensor, weight: Tensor) -> dict[str, Call]:
    """Return what is timed, by name; the first is the yardstick."""
    logits = torch.empty(len(hidden), len(weight), dtype=hidden.dtype, device=hidden.device)
    matmul = partial(torch.mm, hidden, weight.T, out=logits)
    return {YARDSTICK: matmul, **_samplers(matmul), **_fused(hidden, weight)}


def _fused(hidden: Tensor, weight: Tensor) -> dict[str, Call]:
    """Return the kernels of this project."""
    rows, vocab, device = len(hidden), len(weight), hidden.device
    sampled = Options(
        vocab_size=vocab,
        seeds=torch.randint(-(1 << 62), 1 << 62, (rows,), device=device),
        positions=torch.zeros(rows, dtype=torch.int64, device=device),
    )
    everything = sampled._replace(
        temperature=torch.full((rows,), 0.7, device=device),
        bias=torch.zeros(vocab, device=device),
        mask=torch.full((-(-vocab // 32),), -1, dtype=torch.int32, device=device),
        log_mass=True,
    )
    options = {"sampled": sampled, "greedy": Options(vocab_size=vocab), "options": everything}
    draw = partial(backend.lm_head_max, hidden, weight)
    calls: dict[str, Call] = {name: partial(draw, option) for name, option in options.items()}
    calls["grouped"] = partial(backend.lm_head_group, hidden, weight, sampled)
    calls["top-k"] = partial(backend.lm_head_top_k, hidden, weight, sampled._replace(draws=16))
    return calls


def _from_logits(logits: Tensor) -> dict[str, Call]:
    """Return what is timed on logits in memory, FlashInfer where it is installed."""
    rows, vocab = logits.shape
    seeds = torch.randint(-(1 << 62), 1 << 62, (rows,), device=logits.device)
    positions = torch.zeros(rows, dtype=torch.int64, device=logits.device)
    sampled = Options(vocab_size=vocab, seeds=seeds, positions=positions)
    calls: dict[str, Call] = {
        "amax": lambda: logits.amax(1),
        "multinomial": lambda: torch.multinomial(_compiled_softmax()(logits), 1),
        "logits_max": lambda: backend.logits_max(logits, sampled),
        "logits_max, greedy": lambda: backend.logits_max(logits, Options(vocab_size=vocab)),
        "logits_group": lambda: backend.logits_group(logits, sampled),
        "logits_top_k, k = 16": lambda: backend.logits_top_k(logits, sampled._replace(draws=16)),
    }
    if find_spec("flashinfer") is not None:
        from flashinfer import sampling

        calls["flashinfer"] = lambda: sampling.sampling_from_logits(logits, seed=1, offset=0)
    return calls


@cache
def _compiled_softmax() -> Callable[[Tensor], Tensor]:
    return torch.compile(lambda logits: torch.softmax(logits.float(), 1), dynamic=True)


def _samplers(matmul: Call) -> dict[str, Call]:
    """Return what users have: a matmul that writes logits, and a sampler that reads them."""
    calls: dict[str, Call] = {
        "multinomial": lambda: torch.multinomial(_compiled_softmax()(matmul()), 1)
    }
    if find_spec("flashinfer") is not None:
        from flashinfer import sampling

        def truncated() -> Tensor:
            logits = matmul()
            vocab = logits.shape[1]
            drawn: Tensor = sampling.top_k_top_p_sampling_from_logits(
                logits, vocab, 1.0, seed=1, offset=0
            )
            return drawn

        calls["flashinfer"] = lambda: sampling.sampling_from_logits(matmul(), seed=1, offset=0)
        calls["flashinfer top-k top-p"] = truncated
    return calls


def capture(call: Call) -> tuple[torch.cuda.CUDAGraph, int]:
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


def measure(calls: dict[str, Call], rounds: int) -> dict[str, tuple[float, int]]:
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


@triton.jit  # type: ignore[untyped-decorator]
def _read_kernel(source, sums, count, BLOCK: tl.constexpr, LOADS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add up BLOCK x LOADS integers; each thread asks for 16 bytes at a time, LOADS times."""
    first = tl.program_id(0).to(tl.int64) * (BLOCK * LOADS)
    total = tl.zeros((BLOCK,), tl.int32)
    for load in tl.static_range(LOADS):
        at = first + load * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(source + at, mask=at < count, other=0)
    tl.store(sums + tl.program_id(0), tl.sum(total, 0).to(tl.float32))


def read_bandwidth() -> float:
    """Return gigabytes a second of a streaming read of 4 GiB, the best of several shapes."""
    count = 1 << 30
    source = torch.randint(-(1 << 31), 1 << 31, (count,), dtype=torch.int32, device="cuda")
    least = float("inf")
    for block, loads in product((1024, 2048, 4096), (4, 8, 16)):
        programs = triton.cdiv(count, block * loads)
        sums = torch.empty(programs, device="cuda")
        for _ in range(8):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            _read_kernel[(programs,)](source, sums, count, block, loads, num_warps=block // 256)
            end.record()
            torch.cuda.synchronize()
            least = min(least, begin.elapsed_time(end))
    return float(count * 4 / least / 1e6)


def peak_teraflops() -> float:
    """Return the rate of a large square bfloat16 matmul, the median of ten."""
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(13):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        a @ b
        end.record()
        torch.cuda.synchronize()
        times.append(float(begin.elapsed_time(end)))
    return 2.0 * size**3 / statistics.median(times[3:]) / 1e9


def measure_shape(
    vocab: int, depth: int, batches: Iterable[int], rounds: int, only: list[str]
) -> None:
    """Measure one (vocab, depth) over batches, each written when it is done."""
    weight = torch.randn(vocab, depth, device="cuda", dtype=torch.bfloat16) / depth**0.5
    floor = weight.numel() * 2 / read_bandwidth() / 1e3
    peak = peak_teraflops()
    print(f"reading the weight takes {floor:.1f} us; matmul peak {peak:.0f} TFLOP/s", flush=True)
    for rows in batches:
        hidden = torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16)
        calls = candidates(hidden, weight)
        calls = {name: calls[name] for name in calls if not only or name in (YARDSTICK, *only)}
        measured = measure(calls, rounds)
        lines = []
        for name, (microseconds, memory) in measured.items():
            line = {"vocab": vocab, "depth": depth, "rows": rows, "candidate": name}
            line |= {
                "microseconds": f"{microseconds:.1f}",
                "ratio": f"{microseconds / measured[YARDSTICK][0]:.3f}",
                "floor_microseconds": f"{floor:.1f}",
                "gigabytes_per_second": f"{weight.numel() * 2 / microseconds / 1e3:.0f}",
                "teraflops": f"{2 * rows * weight.numel() / microseconds / 1e6:.0f}",
                "peak_teraflops": f"{peak:.0f}",
                "temporary_bytes": memory,
                "rounds": rounds,
                **setting(),
            }
            lines.append(line)
            print(*list(line.values())[:7], memory, sep="\t", flush=True)
        replace(lines)


def compile_first(vocab: int, depth: int, batches: Iterable[int]) -> None:
    """Compile the kernels of a shape in several processes."""
    tasks = [(vocab, depth, rows, name) for name in OURS for rows in batches]
    with ProcessPoolExecutor(min(len(tasks), 16), mp_context=get_context("spawn")) as pool:
        list(pool.map(_call_once, tasks))


def _call_once(task: tuple[int, int, int, str]) -> None:
    vocab, depth, rows, name = task
    zeros = partial(torch.zeros, dtype=torch.bfloat16, device="cuda")
    _fused(zeros(rows, depth), zeros(vocab, depth))[name]()
    torch.cuda.synchronize()


def measure_logits(vocab: int, batches: Iterable[int], rounds: int) -> None:
    """Measure samplers of bfloat16 logits in memory."""
    bandwidth = read_bandwidth()
    lines = []
    for rows in batches:
        logits = torch.randn(rows, vocab, device="cuda", dtype=torch.bfloat16)
        floor = logits.numel() * 2 / bandwidth / 1e3
        for name, (microseconds, memory) in measure(_from_logits(logits), rounds).items():
            line = {"vocab": vocab, "rows": rows, "candidate": name}
            line |= {"microseconds": f"{microseconds:.1f}", "floor_microseconds": f"{floor:.1f}"}
            line |= {"of_the_bandwidth": f"{floor / microseconds:.3f}", "temporary_bytes": memory}
            lines.append({**line, "rounds": rounds, **setting()})
            print(*list(line.values()), sep="\t", flush=True)
    write(LOGITS_FILE, lines)


def replace(lines: list[dict[str, Any]]) -> None:
    """Write lines in place of those with the same key, in the order of the key."""
    kept = {tuple(row[name] for name in KEY): row for row in read(FILE)}
    kept |= {tuple(str(row[name]) for name in KEY): row for row in lines}
    order = sorted(kept.values(), key=lambda row: tuple(int(row[name]) for name in KEY[:3]))
    write(FILE, order, [*lines[0]])


def write(name: str, lines: list[dict[str, Any]], columns: list[str] | None = None) -> None:
    """Write a file of results."""
    with (RESULTS / name).open("w", newline="") as stream:
        writer = csv.DictWriter(
            stream, columns or [*lines[0]], lineterminator="\n", extrasaction="ignore"
        )
        writer.writeheader()
        writer.writerows(lines)


def measured_rows() -> dict[tuple[int, int], dict[int, dict[str, dict[str, str]]]]:
    """Return the CSV as [vocab, depth][rows][candidate]."""
    found: dict[tuple[int, int], dict[int, dict[str, dict[str, str]]]] = {}
    for row in read(FILE):
        batches = found.setdefault((int(row["vocab"]), int(row["depth"])), {})
        batches.setdefault(int(row["rows"]), {})[row["candidate"]] = row
    return found


def limit(vocab: int, depth: int, rows: int, floor_ratio: float) -> float | None:
    """Return the ratio to the matmul that a sampled call is to stay under, where there is one."""
    if (vocab, depth) not in SHAPES[:2] or rows > 256:
        return None
    if rows <= 64:
        return max(0.97, 1.02 * floor_ratio)
    if vocab == SHAPES[0][0]:
        return {128: 1.00, 256: 1.06}.get(rows, 1.10)
    return {128: 1.01, 256: 1.05}.get(rows, 1.10)


def table() -> str:
    """Return the CSV as tables in Markdown, one a shape: microseconds of the matmul, and ratios."""
    parts = []
    for (vocab, depth), batches in measured_rows().items():
        names = [name for name in SHOWN if any(name in batch for batch in batches.values())]
        head = ["B", "bare matmul, us", "floor", *(SHOWN[name] for name in names), "at most"]
        lines = [f"V = {vocab:,}, D = {depth}:", "", _line(head), _line(["---"] * len(head))]
        for rows, batch in batches.items():
            base = batch[YARDSTICK]
            floor = float(base["floor_microseconds"]) / float(base["microseconds"])
            ratios = [f"{float(batch[n]['ratio']):.2f}" if n in batch else "" for n in names]
            most = limit(vocab, depth, rows, floor)
            shown = "" if most is None else f"{most:.2f}"
            cells = [str(rows), f"{float(base['microseconds']):.0f}", f"{floor:.2f}"]
            lines.append(_line([*cells, *ratios, shown]))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def figures() -> None:
    """Draw the ratios against the batch, and the rates under their ceilings."""
    import matplotlib.pyplot as plt

    found = measured_rows()
    figure, grid = plt.subplots(1, len(found), figsize=(4 * len(found), 3.6), squeeze=False)
    for axes, ((vocab, depth), batches) in zip(grid[0], found.items(), strict=True):
        for name, label in SHOWN.items():
            points = [(b, float(c[name]["ratio"])) for b, c in batches.items() if name in c]
            if points:
                axes.plot(*zip(*points, strict=True), marker=".", label=label)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(
            title=f"V = {vocab:,}, D = {depth}", xlabel="rows B", xscale="log", ylim=(0.8, 2.6)
        )
        _powers_of_two(axes, batches)
    grid[0][0].set_ylabel("time / bare matmul")
    grid[0][0].legend(fontsize=7, loc="upper left")
    _save(figure, "kernel_ratio.png")
    figure, grid = plt.subplots(1, len(found), figsize=(4 * len(found), 3.6), squeeze=False)
    for axes, ((vocab, depth), batches) in zip(grid[0], found.items(), strict=True):
        sizes = [*batches]
        floors = [float(batch[YARDSTICK]["floor_microseconds"]) for batch in batches.values()]
        memory = [2 * b * vocab * depth / f / 1e6 for b, f in zip(sizes, floors, strict=True)]
        axes.plot(sizes, memory, color="black", linewidth=0.8, label="reading W once")
        peak = next(iter(batches.values()))[YARDSTICK].get("peak_teraflops")
        if peak:
            axes.axhline(
                float(peak), color="gray", linewidth=0.8, label="matmul 8192 x 8192 x 8192"
            )
        for name in (YARDSTICK, "sampled", "greedy"):
            points = [(b, float(c[name]["teraflops"])) for b, c in batches.items() if name in c]
            axes.plot(*zip(*points, strict=True), marker=".", linewidth=0, label=name)
        axes.set(title=f"V = {vocab:,}, D = {depth}", xlabel="rows B = FLOP a byte")
        axes.set(xscale="log", yscale="log")
        _powers_of_two(axes, batches)
    grid[0][0].set_ylabel("TFLOP/s")
    grid[0][0].legend(fontsize=7)
    _save(figure, "kernel_roofline.png")


def _powers_of_two(axes: Any, batches: Iterable[int]) -> None:
    ticks = [b for b in batches if b & (b - 1) == 0]
    axes.set_xticks(ticks, ticks, fontsize=7)
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Any, name: str) -> None:
    figure.tight_layout()
    figure.savefig(RESULTS / name, dpi=130)


def main() -> None:
    """Measure, print the table, or draw the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("vocab", type=int)
    measuring.add_argument("depth", type=int)
    measuring.add_argument("--rows", type=int, nargs="+", default=ROWS)
    measuring.add_argument("--rounds", type=int, default=60)
    measuring.add_argument("--only", nargs="+", default=[], help="candidates beside the yardstick")
    of_logits = commands.add_parser("logits")
    of_logits.add_argument("--rows", type=int, nargs="+", default=[64, 256])
    of_logits.add_argument("--rounds", type=int, default=60)
    commands.add_parser("table")
    commands.add_parser("figures")
    asked = parser.parse_args()
    if asked.command == "measure":
        torch.manual_seed(0)
        compile_first(asked.vocab, asked.depth, asked.rows)
        measure_shape(asked.vocab, asked.depth, asked.rows, asked.rounds, asked.only)
    elif asked.command == "logits":
        torch.manual_seed(0)
        measure_logits(SHAPES[0][0], asked.rows, asked.rounds)
    elif asked.command == "table":
        print(table())
    else:
        figures()


if __name__ == "__main__":
    main()
