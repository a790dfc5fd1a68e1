"""One of four processes that answer every case over ranks: ``python -m ... RANK FOLDER``.

A case is a function of its number, so that the processes, and the test that compares their answers
with one full pass, need exchange nothing else. Groups of the first 1 to 4 processes give every rank
count.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fsresearch import distributed
from fsresearch.noise import GROUP_SIZE, RowNoise
from fsresearch.schedules.ranks import ranks
from fsresearch.sources import Logits
from fsresearch.summaries import REDUCERS
from proofs_tests.logit_rows import ROW_KINDS, stack

__all__ = ["CASES", "HEADS", "MERGED", "WORLD", "Head", "RankedCase", "head", "ranked_case"]

WORLD = 4
CASES = 320
HEADS = 48
PROBE = RowNoise(torch.tensor([0]), torch.tensor(0), torch.tensor([0]))
MERGED = [name for name, make in REDUCERS.items() if not make(PROBE).ordered]
SHARDS_OF_BAD_CUTS = [0, 100, 200, 300, 400]


class RankedCase(NamedTuple):
    """Logits [B, V] and where the ranks' shards end; some shards are empty."""

    name: str
    logits: Tensor
    noise: RowNoise
    bounds: list[int]
    width: int

    @property
    def world(self) -> int:
        """How many ranks take part."""
        return len(self.bounds) - 1


class Head(NamedTuple):
    """A head whose products are exact, the shards' ends, and the options of a call."""

    hidden: Tensor
    weight: Tensor
    bounds: list[int]
    options: dict[str, Any]


def ranked_case(number: int) -> RankedCase:
    """Return a case: rank counts 1 to 4 in turn, every reducer in turn, random cuts and shards."""
    rng = np.random.default_rng([3, number])
    name = MERGED[number // WORLD % len(MERGED)]
    step = REDUCERS[name](PROBE).granularity
    vocab = int(rng.choice([rng.integers(1, 70), rng.integers(1, 1000), rng.integers(1, 5001)]))
    rows = int(rng.integers(1, 4))
    noise = RowNoise(
        torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, rows)),
        torch.from_numpy(rng.integers(0, 2**56, rows)),
        torch.from_numpy(rng.integers(0, 2**32, 2)),
        int(rng.integers(32)),
    )
    kinds = rng.choice(sorted(ROW_KINDS), rows).tolist()
    width = step * int(rng.integers(max(vocab // (6 * step), 1), max(vocab // step, 1) + 1))
    bounds = _bounds(rng, vocab, number % WORLD + 1, step)
    return RankedCase(name, stack(kinds, vocab, rng), noise, bounds, width)


def head(number: int) -> Head:
    """Return a head of small integers, with every option of the front door in some case."""
    rng = np.random.default_rng([4, number])
    rows, size, vocab = 3, 8, int(rng.integers(200, 900))
    mask = torch.from_numpy(rng.random(vocab) < 0.7)
    options: dict[str, Any] = {
        "seed": int(rng.integers(2**62)),
        "position": int(rng.integers(2**56)),
        "method": ["gumbel-max", "grouped"][number // WORLD % 2],
        "num_samples": int(rng.integers(1, 4)),
        "log_prob": bool(number // 8 % 2),
        "temperature": [2.0, torch.tensor([0.5, 0.0, 1.0]), 0.0, 1.0][number // 16 % 4],
        "mask": [None, mask][number // 3 % 2],
        "bias": [None, torch.from_numpy(rng.integers(-2, 3, vocab)).float()][number // 5 % 2],
        "vocab_size": [None, vocab - 70][number // 7 % 2],
    }
    hidden, weight = (
        torch.from_numpy(rng.integers(-2, 3, shape)).float()
        for shape in ((rows, size), (vocab, size))
    )
    step = GROUP_SIZE if options["method"] == "grouped" else 1
    return Head(hidden, weight, _bounds(rng, vocab, number % WORLD + 1, step), options)


def answers(rank: int, group_of: list[dist.ProcessGroup | None]) -> Iterator[tuple[str, Any]]:
    """Yield this rank's named answers."""
    for number in range(CASES):
        case = ranked_case(number)
        if rank < case.world:
            start, stop = case.bounds[rank : rank + 2]
            reducer = REDUCERS[case.name](case.noise)
            source = Logits(case.logits[:, start:stop], start=start)
            state = ranks(reducer, source, group=group_of[case.world], width=case.width)
            yield f"case {number}", reducer.draw(state)
    for number in range(HEADS):
        made = head(number)
        if rank < len(made.bounds) - 1:
            yield f"head {number}", _sample_shard(made, rank, group_of[len(made.bounds) - 1])
    sizes = _message_sizes(rank, group_of[WORLD])
    yield "message sizes", sizes
    yield from _refusals(rank, group_of[WORLD])


def main(rank: int, folder: Path) -> None:
    """Run all cases and save the answers."""
    torch.set_num_threads(1)
    init = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=WORLD)
    group_of = [None, *(dist.new_group(list(range(size))) for size in range(1, WORLD + 1))]
    torch.save(dict(answers(rank, group_of)), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _bounds(rng: np.random.Generator, vocab: int, world: int, step: int) -> list[int]:
    """Return the shards' ends at multiples of step; ends may coincide."""
    inner = np.sort(rng.integers(0, vocab // step + 1, world - 1)) * step
    return [0, *inner.tolist(), vocab]


def _sample_shard(made: Head, rank: int, group: dist.ProcessGroup | None) -> tuple[Any, ...]:
    start, stop = made.bounds[rank : rank + 2]
    parts = {
        name: made.options[name] if made.options[name] is None else made.options[name][start:stop]
        for name in ("mask", "bias")
    }
    drawn = distributed.sample(
        made.hidden,
        made.weight[start:stop],
        group=group,
        vocab_start=start,
        **{**made.options, **parts},
        check=True,
    )
    return tuple(drawn)


def _message_sizes(rank: int, group: dist.ProcessGroup | None) -> dict[str, list[int]]:
    """Return the bytes a row that each method sends, one number a collective call."""
    rows, vocab = 16, WORLD * GROUP_SIZE
    hidden, weight = torch.zeros(rows, 4), torch.zeros(GROUP_SIZE, 4)
    gather, sizes = dist.all_gather, {}
    for method, num_samples in (("gumbel-max", 1), ("grouped", 1), ("gumbel-max", 3)):
        sent: list[int] = []

        def counted(out: list[Tensor], message: Tensor, sent: list[int] = sent, **kw: Any) -> Any:
            sent.append(message.numel() * message.element_size() // rows)
            return gather(out, message, **kw)

        with patch.object(dist, "all_gather", counted):
            distributed.sample(
                hidden,
                weight,
                group=group,
                vocab_start=rank * vocab // WORLD,
                seed=1,
                method=method,
                num_samples=num_samples,
            )
        sizes[f"{method} {num_samples}"] = sent
    return sizes


def _refusals(rank: int, group: dist.ProcessGroup | None) -> Iterator[tuple[str, str]]:
    """Yield what the errors say; none may leave the other ranks waiting."""
    start, stop = SHARDS_OF_BAD_CUTS[rank : rank + 2]
    hidden, shard = torch.zeros(1, 4), torch.zeros(stop - start, 4)

    def refusal(**options: Any) -> str:
        call: dict[str, Any] = {"group": group, "vocab_start": start, "seed": 1, **options}
        try:
            distributed.sample(hidden, shard, **call)
        except (TypeError, ValueError) as error:
            return str(error)
        return "accepted"

    if rank:
        yield "bad cut", refusal(method="grouped")
    yield "gap", refusal(vocab_start=start + (rank == WORLD - 1), check=True)
    yield "online", refusal(method="online")
    yield "hierarchical", refusal(method="hierarchical")
    yield "no seed", refusal(seed=None)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
