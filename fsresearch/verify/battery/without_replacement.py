"""Without replacement: the order's law, no token twice, and the threshold's law."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from fsresearch.theory.plackett_luce import ordered_law, threshold_cdf
from fsresearch.verify.sizes import chi_square_size, kolmogorov_size
from fsresearch.verify.statistics import goodness_of_fit
from fsresearch.verify.trial import FALSE_FAIL, Check, Trial, Verdict

__all__ = ["CHECKS"]

_LAW = np.array([0.5, 0.15, 0.05, 0.3])
_K, _K_OF_THRESHOLD = 2, 1
_SUP_DISTANCE = 0.05


def _order(trial: Trial) -> Verdict:
    """Draw ordered pairs of four tokens."""
    logits = np.log(_LAW).astype(np.float32)
    law = ordered_law(logits, _K)
    distance = trial.budget.distance / 2
    size = chi_square_size(len(law) - 1, 4 * distance**2, FALSE_FAIL, trial.budget.false_pass)
    draws = trial.size(size)
    tokens = trial.tokens(trial.row(logits), draws, k=_K).reshape(-1, _K)
    codes = tokens @ np.array([len(_LAW), 1])
    places = [first * len(_LAW) + second for first, second in law]
    counts = np.array([int((codes == place).sum()) for place in places])
    if counts.sum() < draws:
        return Verdict(False, f"{draws - counts.sum()} of {draws} pairs repeat a token or are none")
    outcome = goodness_of_fit(counts, np.array(list(law.values())))
    worst = int(np.abs(counts / draws - np.array(list(law.values()))).argmax())
    pair = list(law)[worst]
    return Verdict(
        outcome.p_value >= FALSE_FAIL,
        f"chi-square {outcome.statistic:.0f} on {outcome.dof} degrees of freedom; the pair {pair} "
        f"came {counts[worst] / draws:.4f}, exact {law[pair]:.4f}",
        {"chi-square": outcome.p_value},
    )


def _duplicates(trial: Trial) -> Verdict:
    """Draw many of many, all of some, and more than have mass."""
    wrong = []
    for vocab, k in ((3000, 200), (257, 257), (65, 64)):
        token = trial.call(torch.zeros(8, vocab, device=trial.device), k=k).token
        for row in token.cpu().numpy():
            if len(np.unique(row)) != k or row.min() < 0 or row.max() >= vocab:
                wrong.append(f"{k} of {vocab} gave {len(np.unique(row))} different tokens")
                break
    return Verdict(not wrong, "; ".join(wrong) or "all tokens differ")


def _short(trial: Trial) -> Verdict:
    """Ask for four tokens where three have mass: an error, or -1 in the end."""
    logits = np.full(300, -np.inf)
    logits[[7, 130, 299]] = 0.0
    try:
        token = trial.call(trial.row(logits), k=4).token[0].tolist()
    except (RuntimeError, ValueError):
        return Verdict(True, "four of three tokens are refused")
    fine = sorted(token[:3]) == [7, 130, 299] and token[3] == -1
    return Verdict(fine, f"four of the three tokens 7, 130, 299 gave {token}")


def _threshold(trial: Trial) -> Verdict:
    """Compare kappa with its law."""
    logits = np.log(_LAW).astype(np.float32)
    size = kolmogorov_size(_SUP_DISTANCE, FALSE_FAIL, trial.budget.false_pass)
    kappas = []
    for drawn in trial.chunks(trial.row(logits), trial.size(size), k=_K_OF_THRESHOLD):
        if drawn.kappa is None:
            return Verdict(False, "the sampler returned no threshold")
        kappas.append(drawn.kappa.double().cpu().numpy())
    kappa = np.concatenate(kappas)
    if not np.isfinite(kappa).all():
        return Verdict(False, f"{(~np.isfinite(kappa)).sum()} of {len(kappa)} are not finite")
    grid = np.linspace(kappa.min(), kappa.max(), 2000)
    cdf = np.array([threshold_cdf(logits, _K_OF_THRESHOLD, x) for x in grid])
    far = stats.kstest(kappa, lambda x: np.interp(x, grid, cdf))
    return Verdict(
        far.pvalue >= FALSE_FAIL,
        f"sup-distance {far.statistic:.2g} from the law of the second largest key, "
        f"{len(kappa)} draws",
        {"Kolmogorov": float(far.pvalue)},
    )


_NEEDS = frozenset({"without-replacement"})

CHECKS = (
    Check(
        "order/Plackett-Luce",
        "Ordered pairs without replacement have the Plackett-Luce law.",
        "Chi-square of the twelve ordered pairs of four tokens.",
        "half a total variation of {budget.distance}",
        "fresh noise on every level of a tree, or a second draw that is not renormalised",
        _order,
        _NEEDS,
    ),
    Check(
        "order/duplicates",
        "No token comes twice.",
        "Count of different tokens.",
        "a repeated token in any of 24 rows",
        "lists merged without their ids, or draws with replacement",
        _duplicates,
        _NEEDS,
        false_fail=0.0,
    ),
    Check(
        "order/fewer than k",
        "Where fewer than k tokens have mass, the rest is -1 or the call is refused.",
        "Comparison with the one right answer.",
        "any other id",
        "ids of -inf that fill the list",
        _short,
        _NEEDS,
        false_fail=0.0,
    ),
    Check(
        "order/threshold",
        "kappa has the law of the (k+1)-th largest of independent Gumbels around the logits.",
        "Kolmogorov's test.",
        f"a sup-distance of {_SUP_DISTANCE} between the distribution functions",
        "a race that is conditioned on its root, so that estimators with kappa are biased",
        _threshold,
        _NEEDS | {"threshold"},
    ),
)
