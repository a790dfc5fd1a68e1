"""Public arguments: errors that name what is wrong, inputs left alone, seeds, checks and draws."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from fsresearch import (
    METHODS,
    distributed,
    log_prob,
    sample,
    sample_logits,
    sample_logits_without_replacement,
    sample_without_replacement,
)

ROWS, VOCAB, SIZE = 2, 40, 4


def inputs(name: str) -> dict[str, Any]:
    """Return arguments that a front door accepts."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, SIZE, generator=generator)
    weight = torch.randn(VOCAB, SIZE, generator=generator)
    own: dict[str, dict[str, Any]] = {
        "sample": {"hidden": hidden, "weight": weight},
        "sample_logits": {"logits": hidden @ weight.T},
        "sample_without_replacement": {"hidden": hidden, "weight": weight, "k": 3},
        "sample_logits_without_replacement": {"logits": hidden @ weight.T, "k": 3},
        "log_prob": {"hidden": hidden, "weight": weight, "token": torch.tensor([[1, 2], [3, 4]])},
        "distributed.sample": {
            "hidden": hidden,
            "weight_shard": weight,
            "vocab_start": 0,
            "seed": 1,
        },
    }
    return own[name]


DOORS: dict[str, Callable[..., Any]] = {
    "sample": sample,
    "sample_logits": sample_logits,
    "sample_without_replacement": sample_without_replacement,
    "sample_logits_without_replacement": sample_logits_without_replacement,
    "log_prob": log_prob,
    "distributed.sample": distributed.sample,
}
SAMPLERS = ("sample", "sample_logits", "distributed.sample")
ORDERED = ("sample_without_replacement", "sample_logits_without_replacement")
HEADS = ("sample", "sample_without_replacement", "log_prob", "distributed.sample")
RANDOM = (*SAMPLERS, *ORDERED)

NUMBER = "a finite number"
FLOAT32 = "in [1.1754943508222875e-38, 3.4028234663852886e+38]"
POSITION = f"in [0, {2**56 - 1}]"
SEED = f"in [{-(2**63)}, {2**63 - 1}]"
FLOATS = "float32, bfloat16 or float16"


class Refused:
    """One bad value: the error, and what its message must say beside the argument's name."""

    def __init__(
        self,
        doors: tuple[str, ...],
        argument: str,
        value: object,
        error: type[Exception],
        *says: str,
    ) -> None:
        self.doors, self.argument, self.value = doors, argument, value
        self.error, self.says = error, says


INTEGERS = {
    "role": ("in [0, 31]", (-1, 32), RANDOM),
    "num_samples": (f"in [1, {2**32}]", (0, -3, 2**32 + 1, 2**70), SAMPLERS),
    "k": (f"in [1, {VOCAB}]", (0, -1, VOCAB + 1), ORDERED),
    "position": (POSITION, (-1, 2**56), RANDOM),
    "seed": (SEED, (2**63, -(2**63) - 1, 2**64), RANDOM),
    "vocab_size": (f"in [1, {VOCAB}]", (0, -1, VOCAB + 1), (*RANDOM[:2], *ORDERED, "log_prob")),
    "vocab_start": (f"in [0, {2**32 - VOCAB}]", (-1, 2**32, 2**70), ("distributed.sample",)),
}
NO_INTEGERS = (1.5, "3", True, {1}, np.array([1, 2]))
NUMBERS: dict[str, tuple[str, tuple[float, ...]]] = {
    "temperature": ("0, or finite and at least 1e-06", (-1.0, 1e-7, np.nan, np.inf, -np.inf)),
    "softcap": (f"{NUMBER} above 0, {FLOAT32}", (0.0, -2.0, np.nan, np.inf, 1e39, 1e-50)),
    "logit_scale": (FLOAT32, (np.nan, np.inf, -np.inf, 1e39, -1e39, 1e-50)),
}
NO_NUMBERS = (
    *("3", True, [1.0], 1j, np.array([1.0]), np.array([1.0, 2.0])),
    *(np.bool_(True), np.complex64(1), np.str_("1")),
)
LONG = 10**400, Fraction(10**400), Decimal("sNaN")
META = torch.device("meta")

REFUSED = [
    *(
        Refused(doors, name, value, ValueError, accepted, f"got {value}")
        for name, (accepted, values, doors) in INTEGERS.items()
        for value in values
    ),
    *(
        Refused(doors, name, value, TypeError, repr(value))
        for name, (_, _, doors) in INTEGERS.items()
        for value in NO_INTEGERS
    ),
    *(
        Refused(tuple(DOORS), name, value, ValueError, accepted, f"got {value}")
        for name, (accepted, values) in NUMBERS.items()
        for value in values
    ),
    *(
        Refused(tuple(DOORS), name, value, TypeError, repr(value))
        for name in NUMBERS
        for value in NO_NUMBERS
    ),
    *(
        Refused(tuple(DOORS), name, value, ValueError, accepted, f"got {str(value)[:70]}")
        for name, (accepted, _) in NUMBERS.items()
        for value in LONG
    ),
    Refused(RANDOM, "seed", 10**5000, ValueError, SEED, "digits"),
    *(
        Refused(doors, name, value, TypeError, "dense", layout)
        for name, doors, dense in (
            ("logits", ("sample_logits", "sample_logits_without_replacement"), torch.ones(2, 40)),
            ("hidden", HEADS, torch.ones(2, 4)),
            ("bias", tuple(DOORS), torch.ones(40)),
            ("mask", tuple(DOORS), torch.ones(40).bool()),
            ("temperature", tuple(DOORS), torch.ones(2)),
            ("seed", RANDOM, torch.ones(2).long()),
            ("position", RANDOM, torch.ones(2).long()),
            ("token", ("log_prob",), torch.ones(2).long()),
        )
        for value, layout in ((dense.to_sparse(), "torch.sparse_coo"),)
    ),
    Refused(HEADS, "hidden", torch.ones(2, 4).to_mkldnn(), TypeError, "dense", "torch._mkldnn"),
    *(
        Refused(doors, name, torch.zeros(shape, dtype=torch.int64), ValueError, "0-d or [2]", says)
        for name, doors in (("seed", RANDOM), ("position", RANDOM))
        for shape, says in (((3,), "[3]"), ((2, 1), "[2, 1]"))
    ),
    Refused(tuple(DOORS), "temperature", torch.ones(3), ValueError, "0-d or [2]", "[3]"),
    Refused(tuple(DOORS), "temperature", torch.ones(2, 1), ValueError, "0-d or [2]", "[2, 1]"),
    Refused(tuple(DOORS), "temperature", torch.ones(2).bool(), TypeError, "real", "torch.bool"),
    Refused(
        tuple(DOORS), "temperature", torch.ones(2).to(torch.complex64), TypeError, "real", "complex"
    ),
    Refused(tuple(DOORS), "temperature", torch.ones(2, device=META), ValueError, "on cpu", "meta"),
    *(
        Refused(tuple(DOORS), "temperature", torch.ones(2).to(dtype), TypeError, "real", str(dtype))
        for dtype in (torch.float8_e4m3fn, torch.uint16)
    ),
    *(
        Refused(tuple(DOORS), "check", value, TypeError, "True or False")
        for value in (1, None, torch.ones(2))
    ),
    Refused(SAMPLERS, "method", torch.ones(2, 2), ValueError, "one of gumbel-max", "tensor([[1., "),
    Refused(RANDOM, "seed", torch.zeros(2), TypeError, "int64", "torch.float32"),
    Refused(RANDOM, "seed", torch.zeros(2).int(), TypeError, "int64", "torch.int32"),
    Refused(RANDOM, "seed", torch.zeros(2, device=META).long(), ValueError, "on cpu", "meta"),
    Refused(RANDOM, "position", torch.zeros(2), TypeError, "int64 or int32", "torch.float32"),
    Refused(SAMPLERS, "method", "gumble", ValueError, "gumbel-max", "'gumble'"),
    Refused(SAMPLERS, "method", None, ValueError, "gumbel-max", "None"),
    Refused(SAMPLERS, "method", ["grouped"], ValueError, "gumbel-max", "['grouped']"),
    Refused(("distributed.sample",), "method", "online", ValueError, "grouped", "'online'"),
    Refused(("distributed.sample",), "method", "hierarchical", ValueError, "'hierarchical'"),
    Refused(("distributed.sample",), "seed", None, ValueError, "given", "None"),
    Refused(("distributed.sample",), "vocab_size", 0, ValueError, "at least 1", "got 0"),
    *(
        Refused(doors, name, value, error, *says)
        for name, doors in (
            ("hidden", HEADS),
            ("logits", ("sample_logits", "sample_logits_without_replacement")),
        )
        for value, error, says in (
            (None, TypeError, ("tensor", "None")),
            ([[1.0]], TypeError, ("tensor", "[[1.0]]")),
            (np.zeros((2, 4)), TypeError, ("tensor", "ndarray")),
            (torch.zeros(2, 4).double(), TypeError, (FLOATS, "torch.float64", "cast")),
            (torch.zeros(2, 4).long(), TypeError, (FLOATS, "torch.int64")),
            (torch.zeros(4), ValueError, ("2 dimensions", "[4]")),
            (torch.zeros(1, 2, 4), ValueError, ("2 dimensions", "[1, 2, 4]")),
        )
    ),
    *(
        Refused(("sample", "sample_without_replacement", "log_prob"), "weight", value, error, *says)
        for value, error, says in (
            (None, TypeError, ("tensor", "None")),
            (torch.zeros(VOCAB, SIZE).double(), TypeError, (FLOATS, "torch.float64")),
            (torch.zeros(VOCAB, SIZE).half(), TypeError, ("float32", "torch.float16")),
            (torch.zeros(VOCAB, SIZE + 1), ValueError, ("[V, 4]", "[40, 5]")),
            (torch.zeros(0, SIZE), ValueError, ("V >= 1", "[0, 4]")),
            (torch.zeros(VOCAB, SIZE, device=META), ValueError, ("on cpu", "meta")),
        )
    ),
    *(
        Refused(tuple(DOORS), "bias", value, error, *says)
        for value, error, says in (
            ([0.0] * VOCAB, TypeError, ("tensor", "list")),
            (torch.zeros(VOCAB).double(), TypeError, (FLOATS, "torch.float64")),
            (torch.zeros(VOCAB + 1), ValueError, ("[40] or [2, 40]", "[41]")),
            (torch.zeros(3, VOCAB), ValueError, ("[40] or [2, 40]", "[3, 40]")),
            (torch.zeros(VOCAB, device=META), ValueError, ("on cpu", "meta")),
        )
    ),
    *(
        Refused(tuple(DOORS), "mask", value, error, *says)
        for value, error, says in (
            ([True] * VOCAB, TypeError, ("tensor", "list")),
            (torch.ones(VOCAB), TypeError, ("bool", "int32", "torch.float32")),
            (torch.ones(VOCAB).long(), TypeError, ("bool", "int32", "torch.int64")),
            (torch.ones(VOCAB - 1).bool(), ValueError, ("[40] or [2, 40]", "[39]")),
            (torch.ones(3, VOCAB).bool(), ValueError, ("[40] or [2, 40]", "[3, 40]")),
            (torch.ones(VOCAB).int(), ValueError, ("packed", "[2] or [2, 2]", "[40]")),
            (torch.ones(VOCAB, device=META).bool(), ValueError, ("on cpu", "meta")),
        )
    ),
    *(
        Refused(("log_prob",), "token", value, error, *says)
        for value, error, says in (
            ([1, 2], TypeError, ("int64", "[1, 2]")),
            (torch.zeros(2), TypeError, ("int64", "tensor")),
            (torch.zeros(3).long(), ValueError, ("[2] or [2, n]", "[3]")),
            (torch.zeros(2, 2, 2).long(), ValueError, ("[2] or [2, n]", "[2, 2, 2]")),
            (torch.zeros(2, device=META).long(), ValueError, ("on cpu", "meta")),
        )
    ),
]


@pytest.mark.parametrize("door", DOORS)
def test_errors_name_argument_value_and_what_is_accepted(door: str) -> None:
    failures = []
    for case in (c for c in REFUSED if door in c.doors):
        given = {**inputs(door), case.argument: case.value}
        shown = f"{case.argument} of {case.says}"[:80]
        try:
            DOORS[door](**given)
        except (TypeError, ValueError) as error:
            expected = (case.argument, *case.says)
            if type(error) is not case.error or any(part not in str(error) for part in expected):
                failures.append(f"{shown}: {type(error).__name__}: {error}; wanted {expected}")
        else:
            failures.append(f"{shown}: accepted")
    assert not failures, "\n".join(failures)


def with_options(door: str) -> dict[str, Any]:
    """Return arguments that a door accepts, with every tensor option in use."""
    given = inputs(door)
    given |= {"temperature": torch.tensor([0.0, 0.7]), "softcap": 5.0, "logit_scale": 2.0}
    given |= {"bias": torch.linspace(-1, 1, VOCAB), "mask": torch.arange(VOCAB) % 3 > 0}
    if door in RANDOM:
        given |= {"seed": torch.tensor([5, 6]), "position": torch.tensor([1, 2])}
    if door in SAMPLERS:
        given |= {"num_samples": 3, "log_prob": True}
    return given


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("door", DOORS)
def test_inputs_are_never_mutated(door: str) -> None:
    given = with_options(door)
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    before = {name: value.clone() for name, value in tensors.items()}
    for method in METHODS if door in SAMPLERS[:2] else (None,):
        DOORS[door](**given, **({"method": method} if method else {}))
    assert all(tensors[name].equal(before[name]) for name in tensors)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("door", DOORS)
def test_gradients_flow_only_through_log_prob(door: str) -> None:
    given = inputs(door)
    for value in given.values():
        if isinstance(value, Tensor) and value.is_floating_point():
            value.requires_grad_()
    drawn = DOORS[door](**given)
    scores = drawn if door == "log_prob" else drawn.log_prob
    assert scores is None or scores.requires_grad == (door == "log_prob")


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("argument", "value", "says"),
    [
        ("temperature", torch.tensor([1.0, -1.0]), r"^temperature .* got -1.0 in row 1$"),
        ("temperature", torch.tensor(torch.nan), r"^temperature .* got nan in row 0$"),
        ("position", torch.tensor([2**56, 0]), rf"^position .* got {2**56} in row 0$"),
        ("position", torch.tensor([0, -1]), r"^position .* got -1 in row 1$"),
        ("bias", torch.full((VOCAB,), torch.nan), r"^row 0 is not a distribution"),
        ("mask", torch.ones(2, VOCAB).cumsum(0) < 2, r"^row 1 is not a distribution"),
    ],
)
def test_check_reads_tensors_and_names_the_row(
    door: str, argument: str, value: Tensor, says: str
) -> None:
    if argument == "position" and door == "log_prob":
        pytest.skip("log_prob takes no position")
    given = {**inputs(door), argument: value}
    DOORS[door](**given)
    with pytest.raises(ValueError, match=says):
        DOORS[door](**given, check=True)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("door", DOORS)
def test_check_accepts_what_is_right(door: str) -> None:
    given = with_options(door)
    if door == "log_prob":
        given["mask"] = None
    unchecked, checked = DOORS[door](**given), DOORS[door](**given, check=True)
    pairs = [(unchecked, checked)] if door == "log_prob" else zip(unchecked, checked, strict=True)
    for a, b in pairs:
        assert a is b or torch.equal(a, b)


@pytest.mark.usefixtures("one_rank")
def test_check_finds_a_gap_between_shards() -> None:
    given = {**inputs("distributed.sample"), "vocab_start": 64}
    with pytest.raises(ValueError, match=re.escape("from id 0, got [(64, 104)]")):
        distributed.sample(**given, check=True)
    odd = {**given, "vocab_start": 70, "method": "grouped"}
    with pytest.raises(ValueError, match=r"^vocab_start .* 64 for method grouped, got 70; .* 64$"):
        distributed.sample(**odd)


@pytest.mark.parametrize("door", [d for d in RANDOM if d != "distributed.sample"])
def test_seed_none_follows_manual_seed_and_a_seed_leaves_it_alone(door: str) -> None:
    given, draw = inputs(door), DOORS[door]
    tokens = []
    for manual in (1, 1, 2):
        torch.manual_seed(manual)
        tokens.append([draw(**given).token for _ in range(8)])
    assert all(a.equal(b) for a, b in zip(tokens[0], tokens[1], strict=True))
    assert not all(a.equal(b) for a, b in zip(tokens[0], tokens[2], strict=True))
    assert not all(a.equal(tokens[0][0]) for a in tokens[0])
    state = torch.get_rng_state()
    for seed in (3, torch.tensor(3), torch.tensor([3, 4])):
        draw(**given, seed=seed)
        assert torch.get_rng_state().equal(state)


@pytest.mark.parametrize("door", [d for d in RANDOM if d != "distributed.sample"])
def test_a_scalar_seed_may_be_a_number_or_a_tensor(door: str) -> None:
    given, draw = inputs(door), DOORS[door]
    number = draw(**given, seed=3, position=7, temperature=0.5)
    tensors = draw(
        **given, seed=torch.tensor(3), position=torch.tensor(7), temperature=torch.tensor(0.5)
    )
    rows = draw(
        **given, seed=np.int64(3), position=torch.tensor([7, 7]).int(), temperature=np.float32(0.5)
    )
    assert number.token.equal(tensors.token)
    assert number.token.equal(rows.token)


@pytest.mark.parametrize("method", METHODS)
def test_fewer_draws_are_a_prefix_of_more(method: str) -> None:
    """A draw has its own address, whatever the number of draws made with it."""
    logits = torch.linspace(-2, 2, 3000).expand(3, -1)
    many = sample_logits(logits, seed=9, method=method, num_samples=300).token
    for draws in (*range(1, 8), 64, 299):
        fewer = sample_logits(logits, seed=9, method=method, num_samples=draws).token
        assert fewer.equal(many[:, :draws])


@pytest.mark.parametrize("door", ORDERED)
def test_fewer_tokens_are_a_prefix_of_more(door: str) -> None:
    given = inputs(door)
    given.pop("k")
    most = DOORS[door](**given, k=VOCAB, seed=9)
    for k in (1, 2, 39):
        fewer = DOORS[door](**given, k=k, seed=9)
        assert fewer.token.equal(most.token[:, :k])
        assert fewer.kappa.equal(most.perturbed[:, k])
    logits = given["logits"] if "logits" in given else given["hidden"] @ given["weight"].T
    assert most.token[:, :1].equal(sample_logits(logits, seed=9).token)


@pytest.mark.parametrize("method", METHODS)
def test_a_step_can_be_resumed(method: str) -> None:
    """Noise belongs to (seed, position): later steps do not need the earlier ones."""
    logits = torch.zeros(2, 500)
    steps = [sample_logits(logits, seed=9, position=p, method=method).token for p in range(20)]
    assert steps[13].equal(sample_logits(logits, seed=9, position=13, method=method).token)
    assert len({tuple(s.flatten().tolist()) for s in steps}) == 20


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", [Fraction, Decimal, np.float32, np.array], ids=str)
def test_numbers_of_any_real_type(door: str, kind: Callable[[float], Any]) -> None:
    given = inputs(door) | ({"seed": 1} if door in RANDOM else {})
    numbers = {"temperature": 0.5, "softcap": 2.0, "logit_scale": 1.5}
    expected = DOORS[door](**given, **numbers)
    got = DOORS[door](**given, **{name: kind(value) for name, value in numbers.items()})
    first, second = (drawn if door == "log_prob" else drawn.token for drawn in (expected, got))
    assert torch.equal(first, second)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "temperature", [1e300, torch.tensor(1e300, dtype=torch.float64), torch.tensor([3e38, 1.0])]
)
def test_no_temperature_is_too_high(door: str, temperature: float | Tensor) -> None:
    given = inputs(door) | {"temperature": temperature, "mask": torch.arange(VOCAB) % 40 < 20}
    if door == "log_prob":
        given["token"] = torch.tensor([0, 19])
    drawn = DOORS[door](**given, check=True)
    if door == "log_prob":
        assert drawn[0].item() == pytest.approx(-np.log(20))


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("door", HEADS)
def test_hidden_states_of_no_dimension_give_logits_of_0(door: str) -> None:
    given = inputs(door) | ({"seed": 1} if door in RANDOM else {})
    weight = "weight_shard" if door == "distributed.sample" else "weight"
    zero = {"hidden": torch.zeros(ROWS, 1), weight: torch.zeros(VOCAB, 1)}
    none = {name: value[:, :0] for name, value in zero.items()}
    got, expected = (DOORS[door](**given | case) for case in (none, zero))
    assert torch.equal(*(d if door == "log_prob" else d.token for d in (got, expected)))


def test_check_names_the_token_outside_the_vocabulary() -> None:
    given = inputs("log_prob")
    for bad in (-1, VOCAB, 2**40):
        token = torch.tensor([[1, 2], [3, bad]])
        with pytest.raises(ValueError, match=rf"^token .* \[0, {VOCAB}\), got {bad} in row 1$"):
            log_prob(**given | {"token": token}, check=True)
    with pytest.raises(ValueError, match=r"^token .* \[0, 3\), got 3 in row 1$"):
        log_prob(**given | {"token": torch.tensor([2, 3])}, vocab_size=3, check=True)
