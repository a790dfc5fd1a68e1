"""Gumbel-top-k over a source: k tokens in Plackett-Luce order, with the threshold kappa.

Source: Kool, van Hoof, Welling, "Stochastic beams and where to find them", ICML 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch import backend
from fsresearch.heads import run_kernel
from fsresearch.noise import RowNoise
from fsresearch.results import OrderedSample
from fsresearch.schedules.cuts import tiles
from fsresearch.schedules.online import online
from fsresearch.sources import Source
from fsresearch.summaries import GumbelTopK, LogNormalizer, Product
from fsresearch.summaries.gumbel_top_k import PerturbedTop, pack, unpack
from fsresearch.summaries.log_normalizer import LogMass

__all__ = ["gumbel_top_k"]

_LARGE = 256


def gumbel_top_k(
    source: Source, noise: RowNoise, k: int | Tensor, greedy: Tensor | bool = False
) -> OrderedSample:
    """Draw k tokens without replacement from every row.

    One token more is kept on the way: its score is kappa, the threshold that the others passed.
    From some hundreds of tokens on, scores are collected unsorted and cut back to the k best
    whenever k and a tile more have come together, in time O(B (V + k log k)) and memory
    O(B (k + tile)); both ways keep the same tokens.

    Args:
        source: where the logits come from.
        noise: the rows' noise, one draw.
        k: how many tokens, at least 1; or int64 [B] on the CPU, one number a row. A row of fewer
            than the largest is a prefix, filled with -1 and with its own threshold.
        greedy: for all rows, or bool [B, 1]: rows that take their k largest logits instead.

    >>> from fsresearch.sources import Logits
    >>> noise = RowNoise(torch.tensor([7]), torch.tensor(0), torch.tensor([0]))
    >>> gumbel_top_k(Logits(torch.zeros(1, 5)), noise, k=3).token
    tensor([[2, 4, 3]])
    """
    widest = max([1, *k.tolist()]) if isinstance(k, Tensor) else k
    found = _fused(source, noise, widest + 1, greedy)
    if found is None:
        best = _few if widest < _LARGE else _many
        found = best(source, noise, widest + 1, greedy)
    (perturbed, token), log_normalizer = found
    kappa = perturbed[:, widest]
    perturbed, token = perturbed[:, :widest], token[:, :widest]
    if isinstance(k, Tensor):
        each = k.to(token.device)[:, None]
        left_out = torch.arange(widest, device=token.device) >= each
        invalid = perturbed.isnan()
        kappa = torch.cat([perturbed, kappa[:, None]], 1).gather(1, each)[:, 0]
        token = token.masked_fill(left_out, -1)
        perturbed = perturbed.masked_fill(left_out & ~invalid, -torch.inf)
    return OrderedSample(
        token,
        perturbed,
        kappa,
        source.at(token) - log_normalizer[:, None],
        log_normalizer,
        (token >= 0).sum(1),
    )


def _fused(
    source: Source, noise: RowNoise, k: int, greedy: Tensor | bool
) -> tuple[PerturbedTop, Tensor] | None:
    """Return what `_few` does, from a kernel where one serves."""
    if k > backend.LONGEST:
        return None
    drawn = run_kernel("gumbel-top-k", source, noise, greedy, True, columns=k)
    if drawn is None:
        return None
    perturbed, token, log_mass = drawn
    return PerturbedTop(perturbed, token), LogNormalizer().draw(LogMass(log_mass))


def _few(
    source: Source, noise: RowNoise, k: int, greedy: Tensor | bool
) -> tuple[PerturbedTop, Tensor]:
    """Return the k best and the log-normaliser, the k best of every tile being merged."""
    samplers = [] if greedy is True else [GumbelTopK(noise, k)]
    largest = [] if greedy is False else [GumbelTopK(None, k)]
    *tops, total = online(Product(*samplers, *largest, LogNormalizer()), source)
    top = tops[0]
    if isinstance(greedy, Tensor):
        top = PerturbedTop(*(torch.where(greedy, b, a) for a, b in zip(*tops, strict=True)))
    return top, LogNormalizer().draw(total)


def _many(
    source: Source, noise: RowNoise, k: int, greedy: Tensor | bool
) -> tuple[PerturbedTop, Tensor]:
    """Return what `_few` does, for many: candidates are collected and cut back now and then."""
    sampler, mass = GumbelTopK(noise, k), LogNormalizer()
    total, top = mass.empty(source.rows, source.device), sampler.empty(source.rows, source.device)
    invalid = torch.zeros(source.rows, 1, dtype=torch.bool, device=source.device)
    pool = torch.empty(source.rows, 0, dtype=torch.int64, device=source.device)
    held = 0
    for tile in tiles(Product(sampler, mass), source, None, None):
        total = mass.merge(total, mass.lift(tile))
        scores = tile.logits
        if greedy is not True:
            drawn = noise.gumbel_tile(tile.start, tile.stop)[:, 0]
            scores = scores + (drawn if greedy is False else drawn.masked_fill(greedy, 0.0))
        invalid |= ~(scores.amax(1, keepdim=True) < torch.inf)
        width = scores.shape[1]
        if pool.shape[1] == 0:
            pool = pool.new_empty(source.rows, min(2 * k + width, source.stop - source.start))
        if held + width > pool.shape[1]:
            pool[:, :k] = pool[:, :held].topk(k, sorted=False).values
            held = k
        pool[:, held : held + width] = pack(scores, tile.ids())
        held += width
    found = min(k, held)
    perturbed, token = unpack(pool[:, :held].topk(found).values)
    top.token[:, :found] = token.masked_fill((perturbed == -torch.inf) | invalid, -1)
    top.perturbed[:, :found] = perturbed
    top.perturbed.masked_fill_(invalid, torch.nan)
    return top, mass.draw(total)
