"""The options of one call on an LM head, the same for every kernel and its reference."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Options"]


class Options(NamedTuple):
    """What a call does beside the matmul, taken as checked.

    Attributes:
        vocab_size: rows of weight at or above it are padding.
        seeds: int64 [B] contiguous; None makes every row greedy, with one draw.
        positions: int64 [B] contiguous or 0-d; None with seeds None.
        temperature: float32 [B] contiguous, 0 for a greedy row; None uses ``inverse``.
        bias: float [V] or [B, V].
        mask: bool or packed int32, [V], [B, V], [ceil(V / 32)] or [B, ceil(V / 32)].
        inverse: float32(1 / T).
        logit_scale: multiplies the raw logits.
        softcap: c in c tanh(logit / c).
        start: the global id of the first row of weight.
        draws: draws a row.
        role: the caller's stream.
        log_mass: whether the log-mass is wanted.

    >>> Options(vocab_size=5).draws
    1
    """

    vocab_size: int
    seeds: Tensor | None = None
    positions: Tensor | None = None
    temperature: Tensor | None = None
    bias: Tensor | None = None
    mask: Tensor | None = None
    inverse: float = 1.0
    logit_scale: float | None = None
    softcap: float | None = None
    start: int = 0
    draws: int = 1
    role: int = 0
    log_mass: bool = False

    @property
    def columns(self) -> int:
        """How many tokens a row gets: greedy rows get one."""
        return 1 if self.seeds is None else self.draws
