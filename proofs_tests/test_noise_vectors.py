"""The noise answers as the specification in docs/ does, word for word."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fsresearch import noise
from fsresearch.philox import philox

DOCS = Path(__file__).resolve().parents[1] / "docs"
VECTORS = json.loads((DOCS / "noise_vectors.json").read_text())
BOUND = 2.0**-22
PHILOX = [  # counter, key, answer
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


@pytest.fixture(scope="module")
def specification() -> dict[str, Any]:
    """Names of the NumPy version, and those of the script that writes the vectors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        return runpy.run_path(str(DOCS / "make_noise_vectors.py"))


def from_hex(digits: str) -> list[int]:
    return [int(word, 16) for word in digits.split()]


@pytest.mark.parametrize("counter, key, answer", PHILOX)
def test_philox_answers_its_known_vectors(
    counter: str, key: str, answer: str, specification: dict[str, Any]
) -> None:
    c, k = from_hex(counter), from_hex(key)
    columns = [torch.tensor([[word]]) for word in (*k, *c)]
    ours = philox((columns[0], columns[1]), tuple(columns[2:]), (1, 1))
    assert [int(word) for word in ours] == from_hex(answer)
    numpy = specification["reference"].philox([np.uint64(x) for x in c], [np.uint64(x) for x in k])
    assert [int(word) for word in numpy] == from_hex(answer)


def test_the_committed_vectors_are_those_of_the_specification(
    specification: dict[str, Any],
) -> None:
    assert (DOCS / "noise_vectors.json").read_text() == specification["rendered"]()
    assert VECTORS["version"] == noise.VERSION


def test_the_specification_is_short() -> None:
    assert len((DOCS / "noise_reference.py").read_text().splitlines()) <= 40


@pytest.mark.parametrize("vector", VECTORS["words"])
def test_words(vector: dict[str, Any]) -> None:
    drawn = noise.words(
        torch.tensor([vector["seed"]]),
        torch.tensor([vector["unit"]]),
        draw=vector["draw"],
        position=vector["position"],
        kind=getattr(noise, vector["kind"]),
        role=vector["role"],
    )
    assert [f"{int(word):08x}" for word in drawn] == vector["words"]


@pytest.mark.parametrize("vector", VECTORS["leaves"])
def test_gumbels_of_tokens(vector: dict[str, Any]) -> None:
    value = noise.gumbel(
        torch.tensor([vector["seed"]]),
        torch.tensor([vector["token"]]),
        draw=vector["draw"],
        position=vector["position"],
        role=vector["role"],
    )
    assert value.item() == pytest.approx(vector["gumbel"], rel=BOUND, abs=BOUND)


@pytest.mark.parametrize("vector", VECTORS["groups"])
def test_gumbels_of_groups(vector: dict[str, Any]) -> None:
    word, _, more, _ = noise.words(
        torch.tensor([vector["seed"]]),
        torch.tensor([vector["group"]]),
        draw=vector["draw"],
        position=vector["position"],
        kind=noise.GROUP,
        role=vector["role"],
    )
    assert noise.gumbel_from_bits(word, more).item() == pytest.approx(vector["gumbel"], rel=1e-11)


@pytest.mark.parametrize("vector", VECTORS["seeds"])
def test_derived_seeds(vector: dict[str, Any]) -> None:
    assert noise.derive_seeds(vector["seed"], 3).tolist() == vector["rows"]


def test_a_whole_vocabulary_agrees(specification: dict[str, Any]) -> None:
    tokens = np.arange(151_936)
    expected = specification["reference"].gumbel(-7, tokens, 3, 2**40 + 5, 31)
    ours = noise.gumbel(
        torch.tensor([-7]), torch.from_numpy(tokens), draw=3, position=2**40 + 5, role=31
    )[0].double()
    error = np.abs(ours.numpy() - expected) / np.maximum(1, np.abs(expected))
    assert error.max() < BOUND
