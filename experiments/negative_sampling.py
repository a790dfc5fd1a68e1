"""Negatives for a sampled-softmax loss: k different words a row, against torch.multinomial.

A row has a target and 50,000 words with scores; the loss is the log of the softmax's normaliser
minus the target's score. Negatives come from a proposal like that of word2vec, (rank + 10)**-.75,
without the target. Three questions:

- distribution: do both samplers include words as often as they should? Counts are compared over 40
  classes of the proposal's ranks, with each other and with the mean of q(kappa) of other samples
  (words of one sample compete, so that p-values are on the high side);
- loss: how far is the normaliser off? Weights 1 / q by threshold are unbiased; k independent draws
  are; dividing by k p, the usual correction, is not where words may not repeat;
- speed: milliseconds a call of [64, 151936], rounds interleaved.

    python experiments/negative_sampling.py

writes negative_sampling.csv, negative_sampling_speed.csv and negative_sampling.png to
experiments/results.

Source: Bengio and Senecal, "Adaptive Importance Sampling to Accelerate Training of a Neural
Probabilistic Language Model", 2008; Mikolov et al., "Distributed Representations of Words and
Phrases and their Compositionality", NeurIPS 2013.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
import torch
from bench_rows import RESULTS
from matplotlib.ticker import NullLocator
from torch import Tensor

from fsresearch import sample_logits, sample_logits_without_replacement
from fsresearch.verify.statistics import goodness_of_fit, independence
from fsresearch.without_replacement.estimators import horvitz_thompson, self_normalized
from fsresearch.without_replacement.race import log_inclusion, race

VOCAB, ROWS, CLASSES = 50_000, 64, 40
SAMPLES = 16, 64, 256, 1024
SPEED_SHAPE = 64, 151_936
STYLES = {
    "by threshold": "C0o-",
    "by threshold, self-normalised": "C2o-",
    "independent draws": "C7o-",
    "without replacement, 1 / (k p)": "C3s--",
}


def proposal() -> Tensor:
    """Return the log-probabilities of the proposal, float64 [V]."""
    rank = torch.arange(VOCAB, dtype=torch.float64)
    return (-0.75 * torch.log(rank + 10)).log_softmax(0)


def distribution(k: int, runs: int) -> dict[str, Any]:
    """Return p-values of both samplers' inclusion counts over classes of ranks."""
    log_p = proposal()
    edges = torch.logspace(0, torch.log10(torch.tensor(float(VOCAB))), CLASSES + 1).long()
    classes = torch.bucketize(torch.arange(VOCAB), edges[1:-1], right=True)
    logits = log_p.float().expand(ROWS, -1)
    p = logits.softmax(1)
    counts = torch.zeros(2, CLASSES, dtype=torch.int64)
    expected = torch.zeros(CLASSES, dtype=torch.float64)
    for run in range(runs):
        ours = sample_logits_without_replacement(logits, k, seed=run)
        other = sample_logits_without_replacement(logits, k, seed=run, role=1)
        theirs = torch.multinomial(p, k, replacement=False)
        for i, token in enumerate((ours.token, theirs)):
            counts[i] += torch.bincount(classes[token].flatten(), minlength=CLASSES)
        kappa = race(other).kappa
        assert kappa is not None
        q = log_inclusion(log_p.expand(ROWS, -1), kappa).exp().sum(0)
        expected.index_add_(0, classes, q)
    used = expected > 0
    law = expected[used] / expected.sum()
    fits = [goodness_of_fit(row[used], law).p_value for row in counts]
    return {
        "p, ours against the law": fits[0],
        "p, multinomial against the law": fits[1],
        "p, ours against multinomial": independence(counts[:, used]).p_value,
    }


def normaliser_errors(k: int, runs: int) -> dict[str, Tensor]:
    """Return the relative errors [runs x B] of the estimated normaliser of the negatives."""
    log_p = proposal()
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(ROWS, VOCAB, generator=generator, dtype=torch.float64)
    scores = -torch.log(torch.arange(VOCAB, dtype=torch.float64) + 10) + noise
    target = torch.randint(0, VOCAB, (ROWS, 1), generator=generator)
    masked = log_p.expand(ROWS, -1).scatter(1, target, -torch.inf).log_softmax(1)
    scores.scatter_(1, target, -torch.inf)
    exact = scores.logsumexp(1)
    logits, p = masked.float(), masked.exp().float()
    errors: dict[str, list[Tensor]] = {name: [] for name in STYLES}
    for run in range(runs):
        drawn = sample_logits_without_replacement(logits, k, seed=run)
        values = _ratio(scores, masked, exact, drawn.token)
        independent = sample_logits(
            logits, num_samples=k, seed=run, role=1, method="hierarchical"
        ).token
        theirs = torch.multinomial(p, k, replacement=False)
        estimates = (
            horvitz_thompson(drawn, values),
            self_normalized(drawn, values),
            _ratio(scores, masked, exact, independent).mean(1),
            _ratio(scores, masked, exact, theirs).mean(1),
        )
        for name, estimate in zip(errors, estimates, strict=True):
            errors[name].append(estimate - 1)
    return {name: torch.cat(parts) for name, parts in errors.items()}


def _ratio(scores: Tensor, log_p: Tensor, exact: Tensor, token: Tensor) -> Tensor:
    """Return exp(score) / (p Z) of tokens, whose mean under the proposal is 1."""
    return torch.exp(scores.gather(1, token) - log_p.gather(1, token) - exact[:, None])


def speed(rounds: int) -> list[dict[str, Any]]:
    """Return median milliseconds of one call, rounds interleaved."""
    logits = torch.randn(SPEED_SHAPE, generator=torch.Generator().manual_seed(0))
    calls: dict[tuple[str, int], Callable[[], Any]] = {}
    for k in SAMPLES:
        calls["ours", k] = partial(sample_logits_without_replacement, logits, k, seed=1)
        calls["softmax + multinomial", k] = partial(_multinomial, logits, k)
    times: dict[tuple[str, int], list[float]] = {key: [] for key in calls}
    for index in range(rounds + 1):
        for key, call in calls.items():
            start = time.perf_counter()
            call()
            if index:
                times[key].append(1e3 * (time.perf_counter() - start))
    return [
        {
            "k": k,
            "sampler": name,
            "milliseconds": round(median(times[name, k]), 1),
            "ratio": round(median(times[name, k]) / median(times["softmax + multinomial", k]), 3),
            "threads": torch.get_num_threads(),
            "rounds": rounds,
        }
        for name, k in calls
    ]


def _multinomial(logits: Tensor, k: int) -> Tensor:
    return torch.multinomial(logits.softmax(1), k, replacement=False)


def main() -> None:
    """Compare, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(1)
    rows = []
    for k in SAMPLES:
        fits = distribution(k, max(options.runs // 4, 1))
        print(k, *(f"{name}: {p:.3f};" for name, p in fits.items()))
        for name, error in normaliser_errors(k, options.runs).items():
            bias, spread = float(error.mean()), float(error.std() / len(error) ** 0.5)
            rmse = float(error.square().mean().sqrt())
            print(f"   {name}: RMSE {rmse:.3f}, bias {bias:+.4f} +- {spread:.4f}")
            rows.append(
                {
                    "k": k,
                    "normaliser": name,
                    "relative RMSE": round(rmse, 5),
                    "relative bias": round(bias, 5),
                    "standard error of bias": round(spread, 5),
                    **{name: round(p, 4) for name, p in fits.items()},
                }
            )
    timed = speed(options.rounds)
    for row in timed:
        print(*row.values())
    _save("negative_sampling", rows)
    _save("negative_sampling_speed", timed)
    _plot(rows, timed)


def _save(name: str, rows: list[dict[str, Any]]) -> None:
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _plot(rows: list[dict[str, Any]], timed: list[dict[str, Any]]) -> None:
    figure, (errors, times) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, style in STYLES.items():
        points = [(row["k"], row["relative RMSE"]) for row in rows if row["normaliser"] == name]
        errors.plot(*zip(*points, strict=True), style, label=name)
    for name, style in (("ours", "C0o-"), ("softmax + multinomial", "C7o-")):
        points = [(row["k"], row["milliseconds"]) for row in timed if row["sampler"] == name]
        times.plot(*zip(*points, strict=True), style, label=name)
    errors.set(xscale="log", yscale="log", xlabel="negatives k", ylabel="relative RMSE of Z")
    times.set(xscale="log", xlabel="negatives k", ylabel="ms a call of [64, 151936]")
    times.set_ylim(0, None)
    for panel in (errors, times):
        panel.set_xticks(SAMPLES, [str(k) for k in SAMPLES])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.legend(fontsize="small")
    times.legend(loc="lower right", fontsize="small")
    figure.savefig(RESULTS / "negative_sampling.png", dpi=120)


if __name__ == "__main__":
    main()
