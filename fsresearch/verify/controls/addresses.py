"""Faults of the noise's address: streams that are sums, places in a shard, lanes of a tile."""

from __future__ import annotations

import torch

from fsresearch.arguments import row_noise
from fsresearch.verify.controls.exact import draw_exactly, draw_rows, draw_runs
from fsresearch.verify.sampler import Drawn, Request

__all__ = ["rank_local", "seed_plus_draw", "tile_addressed"]


def seed_plus_draw(request: Request) -> Drawn:
    """Draw number d under seed s as draw 0 under seed s + d.

    >>> logits = torch.zeros(1, 1000)
    >>> two = seed_plus_draw(Request(logits, 2, seed=torch.tensor([7]))).token
    >>> torch.equal(two[:, 1:], seed_plus_draw(Request(logits, seed=torch.tensor([8]))).token)
    True
    """
    logits, draws = request.logits, request.num_samples
    rows = len(logits)
    seeds = row_noise(request.seed, 0, 0, 1, rows, logits.device).seeds
    numbers = torch.arange(draws, device=logits.device)
    if logits.stride(0) == 0:
        repeated = logits[:1].expand(rows * draws, -1)
    else:
        repeated = logits.repeat_interleave(draws, 0)
    asked = request._replace(
        logits=repeated, seed=(seeds[:, None] + numbers).flatten(), num_samples=1
    )
    return Drawn(draw_exactly(asked).token.view(rows, draws))


def rank_local(request: Request) -> Drawn:
    """Draw with noise addressed by the place in the shard.

    >>> bool((rank_local(Request(torch.zeros(9, 128), seed=1, shards=2)).token < 64).all())
    True
    """
    groups = -(-request.logits.shape[1] // 64)
    size = -(-groups // request.shards) * 64
    return draw_rows(request, draw_runs, cuts=size, address=lambda runs: runs.start % size)


def tile_addressed(request: Request) -> Drawn:
    """Draw with noise addressed by the tile's number and the lane in it.

    >>> logits = torch.zeros(9, 512)
    >>> one, other = (tile_addressed(Request(logits, seed=1, width=w)) for w in (64, 128))
    >>> torch.equal(one.token, other.token)
    False
    """
    width = request.width or 256
    return draw_rows(
        request,
        draw_runs,
        cuts=width,
        address=lambda runs: runs.start // width << 12 | runs.start % width,
    )
