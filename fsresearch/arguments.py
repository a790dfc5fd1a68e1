"""Checks of public arguments: from what a caller passes to a source, a transform and noise.

Shapes, dtypes, devices and Python numbers are checked on the host, with an error that names the
argument, its value and what is accepted. Values of tensors are read only where a caller asked for
checks.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, SupportsFloat, SupportsIndex, cast

import torch
from torch import Tensor

from fsresearch.noise import RowNoise, derive_seeds
from fsresearch.transforms import MIN_TEMPERATURE, Transform, inverse_temperature

__all__ = [
    "Options",
    "check_flags",
    "check_head",
    "check_ids",
    "check_logits",
    "check_name",
    "check_number",
    "check_rows",
    "check_support",
    "check_tokens",
    "check_values",
    "integer",
    "row_noise",
    "sample_sizes",
    "transform",
]

_LOGIT_DTYPES = torch.float32, torch.bfloat16, torch.float16
_TEMPERATURE_DTYPES = *_LOGIT_DTYPES, torch.float64, torch.int64, torch.int32
_MAX_POSITION = 1 << 56
_FLOAT32 = torch.finfo(torch.float32)
_MAX_DRAWS = 1 << 32


class Options(NamedTuple):
    """The arguments that shape the logits, as a caller passed them."""

    temperature: float | Tensor = 1.0
    bias: Tensor | None = None
    mask: Tensor | None = None
    softcap: float | None = None
    logit_scale: float | None = None
    vocab_size: int | None = None


def integer(name: str, value: SupportsIndex, low: int, high: int | None = None) -> int:
    """Return an integer argument in [low, high].

    >>> integer("k", 0, 1)
    Traceback (most recent call last):
    ValueError: k must be at least 1, got 0
    """
    accepted = f"at least {low}" if high is None else f"in [{low}, {high}]"
    if isinstance(value, (bool, Tensor)):
        raise TypeError(f"{name} must be an integer {accepted}, got {_shown(value)}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer {accepted}, got {_shown(value)}") from None
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name} must be {accepted}, got {_said(number)}")
    return number


def check_number(name: str, value: object) -> float:
    """Return a finite number, of any type that is real, as a float.

    >>> check_number("top_p", math.inf)
    Traceback (most recent call last):
    ValueError: top_p must be a finite number, got inf
    """
    number = _real(name, value, "a finite number")
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {_said(value)}")
    return number


def check_name(name: str, value: object, accepted: Iterable[str]) -> None:
    """Raise unless value is one of the accepted names.

    >>> check_name("method", "gumble", ["gumbel-max", "grouped"])
    Traceback (most recent call last):
    ValueError: method must be one of gumbel-max, grouped, got 'gumble'
    """
    names = list(accepted)
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{name} must be one of {', '.join(names)}, got {_said(value, repr)}")


def check_flags(**flags: bool) -> None:
    """Raise unless every named flag is True or False.

    >>> check_flags(check="no")
    Traceback (most recent call last):
    TypeError: check must be True or False, got 'no' of type str
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {_shown(value)}")


def check_logits(logits: Tensor) -> None:
    """Raise unless logits are float32, bfloat16 or float16 [B, V] with V >= 1.

    >>> check_logits(torch.zeros(2, 3, dtype=torch.float64))
    Traceback (most recent call last):
    TypeError: logits must be float32, bfloat16 or float16, got torch.float64; cast it first
    """
    _check_matrix("logits", logits)
    if logits.shape[1] == 0:
        raise ValueError(f"logits must be [B, V] with V >= 1, got shape {list(logits.shape)}")


def check_head(hidden: Tensor, weight: Tensor, *, empty: bool = False) -> None:
    """Raise unless hidden [B, D] and weight [V, D] fit; V = 0 only where a shard may be empty.

    >>> check_head(torch.zeros(2, 3), torch.zeros(5, 4))
    Traceback (most recent call last):
    ValueError: weight must be [V, 3] to fit hidden [2, 3], got shape [5, 4]
    """
    _check_matrix("hidden", hidden)
    _check_matrix("weight", weight)
    if weight.shape[1] != hidden.shape[1]:
        raise ValueError(
            f"weight must be [V, {hidden.shape[1]}] to fit hidden {list(hidden.shape)}, "
            f"got shape {list(weight.shape)}"
        )
    if len(weight) == 0 and not empty:
        raise ValueError(f"weight must be [V, D] with V >= 1, got shape {list(weight.shape)}")
    if weight.dtype != hidden.dtype:
        raise TypeError(f"weight must have hidden's dtype {hidden.dtype}, got {weight.dtype}")
    _check_device("weight", weight, hidden.device)


def check_tokens(token: Tensor, rows: int, device: torch.device) -> None:
    """Raise unless tokens are int64 [B] or [B, n].

    >>> check_tokens(torch.tensor([1]), 2, torch.device("cpu"))
    Traceback (most recent call last):
    ValueError: token must be [2] or [2, n], got shape [1]
    """
    if not isinstance(token, Tensor) or token.dtype != torch.int64:
        raise TypeError(f"token must be an int64 tensor, got {_shown(token)}")
    _check_dense("token", token)
    if token.dim() not in (1, 2) or len(token) != rows:
        raise ValueError(f"token must be [{rows}] or [{rows}, n], got shape {list(token.shape)}")
    _check_device("token", token, device)


def transform(
    options: Options, rows: int, columns: int, device: torch.device
) -> tuple[Transform, Tensor | bool, int]:
    """Return (transform, greedy, vocab): what to do to logits [B, columns], checked.

    ``greedy`` is a bool for all rows, or bool [B, 1] where the temperature is a tensor.

    Raises:
        TypeError, ValueError: Naming the argument at fault.

    >>> transform(Options(temperature=0.0, vocab_size=3), 1, 4, torch.device("cpu"))[1:]
    (True, 3)
    """
    vocab = columns
    if options.vocab_size is not None:
        vocab = integer("vocab_size", options.vocab_size, min(1, columns), columns)
    scale, softcap = options.logit_scale, options.softcap
    if scale is not None:
        scale = _float32("logit_scale", scale)
    if softcap is not None:
        softcap = _float32("softcap", softcap, positive=True)
    if options.bias is not None:
        _check_floating("bias", options.bias)
        _check_per_token("bias", options.bias, rows, {columns, vocab}, device)
    if options.mask is not None:
        _check_mask(options.mask, rows, {columns, vocab}, device)
    greedy, inverse = _temperature(options.temperature, rows, device)
    made = Transform(scale, softcap, options.bias, options.mask, inverse)
    return made, greedy, vocab


def row_noise(
    seed: int | Tensor | None,
    position: int | Tensor,
    role: int,
    num_samples: int,
    rows: int,
    device: torch.device,
) -> RowNoise:
    """Return the rows' noise for draws 0 .. num_samples - 1.

    Raises:
        TypeError, ValueError: Naming the argument at fault.
        RuntimeError: If seed is None while a CUDA graph is captured.

    >>> row_noise(2**63, 0, 0, 1, 1, torch.device("cpu"))
    Traceback (most recent call last):
    ValueError: seed must be in [-9223372036854775808, 9223372036854775807], got 9223372036854775808
    """
    role = integer("role", role, 0, 31)
    num_samples = integer("num_samples", num_samples, 1, _MAX_DRAWS)
    if isinstance(position, Tensor):
        _check_row_integers("position", position, rows, device)
        positions = position.to(device)
    else:
        number = integer("position", position, 0, _MAX_POSITION - 1)
        positions = torch.full((), number, dtype=torch.int64, device=device)
    return RowNoise(
        _row_seeds(seed, rows, device), positions, torch.arange(num_samples, device=device), role
    )


def check_values(temperature: float | Tensor, position: int | Tensor) -> None:
    """Read tensor arguments on the host and raise a ValueError that names the row at fault.

    >>> check_values(torch.tensor([1.0, -1.0]), 0)
    Traceback (most recent call last):
    ValueError: temperature must be 0, or finite and at least 1e-06, got -1.0 in row 1
    """
    if isinstance(temperature, Tensor):
        t = temperature.reshape(-1)
        fine = (t == 0) | ((t >= MIN_TEMPERATURE) & (t < torch.inf))
        _raise_first("temperature", f"0, or finite and at least {MIN_TEMPERATURE}", t, fine)
    if isinstance(position, Tensor):
        at = position.reshape(-1)
        _raise_first("position", "in [0, 2**56)", at, (at >= 0) & (at < _MAX_POSITION))


def check_ids(token: Tensor, vocab: int) -> None:
    """Raise a ValueError that names the first token outside [0, vocab) and its row.

    >>> check_ids(torch.tensor([1, 5]), 5)
    Traceback (most recent call last):
    ValueError: token must be in the vocabulary, [0, 5), got 5 in row 1
    """
    outside = ((token < 0) | (token >= vocab)).nonzero().tolist()
    if outside:
        row, *rest = outside[0]
        bad = int(token[(row, *rest)])
        raise ValueError(f"token must be in the vocabulary, [0, {vocab}), got {bad} in row {row}")


def check_rows(valid: Tensor) -> None:
    """Raise a ValueError that names the first row that is not a distribution.

    >>> check_rows(torch.tensor([True, False]))
    Traceback (most recent call last):
    ValueError: row 1 is not a distribution: it has no finite logit, or a NaN or +inf
    """
    bad = (~valid).nonzero()
    if len(bad):
        row = int(bad[0])
        raise ValueError(
            f"row {row} is not a distribution: it has no finite logit, or a NaN or +inf"
        )


def sample_sizes(k: int | Sequence[int] | Tensor, rows: int, vocab: int) -> int | Tensor:
    """Return k as an int, or as int64 [B] on the CPU where it is one number a row.

    Raises:
        TypeError, ValueError: Naming the row at fault.

    >>> sample_sizes([2, 9], 2, 5)
    Traceback (most recent call last):
    ValueError: k must be in [1, 5], got 9 in row 1
    """
    if isinstance(k, Tensor) and k.dim() and k.dtype in (torch.int64, torch.int32):
        _check_dense("k", k)
        if k.device.type != "cpu":
            raise ValueError(f"k must be on the CPU, where its maximum is read, got {k.device}")
        counts = k.detach().long()
    elif isinstance(k, Sequence) and not isinstance(k, (str, bytes)):
        counts = torch.tensor([min(integer("k", each, 1), _MAX_DRAWS) for each in k]).long()
    else:
        return integer("k", cast(SupportsIndex, k), 1, vocab)
    if counts.shape != (rows,):
        raise ValueError(f"k must be a number or [{rows}], got shape {list(counts.shape)}")
    _raise_first("k", f"in [1, {vocab}]", counts, (counts >= 1) & (counts <= vocab))
    return counts


def check_support(num_valid: Tensor, k: int | Tensor) -> None:
    """Raise a ValueError that names the first row with fewer than k tokens of mass.

    >>> check_support(torch.tensor([3, 2]), 3)
    Traceback (most recent call last):
    ValueError: k must be at most the number of tokens with mass, got 3 with 2 in row 1
    """
    wanted = torch.as_tensor(k, device=num_valid.device).expand(num_valid.shape)
    short = (num_valid < wanted).nonzero()
    if len(short):
        row = int(short[0])
        raise ValueError(
            f"k must be at most the number of tokens with mass, got {int(wanted[row])} with "
            f"{int(num_valid[row])} in row {row}"
        )


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
        _check_dense("temperature", temperature)
        _check_row_shape("temperature", temperature, rows, device)
        column = temperature.detach().to(device).reshape(-1, 1).expand(rows, 1)
        return column == 0, inverse_temperature(column)
    accepted = f"0, or finite and at least {MIN_TEMPERATURE}"
    number = _real("temperature", temperature, accepted)
    if number != 0 and not MIN_TEMPERATURE <= number < math.inf:
        raise ValueError(f"temperature must be {accepted}, got {_said(temperature)}")
    return number == 0, inverse_temperature(number)


def _real(name: str, value: object, accepted: str) -> float:
    """Return a number as a float; arrays, strings and the like are a TypeError."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    if (
        not isinstance(value, SupportsFloat)
        or isinstance(value, (bool, Tensor))
        or kind not in "fiu"
        or getattr(value, "ndim", 0) != 0
    ):
        raise TypeError(f"{name} must be {accepted}, got {_shown(value)}")
    try:
        return float(value)
    except (OverflowError, ValueError):
        raise ValueError(f"{name} must be {accepted}, got {_said(value)}") from None


def _float32(name: str, value: object, *, positive: bool = False) -> float:
    """Return a number that float32 holds without overflow or underflow."""
    limits = f"in [{_FLOAT32.tiny}, {_FLOAT32.max}]"
    accepted = f"a finite number above 0, {limits}"
    if not positive:
        accepted = f"a finite number, 0 or with its magnitude {limits}"
    number = _real(name, value, accepted)
    size = number if positive else abs(number) or 1.0
    if not _FLOAT32.tiny <= size <= _FLOAT32.max:
        raise ValueError(f"{name} must be {accepted}, got {_said(value)}")
    return number


def _row_seeds(seed: int | Tensor | None, rows: int, device: torch.device) -> Tensor:
    """Return the seeds int64 [B]: as given, or derived from one scalar."""
    if seed is None:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("seed must be given while a CUDA graph is captured, got None")
        low, high = -(1 << 63), (1 << 63) - 1
        seed = torch.randint(low, high, (1,) if rows else (0,)).sum()
    if isinstance(seed, Tensor):
        _check_row_integers("seed", seed, rows, device)
        seed = seed.to(device)
        return seed if seed.dim() else derive_seeds(seed, rows)
    seed = integer("seed", seed, -(1 << 63), (1 << 63) - 1)
    return derive_seeds(torch.full((), seed, dtype=torch.int64, device=device), rows)


def _check_matrix(name: str, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {_shown(value)}")
    _check_floating(name, value)
    if value.dim() != 2:
        raise ValueError(f"{name} must have 2 dimensions, got shape {list(value.shape)}")


def _check_floating(name: str, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {_shown(value)}")
    if value.dtype not in _LOGIT_DTYPES:
        raise TypeError(
            f"{name} must be float32, bfloat16 or float16, got {value.dtype}; cast it first"
        )
    _check_dense(name, value)


def _check_dense(name: str, value: Tensor) -> None:
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        kind = "nested" if value.is_nested else "quantised" if value.is_quantized else value.layout
        raise TypeError(f"{name} must be a dense tensor, got layout {kind}")


def _check_mask(mask: Tensor, rows: int, columns: Iterable[int], device: torch.device) -> None:
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a tensor, got {_shown(mask)}")
    _check_dense("mask", mask)
    if mask.dtype == torch.int32:
        _check_per_token("packed mask", mask, rows, {-(-c // 32) for c in columns}, device)
    elif mask.dtype == torch.bool:
        _check_per_token("mask", mask, rows, columns, device)
    else:
        raise TypeError(f"mask must be bool, or packed int32, got {mask.dtype}")


def _check_per_token(
    name: str, value: Tensor, rows: int, columns: Iterable[int], device: torch.device
) -> None:
    sizes = sorted(set(columns), reverse=True)
    if (
        value.dim() not in (1, 2)
        or value.shape[-1] not in sizes
        or value.shape[:-1]
        not in (
            (),
            (rows,),
        )
    ):
        accepted = " or ".join(f"[{size}] or [{rows}, {size}]" for size in sizes)
        raise ValueError(f"{name} must have shape {accepted}, got {list(value.shape)}")
    _check_device(name, value, device)


def _check_row_integers(name: str, value: Tensor, rows: int, device: torch.device) -> None:
    if value.dtype not in (torch.int64, torch.int32) or (
        name == "seed" and value.dtype != torch.int64
    ):
        accepted = "int64" if name == "seed" else "int64 or int32"
        raise TypeError(f"{name} must be {accepted}, got a tensor of {value.dtype}")
    _check_dense(name, value)
    _check_row_shape(name, value, rows, device)


def _check_row_shape(name: str, value: Tensor, rows: int, device: torch.device) -> None:
    if value.shape not in ((), (rows,)):
        raise ValueError(f"{name} must be 0-d or [{rows}], got shape {list(value.shape)}")
    if value.dim():
        _check_device(name, value, device)


def _check_device(name: str, value: Tensor, device: torch.device) -> None:
    if value.device != device:
        raise ValueError(f"{name} must be on {device} with the other inputs, got {value.device}")


def _raise_first(name: str, accepted: str, values: Tensor, fine: Tensor) -> None:
    bad = (~fine).nonzero()
    if len(bad):
        row = int(bad[0])
        raise ValueError(f"{name} must be {accepted}, got {values[row].item()} in row {row}")


def _shown(value: object) -> str:
    return f"{_said(value, repr)} of type {type(value).__name__}"


def _said(value: object, text_of: Callable[[object], str] = str) -> str:
    """Return a value's text in one short line."""
    try:
        text = " ".join(text_of(value).split())
    except ValueError:
        return "an integer of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
