"""Checks of single values, with errors that name the argument, its value and what is accepted.

Shapes, dtypes, devices and Python numbers are always checked. Values of a tensor are read only
where the host holds them, so that no check waits for a device.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import SupportsFloat, SupportsIndex

import torch
from torch import Tensor

__all__ = [
    "choice",
    "dense",
    "flags",
    "floating",
    "integer",
    "number",
    "per_row",
    "real",
    "row_integers",
    "said",
    "same_device",
    "shown",
    "tensor",
    "within",
]


def integer(name: str, value: SupportsIndex, low: int, high: int | None = None) -> int:
    """Return an integer argument in [low, high].

    >>> integer("k", 0, 1)
    Traceback (most recent call last):
    ValueError: k must be at least 1, got 0
    """
    accepted = f"at least {low}" if high is None else f"in [{low}, {high}]"
    if isinstance(value, (bool, Tensor)):
        raise TypeError(f"{name} must be an integer {accepted}, got {shown(value)}")
    try:
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer {accepted}, got {shown(value)}") from None
    if found < low or (high is not None and found > high):
        raise ValueError(f"{name} must be {accepted}, got {said(found)}")
    return found


def number(name: str, value: object) -> float:
    """Return a finite number, of any type that is real, as a float.

    >>> number("top_p", math.inf)
    Traceback (most recent call last):
    ValueError: top_p must be a finite number, got inf
    """
    found = real(name, value, "a finite number")
    if not math.isfinite(found):
        raise ValueError(f"{name} must be a finite number, got {said(value)}")
    return found


def real(name: str, value: object, accepted: str) -> float:
    """Return a number as a float; arrays, strings and the like are a TypeError.

    >>> real("softcap", "3", "a number above 0")
    Traceback (most recent call last):
    TypeError: softcap must be a number above 0, got '3' of type str
    """
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    if (
        not isinstance(value, SupportsFloat)
        or isinstance(value, (bool, Tensor))
        or kind not in "fiu"
        or getattr(value, "ndim", 0) != 0
    ):
        raise TypeError(f"{name} must be {accepted}, got {shown(value)}")
    try:
        return float(value)
    except (OverflowError, ValueError):
        raise ValueError(f"{name} must be {accepted}, got {said(value)}") from None


def choice(name: str, value: object, accepted: Iterable[str]) -> None:
    """Raise unless value is one of the accepted names.

    >>> choice("method", "gumble", ["gumbel-max", "grouped"])
    Traceback (most recent call last):
    ValueError: method must be one of gumbel-max, grouped, got 'gumble'
    """
    names = list(accepted)
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{name} must be one of {', '.join(names)}, got {said(value, repr)}")


def flags(**flags: bool) -> None:
    """Raise unless every named flag is True or False.

    >>> flags(check="no")
    Traceback (most recent call last):
    TypeError: check must be True or False, got 'no' of type str
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {shown(value)}")


def tensor(name: str, value: Tensor, *dtypes: torch.dtype) -> None:
    """Raise unless value is a dense tensor of one of the dtypes.

    >>> tensor("seeds", torch.zeros(2), torch.int64)
    Traceback (most recent call last):
    TypeError: seeds must be int64, got a tensor of torch.float32
    """
    accepted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor of {accepted}, got {shown(value)}")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} must be {accepted}, got a tensor of {value.dtype}")
    dense(name, value)


def floating(name: str, value: Tensor) -> None:
    """Raise unless value is a dense tensor of float32, bfloat16 or float16.

    >>> floating("logits", torch.zeros(2, dtype=torch.float64))
    Traceback (most recent call last):
    TypeError: logits must be float32, bfloat16 or float16, got torch.float64; cast it first
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {shown(value)}")
    if value.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(
            f"{name} must be float32, bfloat16 or float16, got {value.dtype}; cast it first"
        )
    dense(name, value)


def dense(name: str, value: Tensor) -> None:
    """Raise for sparse, nested and quantised tensors."""
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        kind = "nested" if value.is_nested else "quantised" if value.is_quantized else value.layout
        raise TypeError(f"{name} must be a dense tensor, got layout {kind}")


def same_device(name: str, value: Tensor, device: torch.device) -> None:
    """Raise unless a tensor is on the device."""
    if value.device != device:
        raise ValueError(f"{name} must be on {device} with the other inputs, got {value.device}")


def per_row(name: str, value: Tensor, rows: int, device: torch.device) -> None:
    """Raise unless a tensor is 0-d, or [rows] on the device.

    >>> per_row("temperature", torch.ones(3), 2, torch.device("cpu"))
    Traceback (most recent call last):
    ValueError: temperature must be 0-d or [2], got shape [3]
    """
    if value.shape not in ((), (rows,)):
        raise ValueError(f"{name} must be 0-d or [{rows}], got shape {list(value.shape)}")
    if value.dim():
        same_device(name, value, device)


def row_integers(name: str, value: Tensor, rows: int, device: torch.device) -> None:
    """Raise unless a tensor is int64 or int32, 0-d or [rows] on the device."""
    tensor(name, value, torch.int64, torch.int32)
    per_row(name, value, rows, device)


def within(name: str, values: Tensor, stop: int) -> None:
    """Raise unless integers are in [0, stop); they are read on the CPU only, and by no compiler.

    >>> within("units", torch.tensor([3, 2**32]), 2**32)
    Traceback (most recent call last):
    ValueError: units must be in [0, 4294967296), got 4294967296
    """
    readable = values.device.type == "cpu" and not torch.compiler.is_compiling()
    if readable and values.numel():
        least, most = (int(bound) for bound in values.aminmax())
        if least < 0 or most >= stop:
            bad = least if least < 0 else most
            raise ValueError(f"{name} must be in [0, {stop}), got {bad}")


def shown(value: object) -> str:
    """Return a value and its type in one short line."""
    return f"{said(value, repr)} of type {type(value).__name__}"


def said(value: object, text_of: Callable[[object], str] = str) -> str:
    """Return a value's text in one short line."""
    try:
        text = " ".join(text_of(value).split())
    except ValueError:
        return "an integer of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
