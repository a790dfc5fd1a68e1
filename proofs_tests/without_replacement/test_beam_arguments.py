"""What stochastic beams refuse, and rows that are not distributions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fsresearch.without_replacement.arithmetic_sampling import arithmetic_sampling
from fsresearch.without_replacement.refusals import REFUSED, refuse
from fsresearch.without_replacement.stochastic_beam_search import stochastic_beam_search
from proofs_tests.without_replacement.searches import DEPTH, EOS, VOCAB, assert_same, search
from proofs_tests.without_replacement.trees import flat, hash_model

NAN = torch.nan


@pytest.mark.parametrize("k", [2, 4])
def test_a_row_without_a_distribution_touches_no_other(k: int) -> None:
    """NaN keys and no valid beam there; the other rows as they are; with check an error."""
    model = hash_model(VOCAB)

    def broken(prefixes: Tensor, parents: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = model(prefixes, parents, state)
        if prefixes.shape[1] == 2:
            logits = logits.unflatten(0, (3, -1)).clone()
            logits[1, 1] = NAN
            logits = logits.flatten(0, 1)
        return logits, state

    drawn = stochastic_beam_search(broken, None, k, DEPTH, EOS, rows=3, seed=9)
    fine = search(k)
    for row in (0, 2):
        assert drawn.keys[row].equal(fine.keys[row])
        assert drawn.sequences[row].equal(fine.sequences[row, :, : drawn.sequences.shape[2]])
    assert drawn.num_valid.tolist() == [k, 0, k]
    assert drawn.keys[1].isnan().all()
    assert drawn.log_probs[1].isnan().all()
    assert (drawn.sequences[1] == -1).all()
    assert (drawn.lengths[1] == 0).all()
    with pytest.raises(ValueError, match=r"^the logits of row 1, beam 1, step 2 are not a distr"):
        stochastic_beam_search(broken, None, k, DEPTH, EOS, rows=3, seed=9, check=True)


def test_a_bad_temperature_in_a_tensor_is_a_row_without_a_distribution() -> None:
    drawn = search(2, temperature=torch.tensor([1.0, 0.0, -1.0]))
    assert drawn.num_valid.tolist() == [2, 0, 0]
    assert drawn.keys[0].equal(search(2).keys[0])
    for value in (0.0, -1.0):
        with pytest.raises(ValueError, match=r"^temperature must be 0|^the logits of row 1"):
            search(2, temperature=torch.tensor([1.0, value, 1.0]), check=True)


@pytest.mark.parametrize("option", REFUSED)
def test_what_breaks_the_law_is_refused(option: str) -> None:
    """Each with its reason; neutral values pass."""
    neutral, reason = REFUSED[option]
    for value in neutral:
        refuse(option, value)
        passed: dict[str, Any] = {"max_length": 2, option: value}
        search(2, **passed)
    bad: dict[str, object] = {
        "early_stopping": True,
        "stop_early": True,
        "per_node_beam_size": 1,
        "bad_words_ids": [[1]],
    }
    refused: dict[str, Any] = {option: bad.get(option, 2)}
    with pytest.raises(ValueError, match=f"^{option}=.* would break the law") as caught:
        search(2, **refused)
    assert str(caught.value).endswith(reason)


def test_enough_children_a_parent_are_not_refused() -> None:
    assert_same(search(2, per_node_beam_size=2), search(2))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"k": 0}, ValueError, "^num_beams must be at least 1, got 0"),
        ({"k": 2.0}, TypeError, "^num_beams must be an integer"),
        ({"max_length": 0}, ValueError, "^max_length must be at least 1, got 0"),
        ({"rows": -1}, ValueError, "^rows must be at least 0, got -1"),
        (
            {"eos_id": 1.0},
            TypeError,
            "^eos_id must be an integer at least 0, got 1.0 of",
        ),
        ({"eos_id": torch.ones(2)}, TypeError, "^eos_id must be an integer at least 0, got 1.0"),
        ({"eos_id": torch.tensor([-3])}, ValueError, "^eos_id must be at least 0, got -3"),
        (
            {"position": 2**56 - DEPTH + 1},
            ValueError,
            r"^position must .* max_length=7, got 72",
        ),
        ({"position": torch.tensor([0, 2**56 - 3, 1])}, ValueError, r"^position must .* got 7205"),
        ({"position": torch.tensor(-1)}, ValueError, r"^position must be in \[0, 2\*\*56 - max"),
        ({"eos_id": VOCAB}, ValueError, rf"^eos_id must be in \[0, {VOCAB - 1}\], got {VOCAB}"),
        ({"eos_id": [1, -1]}, ValueError, "^eos_id must be at least 0, got -1"),
        ({"root": "one"}, ValueError, "^root must be one of gumbel, zero, got 'one'"),
        ({"temperature": 0.0}, ValueError, "^temperature must be above 0"),
        ({"temperature": torch.ones(2)}, ValueError, r"^temperature must be 0-d or \[3\]"),
        ({"mask": torch.ones(VOCAB + 1) == 1}, ValueError, "^mask must have shape"),
        ({"top_k": torch.tensor([1, 2])}, ValueError, r"^top_k must be 0-d or \[3\], got shape"),
        ({"top_p": 1.5}, ValueError, r"^top_p must be in \[0, 1\], got 1.5"),
        ({"min_length": -1}, ValueError, "^min_length must be at least 0, got -1"),
        ({"stop": lambda p: p[:, :1] == 0}, ValueError, r"^stop must .* got torch.bool \[9, 1\]"),
        ({"stop": lambda p: p[:, -1]}, ValueError, r"^stop must return .* got torch.int64"),
        ({"stop": lambda p: True}, TypeError, r"^stop must return a tensor of .* got True of type"),
        ({"stop": lambda p: [True] * len(p)}, TypeError, r"^stop must .* of type list$"),
        (
            {"stop": lambda p: torch.empty(len(p), dtype=torch.bool, device="meta")},
            ValueError,
            r"^stop must return a tensor of bool \[9\] on cpu, got torch.bool \[9\] on meta$",
        ),
        ({"kappa": 1}, TypeError, "^kappa must be True or False"),
        ({"seed": "x"}, TypeError, "^seed must be an integer"),
        ({"beams": 3}, TypeError, "unexpected keyword argument 'beams'"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        search(options.pop("k", 2), **options)


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        (torch.zeros(3, 5), TypeError, r"^step must return \(logits, state\), got a Tensor"),
        (
            (torch.zeros(2, 5), None),
            ValueError,
            r"^step must return logits \[3, V\] .*got \[2, 5\]",
        ),
        ((torch.zeros(3, 5).double(), None), TypeError, "^logits must be float32"),
        ((torch.zeros(3, 1, 5), None), ValueError, "^logits must have 2 dimensions"),
        ((torch.zeros(3, 5).long(), None), TypeError, "^logits must be float32"),
        ((torch.zeros(3, 5).numpy(), None), TypeError, r"^step must return logits .* a ndarray$"),
        (([[0.0] * 5] * 3, None), TypeError, r"^step must return logits as a torch .* a list$"),
        ((None, None), TypeError, r"^step must return logits as a torch tensor .* a NoneType$"),
        (
            (torch.zeros(3, 5, device="meta"), None),
            ValueError,
            r"^step must return logits on cpu, got meta",
        ),
    ],
)
def test_what_a_step_returns_is_checked(answer: object, error: type[Exception], match: str) -> None:
    def step(prefixes: Tensor, parents: Tensor, state: Any) -> Any:
        return answer

    with pytest.raises(error, match=match):
        stochastic_beam_search(step, None, 2, 3, 0, rows=3)


@pytest.mark.parametrize("decode", [stochastic_beam_search, arithmetic_sampling])
@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"top_k": 0}, ValueError, "^top_k must be at least 1, got 0"),
        ({"top_k": 2.0}, TypeError, "^top_k must be an integer"),
        ({"top_k": torch.ones(3)}, TypeError, "^top_k must be int64 or int32"),
        ({"top_p": 1.5}, ValueError, r"^top_p must be in \[0, 1\], got 1.5"),
        ({"min_p": torch.ones(2)}, ValueError, r"^min_p must be 0-d or \[3\]"),
        ({"min_p": torch.tensor(2.0), "check": True}, ValueError, r"^min_p must be in .* got 2.0"),
        ({"position": 2**56 - 1}, ValueError, r"^position must be in \[0, 2\*\*56 - max_length\]"),
        ({"position": torch.tensor(2**56 - 1)}, ValueError, r"^position must .* max_length=2, got"),
    ],
)
def test_the_model_is_not_asked_where_arguments_are_wrong(
    decode: Any, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    def step(prefixes: Tensor, parents: Tensor, state: Any) -> Any:
        raise AssertionError("the model was asked")

    with pytest.raises(error, match=match):
        decode(step, None, 2, 2, 0, rows=3, **options)


def test_the_last_positions_are_used_and_narrow_ones_do_not_wrap() -> None:
    """Positions up to 2**56 - 1; int32 ones count on beyond 2**31."""
    last = search(2, position=2**56 - DEPTH)
    assert_same(last, search(2, position=torch.full((3,), 2**56 - DEPTH)))
    narrow = torch.full((3,), 2**31 - 3, dtype=torch.int32)
    assert_same(search(2, position=narrow), search(2, position=2**31 - 3))


@pytest.mark.parametrize("decode", [stochastic_beam_search, arithmetic_sampling])
def test_what_a_model_writes_into_its_prefixes_changes_nothing(decode: Any) -> None:
    """A step that clears padding in place, and a stop that does, get copies."""
    model = hash_model(VOCAB)

    def rude(prefixes: Tensor, parents: Tensor, state: Any) -> Any:
        answer = model(prefixes, parents, state)
        prefixes.fill_(7)
        parents.zero_()
        return answer

    def stop(prefixes: Tensor) -> Tensor:
        over = prefixes[:, -1] == 11
        prefixes.zero_()
        return over

    expected = decode(model, None, 3, DEPTH, EOS, rows=3, seed=9, stop=lambda p: p[:, -1] == 11)
    drawn = decode(rude, None, 3, DEPTH, EOS, rows=3, seed=9, stop=stop)
    assert_same(drawn, expected)


@pytest.mark.parametrize("kappa", [True, False])
def test_an_empty_batch_gives_an_empty_sample(kappa: bool) -> None:
    def step(prefixes: Tensor, parents: Tensor, state: Any) -> Any:
        raise AssertionError("the model was asked")

    drawn = stochastic_beam_search(step, None, 4, 3, 0, rows=0, kappa=kappa, check=True)
    assert drawn.sequences.shape == (0, 4, 0)
    for field in (drawn.lengths, drawn.log_probs, drawn.keys, drawn.finished):
        assert field.shape == (0, 4)
    assert drawn.backpointers.shape == drawn.tokens.shape == (0, 0, 4)
    assert drawn.num_valid.shape == (0,)
    assert drawn.kappa is None if not kappa else drawn.kappa.shape == (0,)  # type: ignore[union-attr]
    assert drawn.sort_by_log_prob().keys.shape == (0, 4)
    even = arithmetic_sampling(step, None, 4, 3, 0, rows=0, check=True)
    assert even.sequences.shape == (0, 4, 0)
    assert even.log_probs.shape == even.codes.shape == (0, 4)


def test_ends_of_sequence_may_come_as_a_tensor() -> None:
    for ids in (torch.tensor(EOS), torch.tensor([EOS]), [EOS], np.int64(EOS), np.array([EOS])):
        assert_same(search(2, eos_id=ids), search(2))
    both: dict[str, Any] = {"eos_id": torch.tensor([EOS, 4], dtype=torch.int32)}
    assert_same(search(2, **both), search(2, eos_id=[EOS, 4]))


def test_a_neutral_number_may_be_of_any_type() -> None:
    for zero in (np.float64(0), np.float32(0), np.int64(0), Fraction(0), 0.0):
        refuse("length_penalty", zero)
    assert_same(search(2, per_node_beam_size=np.int64(2)), search(2))
    for value in (False, np.float64(1), np.nan, "0", torch.tensor(0.0), np.zeros(2)):
        with pytest.raises(ValueError, match=r"^length_penalty=.* would break the law"):
            refuse("length_penalty", value)
    with pytest.raises(ValueError, match=r"^early_stopping=0 would break the law"):
        refuse("early_stopping", 0)


def broken_beam(beam: int, at: int) -> Any:
    """Return the hash model with NaN for one beam of row 1 at a step."""
    model = hash_model(VOCAB)

    def step(prefixes: Tensor, parents: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = model(prefixes, parents, state)
        if prefixes.shape[1] == at:
            logits = logits.unflatten(0, (3, -1)).clone()
            logits[1, beam] = NAN
            logits = logits.flatten(0, 1)
        return logits, state

    return step


@pytest.mark.parametrize("at", range(1, DEPTH))
@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_beam_beyond_the_best_needs_no_distribution(k: int, at: int) -> None:
    """Beam k + 1 is there for kappa, which is its key or a better sequence's, whatever it holds."""
    drawn = stochastic_beam_search(broken_beam(k, at), None, k, DEPTH, EOS, rows=3, seed=9)
    assert_same(drawn, search(k))
    checked = stochastic_beam_search(
        broken_beam(k, at), None, k, DEPTH, EOS, rows=3, seed=9, check=True
    )
    assert_same(checked, drawn)
    assert stochastic_beam_search(
        broken_beam(k - 1, at), None, k, DEPTH, EOS, rows=3, seed=9
    ).num_valid.tolist() in ([k, 0, k], [k, k, k])


def test_unseeded_searches_follow_torch() -> None:
    torch.manual_seed(0)
    first, second = search(3, seed=None), search(3, seed=None)
    assert not first.sequences.equal(second.sequences)
    torch.manual_seed(0)
    assert_same(first, search(3, seed=None))


def test_padding_is_the_callers() -> None:
    drawn = stochastic_beam_search(flat([0.5, 0.5]).step, None, 3, 1, None, seed=1, pad_id=99)
    assert sorted(drawn.sequences.flatten().tolist()) == [0, 1, 99]
