"""Interface of codecs, which store a slot's numbers as 8-bit codes, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.formula import Formula

SCALE_BYTES = 4  # bytes of the scale, before the codes of a record
ALIGNMENT = 4  # bytes; the address of the first record is a multiple

# The range of a block's largest magnitude, as float32 bits, which sort like the numbers. A block
# with a smaller one is all zeros; one with an infinity or NaN is all NaN. In this range no formula
# of a codec underflows or overflows.
LEAST_PEAK = 0x03800000  # 2**-120
LARGEST_PEAK = 0x7F7FFFFF
NAN = 0x7FC00000


def as_it_is(value: Any) -> Any:
    """Return the number unchanged: the `prepare` of most codecs."""
    return value


@dataclass(frozen=True, eq=False)
class Codec:
    """Codec of float32 numbers: a scale for each block and a code for each number.

    A slot is one tensor of bytes, the records of its blocks one after the other. A record is a
    float32, the scale, and then as many codes as a block has numbers. The scale is the largest
    magnitude of the prepared numbers. Blocks are cut in the order of the variable's elements;
    beyond the last element codes are 0.

    The formulas are written like those of rules, so that all engines compute the same bits.
    `encode` returns a real number between two codes. `encode_array` rounds it to the nearest code,
    ties to even; a step rounds with a dither, see `thalweg._engines.codecs.dither`.

    Args:
        name: The name in `Slot.storage`.
        block: Numbers that share a scale.
        signed: Whether codes are from -128 to 127 instead of 0 to 255; 128 is stored as -128.
        encode: `(prepared, scale) -> code`.
        decode: `(code, scale) -> number`; code 0 is the number 0.
        prepare: `(number) -> prepared`.
        positive: Whether all numbers are nonnegative.
        least: The smallest code that a step gives to a positive number, if `positive`.
        for_positive: The name of the codec that replaces this one for nonnegative slots, or "". A
            signed codec rounds a small mean square beside larger ones to 0, a divisor of steps.
        is_beside: Whether codes are the lower bits of the bfloat16 variable itself, one for each
            element and without scales: `split8`, whose arithmetic is in its file.
    """

    name: str
    block: int
    signed: bool
    encode: Formula
    decode: Formula
    prepare: Formula = as_it_is
    positive: bool = False
    least: int = 0
    for_positive: str = ""
    is_beside: bool = False

    @property
    def header_bytes(self) -> int:
        """Return the number of bytes before the codes of a record."""
        return 0 if self.is_beside else SCALE_BYTES

    @property
    def record_bytes(self) -> int:
        return self.header_bytes + self.block

    def divides(self, shape: Sequence[int]) -> bool:
        """Return True if each row of a tensor of this shape consists of complete blocks."""
        return self.is_beside or (bool(shape) and shape[-1] % self.block == 0)

    def shape_of_rows(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of records with the dimensions of a tensor that `divides` accepts.

        It is a view of the records, and its rows are those of the tensor.
        """
        return tuple(shape) if self.is_beside else (*shape[:-1], self.bytes_of(shape[-1]))

    def bytes_of(self, count: int) -> int:
        return -(-count // self.block) * self.record_bytes
