"""Run the inline assembly of kernels on NumPy arrays, each operation rounded as on a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

Words = Any  # an array of uint32
FLOAT, WORD, SIGNED = np.float32, np.uint32, np.int32


def multiply_add(a, b, c):
    """Return a * b + c of float32 arrays, rounded once: the sum in float64 is rounded to odd."""
    product, c = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    bits = total.view(np.int64)
    is_even = (error != 0) & np.isfinite(total) & (bits & 1 == 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(is_even, bits + step, bits).view(np.float64).astype(FLOAT)


def permute(a, b, selector):
    """Return `prmt`: each half byte of the selector chooses a byte, or its sign."""
    pool = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    result = np.zeros_like(a)
    for place in range(4):
        choice = selector >> 4 * place & 15
        byte = (pool >> np.uint64(8 * (choice & 7)) & np.uint64(255)).astype(WORD)
        byte = (byte >> WORD(7)) * WORD(255) if choice & 8 else byte
        result |= byte << WORD(8 * place)
    return result


class Machine:
    """Registers of many threads.

    Args:
        operands: Arrays of inputs and outputs, `$0`, `$1` ...
        offset: Units in the last place that approximate reciprocals and roots are away.
    """

    def __init__(self, operands: list[Words], offset: int) -> None:
        self._values = {f"${k}": array for k, array in enumerate(operands)}
        self._offset, self._size = offset, len(operands[0])
        self._active, self._target = np.ones(self._size, bool), ""

    def run(self, text: str) -> None:
        """Execute assembly with at most one branch at a time, forward."""
        text = text.strip().removeprefix("{").removesuffix("}").replace(":", ":;")
        for statement in re.split(r"[;\n]", re.sub(r"\{(\w+), (\$\d+)\}", r"\1 \2", text)):
            if statement.strip() and not statement.strip().startswith(".reg"):
                self._step(statement.strip())

    def output(self, index: int) -> Words:
        """Return the array of an operand."""
        return self._values[f"${index}"]

    def _step(self, statement: str) -> None:
        if statement == f"{self._target}:":
            self._active = np.ones(self._size, bool)
            return
        predicate = np.ones(self._size, bool)
        if statement.startswith("@"):
            name, statement = statement[1:].split(" ", 1)
            predicate = self._values[name].astype(bool)
        opcode, *operands = re.split(r",?\s+", statement)
        if opcode == "bra":
            self._active, self._target = self._active & ~predicate, operands[0]
            return
        result = self._compute(opcode, [self._read(operand) for operand in operands[1:]])
        old = self._values.get(operands[0], np.zeros(self._size, WORD))
        self._values[operands[0]] = np.where(self._active & predicate, result, old)

    def _read(self, operand: str) -> Words:
        if operand in self._values:
            return self._values[operand]
        digits = f"0x{operand[2:]}" if operand.startswith("0f") else operand
        return np.full(self._size, int(digits, 0), WORD)

    def _compute(self, opcode: str, words: list[Words]) -> Words:
        name, *parts = opcode.split(".")
        with np.errstate(all="ignore"):
            if name == "prmt":
                return permute(words[0], words[1], int(words[2][0]))
            if name == "setp":
                kind = {"f32": FLOAT, "s32": SIGNED, "u32": WORD}[parts[-1]]
                result = COMPARISONS[parts[0]](words[0].view(kind), words[1].view(kind))
                return (result & words[2].astype(bool) if "and" in parts else result).astype(WORD)
            if name == "bfe":
                place, length = int(words[1][0]), int(words[2][0])
                field = words[0] << WORD(32 - place - length)
                kind = SIGNED if parts[0] == "s32" else WORD
                return (field.view(kind) >> kind(32 - length)).view(WORD)
            if name == "cvt":
                return (
                    words[0].view(SIGNED if parts[-1] == "s32" else WORD).astype(FLOAT).view(WORD)
                )
            if parts[-1] == "f32":
                result = FLOATS[name](*(word.view(FLOAT) for word in words)).astype(FLOAT)
                if "sat" in parts:
                    result = np.where(result > 0, np.minimum(result, FLOAT(1)), FLOAT(0))
                has_offset = ("approx" in parts) & np.isfinite(result) & (result != 0)
                return result.view(WORD) + np.where(has_offset, self._offset, 0).astype(WORD)
            kind = SIGNED if parts[-1] == "s32" else WORD
            return INTEGERS[name](*(word.view(kind) for word in words)).view(WORD)


COMPARISONS: dict[str, Callable[..., Any]] = {
    "ge": np.greater_equal, "gt": np.greater, "lt": np.less,
}  # fmt: skip
FLOATS: dict[str, Callable[..., Any]] = {
    "rcp": lambda x: FLOAT(1) / x, "rsqrt": lambda x: (1 / np.sqrt(x.astype(np.float64))),
    "sqrt": np.sqrt, "div": np.divide, "mul": np.multiply, "add": np.add, "neg": np.negative,
    "abs": np.abs, "fma": multiply_add, "mov": np.copy,
}  # fmt: skip
INTEGERS: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and, "add": np.add, "min": np.minimum, "max": np.maximum, "mov": np.copy,
    "shl": np.left_shift,
}  # fmt: skip
