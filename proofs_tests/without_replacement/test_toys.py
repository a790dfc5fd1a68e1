"""Two published toys: estimates from 100 outcomes, and of the entropy of a Markov chain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from proofs_tests.without_replacement.experiments import load, results

# estimate - exact at 5, 25, 75 and 95 %, of 2000 runs
OFFSETS = {
    (10, "Horvitz-Thompson"): (-1.75, -1.03, 0.63, 2.89),
    (10, "self-normalised"): (-0.47, -0.11, 0.21, 0.36),
    (10, "Monte Carlo"): (-0.89, -0.34, 0.37, 0.78),
    (20, "Horvitz-Thompson"): (-0.75, -0.42, 0.26, 1.06),
    (20, "self-normalised"): (-0.23, -0.06, 0.10, 0.18),
    (20, "Monte Carlo"): (-0.62, -0.22, 0.27, 0.58),
    (40, "Horvitz-Thompson"): (-0.19, -0.10, 0.09, 0.27),
    (40, "self-normalised"): (-0.08, -0.03, 0.03, 0.06),
    (40, "Monte Carlo"): (-0.44, -0.18, 0.18, 0.41),
}
EXACT = 15.947526
ESTIMATORS = "Monte Carlo", "Horvitz-Thompson", "self-normalised", "sum-and-sample"
# RMSE of 4000 runs, by temperature and k
ERRORS = {
    (1.0, 4): (0.986, 4.02, 1.123, 1.865),
    (1.0, 16): (0.492, 1.511, 0.451, 1.545),
    (1.0, 64): (0.254, 0.591, 0.170, 0.947),
    (0.5, 4): (1.060, 2.157, 0.955, 1.041),
    (0.5, 16): (0.533, 0.450, 0.242, 0.413),
    (0.5, 64): (0.266, 0.086, 0.057, 0.091),
    (0.25, 4): (0.652, 0.329, 0.218, 0.062),
    (0.25, 16): (0.320, 0.0123, 0.0117, 0.0033),
    (0.25, 64): (0.157, 0.0003, 0.0003, 0.0001),
}


def test_percentiles_of_estimates() -> None:
    """The exact mean to six decimals; percentiles within 5 %, and their offsets within 15 %."""
    toy = load("hindsight_estimators")
    p, values = toy["universe"]()
    assert float(p @ values) == pytest.approx(EXACT, abs=5e-7)
    assert float(p.max()) == pytest.approx(0.3455, abs=5e-5)
    points = torch.tensor([0.05, 0.25, 0.75, 0.95], dtype=torch.float64)
    for k in (10, 20, 40):
        found = toy["estimates"](k, 2000, 7)
        for (size, name), offsets in OFFSETS.items():
            if size == k:
                percentiles = found[name].quantile(points).numpy()
                np.testing.assert_allclose(percentiles, EXACT + np.array(offsets), rtol=0.05)
                np.testing.assert_allclose(percentiles - EXACT, offsets, rtol=0.15, atol=0.06)
        spread = {name: float(x.std()) for name, x in found.items()}
        assert spread["self-normalised"] < spread["Monte Carlo"]
        assert spread["self-normalised, hindsight"] < spread["self-normalised"]
        assert spread["Horvitz-Thompson, hindsight"] < spread["Horvitz-Thompson"]


def test_committed_percentiles() -> None:
    rows = {(int(row["k"]), row["estimator"]): row for row in results("hindsight_estimators")}
    for key, offsets in OFFSETS.items():
        found = np.array([float(rows[key][f"{q} %"]) for q in (5, 25, 75, 95)])
        np.testing.assert_allclose(EXACT + found, EXACT + np.array(offsets), rtol=0.05)
        np.testing.assert_allclose(found, offsets, rtol=0.08, atol=0.03)
    for k, low, high in ((80, 1e-3, 0.008), (100, 0.0, 0.0)):
        for name in ("Horvitz-Thompson", "self-normalised"):
            widest = max(abs(float(rows[k, name][f"{q} %"])) for q in (5, 95))
            assert low <= widest <= high, (k, name)
        assert 0.25 < float(rows[k, "Monte Carlo"]["95 %"]) < 0.31


def test_committed_errors_of_the_entropy() -> None:
    """Within 5 % and the reference's rounding; Horvitz-Thompson at k = 4 within 20 %."""
    rows = {
        (float(row["temperature"]), int(row["k"]), row["estimator"]): float(row["RMSE"])
        for row in results("entropy_markov")
    }
    for (temperature, k), errors in ERRORS.items():
        for name, error in zip(ESTIMATORS, errors, strict=True):
            rounding = 0.5 * 10.0 ** -min(4, 3 - math.floor(math.log10(error)) - 1)
            loose = k == 4 and name == "Horvitz-Thompson"
            limit = (0.2 if loose else 0.05) * error + rounding
            assert abs(rows[temperature, k, name] - error) < limit, (temperature, k, name)


@pytest.mark.parametrize("temperature, entropy", [(1.0, 5.5863), (0.5, 2.5787), (0.25, 0.4203)])
def test_errors_of_the_entropy(temperature: float, entropy: float) -> None:
    """A few runs reproduce the table within a quarter, and no unbiased estimator shows a bias."""
    toy = load("entropy_markov")
    log_prob = toy["sequence_log_prob"](temperature)
    exact = float(-(log_prob.exp() * log_prob).sum())
    assert exact == pytest.approx(entropy, abs=5e-5)
    found = toy["estimates"](log_prob, 500, 3)
    for k in (16, 64):
        for name, error in zip(ESTIMATORS, ERRORS[temperature, k], strict=True):
            error_found = float((found[name, k] - exact).square().mean().sqrt())
            assert error_found == pytest.approx(error, rel=0.25, abs=5e-5), (name, k)
    for name in ("Monte Carlo", "sum-and-sample", "unordered set"):
        values = found[name, 4]
        assert abs(float(values.mean()) - exact) < 5 * float(values.std()) / math.sqrt(500)
