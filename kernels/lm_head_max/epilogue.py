"""From a tile of raw logits to the rows' winners, in registers; path-exact.

A matmul pipeline calls `open_rows` once, `lift` for every tile of its rows, and `close_rows` at the
end, so that a program keeps one running winner a row and writes it once.

A pass perturbs every token with the rough Gumbels of ``kernels.philox`` and keeps, for each row,
its best two tokens, the best score of the rest, and the smallest word. The best token is scored
again by the definition; where the second could still beat it within the error of the pass, so is
the second, and where a third could, the whole tile. So the score that leaves a tile is the defined
one, and the token its argmax, lowest id on ties.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental.gluon import language as gl

from fsresearch import noise
from fsresearch.kernels.philox import (
    REFINE_BELOW,
    REFINE_STREAM,
    ROUGH_ERROR,
    gumbel,
    leaf_unit,
    philox,
    pick_lane,
    rough_log2,
    split_lanes,
)

__all__ = [
    "BIAS",
    "BIAS_BY_ROW",
    "EVEN_VOCAB",
    "GLUON",
    "INVERSE",
    "LOG_MASS",
    "MANY_DRAWS",
    "MASK",
    "MASK_BY_ROW",
    "PACKED",
    "PTX",
    "SAMPLED",
    "SCALE",
    "SOFTCAP",
    "TEMPERATURE",
    "close_rows",
    "lift",
    "open_rows",
]

SAMPLED = tl.constexpr(1)
TEMPERATURE = tl.constexpr(2)
SCALE = tl.constexpr(4)
SOFTCAP = tl.constexpr(8)
BIAS = tl.constexpr(16)
BIAS_BY_ROW = tl.constexpr(32)
MASK = tl.constexpr(64)
MASK_BY_ROW = tl.constexpr(128)
PACKED = tl.constexpr(256)
LOG_MASS = tl.constexpr(512)
MANY_DRAWS = tl.constexpr(1024)
EVEN_VOCAB = tl.constexpr(2048)
PTX = tl.constexpr(4096)
INVERSE = tl.constexpr(8192)
GLUON = tl.constexpr(16384)

_MIN_TEMPERATURE = tl.constexpr(1e-6)
_LEAF_STREAM = tl.constexpr(noise.LEAF << 24)
_ROUGH_SCALE = tl.constexpr(-0.6931471805599453)


@triton.jit
def open_rows(row, args, FLAGS: tl.constexpr):
    """Return (rows, state): what a row's tokens share, and the neutral summary.

    ``row`` is int32 [rows]; those past the batch are computed and not written. ``args`` is what
    the launcher passes.
    """
    live = row < args[3][3]
    row = tl.minimum(row, args[3][3] - 1)
    seeds, positions, position_stride, temperatures, inverse, role_bits = args[0]
    zero = row.to(tl.float32) * 0.0
    factor = zero + inverse
    k0 = row.to(tl.uint32)
    k1, c2, c3 = k0, k0, k0
    coefficient = zero + _ROUGH_SCALE
    if TEMPERATURE & FLAGS:
        t = tl.load(temperatures + row)
        usable = (t >= _MIN_TEMPERATURE) & (t < float("inf"))
        factor = tl.where(usable, tl.math.div_rn(1.0, tl.where(usable, t, 1.0)), float("nan"))
        factor = tl.where(t == 0.0, 1.0, factor)
        coefficient = tl.where(t == 0.0, 0.0, coefficient)
    if SAMPLED & FLAGS:
        seed = tl.load(seeds + row)
        position = tl.load(positions + row.to(tl.int64) * position_stride)
        k0 = seed.to(tl.uint32)
        k1 = (seed >> 32).to(tl.uint32)
        c2 = position.to(tl.uint32)
        c3 = ((position >> 32) & 0xFFFFFF | role_bits).to(tl.uint32)
    best = zero - float("inf")
    token = row * 0 - 1
    return (row, factor, coefficient, k0, k1, c2, c3, live), (best, token, best, zero)


@triton.jit
def lift(logits, column, first, slot, rows, state, args, FLAGS: tl.constexpr):
    """Merge a tile into the running summaries.

    Args:
        logits: float32 [rows, columns], raw.
        column: int32 [columns], local ids; the first is a multiple of 64.
        first: whether this is the program's first tile.
        slot: which of the summaries of a row this program writes.
        rows: from `open_rows`.
        state: (perturbed, token, maximum, mass) so far.
        args: from the launcher.
        FLAGS: the options that are on.
    """
    best, token, maximum, mass = state
    logits = _transform(logits, column, rows, args, FLAGS)
    if LOG_MASS & FLAGS:
        maximum, mass = _add_mass(logits, maximum, mass, FLAGS)
    _, start, draws, num_rows = args[3]
    ids = column + start
    zero = num_rows >> 30
    if not SAMPLED & FLAGS:
        score, winner = _argmax(logits, ids)
        best, token = _larger(score, winner, best, token)
    elif MANY_DRAWS & FLAGS:
        scores, tokens = args[4][0], args[4][1]
        for draw in range(draws):
            score, winner = _perturbed_maximum(logits, ids, draw, rows, zero, FLAGS)
            offset = (slot * draws + draw).to(tl.int64) * num_rows + rows[0]
            old = tl.where(first, float("-inf"), tl.load(scores + offset))
            held = tl.where(first, -1, tl.load(tokens + offset))
            score, winner = _larger(score, winner, old, held)
            tl.store(scores + offset, score, mask=rows[7])
            tl.store(tokens + offset, winner, mask=rows[7])
    else:
        score, winner = _perturbed_maximum(logits, ids, 0, rows, zero, FLAGS)
        best, token = _larger(score, winner, best, token)
    return best, token, maximum, mass


@triton.jit
def close_rows(slot, rows, state, args, FLAGS: tl.constexpr):
    """Write a program's summaries: [slots, draws, rows] winners, [slots, rows] masses."""
    best, token, maximum, mass = state
    num_rows = args[3][3]
    scores, tokens, maxima, masses = args[4]
    offset = slot.to(tl.int64) * num_rows + rows[0]
    if not MANY_DRAWS & FLAGS:
        tl.store(scores + offset, best, mask=rows[7])
        tl.store(tokens + offset, token, mask=rows[7])
    if LOG_MASS & FLAGS:
        tl.store(maxima + offset, maximum, mask=rows[7])
        tl.store(masses + offset, mass, mask=rows[7])


@triton.jit
def _transform(logits, column, rows, args, FLAGS: tl.constexpr):
    """Logit scale, softcap, bias, mask, temperature, in this order; padding is -inf."""
    scale, softcap = args[1]
    bias, bias_stride, mask, mask_stride = args[2]
    vocab = args[3][0]
    inside = (column < vocab)[None, :]
    row = rows[0].to(tl.int64)[:, None]
    if SCALE & FLAGS:
        logits = logits * scale
    if SOFTCAP & FLAGS:
        logits = _tanh(logits / softcap) * softcap
    if BIAS & FLAGS:
        at = bias + column[None, :]
        if BIAS_BY_ROW & FLAGS:
            value = tl.load(at + row * bias_stride, mask=inside & (row >= 0), other=0.0)
        else:
            value = tl.load(at, mask=inside, other=0.0)
        logits = logits + value.to(tl.float32)
    if MASK & FLAGS:
        if PACKED & FLAGS:
            at = mask + (column >> 5)[None, :]
        else:
            at = mask + column[None, :]
        if MASK_BY_ROW & FLAGS:
            value = tl.load(at + row * mask_stride, mask=inside & (row >= 0), other=0)
        else:
            value = tl.load(at, mask=inside, other=0)
        if PACKED & FLAGS:
            value = (value >> (column & 31)[None, :]) & 1
        logits = tl.where(inside & (value != 0), logits, float("-inf"))
    elif not EVEN_VOCAB & FLAGS:
        logits = tl.where(inside, logits, float("-inf"))
    if (TEMPERATURE | INVERSE) & FLAGS:
        logits = logits * rows[1][:, None]
    return logits


@triton.jit
def _tanh(x):
    """Hyperbolic tangent in float32, by a series near 0 and by an exponential elsewhere."""
    y = tl.abs(x)
    e = tl.exp2(y * -2.8853900817779268)
    far = (1.0 - e) / (1.0 + e)
    z = x * x
    p = tl.fma(z, 0.021869488536155203, -0.05396825396825397)
    p = tl.fma(z, p, 0.13333333333333333)
    p = tl.fma(z, p, -0.3333333333333333)
    near = tl.fma(y * z, p, y)
    magnitude = tl.where(y < 0.25, near, far)
    magnitude = tl.where(x == x, magnitude, x)
    return tl.where(x < 0.0, -magnitude, magnitude)


@triton.jit
def _add_mass(logits, maximum, mass, FLAGS: tl.constexpr):
    """Add a tile to a running (maximum, mass relative to it); NaN and +inf poison both."""
    top = tl.reduce(logits, 1, _maximum)
    merged = _maximum(maximum, top)
    shift = tl.where(merged == float("-inf"), 0.0, merged)
    mass = mass * tl.exp2((maximum - shift) * 1.4426950408889634)
    spread = tl.broadcast_to(shift[:, None], logits.shape)
    return merged, mass + _sum_exponentials(logits, spread, shift, FLAGS)


@triton.jit
def _sum_exponentials(logits, shift, row, FLAGS: tl.constexpr):
    """Sum exp(logits - shift) over columns, a group at a time; ``row`` has its layout."""
    if logits.shape[1] > 64:
        left, right = _halves(logits)
        shift, _ = _halves(shift)
        total = _sum_exponentials(left, shift, row, FLAGS)
        return total + _sum_exponentials(right, shift, row, FLAGS)
    else:
        terms = tl.exp2((logits - shift) * 1.4426950408889634)
        return _beside(tl.sum(terms, 1), row, FLAGS)


@triton.jit
def _argmax(logits, ids):
    """Return the rows' maximum and its lowest id: greedy rows."""
    tokens = tl.broadcast_to(ids[None, :], logits.shape)
    return tl.reduce((logits, tokens), 1, _larger)


@triton.jit
def _perturbed_maximum(logits, ids, draw, rows, zero, FLAGS: tl.constexpr):
    """Return the tile's largest perturbed logit by the definition, and its token."""
    row, _, coefficient, k0, k1, c2, c3, live = rows
    bins = _first_group(tl.broadcast_to(ids[None, :], logits.shape))
    c1 = bins.to(tl.uint32) * 0
    if MANY_DRAWS & FLAGS:
        c1 = c1 + draw
    address = (
        _spread(k0, logits),
        _spread(k1, logits),
        leaf_unit(bins),
        c1,
        _spread(c2, logits),
        _spread(c3, logits),
        zero,
    )
    scale = _spread(coefficient, logits)
    score, token, logit, second, other, other_logit, third, word = _rough_maximum(
        logits, bins, address, scale, row, FLAGS
    )
    sampled = (coefficient != 0.0) & live
    best = tl.where(token < 0, score, _defined_score(logit, token, draw, rows, FLAGS))
    error = ROUGH_ERROR + tl.abs(second) * 5e-7
    error += tl.where(word < REFINE_BELOW, 0.5 / word.to(tl.float32), 0.0)
    unclear = sampled & (second + error >= best) & (second > float("-inf"))
    crowded = unclear & ((third + error >= best) | (other < 0))
    level = tl.max(tl.where(crowded, 2, tl.where(unclear, 1, 0)), 0)
    if level == 1:
        best, token = _larger(
            best, token, _defined_score(other_logit, other, draw, rows, FLAGS), other
        )
    elif level == 2:
        best, token = _defined_maximum(logits, bins, address, scale, row, FLAGS)
    return best, token


@triton.jit
def _defined_score(logit, token, draw, rows, FLAGS: tl.constexpr):
    """Score one token of each row by the definition."""
    row, _, coefficient, k0, k1, c2, c3, live = rows
    unit = leaf_unit(token)
    c1 = row.to(tl.uint32) * 0
    if MANY_DRAWS & FLAGS:
        c1 = c1 + draw
    w0, w1, w2, w3 = philox(k0, k1, unit, c1, c2, c3)
    word = pick_lane(token, w0, w1, w2, w3)
    refinement = word
    if tl.max((live & (word < REFINE_BELOW)).to(tl.int32), 0) > 0:
        w0, w1, w2, w3 = philox(k0, k1, unit, c1, c2, c3 | REFINE_STREAM)
        refinement = pick_lane(token, w0, w1, w2, w3)
    return logit + tl.where(coefficient != 0.0, gumbel(word, refinement), 0.0)


@triton.jit
def _rough_maximum(logits, bins, address, scale, row, FLAGS: tl.constexpr):
    """Return each row's best two (score, token, logit), the best of the rest, the smallest word.

    Scores are rough; the second token is -1 where it shares a bin with a better one.
    """
    lowest = tl.where(bins == bins, float("-inf"), float("-inf"))
    none = bins * 0
    state = (lowest, none, lowest, lowest, (none - 1).to(tl.uint32))
    s, j, x, r, m = _scan_rough(logits, address, scale, state, 0, FLAGS)
    whole = (s, bins + j * 16, x, lowest, none - 1, x, r, m)
    s, i, x, t, o, y, r, m = tl.reduce(tl.reduce(whole, 2, _best_two), 1, _best_two)
    i = tl.where(s > float("-inf"), i, -1)
    return (
        _beside(s, row, FLAGS),
        _beside(i, row, FLAGS),
        _beside(x, row, FLAGS),
        _beside(tl.maximum(t, r), row, FLAGS),
        _beside(tl.where(t >= r, o, -1), row, FLAGS),
        _beside(y, row, FLAGS),
        _beside(r, row, FLAGS),
        _beside(m, row, FLAGS),
    )


@triton.jit
def _scan_rough(logits, address, scale, state, GROUP: tl.constexpr, FLAGS: tl.constexpr):
    """Absorb tokens a group at a time, ascending, so that few registers are alive at once.

    A bin keeps (score, which of its tokens, logit, runner-up, smallest word).
    """
    if logits.shape[1] > 64:
        left, right = _halves(logits)
        state = _scan_rough(left, address, scale, state, GROUP, FLAGS)
        state = _scan_rough(right, address, scale, state, GROUP + left.shape[1] // 64, FLAGS)
    else:
        k0, k1, unit, c1, c2, c3, zero = address
        x0, x1, x2, x3 = split_lanes(logits)
        unit = _after(unit, state[0], zero) + GROUP * 16
        w0, w1, w2, w3 = philox(k0, k1, unit, c1, c2, c3)
        state = _absorb(state, x0, w0, scale, GROUP * 4, FLAGS)
        state = _absorb(state, x1, w1, scale, GROUP * 4 + 1, FLAGS)
        state = _absorb(state, x2, w2, scale, GROUP * 4 + 2, FLAGS)
        state = _absorb(state, x3, w3, scale, GROUP * 4 + 3, FLAGS)
    return state


@triton.jit
def _absorb(state, logit, word, scale, INDEX: tl.constexpr, FLAGS: tl.constexpr):
    """Add one token to every bin; a NaN stays, and of equals the first."""
    best, index, kept, second, smallest = state
    score = tl.fma(scale, rough_log2(word, (PTX & FLAGS) != 0), logit)
    take = score > best
    return (
        _maximum(best, score),
        tl.where(take, INDEX, index),
        tl.where(take, logit, kept),
        _maximum(second, tl.minimum(best, score)),
        tl.minimum(smallest, word),
    )


@triton.jit
def _best_two(s, i, x, t, o, y, r, m, s_, i_, x_, t_, o_, y_, r_, m_):
    """Merge bins: the best and the second best with tokens and logits, the best of the rest."""
    take = (s_ > s) | ((s_ == s) & (i_ < i))
    loser = tl.where(take, s, s_)
    loser_token = tl.where(take, i, i_)
    loser_logit = tl.where(take, x, x_)
    held = tl.where(take, t_, t)
    held_token = tl.where(take, o_, o)
    held_logit = tl.where(take, y_, y)
    dropped = tl.where(take, t, t_)
    first = held > loser
    rest = _maximum(_maximum(r, r_), dropped)
    return (
        _maximum(s, s_),
        tl.where(take, i_, i),
        tl.where(take, x_, x),
        tl.where(first, held, loser),
        tl.where(first, held_token, loser_token),
        tl.where(first, held_logit, loser_logit),
        _maximum(rest, tl.where(first, loser, held)),
        tl.minimum(m, m_),
    )


@triton.jit
def _defined_maximum(logits, bins, address, scale, row, FLAGS: tl.constexpr):
    """Score every token of the tile by the definition."""
    state = (tl.where(bins == bins, float("-inf"), float("-inf")), bins * 0)
    a, j = _scan_defined(logits, address, scale != 0.0, state, 0)
    a, i = tl.reduce((a, bins + j * 16), 2, _larger)
    a, i = tl.reduce((a, i), 1, _larger)
    i = tl.where(a > float("-inf"), i, -1)
    return _beside(a, row, FLAGS), _beside(i, row, FLAGS)


@triton.jit
def _scan_defined(logits, address, sampled, state, GROUP: tl.constexpr):
    """Absorb the defined scores as `_scan_rough` does."""
    if logits.shape[1] > 64:
        left, right = _halves(logits)
        state = _scan_defined(left, address, sampled, state, GROUP)
        state = _scan_defined(right, address, sampled, state, GROUP + left.shape[1] // 64)
    else:
        k0, k1, unit, c1, c2, c3, zero = address
        x0, x1, x2, x3 = split_lanes(logits)
        best, index = state
        unit = _after(unit, best, zero) + GROUP * 16
        w0, w1, w2, w3 = philox(k0, k1, unit, c1, c2, c3)
        r0, r1, r2, r3 = philox(k0, k1, unit, c1, c2, c3 | REFINE_STREAM)
        g0 = tl.where(sampled, gumbel(w0, r0), 0.0)
        best, index = _larger(best, index, x0 + g0, _constant(index, GROUP * 4))
        g1 = tl.where(sampled, gumbel(w1, r1), 0.0)
        best, index = _larger(best, index, x1 + g1, _constant(index, GROUP * 4 + 1))
        g2 = tl.where(sampled, gumbel(w2, r2), 0.0)
        best, index = _larger(best, index, x2 + g2, _constant(index, GROUP * 4 + 2))
        g3 = tl.where(sampled, gumbel(w3, r3), 0.0)
        best, index = _larger(best, index, x3 + g3, _constant(index, GROUP * 4 + 3))
        state = (best, index)
    return state


@triton.jit
def _constant(index, VALUE: tl.constexpr):
    """A constant of the bins' shape."""
    return tl.where(index == index, VALUE, VALUE)


@triton.jit
def _after(unit, score, zero):
    """Return unit, made to wait for a score: ``zero`` is 0, which only the caller knows.

    Otherwise the assembler starts the noise of every group at once and runs out of registers.
    """
    return unit | (score.to(tl.int32, bitcast=True) & zero).to(tl.uint32)


@triton.jit
def _halves(x):
    """Split [rows, columns] into its left and right halves, in registers."""
    x = tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2))
    return tl.split(tl.permute(x, (0, 2, 1)))


@triton.jit
def _first_group(x):
    """Return the first of the four parts of the first 64 columns."""
    if x.shape[1] > 64:
        left, _ = _halves(x)
        return _first_group(left)
    else:
        part, _, _, _ = split_lanes(x)
        return part


@triton.jit
def _beside(value, row, FLAGS: tl.constexpr):
    """Name the layout of per-row results as the rows' own, where layouts have names."""
    if GLUON & FLAGS:
        return gl.convert_layout(value, row.type.layout)
    else:
        return value


@triton.jit
def _spread(value, like):
    """Lay a row's value [rows] beside the bins."""
    return _first_group(tl.broadcast_to(value[:, None], like.shape))


@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _larger(score, token, other, other_token):
    """Keep the larger score, the lower id on ties; a NaN stays."""
    take = (other > score) | ((other == score) & (other_token < token)) | (other != other)
    return tl.where(take, other, score), tl.where(take, other_token, token)
