"""log_prob: values against float64, gradients against autograd on logits in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fsresearch.sampling import log_prob, sample
from fsresearch.tiles import default_width

ROWS, SIZE, VOCAB = 4, 24, 30_000
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "temperatures": {"temperature": torch.tensor([0.5, 1.0, 0.0, 2.0])},
    "softcap and scale": {"softcap": 5.0, "logit_scale": 1.5},
    "padding": {"vocab_size": VOCAB - 77},
    "mask": {"mask": torch.arange(VOCAB) % 3 != 1},
    "mask a row": {"mask": torch.arange(ROWS * VOCAB).view(ROWS, VOCAB) % 7 != 3},
    "all": {
        "temperature": 1.3,
        "softcap": 20.0,
        "logit_scale": 0.9,
        "mask": torch.arange(VOCAB) % 5 != 1,
        "vocab_size": VOCAB - 3,
    },
}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden, weight and bias; the vocabulary takes several tiles."""
    assert default_width(ROWS, SIZE) < VOCAB / 2
    hidden, weight = normal(ROWS, SIZE, seed=0), normal(VOCAB, SIZE, seed=1) / 2
    return hidden.to(dtype), weight.to(dtype), normal(VOCAB, seed=2).to(dtype)


def in_memory(
    hidden: Tensor, weight: Tensor, token: Tensor, bias: Tensor | None, options: dict[str, Any]
) -> Tensor:
    """The same scores from logits [B, V], in the inputs' precision."""
    logits = hidden @ weight.T * options.get("logit_scale", 1.0)
    if "softcap" in options:
        logits = options["softcap"] * torch.tanh(logits / options["softcap"])
    if bias is not None:
        logits = logits + bias
    if "mask" in options:
        logits = logits.masked_fill(~options["mask"], -torch.inf)
    temperature = torch.as_tensor(options.get("temperature", 1.0)).reshape(-1, 1).to(logits)
    logits = logits / torch.where(temperature == 0, 1.0, temperature)
    kept = logits[:, : options.get("vocab_size", VOCAB)]
    scores: Tensor = kept.log_softmax(1).gather(1, token)
    return scores


def tokens() -> Tensor:
    """Some tokens a row, first and last tiles among them, all allowed in every case."""
    drawn = torch.randint(0, VOCAB - 100, (ROWS, 9), generator=torch.Generator().manual_seed(3))
    drawn[:, 0], drawn[:, 1] = 0, 19_800
    everywhere = torch.ones(ROWS, VOCAB, dtype=torch.bool)
    for options in OPTIONS.values():
        everywhere &= options.get("mask", everywhere)
    return torch.where(everywhere.gather(1, drawn), drawn, 0)


@pytest.mark.parametrize("name", OPTIONS)
def test_values_are_those_of_float64(name: str) -> None:
    options, token = OPTIONS[name], tokens()
    hidden, weight, bias = inputs()
    scores = log_prob(hidden, weight, token, bias=bias, **options)
    exact = in_memory(hidden.double(), weight.double(), token, bias.double(), options)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), exact, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("bias_shape", [None, (VOCAB,), (ROWS, VOCAB)], ids=str)
def test_gradients_are_those_of_autograd(name: str, bias_shape: tuple[int, ...] | None) -> None:
    options, token = OPTIONS[name], tokens()
    hidden, weight, _ = inputs()
    bias = None if bias_shape is None else normal(*bias_shape, seed=4)
    direction = normal(ROWS, token.shape[1], seed=5)
    given = [t for t in (hidden, weight, bias) if t is not None]
    ours = [t.clone().requires_grad_() for t in given]
    exact = [t.double().requires_grad_() for t in given]

    def bias_of(leaves: list[Tensor]) -> Tensor | None:
        return leaves[2] if len(leaves) == 3 else None

    scores = log_prob(ours[0], ours[1], token, bias=bias_of(ours), **options)
    (scores * direction).sum().backward()
    truth = in_memory(exact[0], exact[1], token, bias_of(exact), options)
    (truth * direction.double()).sum().backward()
    for mine, true in zip(ours, exact, strict=True):
        assert mine.grad is not None and true.grad is not None
        scale = float(true.grad.abs().max())
        torch.testing.assert_close(
            mine.grad.double(), true.grad, rtol=1e-4, atol=1e-5 * max(scale, 1)
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs(dtype: torch.dtype) -> None:
    token = tokens()
    hidden, weight, bias = (t.requires_grad_() for t in inputs(dtype))
    scores = log_prob(hidden, weight, token, bias=bias)
    exact = in_memory(hidden.double(), weight.double(), token, bias.double(), {})
    torch.testing.assert_close(scores.double(), exact, rtol=2e-6, atol=2e-5)
    scores.sum().backward()
    for leaf in (hidden, weight, bias):
        assert leaf.grad is not None and leaf.grad.dtype == dtype
    expected = torch.autograd.grad(exact.sum(), (hidden, weight, bias))
    for leaf, gradient in zip((hidden, weight, bias), expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient, rtol=2e-2, atol=2e-2)


def test_only_what_asks_for_gradients_gets_them() -> None:
    hidden, weight, bias = inputs()
    hidden.requires_grad_()
    log_prob(hidden, weight, tokens(), bias=bias).sum().backward()
    assert hidden.grad is not None and weight.grad is None and bias.grad is None


def test_one_token_a_row() -> None:
    hidden, weight, _ = inputs()
    token = tokens()
    column = log_prob(hidden, weight, token[:, 3])
    assert column.shape == (ROWS,)
    assert torch.equal(column, log_prob(hidden, weight, token)[:, 3])


def test_ids_outside_are_nan_and_pass_no_gradient() -> None:
    hidden, weight, _ = inputs()
    hidden.requires_grad_()
    token = torch.tensor([[-1, 5], [VOCAB, 5], [VOCAB - 1, 5], [2**40, 5]])
    scores = log_prob(hidden, weight, token)
    assert scores.isnan().tolist() == [[True, False], [True, False], [False, False], [True, False]]
    padded = log_prob(hidden, weight, token, vocab_size=VOCAB - 1)
    assert padded[2].isnan().tolist() == [True, False]
    (gradient,) = torch.autograd.grad(scores[:, 1].sum(), hidden)
    alone = log_prob(hidden, weight, token[:, 1])
    (expected,) = torch.autograd.grad(alone.sum(), hidden)
    torch.testing.assert_close(gradient, expected)
    weight.requires_grad_()
    scores = log_prob(hidden, weight, token)
    for leaf in (hidden, weight):
        (everything,) = torch.autograd.grad(scores.sum(), leaf, retain_graph=True)
        inside = scores[~scores.isnan()].sum()
        torch.testing.assert_close(
            everything, torch.autograd.grad(inside, leaf, retain_graph=True)[0]
        )
    outside = log_prob(hidden, weight, torch.full((ROWS,), -1))
    assert not any(g.any() for g in torch.autograd.grad(outside.sum(), (hidden, weight)))


def test_masked_tokens_score_minus_infinity() -> None:
    hidden, weight, _ = inputs()
    hidden.requires_grad_()
    mask = torch.arange(VOCAB) % 2 == 0
    scores = log_prob(hidden, weight, torch.tensor([[3, 4]] * ROWS), mask=mask)
    assert (scores[:, 0] == -torch.inf).all() and scores[:, 1].isfinite().all()
    (gradient,) = torch.autograd.grad(scores[:, 1].sum(), hidden)
    assert gradient.isfinite().all()


def test_rows_without_a_distribution_are_nan_and_leave_the_others() -> None:
    hidden, weight, _ = inputs()
    spoilt = hidden.clone()
    spoilt[1] = torch.nan
    spoilt.requires_grad_()
    weight = weight.requires_grad_()
    token = tokens()
    scores = log_prob(spoilt, weight, token)
    assert scores.isnan().all(1).tolist() == [False, True, False, False]
    kept = [0, 2, 3]
    torch.testing.assert_close(scores[kept], log_prob(hidden, weight, token)[kept])
    scores[kept].sum().backward()
    assert spoilt.grad is not None and spoilt.grad[kept].isfinite().all()
    with pytest.raises(ValueError, match="row 1 is not a distribution"):
        log_prob(spoilt, weight, token, check=True)
    nothing = torch.zeros(ROWS, VOCAB, dtype=torch.bool)
    assert log_prob(hidden, weight, token, mask=nothing).isnan().all()


SPOILT: dict[str, Callable[[Tensor, dict[str, Any]], Any]] = {
    "a NaN state": lambda hidden, _: hidden[1].fill_(torch.nan),
    "an infinite state": lambda hidden, _: hidden[1, 0].fill_(torch.inf),
    "a NaN temperature": lambda _, options: options["temperature"][1].fill_(-1.0),
    "a NaN bias": lambda _, options: options["bias"][1].fill_(torch.nan),
    "an infinite bias": lambda _, options: options["bias"][1, 7].fill_(torch.inf),
    "nothing allowed": lambda _, options: options["mask"][1].fill_(False),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_row_without_a_distribution_leaves_shared_gradients_alone(name: str) -> None:
    """They are those of the other rows, and its own are 0."""
    hidden, weight, bias = inputs()
    token, kept = tokens(), [0, 2, 3]
    mask = torch.zeros(ROWS, VOCAB, dtype=torch.bool).scatter(1, token, True)
    options: dict[str, Any] = {"temperature": torch.full((ROWS,), 0.7)}
    options |= {"mask": mask | (weight[:, 0] > 0), "bias": bias.repeat(ROWS, 1)}
    SPOILT[name](hidden, options)
    leaves = [t.requires_grad_() for t in (hidden, weight, options["bias"])]
    scores = log_prob(hidden, weight, token, **options)
    assert scores.isnan().all(1).tolist() == [False, True, False, False]
    got = torch.autograd.grad(scores.sum(), leaves)
    others = {option: value[kept] for option, value in options.items()}
    scores = log_prob(hidden[kept], weight, token[kept], **others)
    expected = torch.autograd.grad(scores.sum(), leaves)
    for mine, true in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-4)


def test_a_bias_that_rows_share_is_left_alone() -> None:
    hidden, weight, bias = inputs()
    bias.requires_grad_()
    temperature = torch.tensor([1.0, torch.nan, 1.0, 1.0])
    scores = log_prob(hidden, weight, tokens(), bias=bias, temperature=temperature)
    (got,) = torch.autograd.grad(scores.sum(), bias)
    kept = [0, 2, 3]
    scores = log_prob(hidden[kept], weight, tokens()[kept], bias=bias)
    torch.testing.assert_close(got, torch.autograd.grad(scores.sum(), bias)[0])


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_a_masked_token_may_have_any_weight(bad: float, softcap: float | None) -> None:
    hidden, weight, _ = inputs()
    mask = torch.arange(VOCAB) % 3 > 0
    spoilt = weight.clone()
    spoilt[::3] = bad
    gradients = []
    for head in (weight, spoilt):
        leaves = [hidden.clone().requires_grad_(), head.requires_grad_()]
        scores = log_prob(leaves[0], head, torch.ones(ROWS).long(), mask=mask, softcap=softcap)
        gradients.append(torch.autograd.grad(scores.sum(), leaves))
    for clean, other in zip(*gradients, strict=True):
        torch.testing.assert_close(clean, other)


def test_a_second_derivative_is_refused() -> None:
    hidden, weight, _ = inputs()
    scores = log_prob(hidden.requires_grad_(), weight, tokens())
    with pytest.raises(RuntimeError, match="log_prob can be differentiated once"):
        torch.autograd.grad(scores.sum(), hidden, create_graph=True)


def test_an_empty_batch() -> None:
    scores = log_prob(torch.zeros(0, 3), torch.zeros(9, 3), torch.zeros(0, 2, dtype=torch.int64))
    assert scores.shape == (0, 2)


@pytest.mark.parametrize("method", ["gumbel-max", "grouped", "online", "hierarchical"])
def test_samples_report_the_same_scores(method: str) -> None:
    hidden, weight, bias = inputs()
    options: dict[str, Any] = {"bias": bias, "temperature": 0.8, "softcap": 10.0}
    drawn = sample(hidden, weight, seed=1, method=method, num_samples=5, log_prob=True, **options)
    assert drawn.log_prob is not None and drawn.log_normalizer is not None
    torch.testing.assert_close(
        drawn.log_prob, log_prob(hidden, weight, drawn.token, **options), rtol=1e-5, atol=1e-5
    )
    logits = (10 * torch.tanh(hidden.double() @ weight.double().T / 10) + bias) / 0.8
    torch.testing.assert_close(
        drawn.log_normalizer.double(), logits.logsumexp(1), rtol=1e-6, atol=1e-5
    )
