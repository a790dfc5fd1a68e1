"""What a call of `generate` asks for that cannot be honoured, refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import FrameType
from typing import Any

from transformers import GenerationMixin
from transformers.generation import logits_process as known
from transformers.generation import stopping_criteria as criteria

from fsresearch.without_replacement.refusals import refuse

__all__ = ["check_beams", "check_config", "of_generate"]

_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__
_OTHER_METHODS = (
    *("penalty_alpha", "dola_layers", "constraints", "force_words_ids", "use_mtp"),
    *("prompt_lookup_num_tokens", "assistant_early_exit", "prefill_chunk_size"),
)
_NEUTRAL = {"temperature": (1.0,), "top_k": (0, 50), "top_p": (1.0,), "min_p": (0.0,)}
_WITH_STATE = (
    known.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    known.SynthIDTextWatermarkLogitsProcessor,
)


def check_config(config: Any, name: str) -> None:
    """Raise for options that would silently do nothing.

    Args:
        config: the generation configuration.
        name: of the function that was given as ``custom_generate``.

    Raises:
        ValueError: Naming the option.

    >>> from transformers import GenerationConfig
    >>> check_config(GenerationConfig(dola_layers="low"), "sample")
    Traceback (most recent call last):
    ValueError: dola_layers is not supported by custom_generate=sample, got 'low'
    """
    asked = {option: getattr(config, option, None) for option in _OTHER_METHODS}
    asked["assistant_model"] = of_generate("assistant_model")
    for option, value in asked.items():
        if value is not None and value is not False:
            shown = value if isinstance(value, (str, int, float, list)) else type(value).__name__
            raise ValueError(f"{option} is not supported by custom_generate={name}, got {shown!r}")
    for option, values in _NEUTRAL.items():
        value = getattr(config, option, None)
        if not config.do_sample and value is not None and value not in values:
            raise ValueError(f"{option}={value} acts only with do_sample=True, got do_sample=False")


def check_beams(config: Any, processors: Iterable[Any], stopping_criteria: Iterable[Any]) -> None:
    """Raise for options that would break the law of beams, or that beams do not have.

    Args:
        config: the generation configuration.
        processors: the logits processors that `generate` made.
        stopping_criteria: likewise.

    Raises:
        ValueError: Naming the option.
    """
    if config.length_penalty not in (None, 1.0):
        refuse("length_penalty", config.length_penalty)
    if config.early_stopping != "never":
        refuse("early_stopping", config.early_stopping)
    for option, neutral in (("num_beam_groups", 1), ("diversity_penalty", 0.0)):
        value = getattr(config, option, None)
        refuse(option, neutral if value is None else value)
    if not 1 <= config.num_return_sequences <= config.num_beams:
        raise ValueError(
            f"num_return_sequences must be in [1, num_beams], got {config.num_return_sequences} "
            f"with num_beams={config.num_beams}"
        )
    if config.output_logits or config.output_attentions or config.output_hidden_states:
        raise ValueError("output_logits, output_attentions and output_hidden_states are not kept")
    for processor in processors:
        if isinstance(processor, _WITH_STATE):
            raise ValueError(
                f"{type(processor).__name__} keeps a state by row, which does not follow beams"
            )
    for criterion in stopping_criteria:
        if isinstance(criterion, (criteria.MaxTimeCriteria, criteria.ConfidenceCriteria)):
            raise ValueError(
                f"{type(criterion).__name__} does not depend on the sequence alone, so that beams "
                "that it stops would be no sample of sequences"
            )
    if of_generate("streamer") is not None:
        raise ValueError("streamer cannot be used with beams, got one")


def of_generate(argument: str) -> Any:
    """Find an argument of the running `generate`, which hands some to no callable (5.24).

    >>> of_generate("streamer") is None
    True
    """
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if frame.f_code is _GENERATE:
            return frame.f_locals.get(argument)
        frame = frame.f_back
    return None
