"""The exact variance of gradient estimators on a toy: three Bernoulli variables, one parameter.

x_1, x_2, x_3 are Bernoulli(sigmoid(eta)), the cost is sum_i (x_i - b_i)**2 with b = (.6, .51, .48),
and the gradient of its mean is taken with respect to eta. There are eight outcomes, so every
sample that an estimator may see is enumerated, given to the library's loss, and weighed with its
probability: no random number is drawn.

Deterministic sum-and-sample depends on the order of outcomes of equal probability: their product
index. At eta = 0 all eight are equal, and if the number of ones came before the index, k = 5 would
change, from 5.5396e-02 to 1.9718e-02, and nothing else would; the last column of the CSV file is
that order.

    python experiments/gradient_variance.py

writes gradient_variance.csv and gradient_variance.png to experiments/results.

Source: Kool, van Hoof and Welling, "Estimating Gradients for Discrete Random Variables by Sampling
without Replacement", ICLR 2020.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import combinations, combinations_with_replacement, permutations, product
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from bench_rows import RESULTS
from torch import Tensor

from fsresearch.without_replacement.gradients import (
    reinforce_loss,
    sum_and_sample_loss,
    unordered_set_loss,
)
from fsresearch.without_replacement.laws import ordered_log_prob, unordered_log_prob

ETAS = 0.0, -4.0
SIZE = 8
TARGET = torch.tensor([0.6, 0.51, 0.48], dtype=torch.float64)

Sample = tuple[int, ...]
Loss = Callable[[Tensor, Tensor], Tensor]


class Moments(NamedTuple):
    """Mean and variance of an estimator over all its samples."""

    mean: float
    variance: float


def table(eta: float) -> list[dict[str, float]]:
    """Return the variances at every k, one row a k; NaN where an estimator needs more samples."""
    return [
        {
            "k": k,
            **{name: moments(name, k, eta).variance for name in ESTIMATORS},
        }
        for k in range(1, SIZE + 1)
    ]


def moments(name: str, k: int, eta: float) -> Moments:
    """Return the exact mean and variance of a gradient estimator of k samples."""
    loss, samples, chances = ESTIMATORS[name]
    if k == 1 and name in BASELINE:
        return Moments(math.nan, math.nan)
    outcomes = ranked_outcomes(eta, ones_first=name.endswith(ONES_FIRST))
    tokens = torch.tensor(list(samples(k)))
    parameter = torch.full((len(tokens),), eta, dtype=torch.float64, requires_grad=True)
    log_prob = outcome_log_prob(outcomes, parameter).gather(1, tokens)
    cost = outcome_cost(outcomes)[tokens]
    (gradient,) = torch.autograd.grad(loss(log_prob, cost).sum(), parameter)
    chance = chances(log_prob.detach(), tokens)
    mean = float(chance @ gradient)
    return Moments(mean, float(chance @ (gradient - mean) ** 2))


def exact_gradient(eta: float) -> float:
    """Return the derivative of the mean cost."""
    parameter = torch.tensor([eta], dtype=torch.float64, requires_grad=True)
    outcomes = ranked_outcomes(eta)
    mean = (outcome_log_prob(outcomes, parameter).exp() * outcome_cost(outcomes)).sum()
    return float(torch.autograd.grad(mean, parameter)[0])


def ranked_outcomes(eta: float, *, ones_first: bool = False) -> Tensor:
    """Return the outcomes [8, 3], the most probable first, ties by product index.

    Their probabilities rise with eta times the number of ones, which is exact, so rounding splits
    no tie.
    """
    outcomes = list(product([0.0, 1.0], repeat=3))
    ranked = sorted(outcomes, key=lambda x: (-eta * sum(x), ones_first * sum(x)))
    return torch.tensor(ranked, dtype=torch.float64)


def outcome_log_prob(outcomes: Tensor, eta: Tensor) -> Tensor:
    """Return the log-probabilities of the outcomes [N, 8] under parameters [N]."""
    ones = outcomes.sum(1)
    on, off = (torch.nn.functional.logsigmoid(sign * eta)[:, None] for sign in (1, -1))
    return ones * on + (3 - ones) * off


def outcome_cost(outcomes: Tensor) -> Tensor:
    """Return the costs of the outcomes [8]."""
    return ((outcomes - TARGET) ** 2).sum(1)


def multisets(k: int) -> Iterable[Sample]:
    """Return the samples with replacement, whose order no estimator sees."""
    return combinations_with_replacement(range(SIZE), k)


def most_probable_and_one(k: int) -> Iterable[Sample]:
    """Return the k - 1 most probable outcomes, which come first, with each of the others."""
    return ((*range(k - 1), last) for last in range(k - 1, SIZE))


def orders(k: int) -> Iterable[Sample]:
    """Return the ordered samples without replacement."""
    return permutations(range(SIZE), k)


def sets(k: int) -> Iterable[Sample]:
    """Return the sets of k outcomes."""
    return combinations(range(SIZE), k)


def multiset_chances(log_prob: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability of each multiset [N]: its number of orders times that of one."""
    counts = [
        math.factorial(len(row)) / math.prod(map(math.factorial, Counter(row).values()))
        for row in tokens.tolist()
    ]
    return torch.tensor(counts, dtype=torch.float64) * log_prob.sum(1).exp()


def last_chances(log_prob: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability of the last outcome among those not chosen [N]."""
    last = log_prob[:, -1].exp()
    return last / last.sum()


ONES_FIRST = ", ones first"
ESTIMATORS: dict[
    str,
    tuple[Loss, Callable[[int], Iterable[Sample]], Callable[[Tensor, Tensor], Tensor]],
] = {
    "with replacement": (
        lambda log_prob, cost: reinforce_loss(log_prob, cost, baseline=False),
        multisets,
        multiset_chances,
    ),
    "with replacement, leave-one-out": (reinforce_loss, multisets, multiset_chances),
    "deterministic sum-and-sample": (
        lambda log_prob, cost: sum_and_sample_loss(log_prob, log_prob, cost),
        most_probable_and_one,
        last_chances,
    ),
    "stochastic sum-and-sample": (
        lambda log_prob, cost: sum_and_sample_loss(log_prob, log_prob, cost),
        orders,
        lambda log_prob, tokens: ordered_log_prob(log_prob).exp(),
    ),
    "unordered set": (
        lambda log_prob, cost: unordered_set_loss(log_prob, log_prob, cost, baseline=False),
        sets,
        lambda log_prob, tokens: unordered_log_prob(log_prob).exp(),
    ),
    "unordered set, baseline": (
        lambda log_prob, cost: unordered_set_loss(log_prob, log_prob, cost),
        sets,
        lambda log_prob, tokens: unordered_log_prob(log_prob).exp(),
    ),
}
ESTIMATORS["deterministic sum-and-sample" + ONES_FIRST] = ESTIMATORS["deterministic sum-and-sample"]
STYLES = dict(zip(ESTIMATORS, ["C7o-", "C1o-", "C2s-", "C0s-", "C3^--", "C3^-"], strict=False))
BASELINE = "with replacement, leave-one-out", "unordered set, baseline"


def main() -> None:
    """Compute both tables, print and save them."""
    RESULTS.mkdir(exist_ok=True)
    tables = {eta: table(eta) for eta in ETAS}
    with (RESULTS / "gradient_variance.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["eta", "k", *ESTIMATORS], lineterminator="\n")
        writer.writeheader()
        for eta, rows in tables.items():
            print(f"eta = {eta}, exact gradient {exact_gradient(eta):.7f}")
            for row in rows:
                print(int(row["k"]), *(f"{row[name]:.4e}" for name in ESTIMATORS))
                shown = {name: f"{row[name]:.6e}" for name in ESTIMATORS}
                writer.writerow({"eta": eta, "k": row["k"], **shown})
    _plot(tables)


def _plot(tables: dict[float, list[dict[str, float]]]) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
    for panel, (eta, rows) in zip(panels, tables.items(), strict=True):
        for name, style in STYLES.items():
            shown = [(row["k"], row[name]) for row in rows if row[name] > 1e-20]
            panel.plot(*zip(*shown, strict=True), style, label=name)
        panel.set(yscale="log", xlabel="samples k", title=f"eta = {eta:g}")
    panels[0].set_ylabel("variance of the gradient")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    figure.savefig(RESULTS / "gradient_variance.png", dpi=120)


if __name__ == "__main__":
    main()
