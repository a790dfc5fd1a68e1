"""One figure of what samplers drew: observed against exact probabilities, from head to tail.

A token that expects 5 hits or more is a point of its own. Rarer ones are pooled by the size of
their probability, over all rows, until each bin expects 5 hits: that makes the tail visible, where
no single token is drawn often enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fsresearch.verify.statistics import MIN_EXPECTED

__all__ = ["Point", "points", "save_figure"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_BINS_PER_DECADE = 4
_HEAD, _TAIL, _LIMIT = "#1f77b4", "#d95f02", "0.55"


class Point(NamedTuple):
    """A token of one row, or a bin of rare tokens of all rows.

    Attributes:
        method: who drew.
        row: the token's row; -1 for a bin.
        tokens: how many (row, token) pairs it stands for.
        exact_probability: the mean over them.
        observed_probability: the mean over them.
        expected_hits: in all draws of all its rows.
        hits: what was drawn.
        sigma: (hits - expected_hits) in standard deviations of an exact sampler.
    """

    method: str
    row: int
    tokens: int
    exact_probability: float
    observed_probability: float
    expected_hits: float
    hits: int
    sigma: float


def points(method: str, counts: Integers, probabilities: Floats) -> list[Point]:
    """Return the points of one method, tokens first and then the bins of the tail.

    Args:
        method: its name.
        counts: int64 [B, V], hits of every row; all rows have the same number of draws.
        probabilities: float64 [B, V].

    >>> law = np.array([[0.9, 0.06, 0.03, 0.01]])
    >>> made = points("mine", np.array([[92, 5, 2, 1]]), law)
    >>> [(point.row, point.tokens, point.hits, round(point.sigma, 2)) for point in made]
    [(0, 1, 92, 0.67), (0, 1, 5, -0.42), (-1, 2, 3, -0.51)]
    """
    draws = int(counts[0].sum())
    common = probabilities * draws >= MIN_EXPECTED
    made = [
        _point(method, int(row), 1, probabilities[row, token, None], int(counts[row, token]), draws)
        for row, token in np.argwhere(common)
    ]
    for members in _tail(probabilities, (probabilities > 0) & ~common, MIN_EXPECTED / draws):
        masses = np.where(members, probabilities, 0).sum(1)
        hits = int(counts[members].sum())
        made.append(_point(method, -1, int(members.sum()), masses, hits, draws))
    return made


def save_figure(path: Path, made: Sequence[Point], titles: dict[str, str]) -> None:
    """Save the figure: a column a method, probabilities above and deviations in sigma below.

    Args:
        path: where to, with a suffix that matplotlib knows.
        made: the points of all methods.
        titles: what stands above each method's column, by its name.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "figure.png"
    >>> made = points("mine", np.array([[60, 40]]), np.array([[0.5, 0.5]]))
    >>> save_figure(path, made, {"mine": "my sampler"})
    >>> path.stat().st_size > 0
    True
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.2 + 2.9 * len(titles), 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        2, len(titles), sharex=True, sharey="row", squeeze=False, height_ratios=[2, 1]
    )
    limits = [f(point.exact_probability for point in made) for f in (min, max)]
    for column, (method, title) in enumerate(titles.items()):
        upper, lower = axes[:, column]
        upper.set_title(title, fontsize=9)
        upper.plot(limits, limits, color=_LIMIT, linewidth=1, label="exact")
        for height in (-3, 0, 3):
            style = "-" if height == 0 else ":"
            lower.axhline(height, color=_LIMIT, linewidth=1, linestyle=style)
        ours = [point for point in made if point.method == method]
        _scatter(upper, lower, [p for p in ours if p.row >= 0], "o", _HEAD, "one token")
        _scatter(upper, lower, [p for p in ours if p.row < 0], "D", _TAIL, "a bin of rare tokens")
        upper.set(xscale="log", yscale="log")
        lower.set_xlabel("exact probability of a token")
    axes[0, 0].set_ylabel("observed probability")
    axes[1, 0].set_ylabel("deviation, sigma")
    axes[0, 0].legend(fontsize=8, loc="upper left", frameon=False)
    figure.savefig(path, dpi=130)


def _point(method: str, row: int, tokens: int, masses: Floats, hits: int, draws: int) -> Point:
    """Make a point from the mass of its tokens in every row they belong to."""
    expected = draws * math.fsum(masses)
    deviation = math.sqrt(draws * math.fsum(masses * (1 - masses)))
    return Point(
        method,
        row,
        tokens,
        math.fsum(masses) / tokens,
        hits / (draws * tokens),
        expected,
        hits,
        (hits - expected) / deviation if deviation else 0.0,
    )


def _tail(probabilities: Floats, rare: Mask, least_mass: float) -> Iterator[Mask]:
    """Cut the rare tokens at quarter decades, rarest first, into bins of at least some mass."""
    decade = np.full(probabilities.shape, -np.inf)
    np.log10(probabilities, where=rare, out=decade)
    place = np.floor(decade * _BINS_PER_DECADE)
    places = np.unique(place[rare])
    mass = np.array([probabilities[place == p].sum() for p in places])
    left = np.cumsum(mass[::-1])[::-1]
    begin, gathered = -np.inf, 0.0
    for after, (p, m) in enumerate(zip(places, mass, strict=True), 1):
        gathered += m
        last = after == len(places)
        if last or (gathered >= least_mass and left[after] >= least_mass):
            yield rare & (place > begin) & (place <= p)
            begin, gathered = p, 0.0


def _scatter(
    upper: Any, lower: Any, made: Sequence[Point], marker: str, color: str, label: str
) -> None:
    """Plot points; what was never drawn stands at half a hit, which a logarithm can show."""
    exact = [point.exact_probability for point in made]
    shown = [
        point.observed_probability or point.exact_probability * 0.5 / point.expected_hits
        for point in made
    ]
    style = {"marker": marker, "color": color, "s": 9, "linewidths": 0, "alpha": 0.7}
    upper.scatter(exact, shown, label=label, zorder=3, **style)
    lower.scatter(exact, [point.sigma for point in made], zorder=3, **style)
