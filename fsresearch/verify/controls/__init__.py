"""Planted faults: small samplers that are wrong in one way, and the check that must catch each.

They show that the bench can tell. Each is built on one exact sampler, which draws runs of equal
logits as one (their mass, then a place in the run), so that even deep tails take milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fsresearch.verify.controls import addresses, conversions, policies, precision, trees
from fsresearch.verify.controls.exact import COMMON, draw_exactly
from fsresearch.verify.sampler import Drawn, Request, Sampler

__all__ = ["CONTROLS", "EXACT", "Control"]


@dataclass(frozen=True)
class Control:
    """A planted fault.

    Attributes:
        fault: what is wrong.
        sampler: the sampler that has it.
        caught_by: the check that must fail.
        budget: the least budget at which it must.
    """

    fault: str
    sampler: Sampler
    caught_by: str
    budget: str = "standard"


def _control(
    name: str,
    fault: str,
    draw: Callable[[Request], Drawn],
    caught_by: str,
    *features: str,
    without: tuple[str, ...] = (),
    budget: str = "standard",
) -> Control:
    offered = (COMMON | set(features)) - set(without)
    return Control(fault, Sampler(name, draw, offered, "planted fault"), caught_by, budget)


EXACT: Final = Sampler("exact", draw_exactly, COMMON | {"cheap-draws"}, "what the faults vary")

CONTROLS: Final[dict[str, Control]] = {
    control.sampler.name: control
    for control in (
        _control(
            "appendix-j-uniform",
            "u = (r + 1) / (2**32 + 1) in float32 reaches 1, and its Gumbel infinity",
            conversions.appendix_j,
            "tail/impossible tokens",
        ),
        _control(
            "24-bit-uniform",
            "Gumbels from uniforms of 24 bits",
            conversions.of_24_bits,
            "tail/mass",
        ),
        _control(
            "31-bit-uniform",
            "Gumbels from uniforms of 31 bits",
            conversions.of_31_bits,
            "tail/mass",
            budget="deep",
        ),
        _control(
            "bfloat16-tile-maxima",
            "the maxima of tiles of 1024 tokens are kept in bfloat16",
            precision.half_maxima,
            "precision/ties of large scores",
        ),
        _control(
            "bfloat16-probabilities",
            "probabilities are rounded to bfloat16 before the draw",
            precision.half_probabilities,
            "precision/rounded probabilities",
            "cheap-draws",
        ),
        _control(
            "float32-running-sum",
            "a cumulative sum in float32, one token after the other",
            precision.running_sum,
            "precision/running sum",
            "cheap-draws",
        ),
        _control(
            "seed-plus-draw",
            "draw d of seed s takes the noise of draw 0 of seed s + d",
            addresses.seed_plus_draw,
            "independence/shifted streams",
            "draw-prefix",
        ),
        _control(
            "rank-local-noise",
            "noise is addressed by a token's place in its shard",
            addresses.rank_local,
            "independence/shards",
            "shards",
        ),
        _control(
            "tile-addressed-noise",
            "noise is addressed by the tile and the lane",
            addresses.tile_addressed,
            "invariance/tile width",
            "width",
            "tile-invariant",
        ),
        _control(
            "one-coin",
            "the same coin serves every merge of tiles",
            trees.one_coin,
            "fit/many tiles",
            "width",
        ),
        _control(
            "shared-word",
            "the choice of a group and the choice inside it use one random word",
            trees.shared_word,
            "independence/digits of the id",
        ),
        _control(
            "padding-lane",
            "padding of the last tile has the logit 0",
            policies.padding_lane,
            "support/odd sizes",
        ),
        _control(
            "nan-wins",
            "a NaN among the logits wins",
            policies.nan_wins,
            "degenerate/no distribution",
            without=("marks-invalid",),
        ),
        _control(
            "last-tie",
            "at temperature 0 the last of the largest logits wins",
            policies.last_tie,
            "degenerate/ties at temperature 0",
        ),
        _control(
            "temperature-floor",
            "temperatures under 0.01 count as 0.01",
            policies.temperature_floor,
            "temperature/two tokens",
        ),
        _control(
            "fresh-noise-per-level",
            "without replacement, a tree's children are not conditioned on their parent's key",
            trees.fresh_noise,
            "order/Plackett-Luce",
            "without-replacement",
            "order-prefix",
        ),
        _control(
            "root-key-zero",
            "without replacement, all keys are conditioned on a root of 0",
            trees.root_zero,
            "order/threshold",
            "without-replacement",
            "threshold",
            "order-prefix",
        ),
        _control(
            "dropped-smallest",
            "the smallest token is never drawn",
            policies.dropped_smallest,
            "support/rare tokens",
        ),
    )
}
