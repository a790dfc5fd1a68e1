"""What the samplers return."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = ["ArithmeticSample", "BeamSample", "OrderedSample", "Sample"]


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


class BeamSample(NamedTuple):
    """k sequences without replacement from every row, in Plackett-Luce order of whole sequences.

    The keys are normalised, unlike the scores of an OrderedSample: the root's log-probability is
    0, and a key is ``log_probs`` plus a Gumbel that carries the whole path.

    Attributes:
        sequences: int64 [B, k, L], L the longest; the padding id after a sequence's end.
        lengths: int64 [B, k], tokens, the end of sequence included; 0 where there is no beam.
        log_probs: float64 [B, k], under the distribution that was sampled: its temperature and
            filters, renormalised at every step; -inf where there is no beam.
        model_log_probs: float64 [B, k], under the model's own logits at temperature 1.
        keys: float64 [B, k], decreasing; -inf where there is no beam, NaN in a row that met logits
            that are not a distribution.
        kappa: float64 [B], the (k+1)-th largest key, -inf where there is none; None unless asked.
        backpointers: int64 [T, B, k], the place among the beams of step t - 1 that each beam of
            step t continues.
        tokens: int64 [T, B, k], the token it adds; -1 where it adds none.
        finished: bool [B, k], whether it ended itself; False where max_length cut it.
        num_valid: int64 [B], how many of the k sequences exist.
        root: "gumbel" or "zero", the root's key. Only "gumbel" gives kappa the law that inclusion
            probabilities need.
    """

    sequences: Tensor
    lengths: Tensor
    log_probs: Tensor
    model_log_probs: Tensor
    keys: Tensor
    kappa: Tensor | None
    backpointers: Tensor
    tokens: Tensor
    finished: Tensor
    num_valid: Tensor
    root: Literal["gumbel", "zero"]

    def sort_by_log_prob(self) -> BeamSample:
        """Return the same sequences with the most probable first; the sampling order is lost."""
        order = self.log_probs.sort(dim=1, descending=True, stable=True).indices
        last = slice(len(self.tokens) - 1, None)
        backpointers, tokens = self.backpointers.clone(), self.tokens.clone()
        for steps in (backpointers, tokens):
            steps[last] = steps[last].gather(2, order.expand(steps[last].shape))
        rows = torch.arange(len(order), device=order.device)[:, None]
        return self._replace(
            sequences=self.sequences[rows, order],
            lengths=self.lengths.gather(1, order),
            log_probs=self.log_probs.gather(1, order),
            model_log_probs=self.model_log_probs.gather(1, order),
            keys=self.keys.gather(1, order),
            backpointers=backpointers,
            tokens=tokens,
            finished=self.finished.gather(1, order),
        )


class ArithmeticSample(NamedTuple):
    """n sequences with replacement from every row, decoded from evenly spaced codes.

    Attributes:
        sequences: int64 [B, n, L], L the longest; the padding id after a sequence's end.
        lengths: int64 [B, n], tokens, the end of sequence included.
        log_probs: float64 [B, n], under the distribution that was sampled; NaN in a row that met
            logits that are not a distribution.
        model_log_probs: float64 [B, n], under the model's own logits at temperature 1.
        codes: float64 [B, n], in [0, 1).
        finished: bool [B, n], whether it ended itself; False where max_length cut it.
        valid: bool [B], False in a row that met logits that are not a distribution.
    """

    sequences: Tensor
    lengths: Tensor
    log_probs: Tensor
    model_log_probs: Tensor
    codes: Tensor
    finished: Tensor
    valid: Tensor
