"""Arithmetic sampling: n sequences a row with replacement, decoded side by side from even codes.

Give every sequence an interval of [0, 1) as long as its probability, in order of its tokens; a
uniform code then falls on a sequence with the model's probability. The n codes m / n + U mod 1
share one uniform U, so each is uniform, its sequence an exact sample, and together they cover the
sequences more evenly than independent draws do. A sequence of probability above 1 / n repeats:
nothing here is without replacement; it stands beside `stochastic_beam_search` for comparison.

A step finds the token whose part of [0, 1) holds the code and stretches that part over [0, 1). The
digits of U that stretching uses up are made good by fresh ones below the code's resolution, so
sequences may be of any length and probability.

Source: Vilnis, Zemlyanskiy, Murray, Passos, Sanghai, "Arithmetic sampling: parallel diverse
decoding for large language models", ICML 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fsresearch import arguments, checks
from fsresearch.noise import NODE, RowNoise, uniform_from_bits, words
from fsresearch.results import ArithmeticSample
from fsresearch.sources import Source
from fsresearch.truncation import Filters
from fsresearch.without_replacement.decoding import (
    Rule,
    Step,
    call,
    check_steps,
    cut,
    device_of,
    ended,
    eos_ids,
    row_log_mass,
)

__all__ = ["arithmetic_sampling"]

_RESOLUTION = 2.0**-53
_BLOCK_ELEMENTS = 1 << 22


@torch.no_grad()
def arithmetic_sampling(
    step: Step,
    state: Any,
    num_samples: int,
    max_length: int,
    eos_id: int | Sequence[int] | Tensor | None,
    *,
    rows: int = 1,
    seed: int | Tensor | None = None,
    position: int | Tensor = 0,
    role: int = 0,
    temperature: float | Tensor = 1.0,
    mask: Tensor | None = None,
    min_length: int = 0,
    top_k: int | Tensor | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | Tensor | None = None,
    stop: Callable[[Tensor], Tensor] | None = None,
    pad_id: int = -1,
    device: torch.device | str | None = None,
    check: bool = False,
) -> ArithmeticSample:
    """Draw n sequences a row, each exactly from the model, from n evenly spaced codes.

    The arguments are those of
    `fsresearch.without_replacement.stochastic_beam_search.stochastic_beam_search`. At its second
    call the step is asked for B n rows, and from then on every row continues itself. Logits are
    held as [R, V].

    Args:
        step: ``step(prefixes [R, t], parents [R], state) -> (logits [R, V], state)``.
        state: handed to the first call.
        num_samples: n, at least 1.
        max_length: tokens a sequence may have.
        eos_id: the id, or ids, that end a sequence, or None.
        rows: B, at least 0.
        seed: a scalar, or int64 [B]; so are all that follow as for stochastic beams.
        position: the first token's position.
        role: the caller's stream.
        temperature: a number or [B], above 0.
        mask: True where allowed.
        min_length: the end of sequence is forbidden until it would be this token.
        top_k: of every step; so are top_p and min_p.
        top_p: see top_k.
        min_p: see top_k.
        stop: names prefixes that end there.
        pad_id: fills sequences after their end.
        device: where prefixes are.
        check: raise where a row meets logits that are not a distribution.

    Raises:
        TypeError: If an argument or what step returns has the wrong type.
        ValueError: If it has a wrong value or shape, or with check.

    Source: Vilnis et al., ICML 2023, section 4.

    >>> first = torch.tensor([0.1, 0.2, 0.7]).log()
    >>> model = lambda prefixes, parents, state: (first.expand(len(prefixes), 3), state)
    >>> drawn = arithmetic_sampling(model, None, 4, max_length=4, eos_id=2, seed=1)
    >>> drawn.sequences[0].tolist()
    [[2, -1, -1, -1], [0, 1, 0, 1], [1, 2, -1, -1], [2, -1, -1, -1]]
    >>> drawn.codes
    tensor([[0.7604, 0.0104, 0.2604, 0.5104]], dtype=torch.float64)
    """
    num_samples = checks.integer("num_samples", num_samples, 1)
    max_length = checks.integer("max_length", max_length, 1)
    rows = checks.integer("rows", rows, 0)
    pad_id = checks.integer("pad_id", pad_id, -(1 << 63), (1 << 63) - 1)
    checks.flags(check=check)
    where = device_of(device, seed)
    noise = arguments.row_noise(seed, position, role, 1, rows, where)
    check_steps(noise, max_length)
    rule = Rule(temperature, mask, min_length, Filters(top_k, top_p, min_p), eos_ids(eos_id))
    rule = rule.checked(rows, where, check)

    even = torch.arange(num_samples, dtype=torch.float64, device=where) / num_samples
    codes = now = (even + _uniform(noise, 0, 0)).remainder(1.0)
    shape = rows, num_samples
    prefixes = torch.zeros((*shape, 0), dtype=torch.int64, device=where)
    log_probs = model_log_probs = torch.zeros(shape, dtype=torch.float64, device=where)
    lengths = torch.zeros(shape, dtype=torch.int64, device=where)
    finished = torch.zeros(shape, dtype=torch.bool, device=where)
    valid = torch.ones(rows, 1, dtype=torch.bool, device=where)
    vocab = None
    for t in range(max_length):
        growing = valid & ~finished
        if not growing.any():
            break
        asked = prefixes[:, : num_samples if t else 1].flatten(0, 1)
        parents = torch.arange(len(asked), device=where)
        if t == 1:
            parents = torch.arange(rows, device=where).repeat_interleave(num_samples)
        source, state = call(step, asked, parents, state, vocab)
        vocab = source.stop
        drawn = _Drawn(*(x.view(shape) for x in _draw(source, rule, now, t)))
        broken = growing & drawn.log_probs.isnan()
        if check and broken.any():
            row, sample = broken.nonzero()[0].tolist()
            raise ValueError(
                f"the logits of row {row}, sample {sample}, step {t} are not a distribution: no "
                "finite logit is allowed, or there is a NaN or +inf"
            )
        now = _refresh(drawn, _uniform(noise, t, 1))
        tokens = drawn.tokens.masked_fill(~growing, rule.eos[0] if rule.eos else 0)
        prefixes = torch.cat([prefixes, tokens[..., None]], 2)
        log_probs = log_probs + drawn.log_probs.masked_fill(~growing, 0.0)
        model_log_probs = model_log_probs + drawn.model_log_probs.masked_fill(~growing, 0.0)
        lengths = lengths + growing
        finished = finished | growing & ended(prefixes, rule.eos, stop)
        valid = valid & ~broken.any(1, keepdim=True)
    lengths, finished = lengths * valid, finished & valid
    log_probs, model_log_probs = (
        x.masked_fill(~valid, torch.nan) for x in (log_probs, model_log_probs)
    )
    sequences = cut(prefixes, lengths, pad_id)
    return ArithmeticSample(
        sequences, lengths, log_probs, model_log_probs, codes, finished, valid[:, 0]
    )


class _Drawn(NamedTuple):
    """One token of every sample, each field [B, n] or [R, columns].

    Attributes:
        tokens: int64.
        codes: float64, the code inside the token's part, stretched to [0, 1).
        stretch: float64, by how much.
        log_probs: float64, NaN where the logits are not a distribution.
        model_log_probs: float64.
    """

    tokens: Tensor
    codes: Tensor
    stretch: Tensor
    log_probs: Tensor
    model_log_probs: Tensor


def _draw(source: Source, rule: Rule, codes: Tensor, step: int) -> _Drawn:
    """Find the token of every code, [R, columns] codes for R rows of logits."""
    rows = len(codes)
    transform = rule.transform(source, step, rows)
    tiles = list(rule.tiles(source, transform, rows))
    sampled = torch.cat([tile.logits for tile, _ in tiles], 1)
    model = torch.cat([logits for _, logits in tiles], 1) if rule.changes else sampled
    codes = codes.view(source.rows, -1)
    block = max(_BLOCK_ELEMENTS // source.stop, 1)
    parts = zip(sampled.split(block), model.split(block), codes.split(block), strict=True)
    found = [_find(*part) for part in parts]
    return _Drawn(*(torch.cat(field) for field in zip(*found, strict=True)))


def _find(sampled: Tensor, model: Tensor, codes: Tensor) -> _Drawn:
    """Find tokens in logits [R, V] by codes [R, columns]; a token without mass holds no code."""
    largest = sampled.amax(1, keepdim=True).double()
    cumulated = (sampled.double() - largest).exp_().cumsum(1)
    total = cumulated[:, -1:].contiguous()
    at = codes * total
    last = torch.searchsorted(cumulated, total)
    tokens = torch.minimum(torch.searchsorted(cumulated, at, right=True), last)
    tokens = tokens.clamp(max=sampled.shape[1] - 1)
    below = cumulated.gather(1, (tokens - 1).clamp(min=0)).masked_fill(tokens == 0, 0.0)
    part = cumulated.gather(1, tokens) - below
    log_probs, model_log_probs = (
        logits.gather(1, tokens).double() - row_log_mass(logits)[:, None]
        for logits in (sampled, model)
    )
    return _Drawn(tokens, (at - below) / part, total / part, log_probs, model_log_probs)


def _refresh(drawn: _Drawn, uniform: Tensor) -> Tensor:
    """Return the codes with fresh digits below the resolution that stretching has left them."""
    fresh = drawn.codes + _RESOLUTION * drawn.stretch * uniform
    return fresh.clamp(0.0, 1.0 - _RESOLUTION)


def _uniform(noise: RowNoise, step: int, unit: int) -> Tensor:
    """Return one uniform a row, float64 [B, 1]."""
    units = torch.full((1,), unit, dtype=torch.int64, device=noise.seeds.device)
    at = noise.positions + step
    high, _, low, _ = words(noise.seeds, units, position=at, kind=NODE, role=noise.role)
    return uniform_from_bits(high, low)
