"""The command line: ``fsresearch demo``, ``fsresearch sample`` and ``fsresearch methods``.

It parses and prints; the work is done by the functions of the library. What a caller got wrong
ends with exit status 2 and one sentence on standard error.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError, safe_open
from torch import Tensor

import fsresearch
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

_INPUT = "a .npy file, a .safetensors file (FILE or FILE:NAME)"
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
_Seed = Annotated[int, typer.Option(help="The same seed gives the same result.")]


def main() -> None:
    """Run the command line."""
    app()


@app.callback(invoke_without_command=True)
def _version(
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
            help=f"Logits [V] or [B, V]: {_FILE}, or - for JSON on standard input: a list, a list "
            'of lists, {"logits": ...} or {"hidden": ..., "weight": ...}.',
        ),
    ] = None,
    hidden: Annotated[
        str | None, typer.Option(help=f"Hidden states [D] or [B, D]: {_FILE}.")
    ] = None,
    weight: Annotated[str | None, typer.Option(help=f"The LM head [V, D]: {_FILE}.")] = None,
    seed: _Seed = 0,
    position: Annotated[int, typer.Option(help="The decoding step: its own noise.")] = 0,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "gumbel-max",
    temperature: Annotated[float, typer.Option(help="0 is the argmax.")] = 1.0,
    num_samples: Annotated[int, typer.Option("--num-samples", "-n", help="Draws a row.")] = 1,
    log_prob: Annotated[bool, typer.Option("--log-prob", help="Add log-probabilities.")] = False,
    without_replacement: Annotated[
        int | None,
        typer.Option(metavar="K", help="K different tokens a row, in order, with their scores."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Refuse rows that are not distributions.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Sample tokens from logits, or from hidden states and an LM head.

    A row that is not a distribution (no finite logit, or a NaN or +inf) gives token -1.
    """
    with _one_sentence():
        inputs = _inputs(logits, hidden, weight)
        common: dict[str, Any] = {
            "seed": seed,
            "position": position,
            "temperature": temperature,
            "check": check,
        }
        drawn: Sample | OrderedSample
        if without_replacement is not None:
            if method != "gumbel-max" or num_samples != 1:
                raise ValueError("--without-replacement takes no --method and no --num-samples")
            draw = sample_without_replacement if len(inputs) == 2 else _SAMPLE_LOGITS_K
            drawn = draw(*inputs, without_replacement, **common)
        else:
            common |= {"method": method, "num_samples": num_samples, "log_prob": log_prob}
            drawn = (
                sample(*inputs, **common) if len(inputs) == 2 else sample_logits(*inputs, **common)
            )
        fields = {
            name: value.tolist() for name, value in drawn._asdict().items() if value is not None
        }
    if as_json:
        typer.echo(json.dumps(_plain(fields)))
    else:
        Console().print(_sample_table(fields))


@app.command("demo")
def _demo(
    model: Annotated[str, typer.Option(help="smollm2, or random: a synthetic head.")] = "smollm2",
    prompt: Annotated[str | None, typer.Option(help="What the model continues.")] = None,
    tokens: Annotated[int | None, typer.Option(help="How many tokens it writes.")] = None,
    states: Annotated[int | None, typer.Option(help="Hidden states to sample again.")] = None,
    draws: Annotated[int | None, typer.Option(help="Draws from each state.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Above 0.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of figure and tables.")] = None,
) -> None:
    """Let a language model write with exact samples, and hold every method against softmax."""
    with _one_sentence():
        try:
            from fsresearch.demo import MissingModelError, Settings, run
        except ModuleNotFoundError as error:
            raise ValueError(
                f'the demo needs {error.name}: run `pip install "fsresearch[demo]"`'
            ) from error
        given = {
            "prompt": prompt,
            "tokens": tokens,
            "states": states,
            "draws": draws,
            "temperature": temperature,
            "seed": seed,
            "out": out,
        }
        settings = Settings(model)._replace(**{k: v for k, v in given.items() if v is not None})
        try:
            run(settings, Console())
        except MissingModelError as error:
            raise ValueError(str(error)) from error
