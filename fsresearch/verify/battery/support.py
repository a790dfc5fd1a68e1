"""Support: only what has mass is drawn, and everything that has."""

from __future__ import annotations

import numpy as np

from fsresearch.verify.sizes import certain_size
from fsresearch.verify.trial import FALSE_FAIL, Check, Trial, Verdict

__all__ = ["CHECKS"]

_ESCAPES = 1e-4
_RARE = {0: 1.1e-3, 100: 1.0e-3, 256: 0.9e-3}
_ODD_SIZES = (1, 2, 3, 7, 63, 64, 65, 127, 128, 129, 255, 257, 1000)


def _masked(trial: Trial) -> Verdict:
    """Draw from 50 ids of which 40, the first and the last among them, are masked."""
    logits = np.full(50, -np.inf)
    logits[3:43:4] = np.linspace(-2.0, 2.0, 10)
    draws = trial.size(certain_size(_ESCAPES, trial.budget.false_pass))
    tokens = trial.tokens(trial.row(logits), draws)
    wrong = ~np.isin(tokens, np.flatnonzero(np.isfinite(logits)))
    seen = f", such as {tokens[wrong][0]}" if wrong.any() else ""
    return Verdict(not wrong.any(), f"{wrong.sum()} of {draws} draws are masked ids{seen}")


def _rare(trial: Trial) -> Verdict:
    """Wait for three tokens of about 1e-3, the first id, the last, and one between."""
    law = np.full(257, (1 - sum(_RARE.values())) / (257 - len(_RARE)))
    for token, chance in _RARE.items():
        law[token] = chance
    draws = certain_size(min(_RARE.values()), FALSE_FAIL / len(_RARE))
    tokens = trial.tokens(trial.row(np.log(law)), draws)
    hits = {token: int((tokens == token).sum()) for token in _RARE}
    expected = {token: chance * draws for token, chance in _RARE.items()}
    return Verdict(
        min(hits.values()) > 0,
        f"in {draws} draws "
        + ", ".join(f"token {t} came {n} times of {expected[t]:.0f}" for t, n in hits.items()),
    )


def _odd_sizes(trial: Trial) -> Verdict:
    """Draw from vocabularies that are no multiples of a tile, all logits at -50."""
    draws = trial.size(certain_size(0.05, trial.budget.false_pass))
    for vocab in _ODD_SIZES:
        tokens = trial.tokens(trial.row(np.full(vocab, -50.0)), draws)
        wrong = (tokens < 0) | (tokens >= vocab)
        if wrong.any():
            return Verdict(
                False,
                f"with {vocab} logits of -50, {wrong.sum()} of {draws} tokens are out of range, "
                f"such as {tokens[wrong][0]}",
            )
    return Verdict(True, f"{draws} draws in range at each of {len(_ODD_SIZES)} sizes")


def _padding(trial: Trial) -> Verdict:
    """Draw from 250 equal tokens of -8 beside ten padded columns of 0."""
    logits = np.concatenate([np.full(250, -8.0), np.zeros(10)])
    draws = trial.size(certain_size(_ESCAPES, trial.budget.false_pass))
    tokens = trial.tokens(trial.row(logits), draws, vocab_size=250)
    wrong = (tokens < 0) | (tokens >= 250)
    if wrong.any():
        return Verdict(
            False, f"{wrong.sum()} of {draws} draws are padding, such as {tokens[wrong][0]}"
        )
    return Verdict(True, f"{draws} draws in range")


CHECKS = (
    Check(
        "support/masked ids",
        "Ids with a logit of -inf are never drawn.",
        "Count of draws outside the ten ids with mass.",
        "one draw in 10,000 that escapes",
        "a search in cumulative sums that lands on a step of width zero, or a finite mask value",
        _masked,
        false_fail=0.0,
    ),
    Check(
        "support/rare tokens",
        "The first id, the last, and one between are drawn although each has about 0.001.",
        "Whether each came at all.",
        "a token that never comes",
        "the smallest token dropped, or a range that ends one short",
        _rare,
    ),
    Check(
        "support/odd sizes",
        "Every token is an id of the vocabulary, whatever its size.",
        "Count of tokens out of range with all logits at -50.",
        "one draw in 20 out of range, at any of the sizes",
        "padding lanes of a tile that are 0 instead of -inf",
        _odd_sizes,
        false_fail=0.0,
    ),
    Check(
        "support/padded ids",
        "Ids at or above vocab_size are never drawn.",
        "Count of padded ids.",
        "one draw in 10,000 that is padding",
        "columns of the head beyond the tokenizer that take part",
        _padding,
        frozenset({"vocab-size"}),
        false_fail=0.0,
    ),
)
