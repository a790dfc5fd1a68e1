"""Minutes of random shapes and options: the kernels against the reference, on exact matmuls.

Every process draws a set of options, then heads of random sizes with them: strides, alignments,
rows that are not distributions and temperatures that are none among them. Whatever differs from the
reference is listed with its gap in float64 and the numbers that make the head again.

    python experiments/kernel_soak.py --minutes 8
    python experiments/kernel_soak.py --small           a few heads on the CPU

It appends to kernel_soak.csv and kernel_soak_differences.csv in experiments/results.
"""

from __future__ import annotations

import argparse
import random
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from bench_rows import append
from kernel_heads import Head, answer, differences, exact_head, mass_error
from kernel_setting import setting
from torch import Tensor

from fsresearch import backend

HEADS = 16
TWISTS = ("none", "by columns", "off by one", "every other row", "nan", "bad values")


class Trial(NamedTuple):
    """What one head was made of, and how it compared."""

    seed: int
    form: str
    options: tuple[str, ...]
    dtype: torch.dtype
    rows: int
    vocab: int
    depth: int
    twist: str
    kernel: str


def random_options(chance: random.Random) -> tuple[str, ...]:
    """Choose options that go together."""
    chosen = [chance.choice(["", "", "", "greedy"]), chance.choice(["", "temperatures", "inverse"])]
    chosen += [chance.choice(["", "", "bias", "row bias"])]
    chosen += [chance.choice(["", "mask", "row mask", "packed", "packed rows"])]
    chosen += [name for name in ("scale", "softcap", "padding", "shard") if chance.random() < 0.3]
    chosen += [name for name in ("draws", "role", "log mass") if chance.random() < 0.4]
    return tuple(name for name in chosen if name)


def random_trial(
    chance: random.Random, options: tuple[str, ...], largest: int, kernel: str = "lm_head_max"
) -> Trial:
    """Choose the sizes of a head."""
    rows = chance.choice([1, 2, 3, chance.randint(4, 64), chance.randint(65, 256), 300])
    vocab = chance.choice([chance.randint(1, 400), chance.randint(400, 9000), largest])
    depth = chance.choice([chance.randint(1, 300), 8 * chance.randint(1, 64), 1024])
    dtype = chance.choice([torch.bfloat16, torch.bfloat16, torch.float16, torch.float32])
    if largest < 1000:
        dtype, rows, depth = torch.float32, min(rows, 5), min(depth, 40)
    twist = chance.choice(TWISTS)
    return Trial(chance.getrandbits(40), "", options, dtype, rows, vocab, depth, twist, kernel)


def twisted(trial: Trial, device: str) -> Head:
    """Make a head, and lay it out or spoil it as its twist says."""
    generator = torch.Generator(device).manual_seed(trial.seed)
    sizes = trial.rows, trial.vocab, trial.depth
    head = exact_head(generator, *sizes, trial.dtype, trial.options).calling(trial.kernel)
    hidden, weight, options, _ = head
    if trial.kernel.startswith("logits"):
        hidden = _laid_out(hidden, trial.twist)
    else:
        weight = _laid_out(weight, trial.twist)
    match trial.twist:
        case "by columns":
            hidden = hidden.T.contiguous().T
        case "nan":
            hidden = hidden.clone()
            hidden[trial.rows // 2, hidden.shape[1] // 2] = torch.nan
        case "bad values":
            bad = torch.tensor([-1.0, torch.nan, torch.inf, 1e-9, 1.0], device=device)
            temperature = bad.repeat(-(-trial.rows // 5))[: trial.rows]
            options = options._replace(temperature=temperature, inverse=1.0)
    return Head(hidden, weight, options, trial.kernel)


def _laid_out(matrix: Tensor, twist: str) -> Tensor:
    """Return a matrix as it is, off the alignment of its dtype, or with gaps between its rows."""
    rows, columns = matrix.shape
    if twist == "off by one":
        return torch.cat([matrix.new_zeros(1), matrix.flatten()])[1:].view(rows, columns)
    if twist == "every other row":
        return matrix.new_full((2 * rows, columns + 8), torch.nan)[::2, :columns].copy_(matrix)
    return matrix


def compare(trial: Trial, head: Head) -> tuple[float, list[dict[str, Any]]]:
    """Return the error of the log-mass, and what differs."""
    expected, got = answer(head, "reference"), answer(head, trial.form)
    error = mass_error(expected.log_mass, got.log_mass)
    found = differences(head, expected.token, got.token)
    made = {**trial._asdict(), "options": ", ".join(trial.options)}
    return error, [{**made, **difference._asdict()} for difference in found]


def soak(seed: int, until: float, kernel: str, device: str = "cuda") -> dict[str, Any]:
    """Try heads until a time, and return the sums."""
    chance = random.Random(seed)
    heads = rows = 0
    error, found = 0.0, []
    largest = 151_936 if device == "cuda" else 300
    while time.time() < until:
        options = random_options(chance)
        plain = chance.random() < 0.3
        for _ in range(HEADS):
            trial = random_trial(chance, options, largest, kernel)
            head = twisted(trial, device)
            best = _served(head)
            trial = trial._replace(form="plain" if best == "hopper" and plain else best)
            mass, differing = compare(trial, head)
            if mass > 2e-5:
                print("log-mass off by", mass, trial, flush=True)
            heads, rows, error = heads + 1, rows + trial.rows, max(error, mass)
            found += differing
            if time.time() > until:
                break
    return {"heads": heads, "rows": rows, "mass_error": error, "found": found}


def _served(head: Head) -> str:
    """Return the form that the backend chooses."""
    if head.kernel.startswith("logits"):
        return backend.choose_for_logits(head.hidden, head.options).form
    return backend.choose(head.hidden, head.weight, start=head.options.start).form


def main() -> None:
    """Soak in several processes, and add up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=0, help="the first process's; others count on")
    parser.add_argument("--kernel", default="lm_head_max", help="its name in fsresearch.backend")
    parser.add_argument("--small", action="store_true", help="a few heads on the CPU")
    asked = parser.parse_args()
    if asked.small:
        print(soak(asked.seed, time.time() + 2, asked.kernel, "cpu"))
        return
    until = time.time() + 60 * asked.minutes
    seeds = range(asked.seed, asked.seed + asked.workers)
    with ProcessPoolExecutor(asked.workers, mp_context=get_context("spawn")) as pool:
        parts = list(pool.map(partial(soak, until=until, kernel=asked.kernel), seeds))
    found = [difference for part in parts for difference in part["found"]]
    summary = {
        "kernel": asked.kernel,
        "minutes": asked.minutes,
        "processes": asked.workers,
        "first_seed": asked.seed,
        "heads": sum(part["heads"] for part in parts),
        "rows": sum(part["rows"] for part in parts),
        "differing": len(found),
        "largest_gap": max((difference["gap"] for difference in found), default=0.0),
        "mass_error": max(part["mass_error"] for part in parts),
        **setting(),
    }
    append("kernel_soak.csv", [summary])
    append("kernel_soak_differences.csv", found)
    print(summary)
    for difference in found:
        print(difference)


if __name__ == "__main__":
    main()
