"""Invariance: does a row's token depend on anything but its logits and its seed?

These are identities: a sampler that keeps its promise never fails them, and one that changes one
token in 20 is missed with the chance (1 - 1/20)**(comparisons).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fsresearch.verify.trial import Check, Trial, Verdict

__all__ = ["CHECKS"]

_ROWS, _VOCAB, _WHOLE_GROUPS = 256, 1000, 640
_SOME = 0, 5, 31, 32, 63, 64, 100, 255
_WIDTHS = 64, 128, 192, 512, 4096
_SHARDS = 2, 3, 4, 8
_K = 5


def _reproducible(trial: Trial) -> Verdict:
    """Ask twice with one seed, other draws between."""
    logits, seed = _logits(trial), trial.seed()
    first = trial.call(logits, seed=seed).token
    trial.call(logits)
    return _equal([("again", trial.call(logits, seed=seed).token, first)])


def _batch(trial: Trial) -> Verdict:
    """Ask for rows alone, in halves, reversed, and beside other logits."""
    logits, seeds = _logits(trial), trial.row_seeds(_ROWS)
    whole = trial.call(logits, seed=seeds).token

    def ask(rows: Tensor) -> Tensor:
        return trial.call(logits[rows], seed=seeds[rows]).token

    order = torch.arange(_ROWS, device=logits.device)
    halves = torch.cat([ask(part) for part in order.split(129)])
    alone = torch.cat([ask(order[row : row + 1]) for row in _SOME])
    other = torch.cat([logits[:3] * 30, logits])
    beside = trial.call(other, seed=torch.cat([seeds[:3], seeds])).token[3:]
    return _equal(
        [
            ("alone", alone, whole[list(_SOME)]),
            ("in parts", halves, whole),
            ("reversed", ask(order.flip(0)).flip(0), whole),
            ("after other rows", beside, whole),
        ]
    )


def _draws(trial: Trial) -> Verdict:
    """Ask for 1, 2 and 7 draws of what gave 40."""
    logits, seed = _logits(trial), trial.seed()
    many = trial.call(logits, seed=seed, num_samples=40).token
    return _equal(
        (f"{n} draws", trial.call(logits, seed=seed, num_samples=n).token, many[:, :n])
        for n in (1, 2, 7)
    )


def _widths(trial: Trial) -> Verdict:
    """Ask for tiles of several widths."""
    logits, seed = _logits(trial), trial.seed()
    default = trial.call(logits, seed=seed).token
    return _equal(
        (f"tiles of {width}", trial.call(logits, seed=seed, width=width).token, default)
        for width in _WIDTHS
    )


def _shards(trial: Trial) -> Verdict:
    """Ask for several numbers of shards."""
    logits, seed = _logits(trial), trial.seed()
    default = trial.call(logits, seed=seed).token
    return _equal(
        (f"{shards} shards", trial.call(logits, seed=seed, shards=shards).token, default)
        for shards in _SHARDS
    )


def _layout(trial: Trial) -> Verdict:
    """Ask for logits in memory of other strides and offsets; padding must not copy them first."""
    logits, seed = _logits(trial, _WHOLE_GROUPS), trial.seed()
    default = trial.call(logits, seed=seed).token
    wide = torch.full((_ROWS, _WHOLE_GROUPS + 13), 50.0, device=logits.device)
    wide[:, 1 : _WHOLE_GROUPS + 1] = logits
    every = torch.full((2 * _ROWS, _WHOLE_GROUPS), 50.0, device=logits.device)
    every[::2] = logits
    views = {
        "a slice of wider rows": wide[:, 1 : _WHOLE_GROUPS + 1],
        "every second row": every[::2],
        "a transposed matrix": logits.T.contiguous().T,
    }
    return _equal(
        (name, trial.call(view, seed=seed).token, default) for name, view in views.items()
    )


def _half(trial: Trial) -> Verdict:
    """Ask for bfloat16 logits and the same values in float32."""
    logits, seed = _logits(trial).bfloat16(), trial.seed()
    full = trial.call(logits.float(), seed=seed).token
    return _equal([("bfloat16", trial.call(logits, seed=seed).token, full)])


def _prefix(trial: Trial) -> Verdict:
    """Ask for fewer tokens without replacement."""
    logits, seed = _logits(trial), trial.seed()
    most = trial.call(logits, seed=seed, k=_K).token
    return _equal(
        (f"k = {k}", trial.call(logits, seed=seed, k=k).token, most[:, :k]) for k in range(1, _K)
    )


def _logits(trial: Trial, vocab: int = _VOCAB) -> Tensor:
    """Return rows [256, V] that differ, flat enough for any noise to matter."""
    values = trial.random.integers(-3, 4, size=(_ROWS, vocab)) / 2
    return torch.from_numpy(values).float().to(trial.device)


def _equal(pairs: Iterable[tuple[str, Tensor, Tensor]]) -> Verdict:
    """Compare tokens; the report shows the share that is equal for every variant."""
    matrix: list[dict[str, Any]] = [
        {"name": name, "equal": int((left == right).sum()), "of": left.numel()}
        if left.shape == right.shape
        else {"name": name, "equal": 0, "of": left.numel()}
        for name, left, right in pairs
    ]
    bad = [cell for cell in matrix if cell["equal"] != cell["of"]]
    said = ", ".join(f"{c['name']}: {c['of'] - c['equal']} of {c['of']} differ" for c in bad)
    total = sum(cell["of"] for cell in matrix)
    return Verdict(not bad, said or f"all {total} tokens are equal", {}, {"matrix": matrix})


def _check(name: str, null: str, cause: str, run: Callable[[Trial], Verdict], *needs: str) -> Check:
    return Check(
        f"invariance/{name}",
        null,
        "Count of tokens that differ.",
        "one token in 20 that changes",
        cause,
        run,
        frozenset(needs),
        false_fail=0.0,
    )


CHECKS = (
    _check(
        "reproducible",
        "The same logits and seed give the same token.",
        "a generator that is shared with other calls, or a race",
        _reproducible,
        "seed",
    ),
    _check(
        "batch",
        "A row's token does not depend on the batch around it, nor on its place.",
        "noise addressed by the row's place in the batch, or drawn from one stream",
        _batch,
        "row-seeds",
        "batch-invariant",
    ),
    _check(
        "number of draws",
        "Fewer draws are a prefix of more.",
        "noise that depends on how many draws were asked for",
        _draws,
        "seed",
        "num-samples",
        "draw-prefix",
    ),
    _check(
        "tile width",
        "The token does not depend on the tile width.",
        "noise addressed by the tile and the lane instead of the token's id",
        _widths,
        "seed",
        "width",
        "tile-invariant",
    ),
    _check(
        "shards",
        "The token does not depend on how many shards the vocabulary is cut into.",
        "noise addressed by the place in the shard",
        _shards,
        "seed",
        "shards",
        "shard-invariant",
    ),
    _check(
        "memory layout",
        "The token does not depend on strides and offsets of the logits.",
        "a stride that is taken for granted",
        _layout,
        "seed",
    ),
    _check(
        "bfloat16 logits",
        "bfloat16 logits give the tokens of the same values in float32.",
        "a softmax, or a temperature, computed in bfloat16",
        _half,
        "seed",
        "half-logits",
    ),
    _check(
        "order prefix",
        "k tokens without replacement are a prefix of k + 1.",
        "noise that depends on k, or an unstable partial sort",
        _prefix,
        "seed",
        "without-replacement",
        "order-prefix",
    ),
)
