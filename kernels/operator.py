"""From a kernel's launcher to a PyTorch operator, with its fake; the signature stands here once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor

from fsresearch.kernels.matmul.configs import ANY, Config, choose
from fsresearch.kernels.options import Options

__all__ = ["Drawn", "Launcher", "LogitsLauncher", "register", "register_logits"]

Drawn = tuple[Tensor, Tensor, Tensor]
Launcher = Callable[[Tensor, Tensor, Options, Config, int], Drawn]
LogitsLauncher = Callable[[Tensor, Options, int], Drawn]
# Of calls with a bias or a mask, the largest batch that is light (`matmul.configs.choose`).
LIGHT_LOOKUPS = 128
_OPTIONS = (
    "SymInt vocab_size, Tensor? seeds, Tensor? positions, Tensor? temperature, Tensor? bias, "
    "Tensor? mask, float inverse, float? logit_scale, float? softcap, SymInt start, SymInt draws, "
    "SymInt role, bool log_mass"
)


def register(name: str, launch: Launcher, *, light: int | None = None) -> Callable[..., Drawn]:
    """Return the operator ``fsresearch::name`` of an LM head.

    It takes hidden [B, D], B >= 1, and weight [V, D] of the same dtype (float32, bfloat16 or
    float16), the fields of `Options` one by one, and the form that the caller knows to serve them:
    "plain" or "hopper". It returns perturbed float32 [B, n], token int64 [B, n], and log_mass
    float64 [B, 1], or [B, 0] where it is not wanted.

    Args:
        name: the kernel's.
        launch: takes (hidden, weight, options, config, programs).
        light: the largest batch whose calls are light, whatever their options are.
    """

    def operator(hidden: Tensor, weight: Tensor, *rest: object) -> Drawn:
        options = Options(*rest[:-1])  # type: ignore[arg-type]
        plain = options.bias is None and options.mask is None
        most = light or (ANY if plain else LIGHT_LOOKUPS)
        config = choose(str(rest[-1]), len(hidden), light=most)
        with _on(hidden):
            return launch(hidden, weight, options, config, _programs(hidden))

    def fake(hidden: Tensor, weight: Tensor, *rest: object) -> Drawn:
        return _empty(hidden, Options(*rest[:-1]))  # type: ignore[arg-type]

    return _register(name, "Tensor hidden, Tensor weight", ", str form", operator, fake)


def register_logits(name: str, launch: LogitsLauncher) -> Callable[..., Drawn]:
    """Return the operator ``fsresearch::name`` of logits in memory.

    It takes logits [B, V], B >= 1, float32, bfloat16 or float16 with any strides, and the fields of
    `Options` one by one. It returns what that of an LM head does.

    Args:
        name: the kernel's.
        launch: takes (logits, options, programs).
    """

    def operator(logits: Tensor, *rest: object) -> Drawn:
        options = Options(*rest)  # type: ignore[arg-type]
        with _on(logits):
            return launch(logits, options, _programs(logits))

    def fake(logits: Tensor, *rest: object) -> Drawn:
        return _empty(logits, Options(*rest))  # type: ignore[arg-type]

    return _register(name, "Tensor logits", "", operator, fake)


def _register(
    name: str, before: str, after: str, operator: Callable[..., Drawn], fake: Callable[..., Drawn]
) -> Callable[..., Drawn]:
    """Define an operator; ``torch.library.custom_op`` would add 40 us of Python to every call."""
    name = f"fsresearch::{name}"
    torch.library.define(
        name,
        f"({before}, {_OPTIONS}{after}) -> (Tensor, Tensor, Tensor)",
        tags=torch.Tag.pt2_compliant_tag,
    )
    torch.library.impl(name, "default", operator)
    torch.library.register_fake(name, fake)
    called: Callable[..., Drawn] = getattr(torch.ops.fsresearch, name.split("::")[1]).default
    return called


def _on(tensor: Tensor) -> AbstractContextManager[object]:
    """Make a tensor's device the current one."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(tensor.device)


def _programs(tensor: Tensor) -> int:
    """Return how many programs run at once on a tensor's device; an interpreter's is small."""
    return _multiprocessors(tensor.device.index) if tensor.is_cuda else 4


@cache
def _multiprocessors(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def _empty(source: Tensor, options: Options) -> Drawn:
    """Return what a call returns, not filled."""
    rows = len(source)
    return (
        source.new_empty((rows, options.columns), dtype=torch.float32),
        source.new_empty((rows, options.columns), dtype=torch.int64),
        source.new_empty((rows, int(options.log_mass)), dtype=torch.float64),
    )
