"""What a codec is: how a slot's numbers become codes of 8 bits, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.formula import Formula

SCALE_BYTES = 4  # of a record, before its codes
ALIGNMENT = 4  # bytes, of the first record

# Magnitudes that a block may have, as the bits of float32, which order them as numbers do. A block
# with a smaller one is all zeros; one with an infinity or NaN is NaN as a whole. Between them no
# formula of a codec underflows or overflows.
LEAST_PEAK = 0x03800000  # 2**-120
LARGEST_PEAK = 0x7F7FFFFF
NAN = 0x7FC00000


def as_it_is(number: Any) -> Any:
    """What becomes of a number before it is encoded, in most codecs."""
    return number


@dataclass(frozen=True, eq=False)
class Codec:
    """Numbers of float32 as a scale for each block of them, and a code for each number.

    A slot is one tensor of bytes, the records of its blocks one after the other. A record is a
    float32, the scale, and then as many codes as a block has numbers. The scale is the largest
    magnitude of what `prepare` makes of them. Blocks are cut in the order of the variable's
    elements; beyond the last one codes are 0.

    The formulas are those of rules, so that all engines compute the same. `encode` returns a real
    number between the two codes next to the number. `encode_array` takes the nearest one, the even
    one of two; a step rounds as `thalweg._engines.codecs.dither` says.

    Args:
        name: What `Slot.storage` calls it.
        block: How many numbers share a scale.
        signed: Whether codes are from -128 to 127, or from 0 to 255; 128 is kept as -128.
        encode: `(prepared, scale) -> code`.
        decode: `(code, scale) -> number`; 0 of code 0.
        prepare: `(number) -> prepared`.
        positive: Whether it holds only numbers that are not negative.
        least: The smallest code that a step gives to a positive number, if `positive`.
        is_beside: Whether codes are the lower part of the variable itself, a bfloat16, one for each
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
    is_beside: bool = False

    @property
    def header_bytes(self) -> int:
        """How many bytes come before the codes of a block."""
        return 0 if self.is_beside else SCALE_BYTES

    @property
    def record_bytes(self) -> int:
        """How many bytes a block takes."""
        return self.header_bytes + self.block

    def bytes_of(self, count: int) -> int:
        """How many bytes so many numbers take."""
        return -(-count // self.block) * self.record_bytes
