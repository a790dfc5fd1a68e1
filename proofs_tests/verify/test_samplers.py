"""Samplers as the bench sees them: adapters, names, and what a request is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fsresearch import Sample, sample_logits
from fsresearch.verify import BUDGETS, Request, Sampler, adapt, verify
from fsresearch.verify.samplers import OWN, PUBLIC, find

TINY = BUDGETS["quick"]._replace(seconds=1e9, scale=0.1)
CHEAP = ["support/masked ids", "support/odd sizes", "degenerate/one token", "temperature"]


def test_a_signature_says_what_a_callable_takes() -> None:
    def mine(logits: Tensor, *, seeds: Tensor, position: int, num_samples: int) -> Tensor:
        return sample_logits(logits, seed=seeds, position=position, num_samples=num_samples).token

    sampler = adapt(mine, features=["batch-invariant"])
    assert sampler.name == "mine"
    assert sampler.features == {"row-seeds", "position", "num-samples", "batch-invariant"}
    seeds = torch.tensor([1, 2])
    drawn = sampler.draw(Request(torch.zeros(2, 9), 3, seeds, 4))
    expected = sample_logits(torch.zeros(2, 9), seed=seeds, position=4, num_samples=3)
    assert torch.equal(drawn.token, expected.token)


def test_an_answer_may_be_tokens_of_one_axis_or_an_object() -> None:
    def plain(logits: Tensor) -> Tensor:
        return logits.argmax(1)

    def fields(logits: Tensor) -> Sample:
        return sample_logits(logits, temperature=0.0, log_prob=True)

    request = Request(torch.tensor([[0.0, 1.0], [3.0, 1.0]]))
    assert adapt(plain).draw(request).token.tolist() == [[1], [0]]
    drawn = adapt(fields).draw(request)
    assert drawn.token.tolist() == [[1], [0]]
    assert drawn.log_prob is not None


def test_an_unknown_feature_is_refused() -> None:
    with pytest.raises(ValueError, match="features must be among"):
        adapt(lambda logits: logits.argmax(1), features=["magic"])


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_samplers.py").write_text(
        "def mine(logits):\n    return logits.argmax(1)\n"
        "from fsresearch.verify.samplers import OWN\n"
        "other = OWN['grouped']\n"
    )
    monkeypatch.chdir(tmp_path)
    assert find("my_samplers:mine").name == "my_samplers:mine"
    assert find("my_samplers:other") is OWN["grouped"]
    for wrong in ("my_samplers:nothing", "no_module:mine", "nothing"):
        with pytest.raises(ValueError):
            find(wrong)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_samplers_answer(name: str) -> None:
    if name == "flashinfer" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    report = verify(name, budget=TINY, checks=CHEAP)
    assert report.passed, report.failed[0].sentence
    assert report.about


def test_a_public_sampler_without_replacement() -> None:
    for name in ("torch-multinomial", "numpy-choice"):
        report = verify(name, budget=TINY, checks=["order"])
        statuses = {f.check.name: f.status for f in report.findings}
        assert statuses["order/Plackett-Luce"] == statuses["order/duplicates"] == "passed"
        assert statuses["order/threshold"] == "not applicable"


def test_a_constant_sampler_fails_nearly_everything() -> None:
    def first(logits: Tensor, seed: int) -> Tensor:
        return torch.zeros(len(logits), dtype=torch.int64)

    report = verify(first, checks=["fit/flat", "independence", "support"])
    assert len(report.failed) >= 7


def test_a_sampler_that_raises_fails_and_the_bench_goes_on() -> None:
    def broken(request: Request) -> None:
        raise RuntimeError("no kernel")

    sampler = Sampler("broken", broken)  # type: ignore[arg-type]
    report = verify(sampler, budget=TINY, checks=["support/odd sizes", "degenerate/one token"])
    assert [f.status for f in report.findings] == ["failed", "failed"]
    assert "no kernel" in report.failed[0].said
