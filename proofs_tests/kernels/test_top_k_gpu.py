"""The top-k operator on a GPU, form by form: the reference's tokens, in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import fsresearch
from fsresearch import backend
from fsresearch.kernels.matmul.configs import HOPPER, PLAIN, Config
from proofs_tests.without_replacement.experiments import load

pytestmark = pytest.mark.gpu

heads = SimpleNamespace(**load("kernel_heads"))
LARGEST_GAP, LARGEST_MASS_ERROR = 4e-6, 2e-5
SAMPLED = [options for options in heads.COMBINATIONS if "greedy" not in options]
EACH_FORM = pytest.mark.parametrize("form", ["hopper", "plain"])


@pytest.fixture(autouse=True)
def _served(request: pytest.FixtureRequest) -> None:
    """Skip the Hopper form where the device is none."""
    given = getattr(request.node, "callspec", SimpleNamespace(params={})).params
    form = given["config"].form if "config" in given else given.get("form")
    if form == "hopper" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no Hopper GPU")


def head(rows: int, k: int, vocab: int = 40_001, options: Any = ()) -> Any:
    generator = torch.Generator("cuda").manual_seed(rows + k)
    made = heads.exact_head(generator, rows, vocab, 200, torch.bfloat16, options)
    return made._replace(kernel="lm_head_top_k", options=made.options._replace(draws=k))


def assert_same(made: Any, form: str) -> None:
    """A few rows in a million may differ, by a gap that only logarithms can explain."""
    expected, got = heads.answer(made, "reference"), heads.answer(made, form)
    found = heads.differences(made, expected.token, got.token)
    assert len({one.row for one in found}) <= 1, found
    assert all(abs(one.gap) < LARGEST_GAP for one in found), found
    assert heads.mass_error(expected.log_mass, got.log_mass) < LARGEST_MASS_ERROR
    torch.testing.assert_close(
        got.perturbed, expected.perturbed, rtol=1e-6, atol=4e-6, equal_nan=True
    )


@EACH_FORM
@pytest.mark.parametrize("options", SAMPLED, ids=", ".join)
def test_tokens_are_the_references(options: tuple[str, ...], form: str) -> None:
    for rows, k in ((3, 16), (96, 5), (255, 17)):
        assert_same(head(rows, k, options=options), form)


@EACH_FORM
@pytest.mark.parametrize("k", [1, 2, 3, 4, 8, 16, 17, 33, 64])
def test_every_size(k: int, form: str) -> None:
    for vocab in (40, 1121, 40_001):
        assert_same(head(65, k, vocab), form)


@EACH_FORM
def test_rising_logits_and_ties(form: str) -> None:
    """Every tile beats the last; and every token of a greedy row equals all others."""
    made = head(33, 16)
    bias = torch.arange(40_001.0, device="cuda") / 64
    assert_same(made._replace(options=made.options._replace(bias=bias)), form)
    still = made.options._replace(temperature=torch.zeros(33, device="cuda"))
    assert_same(made._replace(hidden=made.hidden * 0, options=still), form)


@pytest.mark.parametrize("config", [*HOPPER, *PLAIN], ids=str)
@pytest.mark.parametrize("k", [3, 16])
def test_configurations_and_prefixes_agree_to_the_bit(k: int, config: Config) -> None:
    made = head(200, k)
    more = made._replace(options=made.options._replace(draws=k + 1))
    expected = heads.answer(made, config.form)
    with heads.forced(config):
        for got in (heads.answer(made, config.form), heads.answer(more, config.form)):
            assert got.token[:, :k].equal(expected.token)
            assert got.perturbed[:, :k].equal(expected.perturbed)


@EACH_FORM
def test_the_first_is_the_winner_of_lm_head_max(form: str) -> None:
    made = head(96, 16)
    first = heads.answer(made, form)
    one = made._replace(kernel="lm_head_max", options=made.options._replace(draws=1))
    winner = heads.answer(one, form)
    assert first.token[:, :1].equal(winner.token)
    assert first.perturbed[:, :1].equal(winner.perturbed)


@EACH_FORM
@pytest.mark.parametrize("rows", [64, 256])
def test_temporary_memory(rows: int, form: str) -> None:
    k, vocab = 16, 151_936
    made = head(rows, k, vocab)
    heads.answer(made, form)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    heads.answer(made, form)
    torch.cuda.synchronize()
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    answers = 12 * k * rows
    assert torch.cuda.max_memory_allocated() - before <= 8 * k * rows * programs + answers + 4096


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("k", [1, 15, 63, 64])
def test_the_front_door_answers_as_the_core_does(k: int, temperature: float) -> None:
    made = head(5, k)
    drawn, expected = (
        fsresearch.sample_without_replacement(
            made.hidden.to(device), made.weight.to(device), k, seed=3, temperature=temperature
        )
        for device in ("cuda", "cpu")
    )
    assert drawn.token.cpu().equal(expected.token)
    torch.testing.assert_close(drawn.kappa.cpu(), expected.kappa, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(drawn.log_prob.cpu(), expected.log_prob, rtol=1e-4, atol=1e-4)


def test_a_form_that_cannot_serve_raises() -> None:
    made = head(3, 65)
    with pytest.raises(ValueError, match="k is above 64, got 65"):
        heads.answer(made, "plain")
    assert backend.lm_head_top_k(*made[:3])[1].shape == (3, 65)
