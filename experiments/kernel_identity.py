"""Whether the kernels choose the reference's tokens, and the same ones however they are called.

Three parts, on heads whose matmul is exact (`kernel_heads`):

- reference: over a million rows of every batch size, form and set of options against the reference;
  differing rows are listed with their gap in float64.
- configurations: the same rows in other batches, at other places in them, and by every
  configuration of a form; tokens and scores must agree to the bit.
- repeats: 100,000 replays of one call, compared on the device.

    python experiments/kernel_identity.py                       all of it, minutes on a GPU
    python experiments/kernel_identity.py --part repeats        one part
    python experiments/kernel_identity.py --kernel lm_head_group
    python experiments/kernel_identity.py --small               a few rows on the CPU, to look at

It appends to kernel_identity.csv and kernel_identity_differences.csv in experiments/results, part
by part. Several processes compile the kernels first, then share the rows of the first part.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from bench_rows import append
from kernel_heads import (
    COMBINATIONS,
    EVERYTHING,
    Answer,
    Head,
    answer,
    differences,
    exact_head,
    forced,
    in_batches,
    mass_error,
)
from kernel_setting import setting
from torch import Tensor

from fsresearch.kernels.matmul.configs import ANY, HOPPER, PLAIN, Config, choose
from fsresearch.kernels.operator import LIGHT_LOOKUPS

KERNELS = (
    *("lm_head_max", "lm_head_group", "lm_head_top_k"),
    *("logits_max", "logits_group", "logits_top_k"),
)
PARTS = "reference", "configurations", "repeats"
TABLES = {"hopper": HOPPER, "plain": PLAIN}
BATCHES = (1, 2, 3, 4, 8, 16, 32, 64, 65, 96, 128, 160, 192, 255, 256, 512)
# Off the grid of tiles, and no multiples of 16, so that few compilations serve many shapes; with
# the last one programs take several tiles.
VOCABS = (257, 1121, 1571, 5003, 20_011)
DEPTHS = (24, 72, 200, 520, 1000)
LISTS = (16, 5, 64, 1)
LARGE = (151_936, 4096)
ROWS = 4096
REPEATS = 100_000


class Case(NamedTuple):
    """A head's first rows, drawn by one form in batches of one size."""

    part: str
    form: str
    options: tuple[str, ...]
    batch: int
    vocab: int
    depth: int
    dtype: torch.dtype
    rows: int
    seed: int
    config: Config | None = None
    kernel: str = "lm_head_max"

    def head(self, device: str) -> Head:
        """Make the rows."""
        generator = torch.Generator(device).manual_seed(self.seed)
        shape = self.rows, self.vocab, self.depth
        head = exact_head(generator, *shape, self.dtype, self.options)
        if self.kernel.endswith("top_k"):
            head = head._replace(options=head.options._replace(draws=self.k))
        return head.calling(self.kernel)

    @property
    def k(self) -> int:
        """Say how many tokens a row of a top-k kernel gets."""
        return LISTS[self.seed // 100 % len(LISTS)]

    def compiles(self) -> tuple[Any, ...]:
        """Name what Triton compiles for it: integers count by being 1, or multiples of 16."""
        sizes = [self.vocab % 16 == 0]
        if self.kernel.endswith("top_k"):
            sizes += [self.k == 1, self.k % 16 == 0]
        config: Config | None = None
        if not self.kernel.startswith("logits"):
            looks_up = any(name in " ".join(self.options) for name in ("bias", "mask", "packed"))
            light = 192 if self.kernel.endswith("top_k") else LIGHT_LOOKUPS if looks_up else ANY
            config = self.config or choose(self.form, self.batch, light=light)
        return self.kernel, self.options, self.dtype, config, *sizes


def reference_cases(form: str) -> Iterator[Case]:
    """Return every batch size with every set of options, then some of a real head's size."""
    for i, options in enumerate(COMBINATIONS):
        dtype = torch.float16 if i % 3 == 2 else torch.bfloat16
        if i % 3 == 1 and form == "plain":
            dtype = torch.float32
        for j, batch in enumerate(BATCHES):
            shape = VOCABS[(i + j) % len(VOCABS)], DEPTHS[(2 * i + j) % len(DEPTHS)]
            rows = min(1024, max(ROWS // batch, 1)) * batch
            yield Case("reference", form, options, batch, *shape, dtype, rows, 100 * i + j)
    for i, options in enumerate(((), ("greedy",), EVERYTHING)):
        for batch in (64, 128, 256):
            seed = 10_000 + 1000 * i + batch
            yield Case("reference", form, options, batch, *LARGE, torch.bfloat16, 256, seed)


def configuration_cases(form: str) -> Iterator[Case]:
    """Return the same rows for every configuration, and for other batches."""
    for i, options in enumerate(COMBINATIONS[::3]):
        case = Case(
            "configurations", form, options, 512, 3001, 520, torch.bfloat16, 512, 20_000 + i
        )
        for config in TABLES[form]:
            yield case._replace(config=config)
        for batch in (1, 3, 65, 192):
            yield case._replace(batch=batch, rows=min(512 // batch, 64) * batch)


def _of_logits(case: Case) -> Case:
    """Return a case for a kernel that reads logits: twice the rows, for it has but one form."""
    rows = 2 * case.rows if case.part == "reference" else case.rows
    return case._replace(depth=24, rows=rows, config=None)


def compare_with_reference(case: Case, device: str) -> dict[str, Any]:
    """Draw a case by its form, and by the reference."""
    head = case.head(device)
    return _line(case, head, answer(head, "reference"), in_batches(head, case.form, case.batch))


def compare_configurations(cases: Iterable[Case], device: str) -> Iterator[dict[str, Any]]:
    """Draw rows by each case, and once more in another order, against one batch of all."""
    seed = -1
    for case in cases:
        if case.seed != seed:
            seed, head = case.seed, case.head(device)
            whole = answer(head, case.form)
        few = head.rows(slice(0, case.rows))
        expected = Answer(*(field[: case.rows] for field in whole))
        with forced(case.config):
            got = in_batches(few, case.form, case.batch)
        yield _line(case, few, expected, got, to_the_bit=True)
        if case.config is None:
            order = torch.randperm(case.rows, device=device)
            moved = in_batches(few.rows(order), case.form, case.batch)
            there = Answer(*(field[order] for field in expected))
            case = case._replace(part="positions")
            yield _line(case, few.rows(order), there, moved, to_the_bit=True)


def compare_repeats(case: Case, repeats: int, device: str) -> dict[str, Any]:
    """Repeat one call; on a GPU in graphs of twenty, whose replays the device compares."""
    head = case.head(device)
    expected = answer(head, case.form)
    differing = torch.zeros((), dtype=torch.int64, device=device)

    def once() -> None:
        for a, b in zip(expected, answer(head, case.form), strict=True):
            differing.add_(_bits(a).ne(_bits(b)).sum())

    if device == "cpu":
        for _ in range(repeats):
            once()
    else:
        once()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                once()
        for _ in range(-(-repeats // 20)):
            graph.replay()
    line = _line(case, head, expected, expected)
    return {**line, "rows": repeats * case.rows, "differing": int(differing)}


def _line(
    case: Case, head: Head, expected: Answer, got: Answer, to_the_bit: bool = False
) -> dict[str, Any]:
    """Return a line of the CSV, and under "found" what differs."""
    found = differences(head, expected.token, got.token)
    differing = len({difference.row for difference in found})
    if to_the_bit:
        other = _bits(expected.perturbed).ne(_bits(got.perturbed))
        differing = int((other | expected.token.ne(got.token)).any(1).sum())
    return {
        "kernel": case.kernel,
        "part": case.part,
        "form": case.form,
        "tiles": "by batch" if case.config is None else "x".join(map(str, case.config[2:])),
        "options": ", ".join(case.options) or "none",
        "batch": case.batch,
        "vocab": case.vocab,
        "depth": case.depth,
        "dtype": str(case.dtype).removeprefix("torch."),
        "rows": len(head.hidden),
        "differing": differing,
        "largest_gap": max((difference.gap for difference in found), default=0.0),
        "mass_error": mass_error(expected.log_mass, got.log_mass),
        "found": [{**difference._asdict(), "seed": case.seed} for difference in found],
    }


def _bits(values: Tensor) -> Tensor:
    """Return values as integers, so that a NaN equals itself."""
    return values.view({4: torch.int32, 8: torch.int64}[values.element_size()])


def _compile(case: Case) -> None:
    with forced(case.config):
        answer(case._replace(rows=case.batch).head("cuda"), case.form)
    torch.cuda.synchronize()


def compile_all(cases: Iterable[Case], pool: Executor) -> None:
    """Run each kernel once in one of several processes, which leave it in Triton's cache."""
    kernels = {case.compiles(): case for case in cases}
    list(pool.map(_compile, kernels.values()))
    print(f"{len(kernels)} kernels compiled", flush=True)


def report(lines: list[dict[str, Any]], keep: bool = True) -> None:
    """Print the lines that differ, and the sums; append all to their files, or keep nothing."""
    kept, differing = [], []
    for line in lines:
        found = line.pop("found")
        kept.append({**line, **setting()})
        differing += [{**line, **difference} for difference in found]
        if line["differing"]:
            print(*line.values(), found[:3], sep=" | ")
    if keep:
        append("kernel_identity.csv", kept)
        append("kernel_identity_differences.csv", differing)
    for part in dict.fromkeys(line["part"] for line in kept):
        of_part = [line for line in kept if line["part"] == part]
        rows, differ = (sum(line[name] for line in of_part) for name in ("rows", "differing"))
        gap, error = (max(line[name] for line in of_part) for name in ("largest_gap", "mass_error"))
        print(f"{part}: {rows} rows, {differ} differ, gap {gap:.2g}, log-mass {error:.2g}")


def small(form: str, kernel: str) -> Iterator[dict[str, Any]]:
    """Draw a few rows on the CPU, by Triton's interpreter or by the reference."""
    case = Case("reference", form, EVERYTHING, 2, 199, 24, torch.float32, 3, 0, kernel=kernel)
    yield compare_with_reference(case, "cpu")
    case = case._replace(part="configurations", config=PLAIN[0]._replace(block_v=64), batch=3)
    yield from compare_configurations([case, case._replace(config=None, batch=1)], "cpu")
    yield compare_repeats(case._replace(part="repeats", config=None), 2, "cpu")


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernel", default="lm_head_max", choices=KERNELS)
    parser.add_argument("--part", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--form", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument(
        "--workers", type=int, default=16, help="processes that compile and compare"
    )
    parser.add_argument("--small", action="store_true", help="a few rows on the CPU")
    asked = parser.parse_args()
    if asked.small:
        from triton import knobs

        form = "plain" if knobs.runtime.interpret else "reference"
        report([*small(form, asked.kernel)], keep=False)
        return
    cases: dict[str, list[Case]] = {part: [] for part in PARTS}
    of_logits = asked.kernel.startswith("logits")
    for form in ("plain",) if of_logits else asked.form:
        cases["reference"] += reference_cases(form)
        cases["configurations"] += configuration_cases(form)
        options, shape = ("temperatures", "log mass"), (4099, 72)
        cases["repeats"].append(
            Case("repeats", form, options, 64, *shape, torch.bfloat16, 64, 30_000)
        )
    for part, of_part in cases.items():
        wanted = of_part if part in asked.part else []
        cases[part] = [case._replace(kernel=asked.kernel) for case in wanted]
        if of_logits:
            cases[part] = [*map(_of_logits, cases[part])]
    with ProcessPoolExecutor(asked.workers, mp_context=get_context("spawn")) as pool:
        compile_all(chain.from_iterable(cases.values()), pool)
        report(list(pool.map(partial(compare_with_reference, device="cuda"), cases["reference"])))
    report([*compare_configurations(cases["configurations"], "cuda")])
    report([compare_repeats(case, REPEATS, "cuda") for case in cases["repeats"]])


if __name__ == "__main__":
    main()
