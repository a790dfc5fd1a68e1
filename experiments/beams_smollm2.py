"""Stochastic beams on SmolLM2: duplicates, scores, wall time, and the entropy of continuations.

Part 1, a row a prompt: how many of 16 sequences of 32 tokens differ, for stochastic beams and for
16 independent samples, and of 8 tokens at temperature 0.5, where samples repeat; how far the beams'
log-probabilities are from teacher-forced sums; wall time beside transformers' own beam search of
the same width and length, and beside the independent samples. No sequence may end early, so that
all do equal work.

Part 2, for a few prompts: the entropy of 8-token continuations, estimated again and again from 16
beams by weights and from 16 independent samples, against a long Monte Carlo reference.

    python experiments/beams_smollm2.py

appends to beams_smollm2.csv and beams_smollm2_entropy.csv in experiments/results, going on where it
stopped, and draws beams_smollm2.png. On two cores 100 prompts take about an hour; --prompts 2
--states 1 --runs 2 --reference 64 takes two minutes. One thread, as other processes would disturb.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import torch
from bench_rows import RESULTS, append, read
from rich.progress import track
from torch import Tensor

from fsresearch import demo
from fsresearch.integrations.transformers import sample, stochastic_beam_search
from fsresearch.without_replacement.estimators import horvitz_thompson, self_normalized
from fsresearch.without_replacement.race import Race

BEAMS, LENGTH, SHORT, BATCH = 16, 32, 8, 64
COLD: dict[str, Any] = {"do_sample": True, "temperature": 0.5, "top_k": 0}
OPENINGS = (
    "The history of",
    "A short introduction to",
    "My favourite thing about",
    "Scientists have found that",
    "In the middle of the night,",
    "The best way to explain",
    "Nobody expected that",
    "Here is a simple recipe for",
    "The problem with",
    "Once there was a story about",
)
SUBJECTS = (
    "mathematics",
    "the sea",
    "old trains",
    "bread",
    "small cities",
    "winter",
    "music",
    "honest people",
    "the moon",
    "gardens",
)
PROMPTS = [f"{opening} {subject}" for subject in SUBJECTS for opening in OPENINGS]


class Writer:
    """The model and its tokenizer."""

    def __init__(self) -> None:
        self.tokenizer, self.model = demo._load_smollm2()

    def ids(self, prompt: str) -> Tensor:
        """Return a prompt's tokens [1, t]."""
        ids: Tensor = self.tokenizer(prompt, return_tensors="pt").input_ids
        return ids

    def write(self, ids: Tensor, length: int, **options: Any) -> Any:
        """Generate exactly length tokens."""
        fixed = {"max_new_tokens": length, "eos_token_id": None, "pad_token_id": 0}
        return self.model.generate(ids, **fixed, **options)

    def beams(self, ids: Tensor, length: int, seed: int, **options: Any) -> Any:
        """Draw sequences without replacement, with their scores."""
        return self.write(
            ids,
            length,
            custom_generate=stochastic_beam_search,
            num_beams=BEAMS,
            num_return_sequences=BEAMS,
            seed=seed,
            return_dict_in_generate=True,
            **options,
        )

    def independent(
        self, ids: Tensor, length: int, seed: int, count: int = BEAMS, **options: Any
    ) -> Tensor:
        """Draw sequences with replacement, from the same distribution."""
        drawn: Tensor = self.write(
            ids.expand(count, -1), length, custom_generate=sample, seed=seed, **options
        )
        return drawn

    def scores(self, sequences: Tensor, start: int) -> Tensor:
        """Return teacher-forced log-probabilities of all tokens from start on, float64 [B]."""
        with torch.no_grad():
            logits = self.model(sequences).logits[:, start - 1 : -1].double()
        each = logits.log_softmax(2).gather(2, sequences[:, start:, None])
        total: Tensor = each.sum((1, 2))
        return total


def distinct(sequences: Tensor) -> int:
    """Return how many different rows there are."""
    return len(sequences.unique(dim=0))


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return a call's result and its wall time."""
    began = time.perf_counter()
    made = call()
    return made, time.perf_counter() - began


def one_prompt(writer: Writer, number: int) -> dict[str, Any]:
    """Measure part 1 on one prompt."""
    ids = writer.ids(PROMPTS[number])
    start = ids.shape[1]
    own = {"num_beams": BEAMS, "num_return_sequences": BEAMS}
    _, usual = timed(lambda: writer.write(ids, LENGTH, **own))
    drawn, seconds = timed(lambda: writer.beams(ids, LENGTH, number))
    iid, independent = timed(lambda: writer.independent(ids, LENGTH, number))
    error = (writer.scores(drawn.sequences, start) - drawn.sequences_scores).abs().max()
    cold = writer.beams(ids, SHORT, number, **COLD).sequences
    cold_independent = writer.independent(ids, SHORT, number, **COLD)
    return {
        "prompt": PROMPTS[number],
        "distinct beams": distinct(drawn.sequences),
        "distinct independent": distinct(iid),
        "distinct cold beams": distinct(cold),
        "distinct cold independent": distinct(cold_independent),
        "largest error of log-probability": f"{float(error):.2e}",
        "seconds, stochastic beams": round(seconds, 2),
        "seconds, transformers' beam search": round(usual, 2),
        "seconds, independent": round(independent, 2),
        "ratio": round(seconds / usual, 3),
    }


def one_state(writer: Writer, number: int, runs: int, reference: int) -> list[dict[str, Any]]:
    """Measure part 2 on one prompt."""
    ids = writer.ids(PROMPTS[number])
    start = ids.shape[1]
    surprises = [
        -writer.scores(writer.independent(ids, SHORT, 10_000 + batch, BATCH), start)
        for batch in track(range(-(-reference // BATCH)), description="reference")
    ]
    known = torch.cat(surprises)
    found: dict[str, list[float]] = {"independent": [], "Horvitz-Thompson": [], "normalised": []}
    for run in track(range(runs), description=PROMPTS[number]):
        drawn = writer.beams(ids, SHORT, 20_000 + run, kappa=True)
        log_prob = drawn.sequences_scores[None]
        rest = torch.log1p(-log_prob.exp().sum(1).clamp(max=1 - 1e-12))
        arrivals = Race(log_prob, rest, drawn.beam_keys[None], drawn.kappa)
        found["Horvitz-Thompson"].append(float(horvitz_thompson(arrivals, -log_prob)))
        found["normalised"].append(float(self_normalized(arrivals, -log_prob)))
        iid = writer.independent(ids, SHORT, 30_000 + run)
        found["independent"].append(float(-writer.scores(iid, start).mean()))
    entropy = float(known.mean())
    rows = []
    for name, values in found.items():
        error = torch.tensor(values, dtype=torch.float64) - entropy
        rows.append(
            {
                "prompt": PROMPTS[number],
                "estimator": name,
                "runs": runs,
                "reference": round(entropy, 4),
                "standard error of reference": round(float(known.std()) / math.sqrt(len(known)), 4),
                "bias": round(float(error.mean()), 4),
                "RMSE": round(float(error.square().mean().sqrt()), 4),
            }
        )
    return rows


def main() -> None:
    """Measure what is not in the files yet, and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--states", type=int, default=3)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--reference", type=int, default=2048)
    options = parser.parse_args()
    torch.set_num_threads(1)
    writer = Writer()
    writer.write(writer.ids(PROMPTS[0]), 2)
    for number in range(len(read("beams_smollm2.csv")), options.prompts):
        row = one_prompt(writer, number)
        append("beams_smollm2.csv", [row])
        print(number, *row.values(), flush=True)
    for number in range(len(read("beams_smollm2_entropy.csv")) // 3, options.states):
        rows = one_state(writer, number, options.runs, options.reference)
        append("beams_smollm2_entropy.csv", rows)
        for row in rows:
            print(*row.values(), flush=True)
    _plot()


def _plot() -> None:
    prompts, entropies = read("beams_smollm2.csv"), read("beams_smollm2_entropy.csv")
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    styles = {
        "distinct beams": "C3v-",
        "distinct cold beams": "C0o-",
        "distinct cold independent": "C1s-",
        "distinct independent": "C2^-",
    }
    for name, style in styles.items():
        left.plot(sorted(int(row[name]) for row in prompts), style, markersize=3, label=name)
    left.set(xlabel="prompts, in order", ylabel=f"different sequences of {BEAMS}")
    left.legend(fontsize="small")
    middle.hist([float(row["ratio"]) for row in prompts], bins=20)
    middle.set(xlabel="wall time over transformers' beam search", ylabel="prompts")
    names = list(dict.fromkeys(row["estimator"] for row in entropies))
    for place, name in enumerate(names):
        values = [float(row["RMSE"]) for row in entropies if row["estimator"] == name]
        right.bar([x + 0.27 * place for x in range(len(values))], values, 0.25, label=name)
    right.set(xlabel="prompt", ylabel=f"RMSE of the entropy of {SHORT} tokens")
    right.set_xticks(range(len(entropies) // max(len(names), 1)))
    if names:
        right.legend(fontsize="small")
    figure.savefig(RESULTS / "beams_smollm2.png", dpi=120)


if __name__ == "__main__":
    main()
