"""LM heads whose matmul is exact, with every option of a kernel, and what a form answers to them.

Hidden states are small integers over a power of two, weights small integers, so float32 sums are
exact in any order and a kernel and the reference see the same logits. Temperatures are powers of
two. Where two forms then choose different tokens, only the logarithms of the noise can have decided
it, and the scores in float64 say by how much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from kernel_groups import group_gap, raw_logits
from torch import Tensor

from fsresearch import backend, noise
from fsresearch.backend import Options
from fsresearch.kernels.matmul import configs
from fsresearch.transforms import Transform, inverse_temperature

__all__ = [
    "COMBINATIONS",
    "COMPILED",
    "EVERYTHING",
    "OPTIONS",
    "Answer",
    "Difference",
    "Head",
    "answer",
    "differences",
    "exact_head",
    "forced",
    "in_batches",
    "mass_error",
]

OPTIONS = (
    "greedy",
    "temperatures",
    "inverse",
    "scale",
    "softcap",
    "bias",
    "row bias",
    "mask",
    "row mask",
    "packed",
    "packed rows",
    "padding",
    "shard",
    "draws",
    "role",
    "log mass",
)
# Those that make another kernel; the others are numbers that any kernel takes.
COMPILED = tuple(name for name in OPTIONS if name not in ("padding", "shard", "role"))
EVERYTHING = (
    *("temperatures", "scale", "softcap", "row bias", "packed rows", "padding"),
    *("shard", "draws", "role", "log mass"),
)
COMBINATIONS: tuple[tuple[str, ...], ...] = (
    (),
    ("greedy",),
    ("temperatures", "log mass"),
    ("scale", "softcap", "inverse"),
    ("bias", "mask", "log mass"),
    ("row bias", "row mask", "temperatures"),
    ("packed", "padding"),
    ("packed rows", "bias", "temperatures", "log mass"),
    ("draws", "role", "shard"),
    EVERYTHING,
)


class Head(NamedTuple):
    """A call: hidden [B, D], weight [V, D], its options, and the kernel by its name in backend.

    Where the kernel reads logits, they are ``hidden``, and ``weight`` is [V, 0].
    """

    hidden: Tensor
    weight: Tensor
    options: Options
    kernel: str = "lm_head_max"

    def calling(self, kernel: str) -> Head:
        """Return the call to another kernel, with the logits if it reads them."""
        if not kernel.startswith("logits"):
            return self._replace(kernel=kernel)
        logits = (self.hidden.float() @ self.weight.float().T).to(self.hidden.dtype)
        return Head(logits, self.weight[:, :0], self.options, kernel)

    def rows(self, chosen: slice | Tensor) -> Head:
        """Return the call on some of the rows, copied: aligned as whole tensors are."""
        dims = {"seeds": 1, "positions": 1, "temperature": 1, "bias": 2, "mask": 2}
        given = {name: getattr(self.options, name) for name in dims}
        by_row = {
            name: value[chosen].clone()
            for name, value in given.items()
            if value is not None and value.dim() == dims[name]
        }
        hidden = self.hidden[chosen].clone()
        return self._replace(hidden=hidden, options=self.options._replace(**by_row))


class Answer(NamedTuple):
    """What a form returns: perturbed and token [B, n], log_mass [B, 1] or [B, 0]."""

    perturbed: Tensor
    token: Tensor
    log_mass: Tensor


class Difference(NamedTuple):
    """A token that differs, with the float64 score of what was expected less that of the other."""

    row: int
    draw: int
    expected: int
    got: int
    gap: float


def exact_head(
    generator: torch.Generator,
    rows: int,
    vocab: int,
    depth: int,
    dtype: torch.dtype,
    options: tuple[str, ...] = (),
) -> Head:
    """Return a random head, on the generator's device, with the named ones of OPTIONS."""
    device = generator.device

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator, device=device)

    scale = 2.0 ** -round(math.log2(depth) / 2)
    hidden = (integers(-2, 3, rows, depth) * scale).to(dtype)
    weight = integers(-2, 3, vocab, depth).to(dtype)
    words = -(-vocab // 32)
    makers: dict[str, Any] = {
        "greedy": lambda: {"seeds": None, "positions": None},
        "temperatures": lambda: {
            "temperature": torch.tensor([0.0, 0.5, 1.0, 2.0], device=device)[integers(0, 4, rows)]
        },
        "inverse": lambda: {"inverse": 0.5},
        "scale": lambda: {"logit_scale": 0.5},
        "softcap": lambda: {"softcap": 8.0},
        "bias": lambda: {"bias": integers(-3, 4, vocab).float()},
        "row bias": lambda: {"bias": integers(-3, 4, rows, vocab).float()},
        "mask": lambda: {"mask": integers(0, 2, vocab).bool()},
        "row mask": lambda: {"mask": integers(0, 2, rows, vocab).bool()},
        "packed": lambda: {"mask": integers(-(1 << 31), 1 << 31, words).int()},
        "packed rows": lambda: {"mask": integers(-(1 << 31), 1 << 31, rows, words).int()},
        "padding": lambda: {"vocab_size": max(vocab - 37, 1)},
        "shard": lambda: {"start": 64 * 999},
        "draws": lambda: {"draws": 5},
        "role": lambda: {"role": 17},
        "log mass": lambda: {"log_mass": True},
    }
    made = Options(
        seeds=integers(-(1 << 62), 1 << 62, rows),
        positions=integers(0, 1 << 55, rows),
        vocab_size=vocab,
    )
    for name in options:
        made = made._replace(**makers[name]())
    return Head(hidden, weight, made)


@contextmanager
def forced(config: configs.Config | None) -> Iterator[None]:
    """Let one configuration serve its form whatever the batch; None changes nothing."""
    if config is None:
        yield
        return
    with patch.object(configs, config.form.upper(), (config._replace(max_rows=1 << 31),)):
        yield


def answer(head: Head, form: str) -> Answer:
    """Return what a form answers; on the CPU a kernel's form is that of Triton's interpreter."""
    of_logits = head.kernel.startswith("logits")
    source = (head.hidden,) if of_logits else (head.hidden, head.weight)
    if head.hidden.is_cuda or form == "reference":
        return Answer(*getattr(backend, head.kernel)(*source, head.options, form=form))
    operator = getattr(import_module(f"fsresearch.kernels.{head.kernel}"), head.kernel)
    return Answer(*operator(*source, *head.options, *(() if of_logits else (form,))))


def in_batches(head: Head, form: str, batch: int) -> Answer:
    """Return what a form answers where the rows come in batches."""
    rows = range(0, len(head.hidden), batch)
    parts = [answer(head.rows(slice(row, row + batch)), form) for row in rows]
    return Answer(*(torch.cat(fields) for fields in zip(*parts, strict=True)))


def differences(head: Head, expected: Tensor, got: Tensor) -> list[Difference]:
    """List where tokens int64 [B, n] differ."""
    places = (expected != got).nonzero().tolist()
    found = []
    for row, draw in places:
        pair = torch.stack([expected[row, draw], got[row, draw]])
        gap = torch.inf
        if int(pair.min()) >= 0:
            gap = _gap(head.rows(slice(row, row + 1)), draw, pair)
        found.append(Difference(row, draw, int(pair[0]), int(pair[1]), gap))
    return found


def mass_error(expected: Tensor, got: Tensor) -> float:
    """Return the largest error of log-masses; inf where one is NaN or infinite and one is not."""
    if not expected.numel():
        return 0.0
    same = (expected == got) | (expected.isnan() & got.isnan())
    return float((expected - got).abs().nan_to_num(torch.inf).masked_fill(same, 0.0).max())


def _gap(alone: Head, draw: int, pair: Tensor) -> float:
    """Return the score of the first of two tokens less that of the other, in a single row."""
    if alone.kernel.endswith("group"):
        return group_gap(*alone[:3], draw, pair)
    ranked = alone.kernel.endswith("top_k")
    first, second = _scores(alone, 0 if ranked else draw, pair).tolist()
    return float(first - second)


def _scores(alone: Head, draw: int, tokens: Tensor) -> Tensor:
    """Return the perturbed logits float64 [m] of global ids int64 [m] in a single row."""
    options = alone.options
    local = (tokens - options.start)[None]
    factor: Any = options.inverse
    if options.temperature is not None:
        factor = inverse_temperature(options.temperature)
    transform = Transform(options.logit_scale, options.softcap, options.bias, options.mask, factor)
    raw = raw_logits(alone.hidden, alone.weight, local[0])
    scores = transform.apply_at(raw, local)[0]
    greedy = options.temperature is not None and float(options.temperature[0]) == 0
    if options.seeds is None or options.positions is None or greedy:
        return scores
    units, lanes = noise.leaf_address(tokens)
    word, refinement = (
        torch.stack(
            noise.words(
                options.seeds,
                units,
                draw=draw,
                position=options.positions,
                kind=kind,
                role=options.role,
            )
        )[lanes, 0, torch.arange(len(tokens), device=tokens.device)]
        for kind in (noise.LEAF, noise.REFINE)
    )
    refined = (refinement.double() + 0.5) / 2**32
    fraction = torch.where(word < noise.REFINE_BELOW, refined, 0.5)
    below, above = (word + fraction) / 2**32, ((1 << 32) - word - fraction) / 2**32
    exponential = torch.where(word < 1 << 31, -torch.log1p(-below), -torch.log(above))
    return scores - exponential.log()
