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
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
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
        draw: int or int64 [B], in [0, 2**32).
        position: int or int64 [B] or 0-d, in [0, 2**56).
        kind: what the words are for, one of LEAF, GROUP, COIN, SEED, REFINE, NODE.
        role: the caller's stream, in [0, 32).

    Returns:
        Four int64 tensors [B, T] with values in [0, 2**32).

    Raises:
        ValueError: If kind or role is out of range.

    >>> w = words(torch.tensor([0]), torch.tensor([0]))
    >>> [f"{int(x):08x}" for x in w]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    if not 0 <= kind <= NODE:
        raise ValueError(f"kind must be in [0, {NODE}], got {kind}")
    if not 0 <= role < 32:
        raise ValueError(f"role must be in [0, 32), got {role}")
    stream = (role << 3 | kind) << 24
    at = _column(position, seeds)
    key = (seeds & _LOW)[:, None], (seeds >> 32 & _LOW)[:, None]
    if units.dim() == 1:
        units = units[None]
    counter = (units, _column(draw, seeds) & _LOW, at & _LOW, at >> 32 & 0xFFFFFF | stream)
    return _philox(key, counter, (len(seeds), units.shape[1]))


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
        token_ids: int64 [T] or [B, T], global ids.
        draw: int or int64 [B].
        position: int or int64 [B] or 0-d.
        role: the caller's stream, in [0, 32).

    Returns:
        float32 [B, T], finite, within 2**-22 max(1, abs(g)) of the value in real arithmetic.

    >>> gumbel(torch.tensor([7]), torch.tensor([3, 1_000_003]))
    tensor([[0.7040, 1.7509]])
    """
    units, lanes = leaf_address(token_ids)
    leaf = words(seeds, units, draw=draw, position=position, role=role)
    more = words(seeds, units, draw=draw, position=position, role=role, kind=REFINE)
    lanes = lanes.expand(leaf[0].shape)[None]
    word, refinement = (torch.stack(w).gather(0, lanes)[0] for w in (leaf, more))
    return gumbel_from_words(word, refinement)


def leaf_address(token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return (unit, lane) of tokens: one Philox call serves the four tokens v, v+16, v+32, v+48.

    >>> leaf_address(torch.tensor([0, 16, 63, 64]))
    (tensor([ 0,  0, 15, 16]), tensor([0, 1, 3, 0]))
    """
    return token_ids // 64 * 16 + token_ids % 16, token_ids // 16 % 4


def gumbel_from_words(word: Tensor, refinement: Tensor) -> Tensor:
    """Convert words to standard Gumbels; words below REFINE_BELOW use their refinement as well.

    Args:
        word: int64, values in [0, 2**32), any shape.
        refinement: int64, values in [0, 2**32), broadcastable to word.

    Returns:
        float32 of the broadcast shape: finite, and decreasing in (word, refinement).

    >>> ends = torch.tensor([0, 2**32 - 1])
    >>> gumbel_from_words(ends, ends)
    tensor([45.0546, -3.1300])
    """
    small = word < REFINE_BELOW
    return torch.where(small, _refined(word * small, refinement), _unrefined(word))


def gumbel_from_bits(high: Tensor, low: Tensor) -> Tensor:
    """Convert 64 bits to a standard Gumbel, float64: the noise of groups and nodes.

    Args:
        high: int64 words, the leading 32 bits.
        low: int64 words, the trailing 32 bits.

    >>> gumbel_from_bits(torch.tensor([0, 2**32 - 1]), torch.tensor([0, 2**32 - 1]))
    tensor([45.0546, -3.8079], dtype=torch.float64)
    """
    fraction = uniform_from_bits(high, low)
    complement = uniform_from_bits(_LOW - high, _LOW - low)
    exponential = torch.where(high < 1 << 31, -torch.log1p(-fraction), -torch.log(complement))
    return -torch.log(exponential)


def uniform_from_bits(high: Tensor, low: Tensor) -> Tensor:
    """Convert 64 bits to float64 in (0, 1], the midpoint of their cell (1 only by rounding).

    >>> uniform_from_bits(torch.tensor([1 << 31]), torch.tensor([0]))
    tensor([0.5000], dtype=torch.float64)
    """
    return ((low.double() + 0.5) * 2.0**-32 + high) * 2.0**-32


def derive_seeds(seed: int | Tensor, rows: int | Tensor) -> Tensor:
    """Derive the seeds of a batch's rows from one scalar seed.

    Args:
        seed: int in [-2**63, 2**63), or an int64 0-d tensor (not read on the host).
        rows: how many rows, or the int64 row numbers [B].

    Returns:
        int64 [B].

    >>> derive_seeds(3, 2)
    tensor([  31599815295821320, 8516602760668751066])
    """
    seeds = torch.as_tensor(seed, dtype=torch.int64).reshape(1)
    units = torch.arange(rows, device=seeds.device) if isinstance(rows, int) else rows
    low, high, _, _ = words(seeds, units, kind=SEED)
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
        drawn = words(
            self.seeds.repeat_interleave(draws),
            units,
            draw=self.draws.repeat(rows),
            position=self.positions.expand(rows).repeat_interleave(draws),
            kind=kind,
            role=self.role,
        )
        a, b, c, d = (w.view(rows, draws, w.shape[1]) for w in drawn)
        return a, b, c, d

    def gumbel(self, token_ids: Tensor) -> Tensor:
        """Return Gumbels float32 [B, n, T] of any tokens int64 [B, n, T]."""
        rows, draws = len(self.seeds), len(self.draws)
        noise = gumbel(
            self.seeds.repeat_interleave(draws),
            token_ids.reshape(rows * draws, token_ids.shape[2]),
            draw=self.draws.repeat(rows),
            position=self.positions.expand(rows).repeat_interleave(draws),
            role=self.role,
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
        drawn = words(seeds, units, draw=draws, position=positions, role=self.role)
        word = torch.cat(drawn, 1)
        noise = _unrefined(word)
        at, lane = (word < REFINE_BELOW).nonzero(as_tuple=True)
        if len(at):
            seeds, draws, positions = (part[at] for part in address)
            ids = (group[at] * GROUP_SIZE + lane)[:, None]
            refined = gumbel(seeds, ids, draw=draws, position=positions, role=self.role)
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


def _philox(
    key: tuple[Tensor, Tensor], counter: tuple[Tensor, ...], shape: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 on int64 tensors that broadcast to shape.

    Two rounds run on the parts of the counter that differ by row or by unit alone. The other eight
    run in place on full pairs, (c0, c2) in ``factors`` and (c1, c3) in ``words``. Only factors need
    their upper bits cleared in between.
    """
    keys = torch.stack(key) + _round_constants(key[0].device)
    k0, k1 = keys[0]
    c0, c1, c2, c3 = counter
    p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
    c0, c2 = (p1 >> 32 ^ c1 ^ k0) & _LOW, (p0 >> 32 ^ (c3 ^ k1)) & _LOW
    c1, c3 = p1, p0
    k0, k1 = keys[1]
    pairs = torch.empty((3, 2, *shape), dtype=torch.int64, device=c0.device)
    (factors, (f0, f1)), (words, (w0, w1)), (products, (q0, q1)) = (
        (pair, pair.unbind()) for pair in pairs.unbind()
    )
    torch.mul(c2, _MULTIPLIERS[1], out=w0)
    p0 = c0 * _MULTIPLIERS[0]
    w1.copy_(p0)
    torch.bitwise_right_shift(w0, 32, out=f0).bitwise_xor_(c1 ^ k0)
    torch.bitwise_xor(p0 >> 32 ^ k1, c3, out=f1)
    factors.bitwise_and_(_LOW)
    for round_keys in keys[2:].unbind():
        torch.mul(f0, _MULTIPLIERS[0], out=q1)
        torch.mul(f1, _MULTIPLIERS[1], out=q0)
        torch.bitwise_right_shift(products, 32, out=factors)
        factors.bitwise_xor_(words).bitwise_xor_(round_keys).bitwise_and_(_LOW)
        (words, w0, w1), (products, q0, q1) = (products, q0, q1), (words, w0, w1)
    words.bitwise_and_(_LOW)
    return f0, w0, f1, w1


def _round_constants(device: torch.device) -> Tensor:
    """Return what the rounds add to the two key words, int64 [rounds, 2, 1, 1]."""
    constants = [torch.arange(_ROUNDS, device=device) * weyl for weyl in _WEYL]
    return torch.stack(constants, 1)[..., None, None]
