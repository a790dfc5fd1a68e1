"""From raw to transformed logits: logit scale, softcap, bias, mask, temperature, in this order.

Every step is elementwise, so a transform can be applied to one tile, or to a few tokens, of logits
that never exist as a whole.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Transform", "inverse_temperature"]

MIN_TEMPERATURE = 1e-6
_LEAST_INVERSE = 2.0**-149


class Transform(NamedTuple):
    """The elementwise map from raw logits to the logits that are sampled.

    Attributes:
        logit_scale: multiplies the raw logits.
        softcap: c in ``c tanh(logit / c)``.
        bias: float [V] or [B, V], added.
        mask: True where a token is allowed; bool [V] or [B, V], or bits in int32
            [ceil(V / 32)] or [B, ceil(V / 32)]: token v is bit v % 32 (lowest first) of word
            v // 32.
        inverse_temperature: float32 [B, 1], 0-d, or a number, multiplies the logits.

    >>> transform = Transform(mask=torch.tensor([True, False, True]), inverse_temperature=0.5)
    >>> transform.apply(torch.tensor([[1.0, 2.0, 3.0]]), start=0)
    tensor([[0.5000,   -inf, 1.5000]])
    """

    logit_scale: float | None = None
    softcap: float | None = None
    bias: Tensor | None = None
    mask: Tensor | None = None
    inverse_temperature: float | Tensor | None = None

    def apply(self, logits: Tensor, start: int) -> Tensor:
        """Transform raw logits float32 [B, T] of the tokens [start, start + T)."""
        stop = start + logits.shape[1]
        bias = None if self.bias is None else self.bias[..., start:stop]
        mask = None if self.mask is None else self.allowed(start, stop)
        return self._apply(logits, bias, mask)

    def apply_at(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Transform raw logits float32 [B, n] of the tokens int64 [B, n], ids in [0, V)."""
        bias = None if self.bias is None else _take(self.bias, tokens)
        mask = self.mask
        if mask is not None and mask.dtype == torch.int32:
            mask = (_take(mask, tokens // 32) >> (tokens % 32) & 1).bool()
        elif mask is not None:
            mask = _take(mask, tokens)
        return self._apply(logits, bias, mask)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Return the mask of [start, stop) as bool [T] or [B, T]."""
        mask = self.mask
        assert mask is not None
        if mask.dtype == torch.bool:
            return mask[..., start:stop]
        first = start // 32
        packed = mask[..., first : -(-stop // 32)]
        bits = packed[..., None] >> torch.arange(32, dtype=torch.int32, device=mask.device) & 1
        return bits.flatten(-2)[..., start - first * 32 : stop - first * 32].bool()

    def _apply(self, logits: Tensor, bias: Tensor | None, mask: Tensor | None) -> Tensor:
        if self.logit_scale is not None:
            logits = logits * self.logit_scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        if bias is not None:
            logits = logits + bias.float()
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        if self.inverse_temperature is not None:
            logits = logits * self.inverse_temperature
        return logits


def inverse_temperature(temperature: float | Tensor) -> float | Tensor | None:
    """Return float32(1 / T), computed once; 1 for greedy rows, whose logits stay as they are.

    A number gives a number, or None where nothing is to be done. A tensor is not read on the
    host: a value that is neither 0 nor finite and at least 1e-6 gives NaN, an invalid row. The
    inverse never rounds to 0, which would make NaN of a token without mass.

    >>> inverse_temperature(2.0), inverse_temperature(0.0)
    (0.5, None)
    >>> inverse_temperature(torch.tensor([0.5, 0.0, -1.0]))
    tensor([[2.],
            [1.],
            [nan]])
    """
    if isinstance(temperature, Tensor):
        t = temperature.reshape(-1, 1)
        usable = (t >= MIN_TEMPERATURE) & (t < torch.inf)
        inverse = (1 / t.double()).clamp(min=_LEAST_INVERSE).float()
        return inverse.where(usable, torch.nan).masked_fill(t == 0, 1.0)
    if temperature in (0, 1):
        return None
    return float(torch.tensor(max(1 / temperature, _LEAST_INVERSE), dtype=torch.float32))


def _take(values: Tensor, ids: Tensor) -> Tensor:
    """Return values [B, n] at ids [B, n] from [V] or [B, V]."""
    return values[ids] if values.dim() == 1 else values.gather(1, ids)
