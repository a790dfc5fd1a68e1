"""Stochastic beam search: k different sequences from a sequence model, exactly without replacement.

Give every sequence the key log p(sequence) + Gumbel; the k largest keys are a sample without
replacement. The tree of prefixes need not be listed for that: the largest key below a prefix is
itself a Gumbel at the prefix's log-probability, so keys are drawn from the root down, each node's
children conditioned on their maximum being the node's key. A node outside the k best has no
sequence among the k best, and is dropped. One child has its parent's key to the bit, finished
sequences keep their key and place, and k nodes a step suffice.

Keys are carried in float64. Children are perturbed and cut to the largest of each parent on the
parent's own scale, where numbers are of order one however improbable the parent is. Noise is
addressed by step, the parent's place among the keys, and token: k sequences are a prefix of k + 1.

Source: Kool, van Hoof, Welling, "Stochastic beams and where to find them", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor

from fsresearch import arguments, checks
from fsresearch.noise import NODE, RowNoise, gumbel_from_bits, words
from fsresearch.results import BeamSample
from fsresearch.sources import Source
from fsresearch.summaries import GumbelTopK
from fsresearch.tiles import Tile
from fsresearch.truncation import Filters
from fsresearch.without_replacement.decoding import (
    Rule,
    Step,
    call,
    check_steps,
    chunk_log_masses,
    cut,
    device_of,
    eos_ids,
    row_log_mass,
)
from fsresearch.without_replacement.frontier import Beams, Children, select
from fsresearch.without_replacement.refusals import refuse

__all__ = ["stochastic_beam_search"]


@torch.no_grad()
def stochastic_beam_search(
    step: Step,
    state: Any,
    num_beams: int,
    max_length: int,
    eos_id: int | Sequence[int] | Tensor | None,
    *,
    rows: int = 1,
    seed: int | Tensor | None = None,
    position: int | Tensor = 0,
    role: int = 0,
    root: Literal["gumbel", "zero"] = "gumbel",
    temperature: float | Tensor = 1.0,
    mask: Tensor | None = None,
    min_length: int = 0,
    top_k: int | Tensor | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | Tensor | None = None,
    stop: Callable[[Tensor], Tensor] | None = None,
    kappa: bool = True,
    pad_id: int = -1,
    device: torch.device | str | None = None,
    check: bool = False,
    **refused: object,
) -> BeamSample:
    """Draw k different sequences a row without replacement, in Plackett-Luce order.

    The law is exact for the model that is sampled: at every step softmax of the logits after
    temperature, mask and filters. A sequence that reaches max_length ends there, as the prefix that
    it is. Different tokens may spell the same text: what is never repeated is the tokens. Once a
    step the host reads whether anything is left to grow.

    A row whose k best beams meet logits that are not a distribution is invalid. In the beam beyond
    them, which kappa is for, they change nothing: whatever comes below it, its best sequence has
    its key, and all others have less. It stays as it is.

    Args:
        step: ``step(prefixes [R, t], parents [R], state) -> (logits [R, V], state)``, with R = B at
            the first call and B w afterwards; `fsresearch.without_replacement.decoding` tells what
            each is. w is num_beams + 1 with kappa, else num_beams.
        state: handed to the first call.
        num_beams: k, at least 1.
        max_length: tokens a sequence may have, the end of sequence included, at least 1.
        eos_id: the id, or ids, that end a sequence; None if only max_length and stop do.
        rows: B, independent searches side by side; for none the step is not called.
        seed: an int or int64 0-d tensor, from which every row's seed is derived; int64 [B], used
            as it is; None takes one from torch's generator.
        position: the first token's position, in [0, 2**56 - max_length]; each step adds one.
        role: the caller's stream in [0, 32).
        root: "gumbel" draws the root's key; "zero" fixes it at 0, which leaves the law of the
            sequences as it is but not that of kappa and the keys.
        temperature: a number or [B], above 0, applied at every step (it is not a power of the
            probability of whole sequences); in a tensor 0 makes its row invalid.
        mask: True where a token is allowed, bool [V] or [B, V], or packed int32.
        min_length: the end of sequence is forbidden until it would be this token.
        top_k: as for `fsresearch.sample_logits`, a number, 0-d or [B]; so are top_p and min_p.
        top_p: see top_k.
        min_p: see top_k.
        stop: names prefixes int64 [R, t] that end there, bool [R]; a function of each row's prefix.
        kappa: also return the (k+1)-th key; it takes one beam more.
        pad_id: fills sequences after their end.
        device: where prefixes are, that of a seed [B] or the CPU by default.
        check: raise where a row is invalid, or has fewer than k sequences.
        refused: length_penalty, early_stopping and others that would break the law; see
            `fsresearch.without_replacement.refusals`.

    Returns:
        A BeamSample, ordered by key.

    Raises:
        TypeError: If an argument or what step returns has the wrong type.
        ValueError: If it has a wrong value or shape; if an option would break the law; with check.

    Source: Kool, van Hoof, Welling, ICML 2019, Algorithm 1.

    >>> first = torch.tensor([0.1, 0.2, 0.7]).log()
    >>> model = lambda prefixes, parents, state: (first.expand(len(prefixes), 3), state)
    >>> drawn = stochastic_beam_search(model, None, 3, max_length=4, eos_id=2, seed=1)
    >>> drawn.sequences[0].tolist(), drawn.lengths.tolist()
    ([[2, -1], [1, 2], [0, 2]], [[1, 2, 2]])
    >>> drawn.log_probs.exp()
    tensor([[0.7000, 0.1400, 0.0700]], dtype=torch.float64)
    """
    num_beams = checks.integer("num_beams", num_beams, 1)
    max_length = checks.integer("max_length", max_length, 1)
    rows = checks.integer("rows", rows, 0)
    pad_id = checks.integer("pad_id", pad_id, -(1 << 63), (1 << 63) - 1)
    checks.flags(kappa=kappa, check=check)
    _check_refused(refused, num_beams)
    checks.choice("root", root, ("gumbel", "zero"))
    width = num_beams + kappa
    where = device_of(device, seed)
    noise = arguments.row_noise(seed, position, role, width, rows, where)
    check_steps(noise, max_length)
    rule = Rule(temperature, mask, min_length, Filters(top_k, top_p, min_p), eos_ids(eos_id))
    rule = rule.checked(rows, where, check)

    beams = _root(noise, root)
    parents = torch.arange(rows, device=where)
    history: list[tuple[Tensor, Tensor]] = []
    vocab = None
    for t in range(max_length):
        growing = beams.growing(num_beams)
        if not growing.any():
            break
        source, state = call(step, beams.prefixes.flatten(0, 1), parents, state, vocab)
        vocab = source.stop
        now = noise._replace(positions=noise.positions + t)
        children = _children(source, rule, now, t, width)
        broken = children.broken(growing)
        if check:
            _check_distributions(broken[:, :num_beams], t)
        broken[:, :num_beams] = False
        beams = beams._replace(finished=beams.finished | broken)
        parents = torch.arange(rows, device=where)[:, None] * growing.shape[1]
        beams, places, tokens = select(beams, children, growing & ~broken, width, rule.eos, stop)
        parents = (parents + places).flatten()
        history.append((places, tokens))
    return _sample(beams, history, num_beams, kappa, pad_id, root, check)


def _root(noise: RowNoise, root: str) -> Beams:
    """Return the frontier of the empty prefix."""
    rows, device = len(noise.seeds), noise.seeds.device
    keys = torch.zeros(rows, 1, dtype=torch.float64, device=device)
    if root == "gumbel":
        unit = torch.zeros(1, dtype=torch.int64, device=device)
        high, _, low, _ = words(
            noise.seeds, unit, position=noise.positions, kind=NODE, role=noise.role
        )
        keys = gumbel_from_bits(high, low)
    zeros = torch.zeros_like(keys)
    none = torch.zeros(rows, 1, dtype=torch.int64, device=device)
    return Beams(none[..., None][..., :0], keys, zeros, zeros, none, none.bool())


def _children(source: Source, rule: Rule, noise: RowNoise, step: int, most: int) -> Children:
    """Perturb every beam's next tokens and keep the largest few; no more of one can be needed."""
    rows = len(noise.seeds)
    width = source.rows // rows
    noise = noise._replace(draws=noise.draws[:width])
    transform = rule.transform(source, step, rows)
    largest = GumbelTopK(None, most)
    best = largest.empty(source.rows, source.device)
    masses: list[Tensor] = []
    model_masses: list[Tensor] = []
    for tile, model in rule.tiles(source, transform, rows):
        scores = tile.logits + noise.gumbel_tile(tile.start, tile.stop).flatten(0, 1)
        best = largest.merge(best, largest.lift(Tile(scores, tile.start)))
        masses.append(chunk_log_masses(tile.logits))
        if rule.changes:
            model_masses.append(chunk_log_masses(model))
    tokens = best.token
    log_mass = row_log_mass(torch.cat(masses, 1))[:, None]
    model_logits = source.at(tokens)
    sampled = transform.apply_at(model_logits, tokens.clamp(min=0)).double()
    log_probs = sampled.masked_fill(tokens < 0, -torch.inf) - log_mass
    model_log_probs = log_probs
    if rule.changes:
        model_log_probs = model_logits.double() - row_log_mass(torch.cat(model_masses, 1))[:, None]
    keys = best.perturbed.double() - log_mass
    shape = rows, width, most
    return Children(*(x.view(shape) for x in (keys, tokens, log_probs, model_log_probs)))


def _sample(
    beams: Beams,
    history: list[tuple[Tensor, Tensor]],
    num_beams: int,
    kappa: bool,
    pad_id: int,
    root: Literal["gumbel", "zero"],
    check: bool,
) -> BeamSample:
    """Return the k best of the last frontier; the beam after them has the key kappa."""
    places = tokens = beams.lengths.new_empty(0, 0, num_beams)
    if history:
        places, tokens = (
            torch.stack(steps)[..., :num_beams] for steps in zip(*history, strict=True)
        )
    else:  # there are no rows
        beams = Beams(*(field.expand(-1, num_beams + 1, *field.shape[2:]) for field in beams))
    best = Beams(*(field[:, :num_beams] for field in beams))
    num_valid = (best.keys > -torch.inf).sum(1)
    if check:
        short = (num_valid < num_beams).nonzero()
        if len(short):
            row = int(short[0])
            raise ValueError(
                f"num_beams must be at most the number of sequences, got {num_beams} with "
                f"{int(num_valid[row])} in row {row}"
            )
    return BeamSample(
        cut(best.prefixes, best.lengths, pad_id),
        best.lengths,
        best.log_probs,
        best.model_log_probs,
        best.keys,
        beams.keys[:, num_beams] if kappa else None,
        places,
        tokens,
        best.finished,
        num_valid,
        root,
    )


def _check_distributions(broken: Tensor, step: int) -> None:
    bad = broken.nonzero()
    if len(bad):
        row, beam = bad[0].tolist()
        raise ValueError(
            f"the logits of row {row}, beam {beam}, step {step} are not a distribution: no finite "
            "logit is allowed, or there is a NaN or +inf"
        )


def _check_refused(refused: dict[str, object], num_beams: int) -> None:
    """Raise for options that break the law; beams a parent that leave room for all may pass."""
    for option, value in refused.items():
        if option != "per_node_beam_size" or not _at_least(value, num_beams):
            refuse(option, value)


def _at_least(value: object, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
