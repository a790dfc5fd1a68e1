"""The law of a billion draws: counts of a kernel against the exact probabilities.

The head has D = 64 and an exact matmul, its logits are multiples of 1/4: Zipf's law over two
thousand tokens, then a tail that falls by a nat a token, far below what a billion draws can see. A
CUDA graph draws and counts, and moves the positions on by one; nothing leaves the device before the
end.

    python experiments/kernel_law.py                    a billion draws by each form
    python experiments/kernel_law.py --small            a few thousand on the CPU

It writes kernel_law.csv, a line a form, and kernel_law_tail.csv, a line a decade of probability, to
experiments/results.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
from bench_rows import append
from kernel_heads import Head, answer
from kernel_setting import setting
from torch import Tensor

from fsresearch.backend import Options
from fsresearch.noise import derive_seeds
from fsresearch.verify.statistics import binomial, goodness_of_fit

DEPTH = 64
ZIPF, TAIL = 2000, 24


def zipf_head(rows: int, draws: int, dtype: torch.dtype, device: str) -> tuple[Head, Tensor]:
    """Return rows of one head, with seeds of their own, and its probabilities float64 [V]."""
    ranks = torch.arange(1, ZIPF + 1, dtype=torch.float64)
    quarters = torch.cat([(-4 * ranks.log()).round(), -36.0 - 4 * torch.arange(TAIL)])
    order = torch.randperm(len(quarters), generator=torch.Generator().manual_seed(0))
    quarters = quarters[order]
    weight = torch.randint(
        -2, 3, (len(quarters), DEPTH), generator=torch.Generator().manual_seed(1)
    )
    weight[:, -1] += quarters.long() - weight.sum(1)
    assert int(weight.abs().max()) <= 256, "exact in bfloat16"
    hidden = torch.full((rows, DEPTH), 0.25, dtype=dtype, device=device)
    options = Options(
        seeds=derive_seeds(11, rows).to(device),
        positions=torch.zeros(rows, dtype=torch.int64, device=device),
        vocab_size=len(weight),
        draws=draws,
    )
    head = Head(hidden, weight.to(device, dtype), options)
    return head, (quarters / 4).softmax(0)


def count(head: Head, form: str, calls: int) -> Tensor:
    """Return how often each token is drawn, int64 [V], and at the end how often none was."""
    device = head.hidden.device
    counts = torch.zeros(len(head.weight) + 1, dtype=torch.int64, device=device)
    positions = head.options.positions
    assert positions is not None
    vocab = len(head.weight)
    ones = torch.ones(len(head.hidden) * head.options.draws, dtype=torch.int64, device=device)

    def once() -> None:
        token = answer(head, form).token.view(-1)
        counts.index_add_(0, torch.where((token >= 0) & (token < vocab), token, vocab), ones)
        positions.add_(1)

    if device.type == "cpu":
        for _ in range(calls):
            once()
        return counts
    once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    for _ in range(calls - 1):
        graph.replay()
    return counts.cpu()


def judge(counts: Tensor, probabilities: Tensor) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the chi-square test, and binomial tests by decades of probability.

    A token beyond the vocabulary has probability 0, so one makes the p-value 0.
    """
    draws = int(counts.sum())
    law = torch.cat([probabilities, torch.zeros(1, dtype=torch.float64)])
    test = goodness_of_fit(counts.numpy(), law.numpy())
    decades = []
    decade = (-probabilities.log10()).floor().long()
    for depth in range(int(decade.min()), int(decade.max()) + 1):
        chosen = decade == depth
        probability = float(probabilities[chosen].sum())
        hits = int(counts[:-1][chosen].sum())
        outcome = binomial(hits, draws, probability)
        decades.append(
            {
                "probability": f"1e-{depth + 1} to 1e-{depth}",
                "tokens": int(chosen.sum()),
                "expected": f"{draws * probability:.4g}",
                "observed": hits,
                "sigma": f"{outcome.sigma:.2f}",
                "p_value": f"{outcome.p_value:.3g}",
            }
        )
    summary = {
        "draws": draws,
        "vocab": len(probabilities),
        "depth": DEPTH,
        "chi_square": f"{test.statistic:.1f}",
        "degrees_of_freedom": test.dof,
        "p_value": f"{test.p_value:.3g}",
    }
    return summary, decades


def main() -> None:
    """Draw, test, print, and append to the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=float, default=1e9)
    parser.add_argument("--form", nargs="+", default=["hopper"], choices=["hopper", "plain"])
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--each", type=int, default=4, help="draws a row and call")
    parser.add_argument("--kernel", default="lm_head_max", help="its name in fsresearch.backend")
    parser.add_argument("--small", action="store_true", help="a few thousand on the CPU")
    asked = parser.parse_args()
    if asked.small:
        head, probabilities = zipf_head(64, 8, torch.float32, "cpu")
        for line in judge(count(head, "reference", 8), probabilities):
            print(line)
        return
    for form in asked.form:
        head, probabilities = zipf_head(asked.rows, asked.each, torch.bfloat16, "cuda")
        head = head._replace(kernel=asked.kernel)
        calls = math.ceil(asked.draws / (asked.rows * asked.each))
        summary, decades = judge(count(head, form, calls), probabilities)
        served = {"kernel": asked.kernel, "form": form}
        summary = {**served, "seed": 11, "rows": asked.rows, "each": asked.each, **summary}
        append("kernel_law.csv", [{**summary, **setting()}])
        append("kernel_law_tail.csv", [{**served, **decade} for decade in decades])
        print(summary)
        for decade in decades:
            print(*decade.values(), sep="\t")


if __name__ == "__main__":
    main()
