"""The options that shape logits, and the transform that they ask for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from fsresearch import checks
from fsresearch.transforms import MIN_TEMPERATURE, Transform, inverse_temperature

__all__ = ["TEMPERATURES", "Options"]

TEMPERATURES = f"0, or finite and at least {MIN_TEMPERATURE}"

_TEMPERATURE_DTYPES = (
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64),
    *(torch.int64, torch.int32),
)
_FLOAT32 = torch.finfo(torch.float32)


class Options(NamedTuple):
    """The arguments that shape the logits, as a caller passed them; see `fsresearch.sample`."""

    temperature: float | Tensor = 1.0
    bias: Tensor | None = None
    mask: Tensor | None = None
    softcap: float | None = None
    logit_scale: float | None = None
    vocab_size: int | None = None

    def transform(
        self, rows: int, columns: int, device: torch.device
    ) -> tuple[Transform, Tensor | bool, int]:
        """Return (transform, greedy, vocab): what to do to logits [B, columns], checked.

        ``greedy`` is a bool for all rows, or bool [B, 1] where the temperature is a tensor.

        Raises:
            TypeError, ValueError: Naming the argument at fault.

        >>> Options(temperature=0.0, vocab_size=3).transform(1, 4, torch.device("cpu"))[1:]
        (True, 3)
        """
        vocab = columns
        if self.vocab_size is not None:
            vocab = checks.integer("vocab_size", self.vocab_size, min(1, columns), columns)
        scale, softcap = self.logit_scale, self.softcap
        if scale is not None:
            scale = _float32("logit_scale", scale)
        if softcap is not None:
            softcap = _float32("softcap", softcap, positive=True)
        if self.bias is not None:
            checks.floating("bias", self.bias)
            _check_per_token("bias", self.bias, rows, {columns, vocab}, device)
        if self.mask is not None:
            _check_mask(self.mask, rows, {columns, vocab}, device)
        greedy, inverse = _temperature(self.temperature, rows, device)
        return Transform(scale, softcap, self.bias, self.mask, inverse), greedy, vocab


def _temperature(
    temperature: float | Tensor, rows: int, device: torch.device
) -> tuple[Tensor | bool, float | Tensor | None]:
    """Return (greedy, inverse temperature)."""
    if isinstance(temperature, Tensor):
        if temperature.dtype not in _TEMPERATURE_DTYPES:
            raise TypeError(
                "temperature must be real, of 16 to 64 bits if floating, int64 or int32, "
                f"got dtype {temperature.dtype}"
            )
        checks.dense("temperature", temperature)
        checks.per_row("temperature", temperature, rows, device)
        column = temperature.detach().to(device).reshape(-1, 1).expand(rows, 1)
        return column == 0, inverse_temperature(column)
    number = checks.real("temperature", temperature, TEMPERATURES)
    if number != 0 and not MIN_TEMPERATURE <= number < math.inf:
        raise ValueError(f"temperature must be {TEMPERATURES}, got {checks.said(temperature)}")
    return number == 0, inverse_temperature(number)


def _float32(name: str, value: object, *, positive: bool = False) -> float:
    """Return a number that float32 holds without overflow or underflow."""
    limits = f"in [{_FLOAT32.tiny}, {_FLOAT32.max}]"
    accepted = f"a finite number above 0, {limits}"
    if not positive:
        accepted = f"a finite number, 0 or with its magnitude {limits}"
    number = checks.real(name, value, accepted)
    size = number if positive else abs(number) or 1.0
    if not _FLOAT32.tiny <= size <= _FLOAT32.max:
        raise ValueError(f"{name} must be {accepted}, got {checks.said(value)}")
    return number


def _check_mask(mask: Tensor, rows: int, columns: Iterable[int], device: torch.device) -> None:
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a tensor, got {checks.shown(mask)}")
    checks.dense("mask", mask)
    if mask.dtype == torch.int32:
        _check_per_token("packed mask", mask, rows, {-(-c // 32) for c in columns}, device)
    elif mask.dtype == torch.bool:
        _check_per_token("mask", mask, rows, columns, device)
    else:
        raise TypeError(f"mask must be bool, or packed int32, got {mask.dtype}")


def _check_per_token(
    name: str, value: Tensor, rows: int, columns: Iterable[int], device: torch.device
) -> None:
    """Raise unless a tensor is [columns] or [rows, columns] for one of the numbers of columns."""
    sizes = sorted(set(columns), reverse=True)
    fits = value.dim() in (1, 2) and value.shape[-1] in sizes
    if not fits or value.shape[:-1] not in ((), (rows,)):
        accepted = " or ".join(f"[{size}] or [{rows}, {size}]" for size in sizes)
        raise ValueError(f"{name} must have shape {accepted}, got {list(value.shape)}")
    checks.same_device(name, value, device)
