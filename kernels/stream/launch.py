"""From logits in memory to the launch of the streaming pipeline with an epilogue."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from fsresearch.kernels import flags
from fsresearch.kernels.matmul.launch import Hooks, arguments
from fsresearch.kernels.merge.mass import merge_masses
from fsresearch.kernels.options import Options
from fsresearch.kernels.stream.pipeline import stream_kernel

__all__ = ["Stream", "run", "run_races", "slots"]

_ALIGNED = 8


class Stream(NamedTuple):
    """Tiles of one kernel.

    Attributes:
        units: of four tokens, in a tile.
        warps: that hold it.
        resident: programs that a multiprocessor holds at once.
        stages: tiles of a program that are in shared memory or in hand, at least 2.
    """

    units: int
    warps: int
    resident: int
    stages: int


def slots(races: int, vocab_size: int, config: Stream, programs: int) -> int:
    """Return how many programs share a race: all run at once where they can, and end together.

    >>> slots(64, 151_936, Stream(512, 4, 8, 4), 132), slots(10_000, 300, Stream(512, 4, 8, 4), 132)
    (15, 1)
    """
    tiles = triton.cdiv(vocab_size, config.units * 4)
    most = max(programs * config.resident // races, 1)
    return int(triton.cdiv(tiles, triton.cdiv(tiles, most)))


def run_races(
    logits: Tensor, options: Options, config: Stream, hooks: Hooks, programs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a kernel whose draws race apart: scratch, outputs, launch, and the merge of its masses.

    Its epilogue finds (keys, arrivals, perturbed, token, masses left, races) as ``args[4]``.
    """
    rows, draws, device = len(logits), options.columns, logits.device
    races = rows * draws
    shared = slots(races, options.vocab_size, config, programs)
    scratch = torch.zeros(3 * races, dtype=torch.int32, device=device)
    keys = scratch[: 2 * races].view(torch.uint64)
    arrived = scratch[2 * races :].view(torch.uint32)
    perturbed = torch.empty((rows, draws), dtype=torch.float32, device=device)
    token = torch.empty((rows, draws), dtype=torch.int64, device=device)
    left = torch.empty((2, shared if options.log_mass else 0, rows), device=device)
    outputs = keys, arrived, perturbed, token, tuple(left), races
    run(logits, options, config, hooks, outputs, draws, shared)
    if options.log_mass:
        return perturbed, token, merge_masses(left)
    return perturbed, token, torch.empty((rows, 0), dtype=torch.float64, device=device)


def run(
    logits: Tensor,
    options: Options,
    config: Stream,
    hooks: Hooks,
    outputs: tuple[Any, ...],
    draws: int,
    slots: int,
) -> None:
    """Launch the pipeline.

    Args:
        logits: [B, V].
        options: with ``vocab_size``.
        config: the tiles.
        hooks: (open, lift, close) of the epilogue.
        outputs: what the epilogue alone knows; it finds them as ``args[4]``.
        draws: races a row.
        slots: programs a race.
    """
    rows = len(logits)
    bits = flags.bits(options, 1, logits)
    if options.logit_scale is not None or options.softcap is not None:
        bits &= ~int(flags.EVEN_VOCAB.value)
    aligned = logits.stride(0) % _ALIGNED == 0 and logits.stride(1) == 1
    apart = _ALIGNED if aligned else 1
    stream_kernel[(rows * draws * slots,)](
        logits,
        logits.stride(0) // apart,
        logits.stride(1),
        rows,
        slots,
        draws,
        (*arguments(options), outputs),
        bits,
        *hooks,
        config.units,
        config.stages,
        apart,
        num_warps=config.warps,
        enable_fp_fusion=False,
    )
