"""The scripts that judge the kernels find what is planted; the tables of the docs are theirs."""

from __future__ import annotations

import random
import runpy
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from fsresearch.kernels.matmul.configs import HOPPER, choose
from proofs_tests.without_replacement.experiments import EXPERIMENTS, load

DOCS = EXPERIMENTS.parent / "docs"
heads, identity, law, soak, speed = (
    SimpleNamespace(**load(f"kernel_{name}"))
    for name in ("heads", "identity", "law", "soak", "speed")
)


@pytest.mark.parametrize("options", heads.COMBINATIONS, ids=", ".join)
def test_a_planted_difference_is_listed_with_its_gap(options: tuple[str, ...]) -> None:
    """The gap is that of the scores, whose float32 values the reference returns."""
    generator = torch.Generator().manual_seed(1)
    head = heads.exact_head(generator, 4, 300, 24, torch.float32, options)
    best = heads.answer(head, "reference")
    assert heads.differences(head, best.token, best.token) == []
    other = head.options.start + 7
    found = heads.differences(head, best.token, torch.full_like(best.token, other))
    assert len(found) == int((best.token != other).sum())
    for one in found:
        assert one.gap > 0
        pair = torch.tensor([one.expected, one.got])
        scores = heads._scores(head.rows(slice(one.row, one.row + 1)), one.draw, pair)
        assert abs(float(scores[0]) - float(best.perturbed[one.row, one.draw])) < 1e-5


def test_errors_of_masses() -> None:
    a = torch.tensor([[1.0], [torch.nan], [-torch.inf]])
    assert heads.mass_error(a, a) == 0
    assert heads.mass_error(a, a + 0.5) == 0.5
    assert heads.mass_error(a, a.nan_to_num(0.0)) == torch.inf
    assert heads.mass_error(a[:, :0], a[:, :0]) == 0


def test_rows_of_a_head_take_their_options_along() -> None:
    """Batches, and rows in another order, give the rows' own tokens."""
    generator = torch.Generator().manual_seed(2)
    head = heads.exact_head(generator, 5, 200, 24, torch.float32, heads.EVERYTHING)
    whole = heads.answer(head, "reference")
    assert heads.in_batches(head, "reference", 2).token.equal(whole.token)
    order = torch.tensor([3, 0, 4])
    assert heads.answer(head.rows(order), "reference").token.equal(whole.token[order])


def test_a_configuration_is_forced() -> None:
    with heads.forced(HOPPER[-1]):
        assert choose("hopper", 1)[2:] == HOPPER[-1][2:]
    assert choose("hopper", 1) == HOPPER[0]


@pytest.mark.parametrize("kernel", identity.KERNELS)
def test_identity_finds_no_difference_where_there_is_none(kernel: str) -> None:
    lines = [*identity.small("reference", kernel)]
    assert [line["part"] for line in lines] == [
        *("reference", "configurations", "configurations", "positions", "repeats")
    ]
    assert all(line["differing"] == 0 for line in lines)


def test_identity_counts_rows_and_finds_a_planted_fault() -> None:
    cases = [*identity.reference_cases("hopper")]
    assert {case.batch for case in cases} == set(identity.BATCHES)
    assert sum(case.rows for case in cases) > 500_000, "a million with the plain form"
    case = cases[0]._replace(form="reference", rows=4, vocab=99, dtype=torch.float32)
    head = case.head("cpu")
    expected = heads.answer(head, "reference")
    wrong = expected._replace(token=expected.token.clone())
    wrong.token[2] = (wrong.token[2] + 1) % 99
    for to_the_bit in (False, True):
        line = identity._line(case, head, expected, wrong, to_the_bit)
        assert (line["differing"], len(line["found"])) == (1, 1)
        assert line["largest_gap"] > 0


def test_the_law_is_that_of_the_head_and_no_other() -> None:
    head, probabilities = law.zipf_head(64, 4, torch.float32, "cpu")
    counts = law.count(head, "reference", 8)
    summary, decades = law.judge(counts, probabilities)
    assert summary["draws"] == 2048
    assert float(summary["p_value"]) > 1e-4
    assert sum(line["observed"] for line in decades) == 2048
    warmer = probabilities**0.8 / (probabilities**0.8).sum()
    assert float(law.judge(counts, warmer)[0]["p_value"]) < 1e-9
    counts[-1] += 1
    assert float(law.judge(counts, probabilities)[0]["p_value"]) == 0


@pytest.mark.parametrize("twist", soak.TWISTS)
def test_every_twist_of_the_soak_makes_a_head(twist: str) -> None:
    chance = random.Random(3)
    options = ("temperatures", "log mass")
    trial = soak.random_trial(chance, options, 300)._replace(form="reference", twist=twist)
    assert soak.compare(trial, soak.twisted(trial, "cpu")) == (0.0, [])


def test_racecheck_excuses_the_bytes_that_start_partitions_alone() -> None:
    """A hazard at a line of the pipeline that shares data is none of them."""
    sanitizer = SimpleNamespace(**load("kernel_sanitize"))
    source = (EXPERIMENTS.parent / "kernels" / "matmul" / "hopper.py").read_text().splitlines()
    first, started, shared = (
        next(i for i, line in enumerate(source, 1) if text in line)
        for text in ("def matmul_kernel", "gl.warp_specialize(", "hidden_ring.index(")
    )
    said = "".join(
        f"========= Error: Potential RAW hazard detected at __shared__ 0x304b2 in block (0,0,0) :\n"
        f"=========     Write Thread (31,0,0) at matmul_kernel+0xf90 in hopper.py:{line}\n"
        f"=========     Read Thread (192,0,0) at matmul_kernel+0x190 in hopper.py:{first}\n"
        for line in (first, started, shared)
    )
    places = sanitizer.HAZARD.findall(said)
    assert [sanitizer.starts_partitions(*place) for place in places] == [True, True, False]


def test_limits_of_speed() -> None:
    assert speed.limit(151_936, 4096, 64, 0.9) == 0.97
    assert speed.limit(151_936, 4096, 1, 1.0) == 1.02
    assert speed.limit(151_936, 4096, 255, 0.7) == 1.10
    assert speed.limit(128_256, 8192, 256, 0.7) == 1.05
    assert speed.limit(49_152, 576, 256, 0.7) is None


@pytest.mark.parametrize("name", ["kernel_tiles.csv", "kernel_speed.md"])
def test_tables_of_the_docs_are_current(name: str) -> None:
    made = runpy.run_path(str(DOCS / "make_kernel_tables.py"))["FILES"][name]()
    assert (DOCS / name).read_text(encoding="utf-8") == made, "run docs/make_kernel_tables.py"
