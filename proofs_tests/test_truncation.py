"""Truncation: kept sets against a float64 sort, and what a filter leaves alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsresearch import METHODS, sample, sample_logits, truncation
from fsresearch.sources import LMHead, Logits
from fsresearch.theory.categorical import probabilities
from fsresearch.transforms import Transform
from fsresearch.truncation import Filters, MaterializedLogitsWarning, kept, truncate
from fsresearch.verify.battery.fit import rows_of_logits
from fsresearch.verify.statistics import goodness_of_fit
from fsresearch.without_replacement.arithmetic_sampling import arithmetic_sampling
from fsresearch.without_replacement.stochastic_beam_search import stochastic_beam_search
from proofs_tests.logit_rows import ROW_KINDS, stack
from proofs_tests.statistics_policy import FIXED_P, false_fail

NAMES = tuple(METHODS)
VOCAB = 200
REAL = rows_of_logits()["real model"].astype(np.float32)

Floats = NDArray[np.float64]
Rows = Callable[[np.random.Generator, int], Tensor]


def sorted_set(row: Floats, k: int, p: float, least: float) -> NDArray[np.bool_]:
    """Return what float64 sorting keeps of a row: min-p and top-k, then top-p of what is left."""
    order = np.argsort(-row, kind="stable")
    weights = np.exp(row[order] - row.max())
    able = (weights > 0) & (weights >= least) & (np.arange(len(row)) < k)
    order, weights = order[able], weights[able]
    mass = np.cumsum(weights)
    enough = len(order) if p == 1 else int(np.searchsorted(mass, p * mass[-1])) + 1
    keep = np.zeros(len(row), dtype=bool)
    keep[order[:enough]] = True
    return keep


def _flat(rng: np.random.Generator, rows: int) -> Tensor:
    return torch.full((rows, VOCAB), float(rng.normal()))


def _peaked(rng: np.random.Generator, rows: int) -> Tensor:
    logits = torch.from_numpy(rng.normal(size=(rows, VOCAB)).astype(np.float32))
    heads = torch.from_numpy(rng.integers(0, VOCAB, (rows, 1)))
    return logits.scatter_add(1, heads, torch.full((rows, 1), float(rng.uniform(3, 12))))


def _tied(rng: np.random.Generator, rows: int) -> Tensor:
    return torch.from_numpy(rng.integers(-3, 3, (rows, VOCAB)).astype(np.float32)) / 2


def _real(rng: np.random.Generator, rows: int) -> Tensor:
    """Pieces of a language model's row, each with its largest logits among them."""
    best = np.argsort(-REAL)[:20]
    ids = np.stack([np.r_[best, rng.integers(0, len(REAL), VOCAB - 20)] for _ in range(rows)])
    return torch.from_numpy(REAL[rng.permuted(ids, axis=1)]) / float(rng.uniform(0.5, 2))


KINDS: dict[str, Rows] = {"flat": _flat, "peaked": _peaked, "tied": _tied, "real": _real}


@pytest.mark.parametrize("kind", KINDS)
def test_kept_sets_are_those_of_a_float64_sort(kind: str) -> None:
    """Of 2500 rows a kind, with filters of their own, alone and together."""
    rng = np.random.default_rng(7)
    for _ in range(25):
        logits = KINDS[kind](rng, 100)
        k = np.where(rng.random(100) < 0.5, VOCAB, rng.integers(1, VOCAB + 1, 100))
        p = np.where(rng.random(100) < 0.4, 1.0, rng.random(100))
        least = np.where(rng.random(100) < 0.5, 0.0, rng.random(100) ** 3)
        got = kept(logits, *(torch.from_numpy(values) for values in (k, p, least))).numpy()
        rows = logits.double().numpy()
        for row, found, *values in zip(rows, got, k, p, least, strict=True):
            assert np.array_equal(found, sorted_set(row, *values)), values


@pytest.mark.parametrize(
    ("k", "p", "least"),
    [(50, 1.0, 0.0), (1, 1.0, 0.0), (10**9, 0.9, 0.0), (50, 0.95, 0.01), (3000, 0.999999, 1e-6)],
)
def test_a_language_models_row_as_numbers(k: int, p: float, least: float) -> None:
    """Numbers take a shorter way than tensors, to the same set."""
    for temperature in (0.7, 1.0, 2.0):
        logits = torch.from_numpy(REAL)[None] / temperature
        expected = torch.from_numpy(sorted_set(logits[0].double().numpy(), k, p, least))
        assert kept(logits, k, p, least)[0].equal(expected)
        columns = torch.tensor([k]), torch.tensor([p], dtype=torch.float64), torch.tensor([least])
        assert kept(logits, *columns)[0].equal(expected)


def test_every_kind_of_row_keeps_a_token_with_mass_or_stays_invalid() -> None:
    logits = stack(tuple(ROW_KINDS), VOCAB, np.random.default_rng(3))
    invalid = ~logits.amax(1).isfinite()
    for filters in (Filters(1), Filters(7, 0.3), Filters(top_p=0.0), Filters(min_p=1.0)):
        keep = kept(logits, *filters)
        assert keep[invalid].all()
        with_mass = keep & (logits > -torch.inf)
        assert (with_mass.sum(1)[~invalid] >= 1).all()
        assert not (keep & (logits == -torch.inf))[~invalid].any()


@pytest.mark.parametrize("logit", [-1.2039728, -0.6931472, -7.0])
def test_min_p_is_compared_beyond_the_digits_of_float32(logit: float) -> None:
    row = torch.tensor([[0.0, logit]])
    share = float(row[0, 1].double().exp())
    for factor, count in ((1 - 1e-10, 2), (1 + 1e-10, 1)):
        for least in (share * factor, torch.tensor(share * factor, dtype=torch.float64)):
            assert kept(row, min_p=least).sum() == count
            assert kept(row, top_k=2, min_p=least).sum() == count


def test_zeros_of_both_signs_are_ties() -> None:
    zeros = torch.tensor([[0.0, -0.0, 0.0, -0.0]])
    assert kept(-zeros, top_k=2).tolist() == [[True, True, False, False]]
    assert kept(zeros, top_p=0.75).tolist() == [[True, True, True, False]]


EVERYTHING: list[dict[str, Any]] = [
    {"top_k": VOCAB, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 10**9},
    {"top_k": torch.tensor([VOCAB, VOCAB + 1, 10**9])},
    {"top_p": torch.ones(3), "min_p": torch.tensor(0.0)},
]


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("everything", EVERYTHING)
def test_a_filter_that_keeps_everything_changes_nothing(
    everything: dict[str, Any], method: str
) -> None:
    given = head_and_options()
    options = {**given.pop("options"), "method": method, "log_prob": True, "num_samples": 5}
    expected = sample(**given, **options)
    assert same(sample(**given, **options, **everything), expected, slice(None))
    logits = given["hidden"] @ given["weight"].T
    expected = sample_logits(logits, **options)
    assert same(sample_logits(logits, **options, **everything), expected, slice(None))


ON_ROW_ONE: list[dict[str, Any]] = [
    {"top_k": torch.tensor([VOCAB, 3, VOCAB])},
    {"top_p": torch.tensor([1.0, 0.2, 1.0])},
    {"min_p": torch.tensor([0.0, 0.5, 0.0]), "top_k": torch.tensor([VOCAB, 9, VOCAB]).int()},
    {"top_p": torch.tensor([1.0, torch.nan, 1.0])},
    {"top_k": torch.tensor([VOCAB, -1, VOCAB])},
]


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("filters", ON_ROW_ONE)
def test_the_filters_of_a_batch_mate_change_nothing(filters: dict[str, Any], method: str) -> None:
    given = head_and_options()
    options = {**given.pop("options"), "method": method, "log_prob": True, "num_samples": 5}
    plain, truncated = sample(**given, **options), sample(**given, **options, **filters)
    assert same(truncated, plain, [0, 2])
    assert truncated.log_prob is not None
    assert plain.log_prob is not None
    assert not truncated.log_prob[1].equal(plain.log_prob[1])


@pytest.mark.parametrize("method", NAMES)
def test_draws_stay_inside_and_log_probabilities_are_those_of_the_rest(method: str) -> None:
    given = head_and_options()
    filters: dict[str, Any] = {"top_k": 20, "top_p": 0.8, "min_p": 0.02}
    options = given.pop("options")
    drawn = sample(
        **given, **options, **filters, method=method, num_samples=400, log_prob=True, check=True
    )
    source = LMHead(given["hidden"], given["weight"])
    logits = source.tile(0, VOCAB).logits * 2 + options["bias"]
    logits = logits.masked_fill(~options["mask"], -torch.inf) / 0.7
    keep = kept(logits, **filters)
    law = logits.masked_fill(~keep, -torch.inf).log_softmax(1)
    assert keep.gather(1, drawn.token).all()
    assert drawn.log_prob is not None
    torch.testing.assert_close(drawn.log_prob, law.gather(1, drawn.token), rtol=0, atol=2e-6)
    assert drawn.log_normalizer is not None
    expected = logits.masked_fill(~keep, -torch.inf).logsumexp(1)
    torch.testing.assert_close(drawn.log_normalizer, expected, rtol=0, atol=2e-6)


@false_fail(4 * FIXED_P, seeds_vary=False)
@pytest.mark.parametrize("method", NAMES)
def test_the_law_is_softmax_over_what_is_kept(method: str) -> None:
    """Null hypothesis: so it is. A correct sampler fails with probability 1e-4 a kind of row."""
    for seed, kind in enumerate(KINDS):
        logits = KINDS[kind](np.random.default_rng(seed), 1)
        filters: dict[str, Any] = {"top_k": 60, "top_p": 0.9, "min_p": 0.01}
        row = logits[0].double().numpy()
        law = probabilities(np.where(sorted_set(row, 60, 0.9, 0.01), row, -np.inf))
        token = sample_logits(
            logits, seed=11 + seed, method=method, num_samples=20_000, **filters
        ).token
        counts = token[0].bincount(minlength=VOCAB).numpy()
        assert not counts[law == 0].any()
        if (law > 0).sum() > 1:
            assert goodness_of_fit(counts, law).p_value > FIXED_P


@pytest.mark.parametrize("greedy", [0.0, torch.tensor([0.0, 0.7, 0.0])])
def test_greedy_rows_take_no_notice(greedy: float | Tensor) -> None:
    given = head_and_options()
    options = {**given.pop("options"), "temperature": greedy, "log_prob": True}
    plain = sample(**given, **options)
    truncated = sample(**given, **options, top_k=2, top_p=0.1)
    assert same(truncated, plain, [0, 2])


def test_blocks_of_rows_are_those_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = _peaked(np.random.default_rng(1), 7)
    transform = Transform(
        bias=torch.randn(7, VOCAB, generator=torch.Generator().manual_seed(1)),
        mask=torch.arange(VOCAB) % 5 > 0,
        inverse_temperature=torch.linspace(0.5, 2, 7)[:, None],
    )
    filters = Filters(torch.arange(1, 8), torch.tensor(0.9), torch.linspace(0, 0.5, 7))
    hidden, weight = torch.eye(7), logits.T.contiguous()
    for source in (
        Logits(logits, transform, vocab_size=VOCAB - 3),
        LMHead(hidden, weight, transform, vocab_size=VOCAB - 3),
    ):
        whole = truncate(source, filters, False).transform.mask
        with monkeypatch.context() as patch:
            patch.setattr(truncation, "_BLOCK_ELEMENTS", 3 * VOCAB)
            parts = truncate(source, filters, False).transform.mask
        assert whole is not None
        assert parts is not None
        assert parts.equal(whole)
        assert whole.sum(1).tolist()[:2] == [1, 2]


def test_packed_masks_and_padding_stay_outside() -> None:
    packed = torch.tensor([0b1010101010, 0b0001111110], dtype=torch.int32)[:, None]
    drawn = sample_logits(
        torch.zeros(2, 12), mask=packed, vocab_size=10, top_k=3, seed=1, num_samples=100
    ).token
    assert set(drawn[0].tolist()) == {1, 3, 5}
    assert set(drawn[1].tolist()) == {1, 2, 3}


def test_it_says_once_that_an_lm_head_is_materialised() -> None:
    given = head_and_options()
    del given["options"]
    truncation.warn_materialized.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sample_logits(torch.zeros(1, 5), top_k=2)
        sample(**given, top_k=VOCAB)
        sample(**given, top_k=3, temperature=0.0)
        assert not said
        for _ in range(2):
            sample(**given, top_k=3)
    assert [entry.category for entry in said] == [MaterializedLogitsWarning]
    assert said[0].filename == __file__


@pytest.mark.parametrize("decode", [stochastic_beam_search, arithmetic_sampling])
def test_it_says_once_that_a_decoder_materialises_an_lm_head(decode: Any) -> None:
    """Whether a step gives logits that it holds anyway, or a head whose logits nobody held."""
    hidden, weight = torch.eye(4), torch.ones(9, 4)

    def given(prefixes: Tensor, parents: Tensor, state: Any) -> Any:
        return torch.zeros(len(prefixes), 9), state

    def head(prefixes: Tensor, parents: Tensor, state: Any) -> Any:
        return LMHead(hidden[:1].expand(len(prefixes), 4), weight), state

    truncation.warn_materialized.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        decode(given, None, 2, 3, None, top_k=2)
        decode(head, None, 2, 3, None, top_p=1.0, min_p=0.0)
        assert not said
        for _ in range(2):
            decode(head, None, 2, 3, None, top_k=2)
    assert [entry.category for entry in said] == [MaterializedLogitsWarning]
    assert said[0].filename == __file__


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (([[1.0]],), TypeError, r"^transformed_logits must be a tensor of float32 or float64, got"),
        ((torch.zeros(1, 3).long(),), TypeError, r"^transformed_logits must be float32 or float64"),
        ((torch.zeros(3),), ValueError, r"^transformed_logits must be \[B, V\], got shape \[3\]$"),
        ((torch.zeros(1, 3), 0), ValueError, r"^top_k must be at least 1, got 0$"),
        ((torch.zeros(1, 3), None, 1.5), ValueError, r"^top_p must be in \[0, 1\], got 1.5$"),
        (
            (torch.zeros(1, 3), None, None, torch.ones(2)),
            ValueError,
            r"^min_p must be 0-d or \[1\]",
        ),
    ],
)
def test_kept_checks_what_it_is_given(given: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        kept(*given)


@pytest.mark.parametrize(
    ("argument", "value", "error", "says"),
    [
        ("top_k", 0, ValueError, r"at least 1, got 0$"),
        ("top_k", -1, ValueError, r"at least 1, got -1$"),
        ("top_k", 1.5, TypeError, r"got 1.5 of type float$"),
        ("top_k", True, TypeError, r"got True of type bool$"),
        ("top_k", "3", TypeError, r"got '3' of type str$"),
        ("top_k", torch.ones(3), TypeError, r"int64 or int32, got a tensor of torch.float32$"),
        ("top_k", torch.ones(2).long(), ValueError, r"0-d or \[3\], got shape \[2\]$"),
        ("top_k", torch.ones(3, device="meta").int(), ValueError, r"on cpu .* got meta$"),
        *(
            (name, *rest)
            for name in ("top_p", "min_p")
            for rest in (
                (-0.1, ValueError, r"in \[0, 1\], got -0.1$"),
                (1.0000001, ValueError, r"in \[0, 1\], got 1.0000001$"),
                (torch.nan, ValueError, r"got nan$"),
                ("0.9", TypeError, r"'0.9'"),
                (True, TypeError, r"True"),
                (torch.ones(3).long(), TypeError, r"float32 or .* got a tensor of torch.int64$"),
                (torch.ones(3, 1), ValueError, r"0-d or \[3\], got shape \[3, 1\]$"),
            )
        ),
    ],
)
def test_errors_name_argument_value_and_what_is_accepted(
    argument: str, value: object, error: type[Exception], says: str
) -> None:
    given: dict[str, Any] = head_and_options()
    del given["options"]
    logits = given["hidden"] @ given["weight"].T
    for temperature in (1.0, 0.0):
        options: dict[str, Any] = {argument: value, "temperature": temperature}
        with pytest.raises(error, match=rf"^{argument} must be .*{says}"):
            sample(**given, **options)
        with pytest.raises(error, match=rf"^{argument} must be .*{says}"):
            sample_logits(logits, **options)


@pytest.mark.parametrize(
    ("argument", "value", "says"),
    [
        ("top_k", torch.tensor([1, 0, 5]), "at least 1, got 0 in row 1"),
        ("top_k", torch.tensor(-3), "at least 1, got -3 in row 0"),
        ("top_p", torch.tensor([0.5, 1.0, 1.5]), r"in \[0, 1\], got 1.5 in row 2"),
        ("top_p", torch.tensor([0.5, torch.nan, 1.0]), r"in \[0, 1\], got nan in row 1"),
        ("min_p", torch.tensor([-1.0, 0.0, 1.0]).half(), r"in \[0, 1\], got -1.0 in row 0"),
    ],
)
def test_a_bad_value_in_a_tensor_spoils_its_row_or_is_found_by_check(
    argument: str, value: Tensor, says: str
) -> None:
    options: dict[str, Any] = {argument: value, "seed": 1}
    bad = (~((value >= 1) if argument == "top_k" else (value >= 0) & (value <= 1))).expand(3)
    for method in NAMES:
        drawn = sample_logits(torch.zeros(3, 9), **options, method=method, log_prob=True)
        assert drawn.valid.equal(~bad)
        assert drawn.token.lt(0).squeeze(1).equal(bad)
        assert drawn.log_prob is not None
        assert drawn.log_prob.isnan().squeeze(1).equal(bad)
    with pytest.raises(ValueError, match=rf"^{argument} must be {says}$"):
        sample_logits(torch.zeros(3, 9), **options, check=True)


def head_and_options() -> dict[str, Any]:
    """Return hidden, weight and options that leave three rows with laws of their own."""
    generator = torch.Generator().manual_seed(5)
    return {
        "hidden": torch.randint(-2, 3, (3, 8), generator=generator).float(),
        "weight": torch.randint(-2, 3, (VOCAB, 8), generator=generator).float() / 4,
        "options": {
            "seed": torch.tensor([4, 5, 6]),
            "logit_scale": 2.0,
            "bias": torch.linspace(-1, 1, VOCAB),
            "mask": torch.arange(VOCAB) % 7 > 0,
            "temperature": 0.7,
        },
    }


def same(got: Any, expected: Any, rows: Any) -> bool:
    """Whether rows of two samples agree to the bit."""
    pairs = zip(got, expected, strict=True)
    return all(a is b or torch.equal(a[rows], b[rows]) for a, b in pairs)
