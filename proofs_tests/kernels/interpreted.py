"""What runs inside an interpreter of Triton programs: a process of its own prints its findings."""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fsresearch import noise
from fsresearch.kernels import philox
from fsresearch.kernels.lm_head_max import lm_head_max
from fsresearch.kernels.lm_head_max.reference import lm_head_max_reference
from fsresearch.kernels.options import Options


@triton.jit
def _words_kernel(seeds, positions, tokens, out, count, STREAM: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    seed = tl.load(seeds)
    position = tl.load(positions)
    token = tl.load(tokens + i)
    c3 = ((position >> 32) & 0xFFFFFF).to(tl.uint32) | STREAM
    w0, w1, w2, w3 = philox.philox(
        seed.to(tl.uint32),
        (seed >> 32).to(tl.uint32),
        philox.leaf_unit(token),
        5,
        position.to(tl.uint32),
        c3,
    )
    tl.store(out + i, philox.pick_lane(token, w0, w1, w2, w3).to(tl.int64))


@triton.jit
def _gumbel_kernel(words, refinements, exact, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words + i).to(tl.uint32)
    tl.store(exact + i, philox.gumbel(word, tl.load(refinements + i).to(tl.uint32)))


def same_words() -> bool:
    """Compare words, refinements included, with the core's."""
    tokens = torch.tensor([0, 15, 16, 31, 32, 48, 63, 64, 151_935, 2**31 - 1] + [7] * 6)
    for seed in (0, -1, 2**63 - 1, 3 << 33):
        for kind in (noise.LEAF, noise.REFINE):
            position, out = 2**55 + 12345, torch.empty(16, dtype=torch.int64)
            _words_kernel[(1,)](
                torch.tensor([seed]),
                torch.tensor([position]),
                tokens.int(),
                out,
                16,
                31 << 27 | kind << 24,
                16,
            )
            units, lanes = noise.leaf_address(tokens)
            expected = noise.words(
                torch.tensor([seed]), units, draw=5, position=position, kind=kind, role=31
            )
            if not torch.equal(out, torch.stack(expected)[lanes, 0, torch.arange(16)]):
                return False
    return True


def gumbel_error() -> float:
    """Return the largest error of the conversion in units of 2**-22 max(1, g)."""
    generator = torch.Generator().manual_seed(0)
    count = 1 << 14
    words = torch.randint(0, 1 << 32, (count,), generator=generator)
    words >>= torch.randint(0, 32, (count,), generator=generator)
    words[::2] = (1 << 32) - 1 - words[::2]
    ends = [0, 1, 65_535, 65_536, (1 << 27) - 1, 1 << 27, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
    words[: len(ends)] = torch.tensor(ends)
    more = torch.randint(0, 1 << 32, (count,), generator=generator)
    exact = torch.empty(count)
    _gumbel_kernel[(count // 1024,)](words, more, exact, 1024)
    truth = _gumbel64(words, torch.where(words < noise.REFINE_BELOW, (more + 0.5) / 2**32, 0.5))
    error = (exact - truth).abs() / truth.abs().clamp(min=1)
    return float(error.max() * 2**22)


def _gumbel64(words: Tensor, fraction: Tensor) -> Tensor:
    """The Gumbels of words with their fractions, in float64 from both sides."""
    fraction = fraction.double()
    low, high = (words + fraction) / 2**32, ((1 << 32) - words - fraction) / 2**32
    return -torch.log(torch.where(words < 1 << 31, -torch.log1p(-low), -torch.log(high)))


def heads() -> dict[str, dict[str, Any]]:
    """Return the arguments of small exact-matmul heads, by what each is about."""
    generator = torch.Generator().manual_seed(1)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    def head(rows: int = 3, vocab: int = 300, depth: int = 24, **options: Any) -> dict[str, Any]:
        return {
            "hidden": integers(-2, 3, rows, depth).float() / 4,
            "weight": integers(-2, 3, vocab, depth).float(),
            "seeds": integers(-(2**62), 2**62, rows),
            "positions": integers(0, 2**50, rows),
            "temperature": None,
            "bias": None,
            "mask": None,
            "log_mass": True,
            **options,
        }

    broken = head(rows=5, temperature=torch.tensor([1.0, 0.0, 0.5, 2.0, -1.0]))
    broken["hidden"][0] = torch.nan
    nothing = torch.ones(3, 300, dtype=torch.bool)
    nothing[1] = False
    infinite = torch.zeros(3, 300)
    infinite[2, 129] = torch.inf
    return {
        "plain": head(),
        "greedy": head(seeds=None, positions=None),
        "bias": head(bias=integers(-3, 3, 300).float()),
        "row bias, row mask": head(
            bias=integers(-3, 3, 3, 300).float(), mask=integers(0, 2, 3, 300).bool()
        ),
        "packed": head(mask=integers(-(2**31), 2**31, 10).int()),
        "packed rows": head(mask=integers(-(2**31), 2**31, 3, 10).int(), vocab=290),
        "draws": head(draws=3, role=1, rows=2, vocab=130),
        "softcap": head(logit_scale=0.5, softcap=4.0),
        "shard": head(inverse=0.5, vocab_size=290, start=64, role=31),
        "nan, greedy, bad temperature": broken,
        "no mass": head(mask=nothing),
        "infinity": head(bias=infinite),
        "one token": head(vocab=1, depth=1),
    }


def split(arguments: dict[str, Any]) -> tuple[tuple[Tensor, Tensor], Options]:
    """Return (hidden, weight) and the options of a head."""
    hidden, weight = arguments["hidden"], arguments["weight"]
    rest = {name: value for name, value in arguments.items() if name not in ("hidden", "weight")}
    return (hidden, weight), Options(**{"vocab_size": len(weight), **rest})


def differences(arguments: dict[str, Any]) -> tuple[int, float]:
    """Return (tokens that differ from the reference, largest error of the log-mass)."""
    tensors, options = split(arguments)
    _, token, mass = lm_head_max(*tensors, *options, form="plain")
    _, expected, expected_mass = lm_head_max_reference(*tensors, options)
    if not torch.equal(mass.isnan(), expected_mass.isnan()):
        return len(token), torch.inf
    error = (mass - expected_mass).nan_to_num(0.0, 0.0, 0.0).abs().max()
    return int((token != expected).sum()), float(error)


def registration() -> set[str]:
    """Return what PyTorch's own check of the operator says: its schema and its fake."""
    tensors, options = split(heads()["plain"])
    tests = "test_schema", "test_faketensor"
    checked = torch.library.opcheck(
        torch.ops.fsresearch.lm_head_max.default, (*tensors, *options, "plain"), test_utils=tests
    )
    return set(checked.values())


if __name__ == "__main__":
    print("registration", *registration())
    print("words", same_words())
    print("gumbel", gumbel_error())
    for name, arguments in heads().items():
        print(name, *differences(arguments), sep="\t", file=sys.stdout)
