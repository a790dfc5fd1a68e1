"""Checks of public arguments: inputs, seeds and positions, numbers of samples.

Values of tensors are read on the host only where a caller asked for checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex, cast

import torch
from torch import Tensor

from fsresearch import checks
from fsresearch.addresses import POSITIONS, WORDS
from fsresearch.noise import RowNoise, derive_seeds
from fsresearch.options import TEMPERATURES
from fsresearch.transforms import MIN_TEMPERATURE

__all__ = [
    "check_head",
    "check_ids",
    "check_logits",
    "check_rows",
    "check_support",
    "check_tokens",
    "check_values",
    "row_noise",
    "sample_sizes",
]


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
    checks.same_device("weight", weight, hidden.device)


def check_tokens(token: Tensor, rows: int, device: torch.device) -> None:
    """Raise unless tokens are int64 [B] or [B, n].

    >>> check_tokens(torch.tensor([1]), 2, torch.device("cpu"))
    Traceback (most recent call last):
    ValueError: token must be [2] or [2, n], got shape [1]
    """
    if not isinstance(token, Tensor) or token.dtype != torch.int64:
        raise TypeError(f"token must be an int64 tensor, got {checks.shown(token)}")
    checks.dense("token", token)
    if token.dim() not in (1, 2) or len(token) != rows:
        raise ValueError(f"token must be [{rows}] or [{rows}, n], got shape {list(token.shape)}")
    checks.same_device("token", token, device)


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
    role = checks.integer("role", role, 0, 31)
    num_samples = checks.integer("num_samples", num_samples, 1, WORDS)
    if isinstance(position, Tensor):
        checks.row_integers("position", position, rows, device)
        positions = position.to(device, torch.int64)
    else:
        number = checks.integer("position", position, 0, POSITIONS - 1)
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
        _raise_first("temperature", TEMPERATURES, t, fine)
    if isinstance(position, Tensor):
        at = position.reshape(-1)
        _raise_first("position", "in [0, 2**56)", at, (at >= 0) & (at < POSITIONS))


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
        checks.dense("k", k)
        if k.device.type != "cpu":
            raise ValueError(f"k must be on the CPU, where its maximum is read, got {k.device}")
        counts = k.detach().long()
    elif isinstance(k, Sequence) and not isinstance(k, (str, bytes)):
        counts = torch.tensor([min(checks.integer("k", each, 1), WORDS) for each in k]).long()
    else:
        return checks.integer("k", cast(SupportsIndex, k), 1, vocab)
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


def _row_seeds(seed: int | Tensor | None, rows: int, device: torch.device) -> Tensor:
    """Return the seeds int64 [B]: as given, or derived from one scalar."""
    if seed is None:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("seed must be given while a CUDA graph is captured, got None")
        low, high = -(1 << 63), (1 << 63) - 1
        seed = torch.randint(low, high, (1,) if rows else (0,)).sum()
    if isinstance(seed, Tensor):
        checks.tensor("seed", seed, torch.int64)
        checks.per_row("seed", seed, rows, device)
        seed = seed.to(device, non_blocking=True)
        return seed if seed.dim() else derive_seeds(seed, rows)
    seed = checks.integer("seed", seed, -(1 << 63), (1 << 63) - 1)
    return derive_seeds(torch.full((), seed, dtype=torch.int64, device=device), rows)


def _check_matrix(name: str, value: Tensor) -> None:
    checks.floating(name, value)
    if value.dim() != 2:
        raise ValueError(f"{name} must have 2 dimensions, got shape {list(value.shape)}")


def _raise_first(name: str, accepted: str, values: Tensor, fine: Tensor) -> None:
    bad = (~fine).nonzero()
    if len(bad):
        row = int(bad[0])
        raise ValueError(f"{name} must be {accepted}, got {values[row].item()} in row {row}")
