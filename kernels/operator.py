"""From a kernel's launcher to a PyTorch operator, with its fake; the signature stands here once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fsresearch.kernels.matmul.configs import Config, choose
from fsresearch.kernels.options import Options

__all__ = ["Drawn", "Launcher", "register"]

Drawn = tuple[Tensor, Tensor, Tensor]
Launcher = Callable[[Tensor, Tensor, Options, Config, int], Drawn]


def register(name: str, launch: Launcher) -> Callable[..., Drawn]:
    """Return the operator ``fsresearch::name``.

    It takes hidden [B, D], B >= 1, and weight [V, D] of the same dtype (float32, bfloat16 or
    float16), the fields of `Options` one by one, and the form that the caller knows to serve them:
    "plain" or "hopper". It returns perturbed float32 [B, n], token int64 [B, n], and log_mass
    float64 [B, 1], or [B, 0] where it is not wanted.

    Args:
        name: the kernel's.
        launch: takes (hidden, weight, options, config, programs).
    """

    def operator(
        hidden: Tensor,
        weight: Tensor,
        vocab_size: int,
        seeds: Tensor | None,
        positions: Tensor | None,
        temperature: Tensor | None,
        bias: Tensor | None,
        mask: Tensor | None,
        inverse: float,
        logit_scale: float | None,
        softcap: float | None,
        start: int,
        draws: int,
        role: int,
        log_mass: bool,
        form: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        options = Options(
            vocab_size,
            seeds,
            positions,
            temperature,
            bias,
            mask,
            inverse,
            logit_scale,
            softcap,
            start,
            draws,
            role,
            log_mass,
        )
        config = choose(form, len(hidden))
        if hidden.device.type != "cuda":
            return launch(hidden, weight, options, config, 4)
        programs = torch.cuda.get_device_properties(hidden.device).multi_processor_count
        with torch.cuda.device(hidden.device):
            return launch(hidden, weight, options, config, programs)

    def fake(hidden: Tensor, weight: Tensor, *rest: object) -> Drawn:
        options = Options(*rest[:-1])  # type: ignore[arg-type]
        rows = len(hidden)
        return (
            hidden.new_empty((rows, options.columns), dtype=torch.float32),
            hidden.new_empty((rows, options.columns), dtype=torch.int64),
            hidden.new_empty((rows, int(options.log_mass)), dtype=torch.float64),
        )

    registered = torch.library.custom_op(f"fsresearch::{name}", operator, mutates_args=())
    registered.register_fake(fake)
    return registered
