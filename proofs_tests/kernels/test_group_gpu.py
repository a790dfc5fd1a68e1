"""The group operator on a GPU, form by form, and the front door over it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from fsresearch import sample
from fsresearch.kernels.matmul.configs import HOPPER, PLAIN, Config
from proofs_tests.without_replacement.experiments import load

pytestmark = pytest.mark.gpu

heads = SimpleNamespace(**load("kernel_heads"))
LARGEST_GAP, LARGEST_MASS_ERROR = 4e-6, 2e-5
EACH_FORM = pytest.mark.parametrize("form", ["hopper", "plain"])


def group_head(rows: int, vocab: int = 1571, depth: int = 200, options: Any = ()) -> Any:
    generator = torch.Generator("cuda").manual_seed(rows)
    head = heads.exact_head(generator, rows, vocab, depth, torch.bfloat16, options)
    return head._replace(kernel="lm_head_group")


def skip_unless_served(form: str) -> None:
    if form == "hopper" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no Hopper GPU")


def assert_same(head: Any, form: str, magnitude: float = 1.0) -> None:
    """A few rows in a million may differ, by a gap that only rounding can explain."""
    skip_unless_served(form)
    expected, got = heads.answer(head, "reference"), heads.answer(head, form)
    found = heads.differences(head, expected.token, got.token)
    assert len(found) <= 1, found
    assert all(abs(one.gap) < LARGEST_GAP * magnitude for one in found), found
    assert heads.mass_error(expected.log_mass, got.log_mass) < LARGEST_MASS_ERROR


@EACH_FORM
@pytest.mark.parametrize("options", heads.COMBINATIONS, ids=", ".join)
def test_tokens_are_the_references(options: tuple[str, ...], form: str) -> None:
    for rows in (3, 96, 255):
        assert_same(group_head(rows, options=options), form)


@EACH_FORM
@pytest.mark.parametrize("rows", [1, 64, 128, 256, 600])
def test_a_real_heads_size(rows: int, form: str) -> None:
    assert_same(group_head(rows, 151_936, 1024), form)


@pytest.mark.parametrize("config", [*HOPPER, *PLAIN], ids=str)
@pytest.mark.parametrize("options", [(), heads.EVERYTHING], ids=["none", "all"])
def test_configurations_agree_to_the_bit(options: tuple[str, ...], config: Config) -> None:
    skip_unless_served(config.form)
    head = group_head(200, options=options)
    expected = heads.answer(head, config.form)
    with heads.forced(config):
        got = heads.answer(head, config.form)
    assert got.token.equal(expected.token)
    assert got.perturbed.equal(expected.perturbed)


@EACH_FORM
@pytest.mark.parametrize("offset", [-(2.0**16), 0.0, 2.0**16])
@pytest.mark.parametrize("slope", [0.0, -2.0, -1e4])
def test_any_offset_and_masses_that_underflow(slope: float, offset: float, form: str) -> None:
    head = group_head(64)
    bias = torch.arange(1571.0, device="cuda") * slope + offset
    bias[64:192] = -torch.inf
    biased = head._replace(options=head.options._replace(bias=bias))
    assert_same(biased, form, max(abs(offset), 1.0))


@EACH_FORM
@pytest.mark.parametrize("options", [(), ("greedy",), ("temperatures", "draws", "log mass")])
def test_the_operator_is_registered_whole(options: tuple[str, ...], form: str) -> None:
    skip_unless_served(form)
    head = group_head(3, vocab=300, depth=24, options=options)
    heads.answer(head, form)
    arguments = (head.hidden, head.weight, *head.options, form)
    torch.library.opcheck(torch.ops.fsresearch.lm_head_group.default, arguments)


@pytest.mark.parametrize("temperature", [1.0, 0.0, torch.tensor([0.0, 0.5, 1.0, 2.0] * 16)])
def test_the_front_door_draws_the_cpus_tokens(temperature: Any) -> None:
    head = group_head(64, vocab=5003, depth=128)
    call: dict[str, Any] = {"method": "grouped", "seed": 5, "num_samples": 3, "log_prob": True}
    there = temperature.cuda() if isinstance(temperature, torch.Tensor) else temperature
    got = sample(head.hidden, head.weight, temperature=there, **call)
    expected = sample(head.hidden.cpu(), head.weight.cpu(), temperature=temperature, **call)
    assert (got.token.cpu() != expected.token).sum() <= 1
    assert got.log_normalizer is not None
    torch.testing.assert_close(got.log_normalizer.cpu(), expected.log_normalizer)
