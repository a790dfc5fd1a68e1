"""The front door: exact samples from logits, or from hidden states and an LM head.

Transforms apply in one order: logit scale, softcap, bias, mask, temperature; then come the filters,
min-p and top-k, and of what they leave top-p. A draw is a function of (seed, position, draw number,
role) and of the row's own logits, so a row's token does not depend on its batch; only the online
method's does, through the width of its tiles. Rows that are not distributions give token -1 and
``valid`` False.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fsresearch import arguments, checks
from fsresearch.methods import METHODS, draw
from fsresearch.options import Options
from fsresearch.results import OrderedSample, Sample
from fsresearch.schedules.online import online
from fsresearch.scoring import token_log_prob
from fsresearch.sources import LMHead, Logits, Source
from fsresearch.truncation import Filters, truncate
from fsresearch.without_replacement.gumbel_top_k import gumbel_top_k

__all__ = [
    "METHODS",
    "log_prob",
    "sample",
    "sample_logits",
    "sample_logits_without_replacement",
    "sample_without_replacement",
]


@torch.no_grad()
def sample(
    hidden: Tensor,
    weight: Tensor,
    *,
    seed: int | Tensor | None = None,
    position: int | Tensor = 0,
    role: int = 0,
    method: str = "gumbel-max",
    temperature: float | Tensor = 1.0,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    softcap: float | None = None,
    logit_scale: float | None = None,
    vocab_size: int | None = None,
    top_k: int | Tensor | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | Tensor | None = None,
    num_samples: int = 1,
    log_prob: bool = False,
    check: bool = False,
) -> Sample:
    """Sample tokens from softmax(transform(hidden @ weight.T)) without forming [B, V].

    The filters top_k, top_p and min_p are a reference beside that: rows are held and sorted to find
    what they keep, which is said once (`fsresearch.truncation`). Greedy rows take no notice.

    Args:
        hidden: float32, bfloat16 or float16 [B, D].
        weight: the LM head [V, D], the same dtype.
        seed: an int or int64 0-d tensor, from which every row's seed is derived; int64 [B], used
            as it is; None takes one from torch's generator.
        position: in [0, 2**56), a number, 0-d or [B]; the decoding step.
        role: the caller's stream in [0, 32); samples of different roles share no noise.
        method: one of METHODS.
        temperature: a number, 0-d or [B]; 0 is the argmax (lowest id on ties), else at least 1e-6.
        bias: float [V] or [B, V], added to the logits.
        mask: True where allowed, bool [V] or [B, V]; or int32 bits [ceil(V/32)] or
            [B, ceil(V/32)], lowest first.
        softcap: c in c tanh(logit / c), above 0.
        logit_scale: multiplies the logits.
        vocab_size: ids at or above it are padding and never drawn.
        top_k: draw from the k largest transformed logits, of ties the lower ids; a number, 0-d or
            [B], at least 1; V or more keeps everything.
        top_p: of what top_k and min_p keep, renormalised, draw from the smallest set of largest
            logits with at least this mass; a number, 0-d or [B], in [0, 1]; 1 keeps everything.
        min_p: draw from tokens at least min_p times as probable as the likeliest; a number, 0-d or
            [B], in [0, 1]; 0 keeps everything.
        num_samples: independent draws n a row, at least 1; fewer draws are a prefix of more.
        log_prob: also return log-probabilities, the log-normaliser and the winning score; where a
            row is truncated, of the distribution that is left.
        check: read tensors on the host, and raise where a row or a value is invalid.

    Returns:
        A Sample with token int64 [B, n].

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If a shape, device or number is not accepted, or with check a tensor's value.

    Source: FlashSampling, Algorithm 1; see METHODS for each method's.

    >>> hidden, weight = torch.eye(2), torch.tensor([[0.0, 9.0], [0.0, 0.0], [9.0, 0.0]])
    >>> sample(hidden, weight, seed=1, num_samples=3).token
    tensor([[2, 2, 2],
            [0, 0, 0]])
    """
    arguments.check_head(hidden, weight)
    options = Options(temperature, bias, mask, softcap, logit_scale, vocab_size)
    transform, greedy, vocab = options.transform(len(hidden), len(weight), hidden.device)
    source = LMHead(hidden, weight, transform, vocab_size=vocab, temperature=options.temperature)
    checks.flags(log_prob=log_prob, check=check)
    kept = truncate(source, Filters(top_k, top_p, min_p), greedy, check)
    return _sample(
        kept, options, greedy, seed, position, role, method, num_samples, log_prob, check
    )


@torch.no_grad()
def sample_logits(
    logits: Tensor,
    *,
    seed: int | Tensor | None = None,
    position: int | Tensor = 0,
    role: int = 0,
    method: str = "gumbel-max",
    temperature: float | Tensor = 1.0,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    softcap: float | None = None,
    logit_scale: float | None = None,
    vocab_size: int | None = None,
    top_k: int | Tensor | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | Tensor | None = None,
    num_samples: int = 1,
    log_prob: bool = False,
    check: bool = False,
) -> Sample:
    """Sample tokens from softmax(transform(logits)) of logits [B, V] in memory.

    The arguments are those of `sample`, with logits float32, bfloat16 or float16 [B, V], any row
    stride, in place of the LM head.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If a shape, device or number is not accepted, or with check a tensor's value.

    Source: FlashSampling, Algorithms I.1, I.2 and I.3; see METHODS.

    >>> sample_logits(torch.tensor([[0.0, 1.0, 2.0]]), seed=7, num_samples=6).token
    tensor([[1, 1, 2, 0, 2, 1]])
    >>> sample_logits(torch.tensor([[0.0, 1.0, 2.0]]), seed=7, num_samples=6, top_k=2).token
    tensor([[1, 1, 2, 2, 2, 1]])
    >>> sample_logits(torch.tensor([[0.0, 2.0, 2.0]]), temperature=0.0).token
    tensor([[1]])
    """
    arguments.check_logits(logits)
    options = Options(temperature, bias, mask, softcap, logit_scale, vocab_size)
    transform, greedy, vocab = options.transform(len(logits), logits.shape[1], logits.device)
    source = Logits(logits, transform, vocab_size=vocab, temperature=options.temperature)
    checks.flags(log_prob=log_prob, check=check)
    kept = truncate(source, Filters(top_k, top_p, min_p), greedy, check)
    return _sample(
        kept, options, greedy, seed, position, role, method, num_samples, log_prob, check
    )


@torch.no_grad()
def sample_without_replacement(
    hidden: Tensor,
    weight: Tensor,
    k: int | Sequence[int] | Tensor,
    *,
    seed: int | Tensor | None = None,
    position: int | Tensor = 0,
    role: int = 0,
    temperature: float | Tensor = 1.0,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    softcap: float | None = None,
    logit_scale: float | None = None,
    vocab_size: int | None = None,
    check: bool = False,
) -> OrderedSample:
    """Sample k different tokens a row from an LM head, in Plackett-Luce order, by Gumbel-top-k.

    The arguments are those of `sample`. A sample of k is a prefix of one of k + 1, and k = 1 gives
    the token of `sample`. A row with fewer than k tokens of mass ends in -1 (with check, an error),
    and so does a row whose own k is below the largest. Any k up to V takes one pass.

    Args:
        hidden: float32, bfloat16 or float16 [B, D].
        weight: the LM head [V, D], the same dtype.
        k: how many tokens, in [1, V]; or one number a row, a sequence or an int64 or int32 tensor
            [B] on the CPU. The largest is the width of the result, so it is read on the host.
        seed: as for `sample`; so are all that follow.
        position: the decoding step.
        role: the caller's stream.
        temperature: a greedy row (0) gives its k largest logits.
        bias: added to the logits.
        mask: True where allowed.
        softcap: c in c tanh(logit / c).
        logit_scale: multiplies the logits.
        vocab_size: ids at or above it are padding.
        check: read tensors on the host, and raise where a row or a value is invalid.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If a shape, device or number is not accepted, or with check a tensor's value.

    Source: Kool, van Hoof, Welling, "Stochastic beams and where to find them", ICML 2019.

    >>> hidden, weight = torch.ones(1, 1), torch.zeros(6, 1)
    >>> sample_without_replacement(hidden, weight, 4, seed=5).token
    tensor([[3, 2, 5, 1]])
    """
    arguments.check_head(hidden, weight)
    options = Options(temperature, bias, mask, softcap, logit_scale, vocab_size)
    transform, greedy, vocab = options.transform(len(hidden), len(weight), hidden.device)
    source = LMHead(hidden, weight, transform, vocab_size=vocab, temperature=options.temperature)
    return _without_replacement(source, options, greedy, k, seed, position, role, check)


@torch.no_grad()
def sample_logits_without_replacement(
    logits: Tensor,
    k: int | Sequence[int] | Tensor,
    *,
    seed: int | Tensor | None = None,
    position: int | Tensor = 0,
    role: int = 0,
    temperature: float | Tensor = 1.0,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    softcap: float | None = None,
    logit_scale: float | None = None,
    vocab_size: int | None = None,
    check: bool = False,
) -> OrderedSample:
    """Sample k different tokens a row of logits [B, V], in Plackett-Luce order, by Gumbel-top-k.

    The arguments are those of `sample_without_replacement`, with logits in place of the LM head.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If a shape, device or number is not accepted, or with check a tensor's value.

    Source: Kool, van Hoof, Welling, "Stochastic beams and where to find them", ICML 2019.

    >>> logits = torch.tensor([[0.0, 1.0, -torch.inf, 3.0]])
    >>> drawn = sample_logits_without_replacement(logits, 4, seed=5)
    >>> drawn.token, drawn.num_valid
    (tensor([[ 3,  1,  0, -1]]), tensor([3]))
    >>> sample_logits_without_replacement(logits.expand(2, -1), [1, 3], seed=5).token
    tensor([[ 3, -1, -1],
            [ 3,  1,  0]])
    """
    arguments.check_logits(logits)
    options = Options(temperature, bias, mask, softcap, logit_scale, vocab_size)
    transform, greedy, vocab = options.transform(len(logits), logits.shape[1], logits.device)
    source = Logits(logits, transform, vocab_size=vocab, temperature=options.temperature)
    return _without_replacement(source, options, greedy, k, seed, position, role, check)


def log_prob(
    hidden: Tensor,
    weight: Tensor,
    token: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    softcap: float | None = None,
    logit_scale: float | None = None,
    vocab_size: int | None = None,
    check: bool = False,
) -> Tensor:
    """Score given tokens under an LM head, differentiable in hidden, weight and bias.

    Neither direction holds [B, V]: the backward pass computes the tiles again. A score that is NaN
    passes no gradient, to its own row or to what rows share.

    Args:
        hidden: float32, bfloat16 or float16 [B, D].
        weight: the LM head [V, D], the same dtype.
        token: int64 [B] or [B, n].
        temperature: as for `sample`; greedy rows are scored at temperature 1.
        bias: added to the logits.
        mask: True where allowed; a token that is not scores -inf.
        softcap: c in c tanh(logit / c).
        logit_scale: multiplies the logits.
        vocab_size: ids at or above it are padding.
        check: read tensors on the host, and raise where a row or a value is invalid.

    Returns:
        float32 of token's shape, natural logarithms; NaN for ids outside the vocabulary and rows
        that are not distributions.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If a shape, device or number is not accepted, or with check a tensor's value.
        RuntimeError: If the backward pass is asked for a graph: there is no second derivative.

    >>> log_prob(torch.ones(1, 1), torch.zeros(4, 1), torch.tensor([2]))
    tensor([-1.3863])
    """
    arguments.check_head(hidden, weight)
    arguments.check_tokens(token, len(hidden), hidden.device)
    checks.flags(check=check)
    options = Options(temperature, bias, mask, softcap, logit_scale, vocab_size)
    transform, _, vocab = options.transform(len(hidden), len(weight), hidden.device)
    if check:
        arguments.check_values(temperature, 0)
        arguments.check_ids(token, vocab)
    columns = token if token.dim() == 2 else token[:, None]
    scores = token_log_prob(hidden, weight, columns, transform, vocab)
    if check:
        arguments.check_rows(~scores.detach().isnan().any(1))
    return scores.view(token.shape)


def _sample(
    source: Source,
    options: Options,
    greedy: Tensor | bool,
    seed: int | Tensor | None,
    position: int | Tensor,
    role: int,
    method: str,
    num_samples: int,
    log_prob: bool,
    check: bool,
) -> Sample:
    """Draw from a source by a named method, after the arguments that concern logits."""
    checks.choice("method", method, METHODS)
    noise = arguments.row_noise(seed, position, role, num_samples, source.rows, source.device)
    if check:
        arguments.check_values(options.temperature, position)
    drawn = draw(source, noise, METHODS[method], greedy, log_prob, online, source.at)
    if check:
        arguments.check_rows(drawn.valid)
    return drawn


def _without_replacement(
    source: Source,
    options: Options,
    greedy: Tensor | bool,
    k: int | Sequence[int] | Tensor,
    seed: int | Tensor | None,
    position: int | Tensor,
    role: int,
    check: bool,
) -> OrderedSample:
    """Draw without replacement from a source, after the arguments that concern logits."""
    checks.flags(check=check)
    counts = arguments.sample_sizes(k, source.rows, source.stop)
    noise = arguments.row_noise(seed, position, role, 1, source.rows, source.device)
    if check:
        arguments.check_values(options.temperature, position)
    drawn = gumbel_top_k(source, noise, counts, greedy)
    if check:
        arguments.check_rows(drawn.num_valid > 0)
        arguments.check_support(drawn.num_valid, counts)
    return drawn
