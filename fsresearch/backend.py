"""The one door to the kernels: which form serves a call, and why.

A form is chosen from the device, dtype, alignment and shape alone, so that equal calls take equal
paths. Where none serves, the reference does; a form that a caller forces raises where it cannot.
Kernels are imported when a call first needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fsresearch import checks
from fsresearch.kernels.options import Options

__all__ = [
    "FORMS",
    "LONGEST",
    "Choice",
    "Diagnosis",
    "Options",
    "choose",
    "choose_for_logits",
    "diagnosis",
    "lm_head_group",
    "lm_head_max",
    "lm_head_top_k",
    "logits_group",
    "logits_max",
    "logits_top_k",
    "triton_available",
]

FORMS = "hopper", "plain", "reference"
LONGEST = 64
_LIMIT = 1 << 31
_MOST_RACES = 1 << 30
# To look takes longer than a launch, and compiled code cannot.
_HAS_TRITON = find_spec("triton") is not None


class Choice(NamedTuple):
    """Which form serves a call.

    Attributes:
        form: one of FORMS.
        reasons: why the forms before it in FORMS do not serve.
    """

    form: str
    reasons: dict[str, str]


class Diagnosis(NamedTuple):
    """What is available, and what serves a call.

    Attributes:
        available: versions of torch and triton, the device, and the forms that it serves.
        form: the form that serves the call, one of FORMS.
        tiles: its configuration; None where the reference serves.
        reasons: why the forms before it in FORMS do not serve.
    """

    available: dict[str, str]
    form: str
    tiles: dict[str, Any] | None
    reasons: dict[str, str]


def triton_available() -> bool:
    """Say whether Triton is installed and a CUDA device is there to run its kernels.

    Triton itself is not imported.

    >>> triton_available() <= torch.cuda.is_available()
    True
    """
    return torch.cuda.is_available() and _HAS_TRITON


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
    return _choose(form, lambda name: _obstacle(name, hidden, weight, start))


def choose_for_logits(logits: Tensor, options: Options, *, form: str | None = None) -> Choice:
    """Return the form that serves logits in memory, "plain" where it can.

    Args:
        logits: [B, V].
        options: of the call.
        form: one of FORMS, to force it.

    Raises:
        ValueError: If the forced form is unknown or cannot serve these tensors.

    >>> choose_for_logits(torch.zeros(1, 9), Options(9)).form
    'reference'
    """
    return _choose(form, lambda name: _obstacle_for_logits(name, logits, options))


def _choose(form: str | None, obstacle: Callable[[str], str | None]) -> Choice:
    """Return the first of FORMS, or of the one that is forced, in whose way nothing stands."""
    if form is not None and form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    reasons: dict[str, str] = {}
    for name in FORMS if form is None else (form,):
        reason = obstacle(name)
        if reason is None:
            return Choice(name, reasons)
        reasons[name] = reason
    raise ValueError(f"form {form!r} cannot serve this call: {reasons[str(form)]}")


def lm_head_max(
    hidden: Tensor, weight: Tensor, options: Options, *, form: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the winners of an LM head, and its log-mass, by the form that serves.

    Arguments are taken as checked; `fsresearch.sample` is the front door.

    Args:
        hidden: float32, bfloat16 or float16 [B, D].
        weight: the same dtype, [V, D].
        options: beside the matmul.
        form: one of FORMS, to force it.

    Returns:
        perturbed float32 [B, n], token int64 [B, n], log_mass float64 [B, 1] or [B, 0].

    Raises:
        ValueError: If a forced form cannot serve the call.

    >>> lm_head_max(torch.ones(1, 1), torch.tensor([[1.0], [2.0]]), Options(2))[1]
    tensor([[1]])
    """
    served = choose(hidden, weight, start=options.start, form=form).form
    if served == "reference":
        return _refer("lm_head_max", hidden, weight, options)
    return _run("lm_head_max", hidden, weight, *_laid_out(options), served)


def lm_head_group(
    hidden: Tensor, weight: Tensor, options: Options, *, form: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best groups' scores and tokens of an LM head, and its log-mass.

    Args:
        hidden: as for `lm_head_max`; so are the others, and what is returned.
        weight: [V, D].
        options: beside the matmul.
        form: one of FORMS, to force it.

    Raises:
        ValueError: If a forced form cannot serve the call.

    >>> options = Options(1000, torch.tensor([7]), torch.tensor(0), draws=4)
    >>> lm_head_group(torch.zeros(1, 1), torch.zeros(1000, 1), options)[1]
    tensor([[476, 985,  93, 724]])
    """
    served = choose(hidden, weight, start=options.start, form=form).form
    if served == "reference":
        return _refer("lm_head_group", hidden, weight, options)
    return _run("lm_head_group", hidden, weight, *_laid_out(options), served)


def lm_head_top_k(
    hidden: Tensor, weight: Tensor, options: Options, *, form: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the k = ``options.draws`` best scores and tokens of an LM head, and its log-mass.

    Kernels take k up to LONGEST. With seeds None there is one column, the largest logit.

    Args:
        hidden: as for `lm_head_max`; so are the others, and what is returned, with n = k columns in
            order, -inf and -1 after a row's last token.
        weight: [V, D].
        options: beside the matmul.
        form: one of FORMS, to force it.

    Raises:
        ValueError: If a forced form cannot serve the call.

    >>> options = Options(1000, torch.tensor([7]), torch.tensor(0), draws=4)
    >>> lm_head_top_k(torch.zeros(1, 1), torch.zeros(1000, 1), options)[1]
    tensor([[707, 202, 613, 414]])
    """
    served = choose(hidden, weight, start=options.start, form=form).form
    if options.draws > LONGEST and served != "reference":
        if form is not None:
            raise ValueError(
                f"form {form!r} cannot serve this call: k is above {LONGEST}, got {options.draws}"
            )
        served = "reference"
    if served == "reference":
        return _refer("lm_head_top_k", hidden, weight, options)
    return _run("lm_head_top_k", hidden, weight, *_laid_out(options), served)


def logits_max(
    logits: Tensor, options: Options, *, form: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `lm_head_max` does, of logits in memory.

    Args:
        logits: float32, bfloat16 or float16 [B, V], any strides.
        options: beside the logits.
        form: one of FORMS, to force it.

    Raises:
        ValueError: If a forced form cannot serve the call.

    >>> logits_max(torch.tensor([[1.0, 2.0]]), Options(2))[1]
    tensor([[1]])
    """
    return _of_logits("logits_max", logits, options, form)


def logits_group(
    logits: Tensor, options: Options, *, form: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `lm_head_group` does, of logits in memory; the arguments are `logits_max`'s.

    >>> options = Options(1000, torch.tensor([7]), torch.tensor(0), draws=4)
    >>> logits_group(torch.zeros(1, 1000), options)[1]
    tensor([[476, 985,  93, 724]])
    """
    return _of_logits("logits_group", logits, options, form)


def logits_top_k(
    logits: Tensor, options: Options, *, form: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `lm_head_top_k` does, of logits in memory; the arguments are `logits_max`'s.

    >>> options = Options(1000, torch.tensor([7]), torch.tensor(0), draws=4)
    >>> logits_top_k(torch.zeros(1, 1000), options)[1]
    tensor([[707, 202, 613, 414]])
    """
    if options.draws > LONGEST and form is None:
        form = "reference"
    return _of_logits("logits_top_k", logits, options, form)


def _of_logits(
    name: str, logits: Tensor, options: Options, form: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a kernel of logits in memory, or its reference."""
    if choose_for_logits(logits, options, form=form).form == "reference":
        return _refer(name, logits, options)
    return _run(name, logits, *_laid_out(options))


def _refer(name: str, *call: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Run a kernel's reference."""
    module = import_module(f"fsresearch.kernels.{name}.reference")
    drawn: tuple[Tensor, Tensor, Tensor] = getattr(module, f"{name}_reference")(*call)
    return drawn


def _run(name: str, *call: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Run a kernel, by the operator that its module registers."""
    _import(name)
    drawn: tuple[Tensor, Tensor, Tensor] = getattr(torch.ops.fsresearch, name).default(*call)
    return drawn


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _import(name: str) -> None:
    """Import a kernel's module; compiled code, which cannot, has it done while it is traced."""
    import_module(f"fsresearch.kernels.{name}")


def _laid_out(options: Options) -> Options:
    """Return the options with their tensors of rows as the kernels read them."""
    seeds, positions, temperature = options.seeds, options.positions, options.temperature
    return options._replace(
        seeds=None if seeds is None else seeds.contiguous(),
        positions=None if positions is None else positions.to(torch.int64).contiguous(),
        temperature=None if temperature is None else temperature.reshape(-1).float().contiguous(),
    )


def diagnosis(
    rows: int = 64,
    vocab: int = 151_936,
    depth: int = 4096,
    dtype: torch.dtype = torch.bfloat16,
) -> Diagnosis:
    """Return what is available here, and what serves an LM head of contiguous tensors.

    Args:
        rows: B.
        vocab: V.
        depth: D.
        dtype: of hidden [B, D] and weight [V, D], on the current CUDA device if there is one.

    Raises:
        ValueError: If a size is below 1.

    >>> found = diagnosis(rows=100)
    >>> sorted(found.available), found.form in FORMS
    (['device', 'forms', 'torch', 'triton'], True)
    """
    for name, size in (("rows", rows), ("vocab", vocab), ("depth", depth)):
        checks.integer(name, size, 1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    named = "no CUDA device"
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability()
        named = f"{torch.cuda.get_device_name()}, capability {major}.{minor}"
    # The last rows of weight stand for all of them, and one row of hidden for the batch.
    start = (vocab - 1) // 64 * 64
    hidden = torch.empty((1, depth), dtype=dtype, device=device).expand(rows, -1)
    weight = torch.empty((vocab - start, depth), dtype=dtype, device=device)
    probe = torch.empty((64, 64), dtype=torch.bfloat16, device=device)
    able = [name for name in FORMS if _obstacle(name, probe, probe, 0) is None]
    form, reasons = choose(hidden, weight, start=start)
    tiles = None
    if form != "reference":
        from fsresearch.kernels.matmul import configs

        tiles = configs.choose(form, rows)._asdict()
    available = {
        "torch": torch.__version__,
        "triton": version("triton") if _HAS_TRITON else "not installed",
        "device": named,
        "forms": ", ".join(able),
    }
    return Diagnosis(available, form, tiles, reasons)


def _obstacle(form: str, hidden: Tensor, weight: Tensor, start: int) -> str | None:
    """Say why a form cannot serve, or None where it can."""
    if form == "reference":
        return None
    reason = _obstacle_anywhere(hidden, len(weight) + start, start)
    if reason is not None or form == "plain":
        return reason
    capability = torch.cuda.get_device_capability(hidden.device)
    if torch.version.hip is not None or capability[0] != 9:
        return "the device is no Hopper"
    if hidden.dtype not in (torch.bfloat16, torch.float16):
        return f"TMA tiles are bfloat16 or float16, got {hidden.dtype}"
    if weight.stride(1) != 1 or weight.stride(0) < weight.shape[1]:
        return f"weight must have contiguous rows, got strides {weight.stride()}"
    if weight.stride(0) % 8 or _address(weight) % 16 or weight.shape[1] % 8:
        return "rows of weight must start at multiples of 16 bytes"
    return None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _address(tensor: Tensor) -> int:
    """Return a tensor's address; compiled code takes the one that it was traced with.

    Where it is later called with a tensor that is aligned less, the kernel raises.
    """
    return tensor.data_ptr()


def _obstacle_for_logits(form: str, logits: Tensor, options: Options) -> str | None:
    """Say why a form cannot serve logits in memory, or None where it can."""
    if form == "reference":
        return None
    if form == "hopper":
        return "logits in memory have one form, 'plain'"
    if len(logits) * options.columns >= _MOST_RACES:
        return f"rows times draws reach {_MOST_RACES}"
    if logits.shape[1] + options.start >= _LIMIT // 2:
        return "ids reach 2**30"
    stop = logits.shape[1] + options.start
    return _obstacle_anywhere(logits, stop, options.start)


def _obstacle_anywhere(rows: Tensor, stop: int, start: int) -> str | None:
    """Say why no kernel can serve rows [B, n] of the global ids [start, stop)."""
    if rows.device.type != "cuda":
        return f"the tensors are on {rows.device.type}"
    if not _HAS_TRITON:
        return "triton is not installed"
    if 0 in rows.shape or stop == start:
        return "there is nothing to read"
    if stop >= _LIMIT:
        return "ids reach 2**31"
    if start % 64:
        return "the first id is no multiple of 64"
    capability = torch.cuda.get_device_capability(rows.device)
    return None if capability >= (8, 0) else f"capability {capability} is below (8, 0)"
