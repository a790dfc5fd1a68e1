"""What a check is, what it may spend, and the trial that draws for it.

A check states its null hypothesis, its statistic and the alternative that it must not miss. Its
``run`` gets a Trial, which hands out fresh seeds, draws in chunks, counts, and ends the check as
"not decided" when the budget's time is over.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fsresearch.verify.sampler import Drawn, Request, Sampler
from fsresearch.verify.sizes import Sequential

__all__ = ["BUDGETS", "FALSE_FAIL", "Budget", "Check", "OutOfTime", "Trial", "Verdict"]

FALSE_FAIL: Final = 1e-8

_FIRST_CHUNK, _SECONDS_A_CHUNK = 1 << 18, 0.3
_MOST_DRAWS, _MOST_ELEMENTS = 1 << 17, 1 << 23
_ROWS, _LEAST_DRAWS_A_ROW = 16, 8
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Budget(NamedTuple):
    """What a run may spend, and what it must be able to see.

    Attributes:
        name: as users ask for it.
        seconds: after which no check draws any more.
        false_pass: the chance to miss a named alternative.
        distance: total variation that goodness of fit must see.
        tail_depth: nats under the head at which the tail's mass is tested, for a sampler whose
            draws cost a pass each, and for one whose draws are cheap.
        tail_bits: the resolution of uniforms that must be told from exact, likewise; 0 stands for
            the loss of half of the tail.
        scale: multiplies all fixed sizes, for calibration; the false-pass rates hold at 1.
    """

    name: str
    seconds: float
    false_pass: float
    distance: float
    tail_depth: tuple[float, float]
    tail_bits: tuple[int, int]
    scale: float = 1.0


BUDGETS: Final[dict[str, Budget]] = {
    budget.name: budget
    for budget in (
        Budget("quick", 15.0, 1e-3, 0.1, (14.0, 18.0), (0, 24)),
        Budget("standard", 165.0, 1e-5, 0.03, (18.0, 22.85), (24, 31)),
        Budget("deep", 440.0, 1e-5, 0.005, (22.85, 22.85), (31, 31)),
    )
}


class Verdict(NamedTuple):
    """What a check found.

    Attributes:
        passed: whether the null hypothesis stands; None where the budget did not suffice.
        said: what was seen: the number, and the size of the effect.
        p_values: of the tests inside; a sequential test gives a bound.
        data: what the report's plots need.
    """

    passed: bool | None
    said: str
    p_values: Mapping[str, float] = _NOTHING
    data: Mapping[str, Any] = _NOTHING


@dataclass(frozen=True)
class Check:
    """One question to a sampler.

    Attributes:
        name: theme/subject.
        null: the hypothesis that a correct sampler satisfies.
        statistic: what is computed.
        alternative: what must not be missed; may name fields of the budget in braces.
        cause: what usually causes a failure.
        run: draws and decides.
        needs: the features of a sampler that it needs.
        false_fail: the chance to fail a correct sampler; 0 for identities.
        weight: its place in a run; cheap checks come first.
    """

    name: str
    null: str
    statistic: str
    alternative: str
    cause: str
    run: Callable[[Trial], Verdict]
    needs: frozenset[str] = field(default_factory=frozenset)
    false_fail: float = FALSE_FAIL
    weight: int = 0


class OutOfTime(Exception):
    """The budget's time is over before the check could decide."""


class Trial:
    """Draws for one check.

    Args:
        sampler: who is asked.
        budget: what may be spent.
        device: where logits lie.
        seed: of the run.
        name: the check's; every check has seeds of its own.
        deadline: on the clock of time.monotonic.

    Attributes:
        draws: how many tokens were drawn so far.

    >>> from fsresearch.verify.samplers import find
    >>> trial = Trial(find("gumbel-max"), BUDGETS["quick"], "cpu", 0, "example")
    >>> trial.tokens(trial.row([0.0, -9.0]), 5).tolist()
    [0, 0, 0, 0, 0]
    """

    def __init__(
        self,
        sampler: Sampler,
        budget: Budget,
        device: str,
        seed: int,
        name: str,
        deadline: float = float("inf"),
    ) -> None:
        self.sampler, self.budget, self.device = sampler, budget, device
        self.deadline = deadline
        self.draws = 0
        self.random = np.random.default_rng([zlib.crc32(name.encode()), seed & (1 << 64) - 1])

    def row(self, logits: ArrayLike) -> Tensor:
        """Return one row of logits, float32 [1, V], on the device."""
        values = torch.from_numpy(np.array(logits, dtype=np.float32))
        return values[None].to(self.device)

    def seed(self) -> int:
        """Return a fresh seed."""
        return int(self.random.integers(1 << 62))

    def row_seeds(self, rows: int) -> Tensor:
        """Return fresh seeds int64 [rows], no two of them adjacent."""
        seeds = self.random.integers(1 << 60, size=rows) * 4
        return torch.from_numpy(seeds).to(self.device)

    def size(self, draws: int) -> int:
        """Return a fixed size, scaled where the budget says so."""
        return max(round(draws * self.budget.scale), 64)

    def call(self, logits: Tensor, **options: Any) -> Drawn:
        """Ask once, with a fresh seed unless one is given.

        Raises:
            OutOfTime: If there is no time left.
        """
        if time.monotonic() > self.deadline:
            raise OutOfTime
        features = self.sampler.features
        if "seed" not in options and "seed" in features:
            options["seed"] = self.seed()
        elif "seed" not in options and "row-seeds" in features:
            options["seed"] = self.row_seeds(len(logits))
        drawn = self.sampler.draw(Request(logits, **options))
        self.draws += drawn.token.numel()
        return drawn

    def chunks(self, logits: Tensor, total: int, **options: Any) -> Iterator[Drawn]:
        """Ask until a row [1, V] was drawn ``total`` times, in chunks of some 0.3 seconds.

        Where several draws a row are offered there are always several: one draw may be made by
        other code, as in torch.multinomial.
        """
        vocab, chunk = logits.shape[1], _FIRST_CHUNK // logits.shape[1] + 1
        many = "num-samples" in self.sampler.features and not options.get("k")
        while total > 0:
            now = min(chunk, total, _MOST_DRAWS)
            if many:
                rows = min(max(now // _LEAST_DRAWS_A_ROW, 1), _ROWS)
                asked = {"num_samples": max(-(-now // rows), _LEAST_DRAWS_A_ROW), **options}
            else:
                rows = min(now, max(_MOST_ELEMENTS // vocab, 1))
                asked = options
            began = time.monotonic()
            drawn = self.call(logits.expand(rows, -1), **asked)
            surplus = rows * asked.get("num_samples", 1) - total
            if surplus > 0:
                drawn = _without_last(drawn, surplus)
            yield drawn
            total -= rows * asked.get("num_samples", 1)
            spent = max(time.monotonic() - began, 1e-4)
            chunk = max(int(now * min(_SECONDS_A_CHUNK / spent, 4.0)), 1)

    def tokens(self, logits: Tensor, total: int, **options: Any) -> NDArray[np.int64]:
        """Return ``total`` tokens of a row [1, V], int64 [total]."""
        parts = [_host(drawn.token).ravel() for drawn in self.chunks(logits, total, **options)]
        return np.concatenate(parts)

    def decide(
        self,
        test: Sequential,
        logits: Tensor,
        hit: Callable[[Drawn], Tensor],
        **options: Any,
    ) -> bool | None:
        """Feed a sequential test with draws of a row until it decides or time is over.

        Args:
            test: the test.
            logits: the row, [1, V].
            hit: bool [...], one for every draw.
            options: fields of the request.
        """
        try:
            for drawn in self.chunks(logits, 1 << 40, **options):
                hits = hit(drawn)
                decided = test.update(int(hits.sum()), hits.numel())
                if decided is not None:
                    return decided
        except OutOfTime:
            pass
        return None


def _without_last(drawn: Drawn, surplus: int) -> Drawn:
    """Drop the last draws of a chunk whose rows and draws do not divide the total."""
    if drawn.perturbed is not None:
        drawn = drawn._replace(perturbed=drawn.perturbed.reshape(-1, 1)[:-surplus])
    return drawn._replace(token=drawn.token.reshape(-1, 1)[:-surplus])


def _host(tokens: Tensor) -> NDArray[np.int64]:
    values: NDArray[np.int64] = tokens.cpu().numpy()
    return values
