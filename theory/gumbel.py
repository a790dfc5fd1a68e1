"""The Gumbel law, its maxima, and a second implementation of the addressed noise.

The maximum of l_i + g_i over a group is Gumbel with location L = log sum exp l_i, and it is
independent of which token attains it (FlashSampling, Lemma D.1). Noise comes from Philox4x32-10
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) on Python-sized integers,
written from the specification of noise version 1 and sharing no code with the sampler's.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fsresearch.theory.categorical import log_normalizer

__all__ = [
    "address_words",
    "argmax_and_max_density",
    "conditional_keys",
    "from_bits",
    "from_words",
    "leaf_noise",
    "log_cdf",
    "max_location",
    "max_log_cdf",
    "pdf",
    "philox4x32",
    "quantile",
]

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

REFINE_BELOW = 1 << 16
LEAF, REFINE = 0, 4

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def log_cdf(x: ArrayLike, location: float = 0.0) -> Floats:
    """Return log P(G <= x) = -exp(location - x) of Gumbel(location, 1).

    >>> float(log_cdf(0.0))
    -1.0
    """
    return np.asarray(-np.exp(location - np.asarray(x, np.float64)))


def pdf(x: ArrayLike, location: float = 0.0) -> Floats:
    """Return the density of Gumbel(location, 1) at x.

    >>> float(pdf(0.0)) == math.exp(-1.0)
    True
    """
    shift = location - np.asarray(x, np.float64)
    return np.asarray(np.exp(shift - np.exp(shift)))


def quantile(chance: ArrayLike, location: float = 0.0) -> Floats:
    """Return the x with P(G <= x) = chance, for chances in [0, 1].

    >>> float(quantile(0.5, 2.0)) == 2.0 - math.log(math.log(2.0))
    True
    """
    with np.errstate(divide="ignore"):
        return np.asarray(location - np.log(-np.log(np.asarray(chance, np.float64))))


def max_location(logits: ArrayLike) -> float:
    """Return the location of the Gumbel that max_i (l_i + g_i) is: the group's log-mass.

    Source: FlashSampling, Lemma D.1.

    >>> max_location([0.0, 0.0]) == math.log(2.0)
    True
    """
    return log_normalizer(logits)


def max_log_cdf(x: float, logits: ArrayLike) -> float:
    """Return log P(max_i (l_i + g_i) <= x) as the product over tokens, without max-stability.

    >>> math.isclose(max_log_cdf(1.0, [0.0, 0.0]), -2.0 * math.exp(-1.0))
    True
    """
    return math.fsum(float(log_cdf(x, location)) for location in np.asarray(logits, np.float64))


def argmax_and_max_density(x: float, token: int, logits: ArrayLike) -> float:
    """Return the density at x of the maximum, jointly with the event that this token attains it.

    It is the token's density times the other tokens' distribution functions. Lemma D.1 says that
    it equals p(token) times the density of Gumbel(L, 1): argmax and maximum are independent.

    >>> round(argmax_and_max_density(0.0, 0, [0.0, 0.0]), 12) == round(math.exp(-2.0), 12)
    True
    """
    values = np.asarray(logits, np.float64)
    if values[token] == -math.inf:
        return 0.0
    others = max_log_cdf(x, np.delete(values, token))
    return float(pdf(x, float(values[token]))) * math.exp(others)


def conditional_keys(keys: ArrayLike, maximum: float) -> Floats:
    """Return Gumbel keys shifted so that their largest is the given one, float64.

    Clocks exp(-key) have no memory, so all of them move by the same amount. The difference of the
    clocks of a key and of the largest one is taken as exp(-Z) expm1(Z - key), which keeps small
    gaps; keys must stay within some hundreds of each other and of the maximum.

    Source: Maddison, Tarlow and Minka, "A* Sampling", NeurIPS 2014.

    >>> conditional_keys([0.5, 2.0], 3.0).round(4).tolist()
    [0.652, 3.0]
    """
    values = np.asarray(keys, np.float64)
    largest = float(values.max())
    later = np.exp(maximum - largest) * np.expm1(largest - values)
    return np.asarray(maximum - np.log1p(later))


def leaf_noise(
    seed: int, token_ids: ArrayLike, *, draw: int = 0, position: int = 0, role: int = 0
) -> Floats:
    """Return the standard Gumbels of tokens by their address, float64 of the ids' shape.

    Token v reads word (v // 16) % 4 at unit (v // 64) * 16 + v % 16.

    >>> leaf_noise(7, [3, 1_000_003]).round(4).tolist()
    [0.704, 1.7509]
    """
    ids = np.asarray(token_ids, np.int64)
    units, lanes = ids // 64 * 16 + ids % 16, ids // 16 % 4
    word, refinement = (
        np.take_along_axis(
            address_words(seed, units, draw=draw, position=position, kind=kind, role=role),
            lanes[None],
            axis=0,
        )[0]
        for kind in (LEAF, REFINE)
    )
    return from_words(word, refinement)


def address_words(
    seed: int,
    units: ArrayLike,
    *,
    draw: int = 0,
    position: int = 0,
    kind: int = LEAF,
    role: int = 0,
) -> Words:
    """Return the four words at an address, uint64 [4, ...] with values in [0, 2**32).

    Args:
        seed: the 64-bit key, signed or not.
        units: int [...], in [0, 2**32).
        draw: in [0, 2**32).
        position: in [0, 2**56).
        kind: in [0, 8); 0 are leaves, 4 their refinements.
        role: in [0, 32).

    >>> [f"{int(w):08x}" for w in address_words(0, 0)]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    unit = np.asarray(units, np.uint64)
    stream = (role << 3 | kind) << 24 | position >> 32
    rest = (draw, position & 0xFFFFFFFF, stream)
    counter = [unit, *(np.full_like(unit, value) for value in rest)]
    return philox4x32(np.stack(counter), (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF))


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Return Philox4x32-10 of counters uint64 [4, ...] under a key of two 32-bit words.

    Source: Salmon et al., SC 2011; checked against the published vectors.

    >>> ones = np.full(4, 0xFFFFFFFF, np.uint64)
    >>> [f"{int(w):08x}" for w in philox4x32(ones, (0xFFFFFFFF, 0xFFFFFFFF))]
    ['408f276d', '41c83b0e', 'a20bc7c6', '6d5451fd']
    """
    c0, c1, c2, c3 = np.asarray(counter, np.uint64)
    k0, k1 = key
    for _ in range(10):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0 = second >> _HALF ^ c1 ^ np.uint64(k0)
        c2 = first >> _HALF ^ c3 ^ np.uint64(k1)
        c1, c3 = second & _LOW, first & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3])


def from_words(
    word: ArrayLike, refinement: ArrayLike, *, refine_below: int = REFINE_BELOW
) -> Floats:
    """Convert words to Gumbels, float64; words under refine_below take 32 more bits.

    Word r stands for v = (r + 1/2) 2**-32, or (r + (r' + 1/2) 2**-32) 2**-32 where refined, and
    the Gumbel is -log(-log1p(-v)). It decreases in (word, refinement).

    >>> from_words([0, 2**32 - 1], [0, 0]).round(4).tolist()
    [45.0546, -3.13]
    """
    high = np.asarray(word, np.float64)
    low = (np.asarray(refinement, np.float64) + 0.5) * 2.0**-32
    fraction = np.where(high < refine_below, low, 0.5)
    return _from_fraction(high + fraction, (2.0**32 - 1 - high) + (1 - fraction))


def from_bits(high: ArrayLike, low: ArrayLike) -> Floats:
    """Convert 64 bits to Gumbels, float64: the noise of groups and nodes, always refined.

    >>> from_bits([0, 2**32 - 1], [0, 2**32 - 1]).round(4).tolist()
    [45.0546, -3.8079]
    """
    return from_words(high, low, refine_below=1 << 32)


def _from_fraction(scaled: Floats, complement: Floats) -> Floats:
    """Return -log(-log(1 - v)) for v and 1 - v times 2**32, through the smaller of the two."""
    small = scaled < complement
    low = -np.log1p(-np.where(small, scaled, 1.0) * 2.0**-32)
    high = -np.log(np.where(small, 1.0, complement) * 2.0**-32)
    return np.asarray(-np.log(np.where(small, low, high)))
