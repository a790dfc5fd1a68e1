"""The exactness bench over the kernels, at a real vocabulary.

A kernel of an LM head gets the bench's logits as a bias over a matmul of zeros, one of logits in
memory gets them as they are. Both get them at the front of 151,936 tokens, the rest at -inf.

    python experiments/kernel_bench.py                          every kernel and form, quick
    python experiments/kernel_bench.py --budget standard --kernel lm_head_group
    python experiments/kernel_bench.py --small                  the references on the CPU

It appends to kernel_bench.csv in experiments/results, a line a kernel and form.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from bench_rows import append
from kernel_setting import setting
from torch import Tensor

from fsresearch import backend
from fsresearch.backend import Options
from fsresearch.noise import derive_seeds
from fsresearch.verify import verify
from fsresearch.verify.sampler import Drawn, Request, Sampler
from fsresearch.verify.samplers import OWN
from fsresearch.verify.trial import BUDGETS

FORMS = {
    "lm_head_max": ("hopper", "plain"),
    "lm_head_group": ("hopper", "plain"),
    "lm_head_top_k": ("hopper", "plain"),
    "logits_max": ("plain",),
    "logits_group": ("plain",),
    "logits_top_k": ("plain",),
}
VOCAB = 151_936
ELEMENTS = 1 << 29
# What the front door's samplers offer and a bare kernel does not.
NOT_OFFERED = {
    *("log-prob", "empty-batch"),
    *("width", "shards", "tile-invariant", "shard-invariant"),
}


def sampler(kernel: str, form: str, vocab: int) -> Sampler:
    """Return a kernel as the bench sees it."""
    own = OWN["gumbel-top-k" if kernel.endswith("top_k") else "gumbel-max"]
    draw = partial(draw_by, kernel, form, vocab)
    return Sampler(f"{kernel}, {form}", draw, own.features - NOT_OFFERED)


def draw_by(kernel: str, form: str, vocab: int, request: Request) -> Drawn:
    """Answer a request, by parts that fit into memory."""
    rows, held = request.logits.shape
    seeds = request.seed
    if not isinstance(seeds, Tensor):
        seeds = derive_seeds(0 if seeds is None else seeds, rows)
    seeds = seeds.to(request.logits.device)
    size = max(ELEMENTS // max(vocab, held), 1)
    parts = [
        _draw_part(kernel, form, vocab, request, slice(start, start + size), seeds)
        for start in range(0, rows, size)
    ]
    perturbed, token = (torch.cat(part) for part in zip(*parts, strict=True))
    if not kernel.endswith("top_k"):
        return Drawn(token, perturbed)
    k = request.k or 1
    return Drawn(token[:, :k], perturbed[:, :k], kappa=perturbed[:, k])


def _draw_part(
    kernel: str, form: str, vocab: int, request: Request, part: slice, seeds: Tensor
) -> tuple[Tensor, Tensor]:
    """Return scores and tokens of some rows."""
    logits = request.logits[part].float()
    rows, held = logits.shape
    padded = torch.nn.functional.pad(logits, (0, max(vocab - held, 0)), value=-torch.inf)
    columns = padded.shape[1]
    columns_drawn = request.num_samples
    if kernel.endswith("top_k"):
        columns_drawn = (request.k or 1) + 1
        if columns_drawn > backend.LONGEST:
            form = "reference"
    options = Options(
        seeds=seeds[part],
        positions=torch.tensor(request.position, device=logits.device),
        vocab_size=columns if request.vocab_size is None else request.vocab_size,
        temperature=torch.full((rows,), float(request.temperature), device=logits.device),
        draws=columns_drawn,
    )
    if kernel.startswith("logits"):
        perturbed, token, _ = getattr(backend, kernel)(padded, options, form=form)
        return perturbed, token
    dtype = torch.bfloat16 if form == "hopper" else torch.float32
    hidden = torch.zeros(rows, 16, dtype=dtype, device=logits.device)
    weight = torch.zeros(columns, 16, dtype=dtype, device=logits.device)
    options = options._replace(bias=padded)
    perturbed, token, _ = getattr(backend, kernel)(hidden, weight, options, form=form)
    return perturbed, token


def main() -> None:
    """Run the battery over kernels."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", default="quick", choices=[*BUDGETS])
    parser.add_argument("--kernel", nargs="+", default=[*FORMS], choices=[*FORMS])
    parser.add_argument("--small", action="store_true", help="the references on the CPU")
    asked = parser.parse_args()
    device, vocab = ("cpu", 512) if asked.small else ("cuda", VOCAB)
    for kernel in asked.kernel:
        for form in ("reference",) if asked.small else FORMS[kernel]:
            report = verify(sampler(kernel, form, vocab), budget=asked.budget, device=device)
            statuses = [finding.status for finding in report.findings]
            kinds = ("passed", "failed", "not decided", "not applicable")
            line = {"kernel": kernel, "form": form, "vocab": vocab, "budget": asked.budget}
            line |= {kind: statuses.count(kind) for kind in kinds}
            line |= {"draws": sum(finding.draws for finding in report.findings)}
            print(*line.values(), f"{report.seconds:.0f} s", sep="\t", flush=True)
            for finding in report.findings:
                if finding.status in ("failed", "not decided"):
                    print(f"  {finding.status}: {finding.sentence}", flush=True)
            if not asked.small:
                append("kernel_bench.csv", [{**line, **setting()}])


if __name__ == "__main__":
    main()
