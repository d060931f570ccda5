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

    A slot is one tensor of bytes, with a record for each block of numbers. A record has the scale,
    a float32, and then the codes. The scale is the largest magnitude of the prepared numbers.
    Blocks are cut in the order of the variable's elements; codes beyond the last element are 0.

    Formulas are written like those of rules, so that all engines compute equal bits. `encode`
    returns a real number between two codes. `encode_numbers` rounds real numbers to the nearest
    codes, ties to even. A step rounds with a dither; see `thalweg._engines.codecs.dither`.

    Args:
        name: The name in `Slot.storage`.
        block: The count of numbers that share a scale.
        signed: True for codes from -128 to 127; 128 is stored as -128. False for 0 to 255.
        encode: `encode(prepared, scale)` returns a real code.
        decode: `decode(code, scale)` returns the number; code 0 is the number 0.
        prepare: `prepare(number)` returns the prepared number.
        positive: True if all numbers are nonnegative.
        least: With `positive`, the smallest code that a step gives to a positive number.
        for_positive: The name of the codec that replaces this codec for nonnegative slots, or "". A
            signed codec would round a small mean square, which is a divisor, to 0.
        is_beside: True for `split8`: codes are lower bits of the bfloat16 variable, one per
            element, without scales.
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
        """Return the shape of a view of a slot's bytes in which row i encodes row i of the tensor.

        `shape` must be one that `divides` accepts.
        """
        return tuple(shape) if self.is_beside else (*shape[:-1], self.bytes_of(shape[-1]))

    def bytes_of(self, count: int) -> int:
        return -(-count // self.block) * self.record_bytes
