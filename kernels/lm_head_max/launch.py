"""From tensors to launches: flags, arguments, scratch, the kernel and the merge."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from fsresearch.kernels.lm_head_max import epilogue, flags
from fsresearch.kernels.lm_head_max.configs import Config
from fsresearch.kernels.matmul.plain import matmul_kernel
from fsresearch.kernels.merge.mass import merge_masses_kernel

__all__ = ["Call", "launch"]


class Call:
    """One call's options, as the kernels take them.

    Args:
        config: the tiles.
        seeds: int64 [B] or None, all rows greedy.
        positions: int64 [B] or 0-d.
        temperature: float32 [B] or None.
        bias: float [V] or [B, V] or None.
        mask: bool or packed int32, or None.
        inverse: multiplies the logits where there is no temperature tensor.
        logit_scale: or None.
        softcap: or None.
        vocab_size: local ids at or above it are padding.
        start: the global id of local id 0.
        draws: how many draws.
        role: the caller's stream.
        log_mass: whether masses are wanted.
        ptx: whether the device speaks PTX.
    """

    def __init__(
        self,
        config: Config,
        seeds: Tensor | None,
        positions: Tensor | None,
        temperature: Tensor | None,
        bias: Tensor | None,
        mask: Tensor | None,
        inverse: float,
        logit_scale: float | None,
        softcap: float | None,
        vocab_size: int,
        start: int,
        draws: int,
        role: int,
        log_mass: bool,
        ptx: bool,
    ) -> None:
        packed = mask is not None and mask.dtype == torch.int32
        options = {
            flags.SAMPLED: seeds is not None,
            flags.TEMPERATURE: temperature is not None,
            flags.INVERSE: temperature is None and inverse != 1.0,
            flags.SCALE: logit_scale is not None,
            flags.SOFTCAP: softcap is not None,
            flags.BIAS: bias is not None,
            flags.BIAS_BY_ROW: bias is not None and bias.dim() == 2,
            flags.MASK: mask is not None,
            flags.MASK_BY_ROW: mask is not None and mask.dim() == 2,
            flags.PACKED: packed,
            flags.LOG_MASS: log_mass,
            flags.MANY_DRAWS: seeds is not None and draws > 1,
            flags.EVEN_VOCAB: vocab_size % config.block_v == 0,
            flags.PTX: ptx,
        }
        self.flags = sum(int(bit.value) for bit, on in options.items() if on)
        self.draws = draws if seeds is not None else 1
        if mask is not None and not packed:
            mask = mask.view(torch.uint8)
        bias = bias if bias is None or bias.stride(-1) == 1 else bias.contiguous()
        mask = mask if mask is None or mask.stride(-1) == 1 else mask.contiguous()
        position_stride = 1 if positions is not None and positions.dim() else 0
        self.rows = (seeds, positions, position_stride, temperature, inverse, role << 27)
        self.numbers = (logit_scale or 0.0, softcap or 1.0)
        self.columns = (
            bias,
            0 if bias is None else bias.stride(0),
            mask,
            0 if mask is None else mask.stride(0),
        )
        self.vocab_size, self.start, self.log_mass = vocab_size, start, log_mass


def launch(
    hidden: Tensor, weight: Tensor, call: Call, config: Config, programs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one call: at most two launches, or four where the hidden rows need padding."""
    rows, depth = hidden.shape
    device = hidden.device
    blocks = triton.cdiv(rows, config.block_b)
    tiles = triton.cdiv(call.vocab_size, config.block_v)
    slots = max(min(tiles, programs // blocks), 1)
    winners = rows * call.draws
    scratch = torch.zeros(2 * winners + rows + blocks + 1, dtype=torch.int32, device=device)
    best = scratch[: 2 * winners].view(torch.uint64)
    bounds = scratch[2 * winners : 2 * winners + rows].view(torch.uint32)
    arrived = scratch[2 * winners + rows : -1].view(torch.uint32)
    lock = scratch[-1:]
    parked = torch.empty(config.block_b * config.block_v, dtype=torch.float32, device=device)
    maxima = masses = None
    if call.log_mass:
        maxima, masses = torch.empty((2, slots, rows), dtype=torch.float32, device=device)
    perturbed = torch.empty((rows, call.draws), dtype=torch.float32, device=device)
    token = torch.empty((rows, call.draws), dtype=torch.int64, device=device)
    mass_columns = 1 if call.log_mass else 0
    log_mass = torch.empty((rows, mass_columns), dtype=torch.float64, device=device)
    args: Any = (
        call.rows,
        call.numbers,
        call.columns,
        (call.vocab_size, call.start, call.draws, rows),
        (best, bounds, arrived, perturbed, token, maxima, masses, lock, parked),
    )
    hooks = (epilogue.open_rows, epilogue.peek, epilogue.lift, epilogue.close_rows)
    if config.form == "hopper":
        from fsresearch.kernels.matmul.hopper import run_hopper

        run_hopper(hidden, weight, call.vocab_size, args, call.flags, hooks, config, slots)
    else:
        matmul_kernel[(slots * blocks,)](
            hidden,
            weight,
            rows,
            call.vocab_size,
            depth,
            hidden.stride(0),
            hidden.stride(1),
            weight.stride(0),
            weight.stride(1),
            args,
            call.flags,
            *hooks,
            config.block_b,
            config.block_v,
            config.block_d,
            depth % config.block_d == 0,
            num_warps=config.warps,
            num_stages=config.stages,
            enable_fp_fusion=False,
        )
    if call.log_mass:
        merge_masses_kernel[(rows,)](
            maxima,
            masses,
            log_mass,
            rows,
            slots,
            triton.next_power_of_2(slots),
            num_warps=1,
            enable_fp_fusion=False,
        )
    return perturbed, token, log_mass
