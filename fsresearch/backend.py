"""The one door to the kernels: which form serves a call, and why.

A form is chosen from the device, dtype, alignment and shape alone, so that equal calls take equal
paths. Where none serves, the reference does; a form that a caller forces raises where it cannot.
Kernels are imported when a call first needs them.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["FORMS", "Choice", "choose", "diagnosis", "lm_head_max", "triton_available"]

FORMS = "hopper", "plain", "reference"
_LIMIT = 1 << 31


class Choice(NamedTuple):
    """Which form serves a call.

    Attributes:
        form: one of FORMS.
        reasons: why the forms before it in FORMS do not serve.
    """

    form: str
    reasons: dict[str, str]


def triton_available() -> bool:
    """Say whether Triton is installed and a CUDA device is there to run its kernels.

    Triton itself is not imported.

    >>> triton_available() <= torch.cuda.is_available()
    True
    """
    return torch.cuda.is_available() and find_spec("triton") is not None


def choose(hidden: Tensor, weight: Tensor, *, start: int = 0, form: str | None = None) -> Choice:
    """Return the form that serves an LM head, the first of FORMS that can.

    Args:
        hidden: [B, D].
        weight: [V, D].
        start: the global id of the first row of weight.
        form: one of FORMS, to force it.

    Raises:
        ValueError: If the forced form is unknown or cannot serve these tensors.

    >>> choose(torch.zeros(1, 8), torch.zeros(9, 8)).form
    'reference'
    >>> choose(torch.zeros(1, 8), torch.zeros(9, 8), form="plain")
    Traceback (most recent call last):
    ValueError: form 'plain' cannot serve this call: the tensors are on cpu
    """
    if form is not None and form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    reasons: dict[str, str] = {}
    for name in FORMS if form is None else (form,):
        reason = _obstacle(name, hidden, weight, start)
        if reason is None:
            return Choice(name, reasons)
        reasons[name] = reason
    raise ValueError(f"form {form!r} cannot serve this call: {reasons[str(form)]}")


def lm_head_max(
    hidden: Tensor,
    weight: Tensor,
    *,
    seeds: Tensor | None,
    positions: Tensor | None,
    temperature: Tensor | None = None,
    inverse: float = 1.0,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    logit_scale: float | None = None,
    softcap: float | None = None,
    vocab_size: int | None = None,
    start: int = 0,
    draws: int = 1,
    role: int = 0,
    log_mass: bool = False,
    form: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the winners of an LM head, and its log-mass, by the form that serves.

    Arguments are taken as checked; `fsresearch.sample` is the front door.

    Args:
        hidden: float32, bfloat16 or float16 [B, D].
        weight: the same dtype, [V, D].
        seeds: int64 [B]; None makes every row greedy, with one draw.
        positions: int64 [B] or 0-d; None with seeds None.
        temperature: [B], 0 for greedy rows; None uses ``inverse``.
        inverse: float32(1 / T).
        bias: float [V] or [B, V].
        mask: bool or packed int32.
        logit_scale: multiplies the raw logits.
        softcap: c in c tanh(logit / c).
        vocab_size: rows of weight at or above it are padding.
        start: the global id of the first row of weight.
        draws: draws a row.
        role: the caller's stream.
        log_mass: whether to return the log-mass.
        form: one of FORMS, to force it.

    Returns:
        perturbed float32 [B, n], token int64 [B, n], log_mass float64 [B, 1] or [B, 0].

    Raises:
        ValueError: If a forced form cannot serve the call.

    >>> hidden, weight = torch.ones(1, 1), torch.tensor([[1.0], [2.0]])
    >>> lm_head_max(hidden, weight, seeds=None, positions=None)[1]
    tensor([[1]])
    """
    served = choose(hidden, weight, start=start, form=form).form
    vocab = len(weight) if vocab_size is None else vocab_size
    if served == "reference":
        from fsresearch.kernels.lm_head_max.reference import lm_head_max_reference

        return lm_head_max_reference(
            hidden,
            weight,
            seeds,
            positions,
            temperature,
            bias,
            mask,
            inverse,
            logit_scale,
            softcap,
            vocab,
            start,
            draws,
            role,
            log_mass,
        )
    from fsresearch.kernels import lm_head_max as kernel

    if seeds is not None:
        seeds = seeds.contiguous()
    if positions is not None:
        positions = positions.to(torch.int64).contiguous()
    if temperature is not None:
        temperature = temperature.reshape(-1).float().contiguous()
    drawn: tuple[Tensor, Tensor, Tensor] = kernel.lm_head_max(
        hidden,
        weight,
        seeds,
        positions,
        temperature,
        bias,
        mask,
        inverse,
        logit_scale,
        softcap,
        vocab,
        start,
        draws,
        role,
        log_mass,
        served,
    )
    return drawn


def diagnosis() -> dict[str, str]:
    """Return what is available here, by name: for people, not for programs.

    >>> sorted(diagnosis())
    ['device', 'forms', 'torch', 'triton']
    """
    device, forms = "no CUDA device", "reference"
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        device = f"{torch.cuda.get_device_name()}, capability {major}.{minor}"
        probe = torch.empty((64, 64), dtype=torch.bfloat16, device="cuda")
        able = [name for name in FORMS if _obstacle(name, probe, probe, 0) is None]
        forms = ", ".join(able)
    triton = "not installed"
    if find_spec("triton") is not None:
        from importlib.metadata import version

        triton = version("triton")
    return {"torch": torch.__version__, "triton": triton, "device": device, "forms": forms}


def _obstacle(form: str, hidden: Tensor, weight: Tensor, start: int) -> str | None:
    """Say why a form cannot serve, or None where it can."""
    if form == "reference":
        return None
    if hidden.device.type != "cuda":
        return f"the tensors are on {hidden.device.type}"
    if find_spec("triton") is None:
        return "triton is not installed"
    if len(hidden) == 0 or 0 in weight.shape:
        return "there is nothing to multiply"
    if len(weight) + start >= _LIMIT:
        return "ids reach 2**31"
    if start % 64:
        return "the first id is no multiple of 64"
    capability = torch.cuda.get_device_capability(hidden.device)
    if form == "plain":
        return None if capability >= (8, 0) else f"capability {capability} is below (8, 0)"
    if torch.version.hip is not None or capability[0] != 9:
        return "the device is no Hopper"
    if hidden.dtype not in (torch.bfloat16, torch.float16):
        return f"TMA tiles are bfloat16 or float16, got {hidden.dtype}"
    if weight.stride(1) != 1 or weight.stride(0) < weight.shape[1]:
        return f"weight must have contiguous rows, got strides {weight.stride()}"
    if weight.stride(0) % 8 or weight.data_ptr() % 16 or weight.shape[1] % 8:
        return "rows of weight must start at multiples of 16 bytes"
    return None
