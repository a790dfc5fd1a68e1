"""Reducers, one a file, and the table of those that draw tokens.

Both conformance suites run over ``REDUCERS``: a new reducer is one file and one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from fsresearch.noise import RowNoise
from fsresearch.summaries.base import Product, Reducer
from fsresearch.summaries.coin_flip import CoinFlip
from fsresearch.summaries.gumbel_max import GumbelMax
from fsresearch.summaries.gumbel_top_k import GumbelTopK
from fsresearch.summaries.log_normalizer import LogNormalizer
from fsresearch.summaries.perturbed_mass import PerturbedMass

__all__ = [
    "REDUCERS",
    "CoinFlip",
    "GumbelMax",
    "GumbelTopK",
    "LogNormalizer",
    "PerturbedMass",
    "Product",
    "Reducer",
]

REDUCERS: Final[dict[str, Callable[[RowNoise], Reducer[Any]]]] = {
    "GumbelMax": GumbelMax,
    "GumbelTopK": partial(GumbelTopK, k=4),
    "CoinFlip": CoinFlip,
    "PerturbedMass": PerturbedMass,
}
