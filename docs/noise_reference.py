"""The noise of version 1 in NumPy: the specification as a program, on uint64 arrays."""

import numpy as np

LEAF, GROUP, COIN, SEED, REFINE, NODE = range(6)
REFINE_BELOW = 1 << 16
LOW = np.uint64(0xFFFFFFFF)


def philox(counter, key):
    """Philox4x32-10: four counter words and two key words to four random words."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & LOW, p0 >> 32 ^ c3 ^ k1, p0 & LOW
        k0, k1 = k0 + np.uint64(0x9E3779B9) & LOW, k1 + np.uint64(0xBB67AE85) & LOW
    return c0, c1, c2, c3


def words(seed, unit, draw=0, position=0, kind=LEAF, role=0):
    """Four words of an address; a negative seed stands for its two's complement."""
    stream = (role << 3 | kind) << 24 | position >> 32
    counter = [np.asarray(x, np.uint64) for x in (unit, draw, position & 0xFFFFFFFF, stream)]
    return philox(counter, (np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32 & 0xFFFFFFFF)))


def gumbel_from_bits(word, fraction):
    """Gumbel of v = (word + fraction) / 2**32, without cancellation on either side."""
    v, complement = (word + fraction) / 2**32, (2.0**32 - 1 - word + (1 - fraction)) / 2**32
    log_survival = np.where(word < 1 << 31, np.log1p(-np.minimum(v, 0.5)), np.log(complement))
    return -np.log(-log_survival)


def gumbel(seed, token, draw=0, position=0, role=0):
    """Gumbel of a token (int64 array): one call serves four tokens, small words are refined."""
    unit, lane = token // 64 * 16 + token % 16, token // 16 % 4
    pair = [np.choose(lane, words(seed, unit, draw, position, k, role)) for k in (LEAF, REFINE)]
    word, more = (w.astype(float) for w in pair)
    return gumbel_from_bits(word, np.where(word < REFINE_BELOW, (more + 0.5) / 2**32, 0.5))
