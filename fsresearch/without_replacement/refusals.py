"""Options of beam search that have no place in an exact one, and why.

A stochastic beam is a sample without replacement because its keys follow the model's own tree. What
rescales a key, stops early or drops children on other grounds gives a law that nobody can name.
"""

from __future__ import annotations

from numbers import Real
from typing import Final, NamedTuple

__all__ = ["REFUSED", "Refusal", "refuse"]


class Refusal(NamedTuple):
    """An option, the values that leave the law alone, and what the others do to it."""

    neutral: tuple[object, ...]
    reason: str


_UNNORMALISED: Final = (
    "it changes or bans continuations without renormalising; let the step return the logits that "
    "should be sampled, and they are renormalised"
)
_WIDTH: Final = (
    "one parent may own all of the largest keys, and keeping fewer of its children loses them"
)
_EARLY: Final = (
    "an unfinished beam with a larger key outranks a finished one and must be expanded; the search "
    "ends when every beam has"
)

REFUSED: Final[dict[str, Refusal]] = {
    "length_penalty": Refusal(
        (0, None), "keys divided by a length are no longer perturbed log-probabilities"
    ),
    "early_stopping": Refusal((False, None), _EARLY),
    "stop_early": Refusal((False, None), _EARLY),
    "per_node_beam_size": Refusal((None,), _WIDTH),
    "num_beam_groups": Refusal((1, None), "beams in groups do not compete for the same places"),
    "diversity_penalty": Refusal(
        (0, None), "a penalty between beams makes a key depend on the other beams"
    ),
    "no_repeat_ngram_size": Refusal((0, None), _UNNORMALISED),
    "repetition_penalty": Refusal((1, None), _UNNORMALISED),
    "bad_words_ids": Refusal((None,), _UNNORMALISED),
    "unk_penalty": Refusal((0, None), _UNNORMALISED),
}


def refuse(option: str, value: object) -> None:
    """Raise unless the value of an option leaves the law of a stochastic beam alone.

    Raises:
        ValueError: Naming the option, its value and what it would break.
        TypeError: If it is no option that is refused, as for any unexpected keyword.

    >>> refuse("length_penalty", 0.0)
    >>> refuse("early_stopping", True)
    Traceback (most recent call last):
    ValueError: early_stopping=True would break the law of the sample: an unfinished beam with a
    larger key outranks a finished one and must be expanded; the search ends when every beam has
    """
    if option not in REFUSED:
        raise TypeError(f"got an unexpected keyword argument {option!r}")
    neutral, reason = REFUSED[option]
    if not any(_same(value, known) for known in neutral):
        raise ValueError(f"{option}={value!r} would break the law of the sample: {reason}")


def _same(value: object, neutral: object) -> bool:
    """Return whether a value is the neutral one, of whatever type a number is; False is not 0."""
    if isinstance(neutral, bool) or neutral is None:
        return value is neutral
    return isinstance(value, Real) and not isinstance(value, bool) and value == neutral
