"""Logits processors of transformers as what they mean: a bias, a temperature, filters.

Processors that only add to scores, or forbid tokens, are run on zeros: what comes out is the bias.
Warpers become arguments. What remains, because it depends on the logits' values or stands in
another order than ours, has no translation and is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.generation import logits_process as known

__all__ = ["Plan", "translate"]

_SAME_FOR_ALL_ROWS = (
    known.MinLengthLogitsProcessor,
    known.MinNewTokensLengthLogitsProcessor,
    known.SuppressTokensLogitsProcessor,
    known.SuppressTokensAtBeginLogitsProcessor,
    known.ForcedBOSTokenLogitsProcessor,
    known.ForcedEOSTokenLogitsProcessor,
)
_ROW_BY_ROW = (
    known.SequenceBiasLogitsProcessor,
    known.NoBadWordsLogitsProcessor,
    known.NoRepeatNGramLogitsProcessor,
    known.PrefixConstrainedLogitsProcessor,
)
_ADDITIVE, _TEMPERATURE, _TOP_K_OR_MIN_P, _TOP_P = range(4)


class Plan(NamedTuple):
    """What a list of processors means.

    Attributes:
        additive: processors that add to the scores or forbid tokens, in their order.
        temperature: above 0.
        top_k: an argument of `fsresearch.sample`; so are the others.
        top_p: see top_k.
        min_p: see top_k.
    """

    additive: tuple[Any, ...] = ()
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def rule(self) -> dict[str, Any]:
        """Return temperature and filters as keyword arguments."""
        return {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "min_p")}

    @property
    def by_row(self) -> bool:
        """Whether what is added differs by row."""
        return any(type(processor) in _ROW_BY_ROW for processor in self.additive)

    def bias(self, input_ids: Tensor, vocab: int, device: torch.device) -> Tensor | None:
        """Return what is added to the logits after the tokens [R, t]: float32 [V] or [R, V]."""
        if not self.additive:
            return None
        ids = input_ids if self.by_row else input_ids[:1]
        scores = torch.zeros(len(ids), vocab, device=device)
        for processor in self.additive:
            scores = processor(ids, scores)
        return scores if self.by_row else scores[0]


def translate(processors: Iterable[Any]) -> Plan:
    """Return the plan of a list of processors.

    Raises:
        ValueError: Naming a processor that has no translation, and why.

    >>> translate([known.TemperatureLogitsWarper(0.5), known.TopKLogitsWarper(50)]).rule()
    {'temperature': 0.5, 'top_k': 50, 'top_p': None, 'min_p': None}
    >>> translate([known.RepetitionPenaltyLogitsProcessor(1.2)])
    Traceback (most recent call last):
    ValueError: RepetitionPenaltyLogitsProcessor needs the logits' values; materialize=True runs all
    processors as transformers does, on logits [rows, V]
    """
    plan, stage = Plan(), _ADDITIVE
    for processor in processors:
        kind = type(processor)
        if kind is known.LogitNormalization:
            continue
        if kind in _SAME_FOR_ALL_ROWS or kind in _ROW_BY_ROW:
            own = _ADDITIVE
            plan = plan._replace(additive=(*plan.additive, processor))
        elif kind is known.TemperatureLogitsWarper:
            own = _TEMPERATURE
            plan = plan._replace(temperature=plan.temperature * processor.temperature)
        elif kind is known.TopKLogitsWarper:
            own = _TOP_K_OR_MIN_P
            plan = plan._replace(top_k=min(processor.top_k, plan.top_k or processor.top_k))
        elif kind is known.MinPLogitsWarper:
            own = _TOP_K_OR_MIN_P
            plan = plan._replace(min_p=max(processor.min_p, plan.min_p or 0.0))
        elif kind is known.TopPLogitsWarper and plan.top_p is None:
            own = _TOP_P
            plan = plan._replace(top_p=processor.top_p)
        else:
            _refuse(kind, "needs the logits' values")
        if own < stage:
            _refuse(
                kind,
                "comes later than fsresearch applies it (bias, temperature, min-p and "
                "top-k, top-p)",
            )
        stage = own
        if getattr(processor, "filter_value", -torch.inf) != -torch.inf:
            _refuse(kind, f"leaves tokens a logit of {processor.filter_value}")
    return plan


def _refuse(kind: type, why: str) -> None:
    raise ValueError(
        f"{kind.__name__} {why}; materialize=True runs all processors as transformers does, on "
        "logits [rows, V]"
    )
