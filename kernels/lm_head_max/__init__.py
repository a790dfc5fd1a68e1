"""The largest perturbed logit of an LM head and its token, fused with the matmul; path-exact."""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch.kernels.lm_head_max.configs import choose
from fsresearch.kernels.lm_head_max.launch import Call, launch

__all__ = ["lm_head_max"]


@torch.library.custom_op("fsresearch::lm_head_max", mutates_args=())
def lm_head_max(
    hidden: Tensor,
    weight: Tensor,
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
    form: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the state of ``GumbelMax``, and of ``LogNormalizer`` where it is wanted.

    Args:
        hidden: float32, bfloat16 or float16 [B, D], B >= 1.
        weight: the same dtype, [V, D].
        seeds: int64 [B] contiguous; None makes every row greedy, with one draw.
        positions: int64 [B] contiguous or 0-d; None with seeds None.
        temperature: float32 [B] contiguous, 0 for a greedy row; None uses ``inverse``.
        bias: float [V] or [B, V].
        mask: bool or packed int32, [V], [B, V], [ceil(V / 32)] or [B, ceil(V / 32)].
        inverse: float32(1 / T).
        logit_scale: multiplies the raw logits.
        softcap: c in c tanh(logit / c).
        vocab_size: rows of weight at or above it are padding.
        start: the global id of the first row of weight.
        draws: draws a row.
        role: the caller's stream.
        log_mass: whether to return the log-mass.
        form: "plain" or "hopper", which the caller knows to serve these tensors.

    Returns:
        perturbed float32 [B, n], token int64 [B, n], log_mass float64 [B, 1] or [B, 0].
    """
    config = choose(form, len(hidden))
    on_gpu = hidden.device.type == "cuda"
    programs = 4
    if on_gpu:
        programs = torch.cuda.get_device_properties(hidden.device).multi_processor_count
    call = Call(
        config,
        seeds,
        positions,
        temperature,
        bias,
        mask,
        inverse,
        logit_scale,
        softcap,
        vocab_size,
        start,
        draws,
        role,
        log_mass,
        on_gpu and torch.version.hip is None,
    )
    if not on_gpu:
        return launch(hidden, weight, call, config, programs)
    with torch.cuda.device(hidden.device):
        return launch(hidden, weight, call, config, programs)


@lm_head_max.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
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
    form: str,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = hidden.shape[0]
    columns = draws if seeds is not None else 1
    return (
        hidden.new_empty((rows, columns), dtype=torch.float32),
        hidden.new_empty((rows, columns), dtype=torch.int64),
        hidden.new_empty((rows, int(log_mass)), dtype=torch.float64),
    )
