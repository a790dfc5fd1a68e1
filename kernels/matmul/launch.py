"""From tensors to the launch of a matmul pipeline with an epilogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fsresearch.kernels import flags
from fsresearch.kernels.matmul.configs import Config
from fsresearch.kernels.matmul.plain import matmul_kernel
from fsresearch.kernels.options import Options

__all__ = ["Hooks", "arguments", "grid", "run"]

Hooks = tuple[Callable[..., Any], ...]


def grid(rows: int, vocab_size: int, config: Config, programs: int) -> tuple[int, int]:
    """Return (slots, blocks): programs along the vocabulary, and blocks of rows."""
    blocks, tiles = -(-rows // config.block_b), -(-vocab_size // config.block_v)
    return max(min(tiles, programs // blocks), 1), blocks


def run(
    hidden: Tensor,
    weight: Tensor,
    options: Options,
    config: Config,
    hooks: Hooks,
    outputs: tuple[Any, ...],
    programs: int,
) -> None:
    """Launch a pipeline on ``hidden @ weight.T``.

    Args:
        hidden: [B, D].
        weight: [V, D].
        options: with ``vocab_size``.
        config: the tiles.
        hooks: (open, peek, lift, close) of the epilogue.
        outputs: what the epilogue alone knows; it finds them as ``args[4]``.
        programs: how many can run at once.
    """
    rows, depth = hidden.shape
    slots, blocks = grid(rows, options.vocab_size, config, programs)
    args = (*arguments(options), outputs)
    bits = flags.bits(options, config.block_v, weight)
    if config.form == "hopper":
        from fsresearch.kernels.matmul.hopper import run_hopper

        run_hopper(hidden, weight, options.vocab_size, args, bits, hooks, config, slots)
        return
    matmul_kernel[(slots * blocks,)](
        hidden,
        weight,
        rows,
        options.vocab_size,
        depth,
        hidden.stride(0),
        hidden.stride(1),
        weight.stride(0),
        weight.stride(1),
        args,
        bits,
        *hooks,
        config.block_b,
        config.block_v,
        config.block_d,
        depth % config.block_d == 0,
        num_warps=config.warps,
        num_stages=config.stages,
        enable_fp_fusion=False,
    )


def arguments(options: Options) -> tuple[tuple[Any, ...], ...]:
    """Return what every epilogue finds: of rows, numbers, of columns, sizes.

    A pipeline appends the number of rows to the sizes. It is not among them, so that a batch of
    another size needs no other kernel.
    """
    bias, mask = options.bias, options.mask
    if mask is not None and mask.dtype == torch.bool:
        mask = mask.view(torch.uint8)
    bias = bias if bias is None or bias.stride(-1) == 1 else bias.contiguous()
    mask = mask if mask is None or mask.stride(-1) == 1 else mask.contiguous()
    each_row = options.positions is not None and options.positions.dim() > 0
    return (
        (
            options.seeds,
            options.positions,
            1 if each_row else 0,
            options.temperature,
            options.inverse,
            options.role << 27,
        ),
        (options.logit_scale or 0.0, options.softcap or 1.0),
        (
            bias,
            0 if bias is None else bias.stride(0),
            mask,
            0 if mask is None else mask.stride(0),
        ),
        (options.vocab_size, options.start, options.columns),
    )
