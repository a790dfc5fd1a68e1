"""The battery: every check, cheap ones first, so that a budget decides as many as it can."""

from __future__ import annotations

from typing import Final

from fsresearch.verify.battery import (
    degenerate,
    fit,
    independence,
    invariance,
    precision,
    support,
    tail,
    without_replacement,
)
from fsresearch.verify.trial import Check

__all__ = ["BATTERY"]

_THEMES = (
    fit,
    support,
    independence,
    invariance,
    degenerate,
    without_replacement,
    precision,
    tail,
)

BATTERY: Final[tuple[Check, ...]] = tuple(
    sorted((check for theme in _THEMES for check in theme.CHECKS), key=lambda check: check.weight)
)
