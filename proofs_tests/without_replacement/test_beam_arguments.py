"""What stochastic beams refuse, and rows that are not distributions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

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
        ({"rows": 0}, ValueError, "^rows must be at least 1, got 0"),
        ({"eos_id": VOCAB}, ValueError, rf"^eos_id must be in \[0, {VOCAB - 1}\], got {VOCAB}"),
        ({"eos_id": [1, -1]}, ValueError, "^eos_id must be at least 0, got -1"),
        ({"root": "one"}, ValueError, "^root must be 'gumbel' or 'zero', got 'one'"),
        ({"temperature": 0.0}, ValueError, "^temperature must be above 0"),
        ({"temperature": torch.ones(2)}, ValueError, r"^temperature must be 0-d or \[3\]"),
        ({"mask": torch.ones(VOCAB + 1) == 1}, ValueError, "^mask must have shape"),
        ({"top_k": torch.tensor([1, 2])}, ValueError, r"^top_k must be 0-d or \[3\], got \[2\]"),
        ({"top_p": 1.5}, ValueError, r"^top_p must be in \[0, 1\], got 1.5"),
        ({"min_length": -1}, ValueError, "^min_length must be at least 0, got -1"),
        ({"stop": lambda p: p[:, :1] == 0}, ValueError, r"^stop must return bool \[3|9\]"),
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
    ],
)
def test_what_a_step_returns_is_checked(answer: object, error: type[Exception], match: str) -> None:
    def step(prefixes: Tensor, parents: Tensor, state: Any) -> Any:
        return answer

    with pytest.raises(error, match=match):
        stochastic_beam_search(step, None, 2, 3, 0, rows=3)


def test_unseeded_searches_follow_torch() -> None:
    torch.manual_seed(0)
    first, second = search(3, seed=None), search(3, seed=None)
    assert not first.sequences.equal(second.sequences)
    torch.manual_seed(0)
    assert_same(first, search(3, seed=None))


def test_padding_is_the_callers() -> None:
    drawn = stochastic_beam_search(flat([0.5, 0.5]).step, None, 3, 1, None, seed=1, pad_id=99)
    assert sorted(drawn.sequences.flatten().tolist()) == [0, 1, 99]
