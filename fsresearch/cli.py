"""The command line: ``fsresearch demo``, ``sample``, ``verify``, ``methods`` and ``doctor``.

It parses and prints; the library does the work. What a caller got wrong ends with exit status 2
and one sentence on standard error.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError, safe_open
from torch import Tensor

import fsresearch
from fsresearch import backend, checks
from fsresearch.results import OrderedSample, Sample
from fsresearch.sampling import (
    METHODS,
    sample,
    sample_logits,
    sample_logits_without_replacement,
    sample_without_replacement,
)

__all__ = ["app", "main", "read_tensor"]

app = typer.Typer(
    help="Exact categorical sampling as mergeable summaries.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_PROMPT = "The most surprising thing about random numbers is that"
_FILE = "a .npy or .safetensors file, FILE or FILE:NAME"
_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def main() -> None:
    """Run the command line."""
    app()


def read_tensor(place: str) -> Tensor:
    """Read a tensor from ``FILE.npy``, ``FILE.safetensors`` or ``FILE.safetensors:NAME``.

    Raises:
        ValueError: If the file has another suffix or holds no such tensor.
        OSError: If it cannot be read.

    >>> from tempfile import mkdtemp
    >>> np.save(file := Path(mkdtemp()) / "logits.npy", np.zeros((1, 2), np.float32))
    >>> read_tensor(str(file))
    tensor([[0., 0.]])
    """
    before, colon, name = place.rpartition(":")
    named = bool(colon) and before.endswith(".safetensors")
    path = Path(before if named else place)
    if path.suffix == ".npy":
        return _read_npy(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{place} is neither a .npy nor a .safetensors file")
    try:
        with safe_open(path, framework="pt") as file:
            names = sorted(file.keys())
            if not names:
                raise ValueError(f"{path} holds no tensors")
            if named and name not in names:
                raise ValueError(f"{path} holds {', '.join(names)}, not {name}")
            if not named and len(names) != 1:
                raise ValueError(f"{path} holds {', '.join(names)}: say which as {path}:NAME")
            tensor: Tensor = file.get_tensor(name if named else names[0])
            return tensor
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from error


def _read_npy(path: Path) -> Tensor:
    """Read numbers of any byte order; nothing is unpickled."""
    try:
        with path.open("rb") as file:
            values = np.lib.format.read_array(file, allow_pickle=False)
        return torch.from_numpy(values.astype(values.dtype.newbyteorder("=")))
    except (MemoryError, TokenError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no .npy file of numbers: {error}") from error


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(fsresearch.__version__)
        raise typer.Exit


@app.command("sample")
def _sample(
    logits: Annotated[
        str | None,
        typer.Argument(
            help=f"Logits [V] or [B, V]: {_FILE}; or - for JSON on standard input, which is a "
            'list, a list of lists, {"logits": ...} or {"hidden": ..., "weight": ...}.'
        ),
    ] = None,
    hidden: Annotated[
        str | None, typer.Option(help=f"Hidden states [D] or [B, D]: {_FILE}.")
    ] = None,
    weight: Annotated[str | None, typer.Option(help=f"The LM head [V, D]: {_FILE}.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same tokens.")] = 0,
    position: Annotated[int, typer.Option(help="The decoding step; each has its noise.")] = 0,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "gumbel-max",
    temperature: Annotated[float, typer.Option(help="0 is the argmax.")] = 1.0,
    top_k: Annotated[
        int | None, typer.Option(help="Keep the k largest logits, of ties the lower ids.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Keep the largest logits up to this mass.")
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Keep tokens at least this probable beside the likeliest."),
    ] = None,
    num_samples: Annotated[int, typer.Option("--num-samples", "-n", help="Draws a row.")] = 1,
    log_prob: Annotated[bool, typer.Option("--log-prob", help="Add log-probabilities.")] = False,
    without_replacement: Annotated[
        int | None, typer.Option(metavar="K", help="Draw K different tokens a row, in order.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Refuse a row that is not a distribution.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Sample tokens from logits, or from hidden states and an LM head.

    A row that is not a distribution (no finite logit, or a NaN or +inf) gives token -1.
    """
    common: dict[str, Any] = {"seed": seed, "position": position, "temperature": temperature}
    filters: dict[str, Any] = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    more: dict[str, Any] = {"method": method, "num_samples": num_samples, "log_prob": log_prob}
    with _one_sentence():
        inputs = _inputs(logits, hidden, weight)
        drawn: Sample | OrderedSample
        if without_replacement is None:
            draw: Any = sample if len(inputs) == 2 else sample_logits
            drawn = draw(*inputs, check=check, **common, **filters, **more)
        elif (
            method != "gumbel-max"
            or num_samples != 1
            or any(value is not None for value in filters.values())
        ):
            raise ValueError(
                "--without-replacement takes no --method, no --num-samples and no filter"
            )
        else:
            draw = (
                sample_without_replacement
                if len(inputs) == 2
                else sample_logits_without_replacement
            )
            drawn = draw(*inputs, without_replacement, check=check, **common)
    if as_json:
        typer.echo(json.dumps(_plain(drawn)))
    else:
        Console().print(_sample_table(drawn))


@app.command("methods")
def _methods(as_json: _Json = False) -> None:
    """List the methods: exactness class, memory and source."""
    columns = ("name", "exactness", "memory", "source", "summary")
    rows = [tuple(str(getattr(method, c)) for c in columns) for method in METHODS.values()]
    if as_json:
        typer.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2))
        return
    table = Table(
        caption="path-exact: the token that one full pass over the same logits gives; "
        "law-exact: its distribution. B rows, V tokens, T tokens a tile."
    )
    for column in columns:
        table.add_column(column, no_wrap=column in columns[:3])
    for row in rows:
        table.add_row(*row)
    Console().print(table)


@app.command("doctor")
def _doctor(
    rows: Annotated[int, typer.Option(help="The batch B of a call.")] = 64,
    vocab: Annotated[int, typer.Option(help="Its vocabulary V.")] = 151_936,
    depth: Annotated[int, typer.Option(help="Its hidden size D.")] = 4096,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(_DTYPES)}.")] = "bfloat16",
    as_json: _Json = False,
) -> None:
    """Say what is available, and which kernel serves a call of the given shape, and why."""
    with _one_sentence():
        checks.choice("dtype", dtype, _DTYPES)
        found = backend.diagnosis(rows, vocab, depth, _DTYPES[dtype])
    if as_json:
        typer.echo(json.dumps(found._asdict(), indent=2))
        return
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in found.available.items():
        table.add_row(name, value, end_section=name == "forms")
    table.add_row("call", f"[{rows}, {depth}] by [{vocab}, {depth}], {dtype}")
    table.add_row("form", found.form)
    if found.tiles is not None:
        table.add_row("tiles", ", ".join(f"{k} {v}" for k, v in found.tiles.items()))
    for form, reason in found.reasons.items():
        table.add_row(f"not {form}", reason)
    Console().print(table)


@app.command("verify")
def _verify(
    sampler: Annotated[
        str, typer.Argument(help="A method, a public sampler, fault:NAME, or module:callable.")
    ],
    budget: Annotated[str, typer.Option(help="quick, standard or deep.")] = "quick",
    device: Annotated[str, typer.Option(help="Where logits lie: cpu or cuda.")] = "cpu",
    check: Annotated[
        list[str] | None, typer.Option(help="A check or a theme; again for more.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed asks the same questions.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots.")] = None,
    as_json: _Json = False,
) -> None:
    """Tell whether a sampler is exact; exit status 1 if a check fails."""
    with _one_sentence():
        try:
            from fsresearch.verify.command import run as verify
        except ModuleNotFoundError as error:
            raise ValueError(
                f'verify needs {error.name}: run `pip install "fsresearch[verify]"`'
            ) from error
        status = verify(
            sampler,
            budget=budget,
            device=device,
            checks=check or (),
            seed=seed,
            html=html,
            as_json=as_json,
        )
    raise typer.Exit(status)


@app.command("demo")
def _demo(
    model: Annotated[str, typer.Option(help="smollm2, or random: a synthetic head.")] = "smollm2",
    prompt: Annotated[
        str | None, typer.Option(help="What the model continues.", show_default=_PROMPT)
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="How many tokens it writes.", show_default="48")
    ] = None,
    states: Annotated[
        int | None, typer.Option(help="Hidden states to sample again.", show_default="8")
    ] = None,
    draws: Annotated[
        int | None, typer.Option(help="Draws from each state.", show_default="400")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Above 0.", show_default="1.0")] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same text.", show_default="0")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where figure and tables go.", show_default="demo_output")
    ] = None,
) -> None:
    """Let a language model write with exact samples; hold every method against softmax."""
    given: dict[str, Any] = {
        "prompt": prompt,
        "tokens": tokens,
        "states": states,
        "draws": draws,
        "temperature": temperature,
        "seed": seed,
        "out": out,
    }
    with _one_sentence():
        try:
            from fsresearch.demo import MissingModelError, Settings, run
        except ModuleNotFoundError as error:
            raise ValueError(
                f'the demo needs {error.name}: run `pip install "fsresearch[demo]"`'
            ) from error
        settings = Settings(model)._replace(**{k: v for k, v in given.items() if v is not None})
        try:
            run(settings, Console())
        except MissingModelError as error:
            raise ValueError(str(error)) from error


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Turn what a caller got wrong, or has no memory for, into a sentence and exit status 2."""
    try:
        yield
        return
    except (MemoryError, RuntimeError) as error:
        if "memory" not in repr(error).lower():
            raise
        message = "there is not enough memory for so many logits or draws"
    except (OSError, TypeError, ValueError) as error:
        message = " ".join(str(error).split())
        if isinstance(error, OSError) and error.filename and error.strerror:
            message = f"cannot open {error.filename}: {error.strerror}"
    typer.echo(f"fsresearch: {message}", err=True)
    raise typer.Exit(2)


def _inputs(logits: str | None, hidden: str | None, weight: str | None) -> list[Tensor]:
    """Return [logits], or [hidden, weight], from wherever they were asked for."""
    if (hidden is None) != (weight is None) or (logits is None) == (hidden is None):
        raise ValueError("give either LOGITS (- for standard input), or --hidden and --weight")
    if hidden is not None and weight is not None:
        return [_rows(read_tensor(hidden)), read_tensor(weight)]
    if logits is not None and logits != "-":
        return [_rows(read_tensor(logits))]
    try:
        given = json.load(sys.stdin)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"standard input is no JSON: {error}") from error
    named = given if isinstance(given, dict) else {"logits": given}
    if named.keys() not in ({"logits"}, {"hidden", "weight"}):
        got = ", ".join(named) or "nothing"
        raise ValueError(f"standard input must hold logits, or hidden and weight; got {got}")
    first, *rest = (_numbers(name, named[name]) for name in sorted(named))
    return [_rows(first), *rest]


def _numbers(name: str, value: Any) -> Tensor:
    """Read a list, or a list of lists, as float32; true and false are no numbers."""
    try:
        if _has_truth(value):
            raise ValueError("got true or false")
        return torch.tensor(value, dtype=torch.float32)
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{name} on standard input must be a list of numbers, or lists of one length: {error}"
        ) from error


def _has_truth(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_truth, value))
    return isinstance(value, bool)


def _rows(values: Tensor) -> Tensor:
    """Read one vector as a batch of one row."""
    return values[None] if values.dim() == 1 else values


def _plain(drawn: Sample | OrderedSample) -> dict[str, Any]:
    """Return the fields that exist as nested lists; what JSON has no number for becomes null."""
    fields = {name: value.tolist() for name, value in drawn._asdict().items() if value is not None}
    return {name: _finite(value) for name, value in fields.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None


def _sample_table(drawn: Sample | OrderedSample) -> Table:
    """Lay out one line a draw, with whatever belongs to a draw and a row."""
    table = Table()
    of_draws = {"token": drawn.token, "log-probability": drawn.log_prob}
    of_draws["score"] = drawn.perturbed
    columns = {name: values.tolist() for name, values in of_draws.items() if values is not None}
    for name in ("row", "draw", *columns):
        table.add_column(name, justify="right")
    rows, draws = drawn.token.shape
    for row in range(rows):
        for draw in range(draws):
            cells = [_cell(values[row][draw]) for values in columns.values()]
            table.add_row(str(row), str(draw), *cells, end_section=draw == draws - 1)
    if not (drawn.token >= 0).all():
        table.caption = "-1: nothing to draw"
    return table


def _cell(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4f}"
