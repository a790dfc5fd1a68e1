"""A warp that runs inline PTX on the CPU: as many instructions as the kernels' own blocks use.

Registers are arrays of 32 lanes. Branches must be taken by all lanes or none, which is what the
blocks promise that exchange values between lanes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["LANES", "Value", "run_warp"]

LANES = np.arange(32)
Value = np.ndarray[Any, Any]


def _select(a: Value, b: Value, where: Value) -> Value:
    return np.where(where, a, b)


_COMPARE: dict[str, Callable[[Value, Value], Value]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_COMPUTE: dict[str, Callable[..., Value]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.fmax,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.logical_not,
    "ex2": np.exp2,
    "lg2": np.log2,
    "mov": np.copy,
    "selp": _select,
}


def run_warp(block: str, operands: list[Value]) -> list[Value]:
    """Run a block in braces; operands are inputs [32] in order, after so many outputs.

    Args:
        block: as `tl.inline_asm_elementwise` takes it.
        operands: an array for every operand; those of outputs are overwritten.
    """
    operands = list(operands)
    registers: dict[str, Value] = {"%laneid": LANES}
    text = block.strip()[1:-1].replace(":", ":;")
    lines = [line.strip() for line in text.split(";")]
    lines = [line for line in lines if line and not line.startswith(".reg")]
    at = 0
    while at < len(lines):
        guard, name, given = _parse(lines[at])
        at += 1
        if name.endswith(":"):
            continue
        taken = np.full(32, True)
        if guard:
            taken = registers[guard.lstrip("@!")] ^ guard.startswith("@!")
        if name == "bra":
            assert taken.all() == taken.any(), "a branch diverges"
            at = lines.index(f"{given[0]}:") if taken.all() else at
            continue
        target, *sources = given
        values = [_value(source, operands, registers) for source in sources]
        result = _compute(name.split("."), values)
        if not taken.all():
            result = np.where(taken, result, registers[target])
        if target.startswith("$"):
            operands[int(target[1:])] = result
        else:
            registers[target] = result
    return operands


def _parse(line: str) -> tuple[str, str, list[str]]:
    """Split a line into its guard, instruction and operands."""
    guard, _, rest = line.rpartition(" ") if line.endswith(":") else ("", "", line)
    found = re.match(r"(@!?\w+)\s+(.*)", rest)
    if found:
        guard, rest = found.groups()
    name, _, given = rest.partition(" ")
    return guard.strip(), name, [part.strip() for part in given.split(",")]


def _value(source: str, operands: list[Value], registers: dict[str, Value]) -> Value:
    """Return what an operand stands for."""
    if source.startswith("$"):
        return operands[int(source[1:])]
    if source in registers:
        return registers[source]
    if source.startswith("0f"):
        return np.full(32, np.float32(struct.unpack(">f", bytes.fromhex(source[2:]))[0]))
    number = int(source, 0)
    return np.full(32, number - (1 << 32) if number >> 31 else number)


def _compute(name: list[str], values: list[Value]) -> Value:
    """Return the result of an instruction."""
    with np.errstate(all="ignore"):
        if name[0] == "shfl" and name[2] == "idx":
            return np.asarray(values[0][LANES & 28 | values[1]])
        if name[0] == "shfl":
            return np.asarray(values[0][LANES ^ values[1]])
        if name[0] == "vote":
            return np.full(32, values[0].any())
        if name[0] == "setp":
            found = _COMPARE[name[1]](values[0], values[1])
            return _COMPUTE[name[2]](found, values[2]) if len(values) == 3 else found
        result = _COMPUTE[name[0]](*values)
    return result.astype(np.float32) if name[-1] == "f32" else result
