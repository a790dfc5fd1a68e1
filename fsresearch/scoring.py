"""Log-probabilities of given tokens, differentiable, tile by tile in both directions.

The backward pass computes a tile's logits again instead of keeping them, so neither direction holds
[B, V]: the gradient of ``log p(token)`` with respect to the logits is ``onehot(token) - softmax``.
It is 0 at a logit that is not finite, and in all of a row that is not a distribution, so that
neither reaches what rows share, nor does a score that is NaN.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fsresearch.schedules.online import online
from fsresearch.sources import LMHead
from fsresearch.summaries import LogNormalizer
from fsresearch.tiles import tile_cuts
from fsresearch.transforms import Transform

__all__ = ["token_log_prob"]


def token_log_prob(
    hidden: Tensor, weight: Tensor, token: Tensor, transform: Transform, vocab: int
) -> Tensor:
    """Score tokens int64 [B, n]; NaN for ids outside [0, vocab) and rows without a distribution.

    Gradients flow to hidden, weight and the transform's bias, once.

    >>> hidden = torch.zeros(1, 1, requires_grad=True)
    >>> weight = torch.tensor([[0.0], [1.0]])
    >>> score = token_log_prob(hidden, weight, torch.tensor([[1]]), Transform(), 2)
    >>> score.backward()
    >>> score.detach(), hidden.grad
    (tensor([[-0.6931]]), tensor([[0.5000]]))
    """
    bias = transform.bias
    score: Tensor = _TokenLogProb.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, token, transform, vocab
    )
    return score


class _TokenLogProb(torch.autograd.Function):
    """Both directions, with the bias as an input beside the transform."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        token: Tensor,
        transform: Transform,
        vocab: int,
    ) -> Tensor:
        """Gather the tokens' logits and subtract the log-normaliser of one online pass."""
        source = LMHead(hidden, weight, transform._replace(bias=bias), vocab_size=vocab)
        log_normalizer = LogNormalizer().draw(online(LogNormalizer(), source))[:, None]
        outside = (token < 0) | (token >= vocab)
        unscored = outside | log_normalizer.isnan()
        mask = transform.mask
        ctx.save_for_backward(hidden, weight, bias, token, log_normalizer, unscored, mask)
        ctx.transform, ctx.vocab = transform._replace(bias=None), vocab
        return (source.at(token) - log_normalizer).masked_fill(outside, torch.nan)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        """Recompute every tile and pull its share of the gradient back through it."""
        if torch.is_grad_enabled():
            raise RuntimeError("log_prob can be differentiated once; got create_graph=True")
        hidden, weight, bias, token, log_normalizer, unscored, _ = ctx.saved_tensors
        grad = grad_outputs[0].masked_fill(unscored, 0.0)
        inputs = [t for t in (hidden, weight, bias) if t is not None]
        totals = [torch.zeros_like(t, dtype=torch.float32) for t in inputs]
        states = hidden.float()
        for start, stop in pairwise(tile_cuts(0, ctx.vocab, LMHead(hidden, weight).width)):
            head = weight[start:stop].float()
            leaves = [(states @ head.T).requires_grad_()]
            if bias is not None:
                part = bias[..., start:stop].float()
                leaves.append(part.expand(leaves[0].shape).requires_grad_())
            with torch.enable_grad():
                logits = _tile_logits(leaves, ctx.transform, start)
            gradient = _logit_gradient(logits.detach(), log_normalizer, token, grad, start)
            pulled = torch.autograd.grad(logits, leaves, gradient)
            raw, *shift = (part.masked_fill(~logits.isfinite(), 0.0) for part in pulled)
            totals[0] += raw @ _finite(head)
            totals[1][start:stop] = raw.T @ _finite(states)
            for part in shift:
                total = totals[2][..., start:stop]
                total += part.sum_to_size(total.shape)
        grads = [total.to(t.dtype) for total, t in zip(totals, inputs, strict=True)]
        return (*grads, *[None] * (6 - len(grads)))


def _tile_logits(leaves: list[Tensor], transform: Transform, start: int) -> Tensor:
    """Transformed logits of a tile from its raw logits and bias."""
    raw, *rest = leaves
    mask = transform.mask
    if mask is not None:
        mask = transform.allowed(start, start + raw.shape[1])
    return transform._replace(bias=rest[0] if rest else None, mask=mask).apply(raw, 0)


def _finite(factor: Tensor) -> Tensor:
    """Replace what is not finite by 0: where it matters the other factor is 0."""
    return factor.nan_to_num(0.0, 0.0, 0.0)


def _logit_gradient(
    logits: Tensor, log_normalizer: Tensor, token: Tensor, grad: Tensor, start: int
) -> Tensor:
    """Return sum over draws of grad (onehot(token) - softmax), on one tile."""
    softmax = torch.exp(logits - log_normalizer).nan_to_num(0.0)
    gradient = -grad.sum(1, keepdim=True) * softmax
    inside = (token >= start) & (token < start + logits.shape[1])
    return gradient.scatter_add(
        1, (token - start).masked_fill(~inside, 0), grad.masked_fill(~inside, 0.0)
    )
