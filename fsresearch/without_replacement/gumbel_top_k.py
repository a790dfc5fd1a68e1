"""Gumbel-top-k over a source: k tokens in Plackett-Luce order, with the threshold kappa.

Source: Kool, van Hoof, Welling, "Stochastic beams and where to find them", ICML 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fsresearch.noise import RowNoise
from fsresearch.results import OrderedSample
from fsresearch.schedules.online import online
from fsresearch.sources import Source
from fsresearch.summaries import GumbelTopK, LogNormalizer, Product

__all__ = ["gumbel_top_k"]


def gumbel_top_k(
    source: Source, noise: RowNoise, k: int, greedy: Tensor | bool = False
) -> OrderedSample:
    """Draw k tokens without replacement from every row.

    One token more is kept on the way: its score is kappa, the threshold that the others passed.

    Args:
        source: where the logits come from.
        noise: the rows' noise, one draw.
        k: how many tokens, at least 1.
        greedy: for all rows, or bool [B, 1]: rows that take their k largest logits instead.

    >>> from fsresearch.sources import Logits
    >>> noise = RowNoise(torch.tensor([7]), torch.tensor(0), torch.tensor([0]))
    >>> gumbel_top_k(Logits(torch.zeros(1, 5)), noise, k=3).token
    tensor([[2, 4, 3]])
    """
    samplers = [] if greedy is True else [GumbelTopK(noise, k + 1)]
    largest = [] if greedy is False else [GumbelTopK(None, k + 1)]
    *tops, total = online(Product(*samplers, *largest, LogNormalizer()), source)
    perturbed, token = tops[0]
    if isinstance(greedy, Tensor):
        perturbed = torch.where(greedy, tops[1].perturbed, perturbed)
        token = torch.where(greedy, tops[1].token, token)
    log_normalizer = LogNormalizer().draw(total)
    token = token[:, :k]
    return OrderedSample(
        token,
        perturbed[:, :k],
        perturbed[:, k],
        source.at(token) - log_normalizer[:, None],
        log_normalizer,
        (token >= 0).sum(1),
    )
