"""What the samplers return."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["OrderedSample", "Sample"]


class Sample(NamedTuple):
    """Independent draws from every row's distribution.

    Attributes:
        token: int64 [B, n], global ids; -1 in a row that is not a distribution.
        valid: bool [B], False where a row has no finite transformed logit, or a NaN or +inf.
        log_prob: float32 [B, n], natural logarithms, or None unless asked for.
        log_normalizer: float32 [B], logsumexp of the transformed logits, or None.
        perturbed: float32 [B, n], the winning score (a greedy row: its logit), or None.
    """

    token: Tensor
    valid: Tensor
    log_prob: Tensor | None = None
    log_normalizer: Tensor | None = None
    perturbed: Tensor | None = None


class OrderedSample(NamedTuple):
    """k tokens without replacement from every row, in Plackett-Luce order.

    The scores are raw: a transformed logit plus its Gumbel. An estimator that wants the same
    scale without noise uses ``phi = log_prob + log_normalizer[:, None]``.

    Attributes:
        token: int64 [B, k], global ids; -1 after the last token with mass.
        perturbed: float32 [B, k], decreasing scores; -inf where token is -1.
        kappa: float32 [B], the (k+1)-th largest score, -inf where there is none.
        log_prob: float32 [B, k], log-probabilities under the full distribution.
        log_normalizer: float32 [B], logsumexp of the transformed logits.
        num_valid: int64 [B], how many of the k tokens exist.
    """

    token: Tensor
    perturbed: Tensor
    kappa: Tensor
    log_prob: Tensor
    log_normalizer: Tensor
    num_valid: Tensor
