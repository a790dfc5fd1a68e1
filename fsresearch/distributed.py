"""The front door over ranks: each process holds a shard of the LM head, all return the same tokens.

Two scalars a row and draw cross the network, a score and a token; log-probabilities add one or two
more. Noise is addressed by global id, so path-exact tokens are those of one process, whatever the
cuts.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from fsresearch import arguments, checks
from fsresearch.methods import METHODS, draw
from fsresearch.noise import GROUP_SIZE
from fsresearch.options import Options
from fsresearch.results import Sample
from fsresearch.schedules.ranks import ranks
from fsresearch.sources import LMHead

__all__ = ["sample"]

_MAX_VOCAB = 1 << 32


@torch.no_grad()
def sample(
    hidden: Tensor,
    weight_shard: Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    vocab_start: int,
    seed: int | Tensor,
    position: int | Tensor = 0,
    role: int = 0,
    method: str = "gumbel-max",
    temperature: float | Tensor = 1.0,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    softcap: float | None = None,
    logit_scale: float | None = None,
    vocab_size: int | None = None,
    num_samples: int = 1,
    log_prob: bool = False,
    check: bool = False,
) -> Sample:
    """Sample as `fsresearch.sample` does, from an LM head that is cut by rows over ranks.

    Every rank passes the same hidden states, seed, position and options.

    Args:
        hidden: float32, bfloat16 or float16 [B, D], the same on every rank.
        weight_shard: this rank's rows of the LM head, [V_r, D]; V_r may be 0.
        group: the process group, the default one if None.
        vocab_start: the global id of the shard's first row. The grouped method needs multiples of
            64.
        seed: an int, or int64 0-d or [B]; None is refused, as ranks would disagree.
        position: the decoding step.
        role: the caller's stream.
        method: "gumbel-max" or "grouped".
        temperature: a number, 0-d or [B].
        bias: float [V_r] or [B, V_r], the shard's part.
        mask: bool [V_r] or [B, V_r], or packed int32, the shard's part.
        softcap: c in c tanh(logit / c).
        logit_scale: multiplies the logits.
        vocab_size: global ids at or above it are padding.
        num_samples: independent draws n a row.
        log_prob: also return log-probabilities, the log-normaliser and the winning score.
        check: read tensors on the host, and raise where a row, a value or the cuts are invalid.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If a shape, device or number is not accepted, with the nearest allowed cut where
            vocab_start is at fault; with check also if shards overlap or leave gaps.

    Source: FlashSampling, Algorithms 1 and I.4.

    >>> import tempfile
    >>> init = f"file://{tempfile.mkdtemp()}/rendezvous"
    >>> dist.init_process_group("gloo", init_method=init, rank=0, world_size=1)
    >>> sample(torch.ones(1, 1), torch.zeros(1000, 1), vocab_start=0, seed=7).token
    tensor([[154]])
    >>> dist.destroy_process_group()
    """
    arguments.check_head(hidden, weight_shard, empty=True)
    rows = len(weight_shard)
    start = checks.integer("vocab_start", vocab_start, 0, _MAX_VOCAB - rows)
    if seed is None:
        raise ValueError("seed must be given over ranks, got None")
    checks.choice("method", method, ("gumbel-max", "grouped"))
    if method == "grouped" and rows and start % GROUP_SIZE:
        raise ValueError(
            f"vocab_start must be a multiple of {GROUP_SIZE} for method grouped, got {start}; "
            f"the nearest is {max(round(start / GROUP_SIZE), 1) * GROUP_SIZE}"
        )
    shard_size = rows
    if vocab_size is not None:
        total = checks.integer("vocab_size", vocab_size, 1)
        shard_size = min(max(total - start, 0), rows)
    options = Options(temperature, bias, mask, softcap, logit_scale, shard_size or None)
    transform, greedy, _ = options.transform(len(hidden), rows, hidden.device)
    source = LMHead(hidden, weight_shard, transform, vocab_size=shard_size, start=start)
    checks.flags(log_prob=log_prob, check=check)
    noise = arguments.row_noise(seed, position, role, num_samples, source.rows, source.device)
    if check:
        arguments.check_values(temperature, position)
        _check_shards(start, rows, group, hidden.device)

    def score(token: Tensor) -> Tensor:
        """The owner's score of every token, on all ranks."""
        scores = source.at(token)
        dist.all_reduce(scores, dist.ReduceOp.MAX, group=group)
        return scores

    schedule = partial(ranks, group=group)
    drawn = draw(source, noise, METHODS[method], greedy, log_prob, schedule, score)
    if check:
        arguments.check_rows(drawn.valid)
    return drawn


def _check_shards(
    start: int, rows: int, group: dist.ProcessGroup | None, device: torch.device
) -> None:
    """Raise unless the shards that are not empty cover [0, V) once."""
    mine = torch.tensor([start, start + rows], device=device)
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, mine, group=group)
    shards = sorted((int(a), int(b)) for a, b in gathered if b > a)
    ends = [0, *(stop for _, stop in shards)]
    if any(begin != end for (begin, _), end in zip(shards, ends, strict=False)):
        raise ValueError(f"shards must cover the vocabulary once from id 0, got {shards}")
