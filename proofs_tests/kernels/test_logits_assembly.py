"""The assembly of the logits kernel's scan, run by one thread on the CPU, against the core."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from fsresearch import noise
from fsresearch.kernels.logits_max.scan import assembly

LOW = (1 << 32) - 1


def bits(value: Any) -> int:
    return int(struct.unpack("<I", struct.pack("<f", np.float32(value)))[0])


def number(pattern: int) -> np.float32:
    return np.float32(struct.unpack("<f", struct.pack("<I", pattern & LOW))[0])


def signed(pattern: int) -> int:
    return (pattern & LOW) - ((pattern & LOW) >> 31 << 32)


def run_thread(block: str, operands: dict[str, int]) -> list[int]:
    """Run PTX on registers of bits; return what it adds to memory by ``red``."""
    block = re.sub(r"\{(\w+), (\w+)\}", r"\1, \2", block)
    block = re.sub(r"([{}])", r";\1;", block.replace(":", ":;"))
    scope, names, lines = 0, [0], []
    for text in map(str.strip, block.split(";")):
        if text == "{":
            scope += 1
            names.append(scope)
        elif text == "}":
            names.pop()
        elif re.match(r"\w|@", text):
            label = re.fullmatch(r"(\w+):|((?:@!?\w+ )?bra) (\w+)", text)
            if label and label[1]:
                text = f"{label[1]}.{names[-1]}:"
            elif label:
                inner = [f"{label[3]}.{name}" for name in reversed(names)]
                text = f"{label[2]} {' '.join(inner)}"
            lines.append(text)
    registers, added, at = dict(operands), [], 0
    while at < len(lines):
        guard, text = re.fullmatch(r"(?:@(!?\w+) )?(.*)", lines[at]).groups()  # type: ignore[union-attr]
        at += 1
        if text.endswith(":"):
            continue
        if guard and bool(registers[guard.lstrip("!")]) == guard.startswith("!"):
            continue
        name, _, rest = text.partition(" ")
        if name == "bra":
            at = next(lines.index(f"{label}:") for label in rest.split() if f"{label}:" in lines)
            continue
        target, *given = [part.strip(" []{}") for part in rest.split(",")]
        if name.startswith("red"):
            added.append(registers[given[0]])
        elif name == "mov.b64":
            registers[target] = registers[given[1]] << 32 | registers[given[0]]
        else:
            values = [_value(source, registers) for source in given]
            registers[target] = _compute(name.split("."), values)
    return added


def _value(source: str, registers: dict[str, int]) -> int:
    if source in registers:
        return registers[source]
    return int(source[2:], 16) if source.startswith("0f") else int(source, 0) & LOW


def _compute(name: list[str], values: list[int]) -> int:
    """Return the bits of a result."""
    kind, to = name[0], name[-1]
    if kind == "selp":
        return values[0] if values[2] else values[1]
    if kind == "cvt":
        if to == "f32":
            source = float(number(values[0]))
            return 0 if np.isnan(source) else int(min(max(source, 0.0), LOW))
        return bits(np.float32(signed(values[0]) if to == "s32" else values[0]))
    if to == "f32":
        x = [number(value) for value in values]
        with np.errstate(all="ignore"):
            if kind == "setp":
                return int({"lt": x[0] < x[1], "gt": x[0] > x[1]}[name[1]])
            wide = [np.float64(value) for value in x]
            found = {
                "fma": lambda: wide[0] * wide[1] + wide[2],
                "add": lambda: wide[0] + wide[1],
                "mul": lambda: wide[0] * wide[1],
                "neg": lambda: -wide[0],
                "ex2": lambda: np.exp2(wide[0]),
                "mov": lambda: wide[0],
            }[kind]()
        return bits(found)
    a, b, c = (*values, 0, 0)[:3]
    if kind == "setp":
        if to == "s32":
            a, b = signed(a), signed(b)
        return int({"gt": a > b, "ge": a >= b, "lt": a < b, "ne": a != b}[name[1]])
    found = {
        "mov": lambda: a,
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "and": lambda: a & b,
        "or": lambda: a | b,
        "xor": lambda: a ^ b,
        "not": lambda: ~a,
        "shr": lambda: (signed(a) if to == "s32" else a) >> b,
        "mul": lambda: a * b >> (32 if name[1] == "hi" else 0),
        "mad": lambda: a * b + c,
    }[kind]()
    return int(found) & LOW


@pytest.mark.parametrize("seed", range(60))
def test_tokens_that_reach_the_floor_add_their_keys(seed: int) -> None:
    chance = np.random.default_rng(seed)
    token = int(chance.integers(0, 1000)) * 64 + int(chance.integers(0, 16))
    row_seed, position = int(chance.integers(-(2**62), 2**62)), int(chance.integers(0, 2**50))
    seeds, ids = torch.tensor([row_seed]), token + 16 * torch.arange(4)
    unit = torch.tensor([token // 64 * 16 + token % 16])
    address = {"draw": 3, "position": position, "role": 5}
    word = torch.cat(noise.words(seeds, unit, kind=noise.LEAF, **address))[:, 0]
    word >>= int(chance.choice([0, 4, 18]))
    more = torch.cat(noise.words(seeds, unit, kind=noise.REFINE, **address))[:, 0]
    score, words = noise.gumbel_from_words(word, more).numpy(), word.tolist()
    logits = chance.normal(size=4).astype(np.float32) * np.float32(chance.choice([0, 1, 9]))
    exact = logits + score
    floor = np.float32(
        chance.choice([exact.max() - 1e-3, exact.min() - 1e-3, exact.max() + 1, -np.inf])
    )
    start = np.float32(32 + (1.6e-5 + abs(floor) * 6e-7 - floor) * 1.4426950408889634)
    given = [bits(logits.max()), min(words), bits(start), bits(floor), token]
    given += [row_seed & LOW, row_seed >> 32 & LOW, 3, position & LOW]
    given += [position >> 32 | (5 << 3 | noise.LEAF) << 24, 0, *words, *map(bits, logits)]
    added = run_thread(assembly(), {f"${i + 1}": value for i, value in enumerate(given)})
    found = {LOW - (key & LOW): key >> 32 for key in added}
    assert set(found) == {int(i) for i, s in zip(ids, exact, strict=True) if s >= floor}
    for i, s in zip(ids.tolist(), exact, strict=True):
        if i in found:
            pattern = found[i] ^ (0x80000000 if found[i] >> 31 else LOW)
            assert abs(number(pattern) - s) <= 2e-6 * max(1.0, abs(float(s)))
