"""What decoders of whole sequences share: the step of a model, and the rule of the next token.

A **step** is a function ``step(prefixes, parents, state) -> (logits, state)``:

- ``prefixes``, int64 [R, t]: the tokens chosen so far, the step's to keep or overwrite. R = B and
  t = 0 at the first call, when a model reads its prompt; afterwards R = B w, and row ``b * w + j``
  is beam j of batch row b. Places after the end of a sequence hold an id that is safe to feed; the
  logits of such rows are ignored.
- ``parents``, int64 [R]: the row of the previous call that each row continues. A cache is carried
  over by ``cache.index_select(0, parents)``, which at the second call also widens it to B w rows.
- ``state``: what the last call returned, never looked into.
- ``logits``: float32, bfloat16 or float16 [R, V], or a source of R rows such as an LM head, whose
  logits are then never held as a whole.

What belongs to the model (softcap, logit scale, head bias) is in the logits or the source; the
**rule** (temperature, mask, minimal length, filters) is how the next token is drawn from them.
Every step renormalises: whatever the rule forbids, the children of a node have all of its mass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fsresearch import arguments, checks
from fsresearch.addresses import POSITIONS
from fsresearch.noise import RowNoise
from fsresearch.options import Options
from fsresearch.sources import LMHead, Logits, Source
from fsresearch.tiles import Tile, tile_cuts
from fsresearch.transforms import Transform
from fsresearch.truncation import Filters, truncate, warn_materialized

__all__ = [
    "Rule",
    "Step",
    "call",
    "check_steps",
    "chunk_log_masses",
    "cut",
    "device_of",
    "ended",
    "eos_ids",
    "row_log_mass",
]

Step: TypeAlias = Callable[[Tensor, Tensor, Any], "tuple[Tensor | Source, Any]"]

_CHUNK = 1024
_LAUNCH_ELEMENTS = 1 << 22  # a GPU waits for launches, not for caches; 700 MiB of temporaries


class Rule(NamedTuple):
    """How the next token is drawn from a model's logits.

    Attributes:
        temperature: a number or [B], above 0.
        mask: True where allowed, [V] or [B, V], or packed.
        min_length: the end of sequence is forbidden until it would be this token.
        filters: top_k, top_p and min_p, numbers, 0-d or [B].
        eos: the ids that end a sequence.
    """

    temperature: float | Tensor
    mask: Tensor | None
    min_length: int
    filters: Filters
    eos: tuple[int, ...]

    def checked(self, rows: int, device: torch.device, check: bool) -> Rule:
        """Return the rule without filters that keep everything.

        Raises:
            TypeError, ValueError: For what is wrong before the vocabulary is known.
        """
        checks.integer("min_length", self.min_length, 0)
        if Options(self.temperature).transform(rows, 1, device)[1] is True:
            raise ValueError("temperature must be above 0: a greedy model has a single sequence")
        if check:
            arguments.check_values(self.temperature, 0)
        return self._replace(filters=self.filters.checked(rows, device, check))

    @property
    def changes(self) -> bool:
        """Whether some step may be sampled from something else than the model's own logits."""
        same = not isinstance(self.temperature, Tensor) and self.temperature == 1
        filtered = any(value is not None for value in self.filters)
        return not same or self.mask is not None or self.min_length > 1 or filtered

    def transform(self, source: Source, step: int, rows: int) -> Transform:
        """Return what turns the model's logits of all beams into those that are sampled.

        Raises:
            ValueError: If the mask does not fit the vocabulary, or an end of sequence is outside.
        """
        vocab, width = source.stop, source.rows // rows
        options = Options(self.temperature, mask=self.mask)
        made, greedy, _ = options.transform(rows, vocab, source.device)
        mask, inverse = made.mask, made.inverse_temperature
        for token in self.eos:
            checks.integer("eos_id", token, 0, vocab - 1)
        if step + 1 < self.min_length and self.eos:
            allowed = torch.ones(vocab, dtype=torch.bool, device=source.device)
            if mask is not None:
                allowed = made.allowed(0, vocab).clone()
            allowed[..., list(self.eos)] = False
            mask = allowed
        if mask is not None and mask.dim() == 2:
            mask = mask.repeat_interleave(width, 0)
        if isinstance(inverse, Tensor) and isinstance(greedy, Tensor):
            inverse = inverse.masked_fill(greedy, torch.nan).repeat_interleave(width, 0)
        return Transform(mask=mask, inverse_temperature=inverse)

    def tiles(
        self, source: Source, transform: Transform, rows: int
    ) -> Iterator[tuple[Tile, Tensor]]:
        """Yield tiles of the logits that are sampled, each with the model's own logits."""
        width = source.width
        if source.device.type != "cpu":
            width = max(width, _LAUNCH_ELEMENTS // source.rows)
        step = max(width // _CHUNK, 1) * _CHUNK
        cuts = tile_cuts(0, source.stop, step)
        pieces = ((a, source.tile(a, b).logits) for a, b in pairwise(cuts))
        if all(value is None for value in self.filters):
            for start, model in pieces:
                yield Tile(transform.apply(model, start), start), model
            return
        if isinstance(source, LMHead):
            warn_materialized()
        model = torch.cat([piece for _, piece in pieces], 1)
        sampled = transform.apply(model, 0)
        filters = Filters(*(_each(value, source.rows // rows) for value in self.filters))
        kept = truncate(Logits(sampled), filters, False)
        for a, b in pairwise(cuts):
            yield kept.tile(a, b), model[:, a:b]


def call(
    step: Step, prefixes: Tensor, parents: Tensor, state: Any, vocab: int | None
) -> tuple[Source, Any]:
    """Ask the model for the next logits, and check what it gives.

    Raises:
        TypeError, ValueError: If it is not (logits, state), or the logits do not fit.

    >>> first = torch.empty(2, 0, dtype=torch.int64), torch.arange(2)
    >>> call(lambda prefixes, parents, state: torch.zeros(3, 5), *first, None, None)
    Traceback (most recent call last):
    TypeError: step must return (logits, state), got a Tensor
    """
    answer = step(prefixes.clone(), parents, state)
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise TypeError(f"step must return (logits, state), got a {type(answer).__name__}")
    logits, state = answer
    if isinstance(logits, Tensor):
        arguments.check_logits(logits)
        logits = Logits(logits)
    elif not hasattr(logits, "tile"):
        raise TypeError(
            "step must return logits as a torch tensor [R, V], or a source of R rows, got a "
            f"{type(logits).__name__}"
        )
    if logits.rows != len(prefixes) or logits.start or logits.stop != (vocab or logits.stop):
        wanted = "V" if vocab is None else vocab
        raise ValueError(
            f"step must return logits [{len(prefixes)}, {wanted}] for prefixes "
            f"{list(prefixes.shape)}, got [{logits.rows}, {logits.stop - logits.start}]"
        )
    if logits.device != prefixes.device:
        raise ValueError(
            f"step must return logits on {prefixes.device}, got {logits.device}; see device="
        )
    return logits, state


def check_steps(noise: RowNoise, max_length: int) -> None:
    """Raise a ValueError unless every row has max_length positions; they are read on the host.

    >>> noise = RowNoise(torch.tensor([7]), torch.tensor(2**56 - 3), torch.tensor([0]))
    >>> check_steps(noise, 4)
    Traceback (most recent call last):
    ValueError: position must be in [0, 2**56 - max_length] with max_length=4, got 72057594037927933
    """
    for at in noise.positions.reshape(-1).tolist():
        if not 0 <= at <= POSITIONS - max_length:
            raise ValueError(
                f"position must be in [0, 2**56 - max_length] with max_length={max_length}, "
                f"got {at}"
            )


def eos_ids(eos_id: int | Sequence[int] | Tensor | None) -> tuple[int, ...]:
    """Return the ids that end a sequence.

    Raises:
        TypeError, ValueError: If it is no id, and no sequence or tensor of ids.

    >>> eos_ids(2), eos_ids([2, 0]), eos_ids(torch.tensor([2, 0])), eos_ids(None)
    ((2,), (2, 0), (2, 0), ())
    """
    if eos_id is None:
        return ()
    ids = eos_id.tolist() if isinstance(eos_id, Tensor) else eos_id
    if not isinstance(ids, Iterable):
        ids = [ids]
    return tuple(checks.integer("eos_id", token, 0) for token in ids)


def ended(
    prefixes: Tensor, eos: tuple[int, ...], stop: Callable[[Tensor], Tensor] | None
) -> Tensor:
    """Return which prefixes int64 [..., t] are whole sequences, bool [...].

    Raises:
        TypeError, ValueError: If stop does not answer with bool [R] for prefixes [R, t].

    >>> ended(torch.tensor([[1, 2], [1, 0]]), (2,), None)
    tensor([ True, False])
    """
    last = torch.tensor(eos, dtype=torch.int64, device=prefixes.device)
    over = torch.isin(prefixes[..., -1], last)
    if stop is None:
        return over
    said = stop(prefixes.flatten(0, -2).clone())
    wanted = f"stop must return a tensor of bool [{over.numel()}] on {over.device}"
    if not isinstance(said, Tensor):
        raise TypeError(f"{wanted}, got {checks.shown(said)}")
    if said.dtype != torch.bool or said.shape != (over.numel(),) or said.device != over.device:
        raise ValueError(f"{wanted}, got {said.dtype} {list(said.shape)} on {said.device}")
    return over | said.view(over.shape)


def row_log_mass(logits: Tensor) -> Tensor:
    """Return logsumexp over the last axis as float64, to the same bits whatever the other axes.

    Additions pair the two halves of what is left, again and again. -inf without mass, NaN with a
    NaN or +inf.

    >>> row_log_mass(torch.tensor([[0.0, 0.0, 0.0], [-torch.inf, -torch.inf, -torch.inf]]))
    tensor([1.0986,   -inf], dtype=torch.float64)
    """
    maximum = logits.amax(-1, keepdim=True).double()
    maximum = maximum.masked_fill(maximum == torch.inf, torch.nan)
    shift = maximum.masked_fill(maximum == -torch.inf, 0.0)
    mass = logits.double().sub_(shift) if logits.dtype != torch.float64 else logits - shift
    mass.exp_()
    while (size := mass.shape[-1]) > 1:
        half = (size + 1) // 2
        mass[..., : size - half] += mass[..., half:]
        mass = mass[..., :half]
    return (shift + mass.log())[..., 0]


def chunk_log_masses(logits: Tensor) -> Tensor:
    """Return the log-masses of a tile's chunks of 1024 ids, float64 [R, chunks].

    Tiles start at multiples of a chunk, and a part of one is filled up to a power of two, so the
    bits do not depend on how a vocabulary is cut into tiles.

    >>> chunk_log_masses(torch.zeros(1, 1025)).exp().round().tolist()
    [[1024.0, 1.0]]
    """
    chunk = min(_CHUNK, 1 << (logits.shape[1] - 1).bit_length())
    padded = torch.nn.functional.pad(logits, (0, -logits.shape[1] % chunk), value=-torch.inf)
    return row_log_mass(padded.unflatten(1, (-1, chunk)))


def device_of(device: torch.device | str | None, seed: int | Tensor | None) -> torch.device:
    """Return the device that was asked for, or else a tensor seed's, or else the CPU.

    >>> device_of(None, 7)
    device(type='cpu')
    """
    if device is not None:
        return torch.empty(0, device=device).device
    return seed.device if isinstance(seed, Tensor) else torch.device("cpu")


def cut(sequences: Tensor, lengths: Tensor, pad_id: int) -> Tensor:
    """Return sequences [B, k, L], L the longest, with the padding id after every end.

    >>> cut(torch.tensor([[[3, 4, 4]]]), torch.tensor([[1]]), -1)
    tensor([[[3]]])
    """
    longest = int(lengths.max()) if lengths.numel() else 0
    places = torch.arange(longest, device=sequences.device)
    return sequences[..., :longest].masked_fill(places >= lengths[..., None], pad_id)


def _each(value: Any, width: int) -> Any:
    """Return a value of every batch row as one of every beam."""
    if isinstance(value, Tensor) and value.dim() == 1:
        return value.repeat_interleave(width)
    return value
