"""Truncated Gumbels: the keys of a node's children, given that the largest of them is known.

Seen as clocks E = exp(-key), fixing the earliest arrival shifts every clock by the same amount,
because the Exponential law has no memory: E' = E - min E + exp(-T). ``truncate`` is this shift,
written in keys. No log-mass appears in it, so it holds on any scale on which the keys are
perturbed log-weights and the target is the key of their union.

Use the local scale: keys log p(c | N) + g_c and target G_N - phi_N, where phi_N is the parent's
log-probability. Both are numbers of order one however improbable the parent is, and the children's
keys are phi_N plus the result. Adding phi_N first would leave float32 errors of its own spacing,
7e-3 at phi_N = -3000.

Source: Kool, van Hoof and Welling, "Stochastic Beams and Where to Find Them", ICML 2019,
appendix; Maddison, Tarlow and Minka, "A* Sampling", NeurIPS 2014.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["log1mexp", "truncate"]

_LOG_2 = math.log(2.0)


def truncate(keys: Tensor, target: Tensor) -> Tensor:
    """Shift independent Gumbel keys so that their maximum is the target.

    If the target is distributed as the maximum is, the results are distributed as the keys were.
    The largest key becomes the target to the bit, no result exceeds it, and the order is kept (keys
    may become equal where rounding leaves no room between them; break such ties by the keys). The
    shift is undone by shifting back to the old maximum.

    It is computed in float64. Only the n largest children can be among the n largest of a frontier,
    so n keys a node suffice.

    Args:
        keys: float [..., n], n >= 1; -inf for a child without mass.
        target: float [...], the wanted maximum; -inf takes every child to -inf. A NaN or +inf, here
            or among the keys, makes its row NaN.

    Returns:
        [..., n] in the wider of the two dtypes; -inf throughout where no child has mass.

    Raises:
        TypeError: If keys or target are not floating-point tensors.
        ValueError: If target does not have the shape of keys without their last axis.

    Source: Kool, van Hoof, Welling, ICML 2019, appendix.

    >>> keys = torch.tensor([[0.5, 2.0, -torch.inf]], dtype=torch.float64)
    >>> truncate(keys, torch.tensor([3.0], dtype=torch.float64))
    tensor([[0.6520, 3.0000,   -inf]], dtype=torch.float64)
    """
    _check(keys, target)
    free, top = keys.double(), target.double()[..., None]
    largest = free.amax(-1, keepdim=True)
    gap = top - free + log1mexp(free - largest)
    shifted = top - gap.clamp(min=0.0) - torch.log1p(torch.exp(-gap.abs()))
    shifted = shifted.masked_fill((free == -torch.inf) | (top == -torch.inf), -torch.inf)
    invalid = ~(largest < torch.inf) | ~(top < torch.inf)
    return shifted.masked_fill(invalid, torch.nan).to(torch.promote_types(keys.dtype, target.dtype))


def log1mexp(x: Tensor) -> Tensor:
    """Return log(1 - exp(x)) for x <= 0, accurate at both ends; -inf at 0, NaN above.

    Below -log 2 it is log1p(-exp(x)), above it log(-expm1(x)): each loses digits where the other
    does not. Differentiable wherever it is finite.

    Args:
        x: float, any shape.

    Source: Maechler, "Accurately Computing ``log(1 - exp(-|a|))``", 2012.

    >>> log1mexp(torch.tensor([0.0, -1e-7, -1.0]))
    tensor([    -inf, -16.1181,  -0.4587])
    """
    far = torch.log1p(-torch.exp(x.clamp(max=-_LOG_2)))
    return torch.where(x > -_LOG_2, torch.log(-torch.expm1(x)), far)


def _check(keys: Tensor, target: Tensor) -> None:
    for name, value in (("keys", keys), ("target", target)):
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise TypeError(f"{name} must be a floating-point tensor, got {type(value).__name__}")
    if keys.dim() == 0 or keys.shape[-1] == 0 or keys.shape[:-1] != target.shape:
        raise ValueError(
            f"keys must be [..., n] with n >= 1 and target [...], "
            f"got {list(keys.shape)} and {list(target.shape)}"
        )
