"""Noise by address: a token's random words depend on where it stands, never on when it is drawn.

Every word comes from Philox4x32-10 at a counter that spells out the address (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011). The key is a row's 64-bit seed; the
counter holds the unit, the draw, the position, and a stream made of a caller's role and the kind
of use. Distinct addresses give distinct counters, so no two uses can ever share a word, and tiles,
batches and ranks cannot change one. ``docs/noise`` is the specification, with test vectors.

A word ``r`` stands for the probability ``v = (r + 1/2) / 2**32`` that an exponential clock has
rung, ``E = -log1p(-v)``; the Gumbel is ``-log(E)``. Small words are the winners of an argmax, and
those below ``REFINE_BELOW`` take 32 more bits, so that the winning tail keeps its resolution.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fsresearch import checks
from fsresearch.addresses import TOKENS, WORDS, check_address, check_places
from fsresearch.philox import philox

__all__ = [
    "COIN",
    "DRAFT",
    "GROUP",
    "GROUP_SIZE",
    "LEAF",
    "NODE",
    "REFINE",
    "REFINE_BELOW",
    "RESIDUAL",
    "SEED",
    "TARGET",
    "VERSION",
    "WATERMARK",
    "RowNoise",
    "derive_seeds",
    "gumbel",
    "gumbel_from_bits",
    "gumbel_from_words",
    "leaf_address",
    "uniform_from_bits",
    "words",
]

VERSION = 1
REFINE_BELOW = 1 << 16
GROUP_SIZE = 64

LEAF, GROUP, COIN, SEED, REFINE, NODE = range(6)
DRAFT, TARGET, RESIDUAL, WATERMARK = 1, 2, 3, 4

_LOW = 0xFFFFFFFF
_LARGEST_UNREFINED = 11.090347  # -log(-log1p(-2**-16)) to float32, between words 65,535 and 65,536


def words(
    seeds: Tensor,
    units: Tensor,
    *,
    draw: int | Tensor = 0,
    position: int | Tensor = 0,
    kind: int = LEAF,
    role: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the four random words at every (row, unit).

    Args:
        seeds: int64 [B], the rows' 64-bit seeds.
        units: int64 [T] or [B, T], each in [0, 2**32).
        draw: in [0, 2**32), an int, or int64 or int32, 0-d or [B].
        position: in [0, 2**56), likewise.
        kind: what the words are for, one of LEAF, GROUP, COIN, SEED, REFINE, NODE.
        role: the caller's stream, in [0, 32).

    Returns:
        Four int64 tensors [B, T] with values in [0, 2**32).

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If a shape, device or number is not accepted; values of tensors are read on the
            CPU only.

    >>> w = words(torch.tensor([0]), torch.tensor([0]))
    >>> [f"{int(x):08x}" for x in w]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    kind = checks.integer("kind", kind, 0, NODE)
    check_address(seeds, "units", units, WORDS, draw, position, role)
    return _words(seeds, units, draw, position, kind, role)


def gumbel(
    seeds: Tensor,
    token_ids: Tensor,
    *,
    draw: int | Tensor = 0,
    position: int | Tensor = 0,
    role: int = 0,
) -> Tensor:
    """Return the standard Gumbel noise of every (row, token).

    Args:
        seeds: int64 [B].
        token_ids: int64 [T] or [B, T], global ids in [0, 2**34).
        draw: as for `words`; so are the others.
        position: the decoding step.
        role: the caller's stream.

    Returns:
        float32 [B, T], finite, within 2**-22 max(1, abs(g)) of the value in real arithmetic.

    Raises:
        TypeError, ValueError: As for `words`.

    >>> gumbel(torch.tensor([7]), torch.tensor([3, 1_000_003]))
    tensor([[0.7040, 1.7509]])
    """
    check_address(seeds, "token_ids", token_ids, TOKENS, draw, position, role)
    return _gumbel(seeds, token_ids, draw, position, role)


def leaf_address(token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return (unit, lane) of tokens: one Philox call serves the four tokens v, v+16, v+32, v+48.

    >>> leaf_address(torch.tensor([0, 16, 63, 64]))
    (tensor([ 0,  0, 15, 16]), tensor([0, 1, 3, 0]))
    """
    checks.tensor("token_ids", token_ids, torch.int64)
    return token_ids // 64 * 16 + token_ids % 16, token_ids // 16 % 4


def gumbel_from_words(word: Tensor, refinement: Tensor) -> Tensor:
    """Convert words to standard Gumbels; words below REFINE_BELOW use their refinement as well.

    Args:
        word: int64, values in [0, 2**32), any shape.
        refinement: int64, values in [0, 2**32), broadcastable to word.

    Returns:
        float32 of the broadcast shape: finite, and decreasing in (word, refinement).

    Raises:
        TypeError, ValueError: If a word is not int64, or on the CPU not in [0, 2**32).

    >>> ends = torch.tensor([0, 2**32 - 1])
    >>> gumbel_from_words(ends, ends)
    tensor([45.0546, -3.1300])
    """
    for name, value in (("word", word), ("refinement", refinement)):
        checks.tensor(name, value, torch.int64)
        checks.within(name, value, WORDS)
    return _from_words(word, refinement)


def gumbel_from_bits(high: Tensor, low: Tensor) -> Tensor:
    """Convert 64 bits to a standard Gumbel, float64: the noise of groups and nodes.

    Args:
        high: int64 words, the leading 32 bits.
        low: int64 words, the trailing 32 bits.

    Raises:
        TypeError: If they are not int64.

    >>> gumbel_from_bits(torch.tensor([0, 2**32 - 1]), torch.tensor([0, 2**32 - 1]))
    tensor([45.0546, -3.8079], dtype=torch.float64)
    """
    fraction = uniform_from_bits(high, low)
    complement = uniform_from_bits(_LOW - high, _LOW - low)
    exponential = torch.where(high < 1 << 31, -torch.log1p(-fraction), -torch.log(complement))
    return -torch.log(exponential)


def uniform_from_bits(high: Tensor, low: Tensor) -> Tensor:
    """Convert 64 bits to float64 in (0, 1], the midpoint of their cell (1 only by rounding).

    Raises:
        TypeError: If high and low are not int64.

    >>> uniform_from_bits(torch.tensor([1 << 31]), torch.tensor([0]))
    tensor([0.5000], dtype=torch.float64)
    """
    checks.tensor("high", high, torch.int64)
    checks.tensor("low", low, torch.int64)
    return ((low.double() + 0.5) * 2.0**-32 + high) * 2.0**-32


def derive_seeds(seed: int | Tensor, rows: int | Tensor) -> Tensor:
    """Derive the seeds of a batch's rows from one scalar seed.

    Args:
        seed: int in [-2**63, 2**63), or an int64 0-d tensor (not read on the host).
        rows: how many rows, or the int64 row numbers [B], in [0, 2**32).

    Returns:
        int64 [B].

    Raises:
        TypeError, ValueError: Naming the argument at fault.

    >>> derive_seeds(3, 2)
    tensor([  31599815295821320, 8516602760668751066])
    """
    if isinstance(seed, Tensor):
        checks.tensor("seed", seed, torch.int64)
        if seed.dim():
            raise ValueError(f"seed must be an int or 0-d, got shape {list(seed.shape)}")
        seeds = seed[None]
    else:
        seeds = torch.tensor([checks.integer("seed", seed, -(1 << 63), (1 << 63) - 1)])
    if isinstance(rows, Tensor):
        check_places("rows", rows, WORDS, 1, seeds.device)
        units = rows
    else:
        units = torch.arange(checks.integer("rows", rows, 0, WORDS), device=seeds.device)
    low, high, _, _ = _words(seeds, units, 0, 0, SEED, 0)
    return (high << 32 | low)[0]


class RowNoise(NamedTuple):
    """The part of an address that belongs to rows: reducers ask it for noise by token or unit.

    Attributes:
        seeds: int64 [B].
        positions: int64 [B] or 0-d.
        draws: int64 [n], the draw numbers that each row takes.
        role: the caller's stream.
    """

    seeds: Tensor
    positions: Tensor
    draws: Tensor
    role: int = 0

    def words(self, units: Tensor, kind: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return four words int64 [B, n, T] for units [T], or [B, n, T] when they differ by row."""
        rows, draws = len(self.seeds), len(self.draws)
        if units.dim() == 3:
            units = units.reshape(rows * draws, units.shape[2])
        drawn = _words(
            self.seeds.repeat_interleave(draws),
            units,
            self.draws.repeat(rows),
            self.positions.expand(rows).repeat_interleave(draws),
            kind,
            self.role,
        )
        a, b, c, d = (w.view(rows, draws, w.shape[1]) for w in drawn)
        return a, b, c, d

    def gumbel(self, token_ids: Tensor) -> Tensor:
        """Return Gumbels float32 [B, n, T] of any tokens int64 [B, n, T]."""
        rows, draws = len(self.seeds), len(self.draws)
        noise = _gumbel(
            self.seeds.repeat_interleave(draws),
            token_ids.reshape(rows * draws, token_ids.shape[2]),
            self.draws.repeat(rows),
            self.positions.expand(rows).repeat_interleave(draws),
            self.role,
        )
        return noise.view(token_ids.shape)

    def gumbel_tile(self, start: int, stop: int) -> Tensor:
        """Return Gumbels float32 [B, n, stop - start] of the consecutive tokens [start, stop)."""
        first = start // GROUP_SIZE
        groups = -(-stop // GROUP_SIZE) - first
        device = self.seeds.device
        units = torch.arange(first * 16, (first + groups) * 16, device=device)
        noise = torch.empty(len(self.seeds), len(self.draws), groups, 4, 16, device=device)
        for lane, word in enumerate(self.words(units, LEAF)):
            noise[:, :, :, lane].copy_(_log_survival(word).view(noise[:, :, :, lane].shape))
        noise = noise.neg_().log_().neg_().flatten(2)
        self._refine(noise, first)
        offset = start - first * GROUP_SIZE
        return noise[..., offset : offset + stop - start]

    def gumbel_groups(self, row: Tensor, draw: Tensor, group: Tensor) -> Tensor:
        """Return Gumbels float32 [m, 64] of whole groups, each at its (row, draw, group) int64 [m].

        Rows and draws count within this noise. The few small words are found and refined one by
        one, which a GPU would have to wait for.
        """
        address = self.seeds[row], self.draws[draw], self.positions.expand(len(self.seeds))[row]
        units = group[:, None] * 16 + torch.arange(16, device=group.device)
        seeds, draws, positions = address
        drawn = _words(seeds, units, draws, positions, LEAF, self.role)
        word = torch.cat(drawn, 1)
        noise = _unrefined(word)
        at, lane = (word < REFINE_BELOW).nonzero(as_tuple=True)
        if len(at):
            seeds, draws, positions = (part[at] for part in address)
            ids = (group[at] * GROUP_SIZE + lane)[:, None]
            refined = _gumbel(seeds, ids, draws, positions, self.role)
            noise[at, lane] = refined[:, 0]
        return noise

    def _refine(self, noise: Tensor, first: int) -> None:
        """Replace the noises that ask for refinement, one in 65,536, in place.

        On the CPU they are found and computed one by one. Elsewhere that would wait for the device,
        and all are computed.
        """
        if noise.device.type == "cpu":
            grouped = noise.unflatten(2, (-1, GROUP_SIZE))
            row, draw, group = (grouped.amax(-1) > _LARGEST_UNREFINED).nonzero(as_tuple=True)
            if len(row):
                grouped[row, draw, group] = self.gumbel_groups(row, draw, first + group)
        else:
            ids = first * GROUP_SIZE + torch.arange(noise.shape[2], device=noise.device)
            refined = self.gumbel(ids.expand(noise.shape))
            torch.where(noise > _LARGEST_UNREFINED, refined, noise, out=noise)


def _words(
    seeds: Tensor,
    units: Tensor,
    draw: int | Tensor,
    position: int | Tensor,
    kind: int,
    role: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what `words` does, unchecked."""
    stream = (role << 3 | kind) << 24
    at = _column(position, seeds)
    key = (seeds & _LOW)[:, None], (seeds >> 32 & _LOW)[:, None]
    if units.dim() == 1:
        units = units[None]
    counter = (units, _column(draw, seeds) & _LOW, at & _LOW, at >> 32 & 0xFFFFFF | stream)
    return philox(key, counter, (len(seeds), units.shape[1]))


def _gumbel(
    seeds: Tensor, token_ids: Tensor, draw: int | Tensor, position: int | Tensor, role: int
) -> Tensor:
    """Return what `gumbel` does, unchecked."""
    units, lanes = leaf_address(token_ids)
    leaf = _words(seeds, units, draw, position, LEAF, role)
    more = _words(seeds, units, draw, position, REFINE, role)
    lanes = lanes.expand(leaf[0].shape)[None]
    word, refinement = (torch.stack(w).gather(0, lanes)[0] for w in (leaf, more))
    return _from_words(word, refinement)


def _from_words(word: Tensor, refinement: Tensor) -> Tensor:
    """Return what `gumbel_from_words` does, unchecked."""
    small = word < REFINE_BELOW
    return torch.where(small, _refined(word * small, refinement), _unrefined(word))


def _unrefined(word: Tensor) -> Tensor:
    """Gumbels of words at their midpoints."""
    return _log_survival(word).float().neg_().log_().neg_()


def _log_survival(word: Tensor) -> Tensor:
    """Return log(1 - v) of words at their midpoints, float64, where v is exact; this is -E."""
    return word.double().add_(0.5).mul_(-(2.0**-32)).log1p_()


def _refined(word: Tensor, refinement: Tensor) -> Tensor:
    """Gumbels of small words, each with 32 more bits."""
    return -torch.log(-torch.log1p(-uniform_from_bits(word, refinement))).float()


def _column(value: int | Tensor, seeds: Tensor) -> Tensor:
    """Shape a number, 0-d or [B] value as int64 [B or 1, 1] beside the rows' keys."""
    if isinstance(value, Tensor):
        return value.to(seeds.device, torch.int64).reshape(-1, 1)
    return torch.full((1, 1), value, dtype=torch.int64, device=seeds.device)
