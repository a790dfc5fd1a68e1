"""Philox4x32-10, the counter-based generator behind the noise.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["philox"]

_LOW = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def philox(
    key: tuple[Tensor, Tensor], counter: tuple[Tensor, ...], shape: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 on int64 tensors that broadcast to shape.

    Two rounds run on the parts of the counter that differ by row or by unit alone. The other eight
    run in place on full pairs, (c0, c2) in ``factors`` and (c1, c3) in ``words``. Only factors need
    their upper bits cleared in between.
    """
    keys = torch.stack(key) + _round_constants(key[0].device)
    k0, k1 = keys[0]
    c0, c1, c2, c3 = counter
    p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
    c0, c2 = (p1 >> 32 ^ c1 ^ k0) & _LOW, (p0 >> 32 ^ (c3 ^ k1)) & _LOW
    c1, c3 = p1, p0
    k0, k1 = keys[1]
    pairs = torch.empty((3, 2, *shape), dtype=torch.int64, device=c0.device)
    (factors, (f0, f1)), (words, (w0, w1)), (products, (q0, q1)) = (
        (pair, pair.unbind()) for pair in pairs.unbind()
    )
    torch.mul(c2, _MULTIPLIERS[1], out=w0)
    p0 = c0 * _MULTIPLIERS[0]
    w1.copy_(p0)
    torch.bitwise_right_shift(w0, 32, out=f0).bitwise_xor_(c1 ^ k0)
    torch.bitwise_xor(p0 >> 32 ^ k1, c3, out=f1)
    factors.bitwise_and_(_LOW)
    for round_keys in keys[2:].unbind():
        torch.mul(f0, _MULTIPLIERS[0], out=q1)
        torch.mul(f1, _MULTIPLIERS[1], out=q0)
        torch.bitwise_right_shift(products, 32, out=factors)
        factors.bitwise_xor_(words).bitwise_xor_(round_keys).bitwise_and_(_LOW)
        (words, w0, w1), (products, q0, q1) = (products, q0, q1), (words, w0, w1)
    words.bitwise_and_(_LOW)
    return f0, w0, f1, w1


def _round_constants(device: torch.device) -> Tensor:
    """Return what the rounds add to the two key words, int64 [rounds, 2, 1, 1]."""
    constants = [torch.arange(_ROUNDS, device=device) * weyl for weyl in _WEYL]
    return torch.stack(constants, 1)[..., None, None]
