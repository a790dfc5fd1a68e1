"""The operator on a GPU, form by form: the reference's tokens, and what it costs beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

pytest.importorskip("triton")

from fsresearch import backend
from fsresearch.kernels.matmul.configs import HOPPER, PLAIN, Config
from proofs_tests.without_replacement.experiments import load

pytestmark = pytest.mark.gpu

heads = SimpleNamespace(**load("kernel_heads"))
FORMS = "hopper", "plain"
LARGEST_GAP, LARGEST_MASS_ERROR = 4e-6, 2e-5
EACH_FORM = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(autouse=True)
def _served(request: pytest.FixtureRequest) -> None:
    """Skip the Hopper form where the device is none."""
    form = getattr(request.node, "callspec", SimpleNamespace(params={})).params.get("form")
    if form == "hopper" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no Hopper GPU")


def head(
    rows: int, vocab: int = 1571, depth: int = 200, options: Any = (), dtype: Any = None
) -> Any:
    generator = torch.Generator("cuda").manual_seed(rows)
    return heads.exact_head(generator, rows, vocab, depth, dtype or torch.bfloat16, options)


def assert_same(made: Any, form: str) -> None:
    """A few rows in a million may differ, by a gap that only logarithms can explain."""
    expected, got = heads.answer(made, "reference"), heads.answer(made, form)
    found = heads.differences(made, expected.token, got.token)
    assert len(found) <= 1, found
    assert all(abs(one.gap) < LARGEST_GAP for one in found), found
    assert heads.mass_error(expected.log_mass, got.log_mass) < LARGEST_MASS_ERROR
    finite = expected.token == got.token
    torch.testing.assert_close(
        got.perturbed[finite], expected.perturbed[finite], rtol=1e-6, atol=4e-6, equal_nan=True
    )


@EACH_FORM
@pytest.mark.parametrize("options", heads.COMBINATIONS, ids=", ".join)
def test_tokens_are_the_references(options: tuple[str, ...], form: str) -> None:
    for rows in (3, 96, 255):
        assert_same(head(rows, options=options), form)


@EACH_FORM
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_dtypes(dtype: torch.dtype, form: str) -> None:
    made = head(65, dtype=dtype, options=("temperatures", "log mass"))
    if (form, dtype) == ("hopper", torch.float32):
        with pytest.raises(ValueError, match="bfloat16 or float16"):
            heads.answer(made, form)
    else:
        assert_same(made, form)


@EACH_FORM
@pytest.mark.parametrize("rows", [1, 64, 128, 256, 600])
def test_a_real_heads_size(rows: int, form: str) -> None:
    assert_same(head(rows, 151_936, 1024), form)


@pytest.mark.parametrize("config", [*HOPPER, *PLAIN], ids=str)
@pytest.mark.parametrize("options", [(), heads.EVERYTHING], ids=["none", "all"])
def test_configurations_agree_to_the_bit(options: tuple[str, ...], config: Config) -> None:
    if config.form == "hopper" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no Hopper GPU")
    made = head(200, options=options)
    expected = heads.answer(made, config.form)
    with heads.forced(config):
        got = heads.answer(made, config.form)
    assert got.token.equal(expected.token)
    assert got.perturbed.equal(expected.perturbed)


@EACH_FORM
@pytest.mark.parametrize("options", [(), ("greedy",), ("temperatures", "draws", "log mass")])
def test_the_operator_is_registered_whole(options: tuple[str, ...], form: str) -> None:
    made = head(3, vocab=300, depth=24, options=options)
    heads.answer(made, form)
    arguments = (made.hidden, made.weight, *made.options, form)
    torch.library.opcheck(torch.ops.fsresearch.lm_head_max.default, arguments)


def test_the_choice_and_its_reasons() -> None:
    hopper = torch.cuda.get_device_capability()[0] == 9
    hidden, weight = head(3, depth=64)[:2]
    assert backend.choose(hidden, weight).form == ("hopper" if hopper else "plain")
    flat = torch.zeros(weight.numel() + 1, dtype=weight.dtype, device="cuda")
    for other in (weight.T.contiguous().T, flat[1:].view(weight.shape), weight[:, :63]):
        given = hidden[:, : other.shape[1]]
        choice = backend.choose(given, other)
        assert choice.form == "plain"
        assert list(choice.reasons) == ["hopper"]
        with pytest.raises(ValueError, match="form 'hopper' cannot serve this call"):
            heads.answer(heads.Head(given, other, made_options(other)), "hopper")
    assert backend.choose(hidden, weight, start=32).form == "reference"
    assert backend.diagnosis(3, 1571, 64).form == backend.choose(hidden, weight).form


def made_options(weight: Tensor) -> Any:
    return backend.Options(vocab_size=len(weight))


@EACH_FORM
@pytest.mark.parametrize(("rows", "most"), [(64, 1 << 20), (256, 4 << 20)])
@pytest.mark.parametrize("log_mass", [False, True])
def test_temporary_memory(log_mass: bool, rows: int, most: int, form: str) -> None:
    weight = torch.zeros(151_936, 4096, dtype=torch.bfloat16, device="cuda")
    hidden = torch.zeros(rows, 4096, dtype=torch.bfloat16, device="cuda")
    options = backend.Options(
        vocab_size=len(weight),
        seeds=torch.arange(rows, device="cuda"),
        positions=torch.arange(rows, device="cuda"),
        log_mass=log_mass,
    )
    backend.lm_head_max(hidden, weight, options, form=form)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    backend.lm_head_max(hidden, weight, options, form=form)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before <= most


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")
@EACH_FORM
@pytest.mark.parametrize(("rows", "most"), [(64, 2), (256, 2), (100, 4)])
def test_launches(rows: int, most: int, form: str) -> None:
    """Two launches where the rows fill their tiles, else four; the log-mass takes one more."""
    made = head(rows, depth=256)
    for options in (made.options, made.options._replace(log_mass=True)):
        call = made._replace(options=options)
        heads.answer(call, form)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            heads.answer(call, form)
            torch.cuda.synchronize()
        launched = [e.name for e in recorded.events() if e.device_type.name == "CUDA"]
        assert 1 <= len(launched) <= most + options.log_mass, launched


@EACH_FORM
def test_streams_share_nothing(form: str) -> None:
    """Calls on four streams at once give what they give one after another."""
    made = [head(rows, vocab=20_011, depth=256) for rows in (33, 64, 96, 130)]
    expected = [heads.answer(one, form) for one in made]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in made]
    for _ in range(20):
        got = []
        for stream, one in zip(streams, made, strict=True):
            with torch.cuda.stream(stream):
                got.append(heads.answer(one, form))
        torch.cuda.synchronize()
        for a, b in zip(got, expected, strict=True):
            assert a.token.equal(b.token)
            assert a.perturbed.equal(b.perturbed)


@pytest.mark.parametrize("form", FORMS)
def test_the_current_device_may_be_another(form: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    made = head(5)
    expected = heads.answer(made, form)
    with torch.cuda.device(1):
        assert heads.answer(made, form).token.equal(expected.token)
    there = heads.Head(
        made.hidden.to("cuda:1"),
        made.weight.to("cuda:1"),
        made.options._replace(
            seeds=made.options.seeds.to("cuda:1"), positions=made.options.positions.to("cuda:1")
        ),
    )
    assert heads.answer(there, form).token.cpu().equal(expected.token.cpu())
