"""Why two forms of the group kernel chose different tokens: the decision again, in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fsresearch import noise
from fsresearch.backend import Options
from fsresearch.transforms import Transform, inverse_temperature

__all__ = ["group_gap", "raw_logits"]

# The tokens of a group in the order of the walk: strand by strand.
_WALK = torch.arange(64).view(8, 4, 2).permute(1, 0, 2).flatten()


def group_gap(hidden: Tensor, weight: Tensor, options: Options, draw: int, ids: Tensor) -> float:
    """Return how near the decision between two tokens int64 [2] of a single row was.

    For tokens of different groups it is the score of the one less that of the other; inside a group
    it is how far the uniform was from the nearest boundary between the two.
    """
    units = ids // 64
    logits = [_logits(hidden, weight, options, unit) for unit in units.tolist()]
    cold = options.temperature is not None and float(options.temperature[0]) == 0
    if options.seeds is None or options.positions is None or cold:
        first, second = (x[i % 64] for x, i in zip(logits, ids.tolist(), strict=True))
        return float(first - second)
    high, inner_high, low, inner_low = noise.words(
        options.seeds,
        units,
        draw=draw,
        position=options.positions,
        kind=noise.GROUP,
        role=options.role,
    )
    if units[0] != units[1]:
        first, second = torch.stack(logits).logsumexp(1) + noise.gumbel_from_bits(high, low)[0]
        return float(first - second)
    uniform = float(noise.uniform_from_bits(inner_high, inner_low)[0, 0])
    ends = logits[0][_WALK.to(units.device)].softmax(0).cumsum(0)
    places = sorted(int((token % 64 == _WALK).nonzero()) for token in ids.tolist())
    return float((ends[places[0] : places[1]] - uniform).abs().min())


def _logits(hidden: Tensor, weight: Tensor, options: Options, unit: int) -> Tensor:
    """Return the transformed logits float64 [64] of a group, -inf where there is no token."""
    first = unit * 64 - options.start
    local = torch.arange(first, first + 64, device=hidden.device)
    held = local.clamp(max=options.vocab_size - 1)[None]
    factor: Any = options.inverse
    if options.temperature is not None:
        factor = inverse_temperature(options.temperature)
    transform = Transform(options.logit_scale, options.softcap, options.bias, options.mask, factor)
    raw = raw_logits(hidden, weight, held[0])
    return transform.apply_at(raw, held)[0].masked_fill(local >= options.vocab_size, -torch.inf)


def raw_logits(hidden: Tensor, weight: Tensor, local: Tensor) -> Tensor:
    """Return logits float64 [B, m] of columns int64 [m]; hidden holds them where D is 0."""
    if not weight.shape[1]:
        return hidden[:, local].double()
    return hidden.double() @ weight[local].double().T
