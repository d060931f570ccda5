"""What suits which processor. Nothing here changes a bit of what a step computes."""

from __future__ import annotations

from typing import NamedTuple

from thalweg._engines.cpu.work_table import SERIAL
from thalweg.errors import InvalidArgumentError

VARIABLE = "THALWEG_TUNING"
_WIDTHS = (256, 512)


class Tuning(NamedTuple):
    """How kernels are made and run on a processor.

    Attributes:
        prefetch: How many bytes ahead they fetch what they divide, or only write; 0: they do not.
        vectors: Bits of vectors, 256 or 512, where the processor has the latter.
        serial: Elements below which a second thread costs more than it brings.
        measured: Where that was found out.
    """

    prefetch: int = 2048
    vectors: int = 512
    serial: int = SERIAL
    measured: str = "Intel Xeon (Ice Lake), 2 cores"


# By how LLVM's name of a processor begins; all others get what suits the one above.
_ROWS = {
    # Memory keeps up by itself: prefetches made Adam take 1.12 of the time, RMSprop 1.14, Adagrad
    # 1.17 and Ftrl 1.06. Vectors and threads were not looked at.
    "znver": Tuning(prefetch=0, measured="AMD EPYC, 2 cores: prefetches alone"),
}


def tuning_of(processor: str, wanted: str = "") -> Tuning:
    """What suits a processor.

    Args:
        processor: What LLVM calls it.
        wanted: What is to be otherwise, such as "prefetch=0,vectors=256,serial=20000".

    Raises:
        InvalidArgumentError: Something else is wanted.
    """
    found = next((row for name, row in _ROWS.items() if processor.startswith(name)), Tuning())
    if not wanted:
        return found
    numbers: dict[str, int] = {}
    for part in wanted.split(","):
        name, _, text = part.strip().partition("=")
        number = int(text) if text.isascii() and text.isdigit() else -1
        allowed = number in _WIDTHS if name == "vectors" else number >= 0
        if not allowed or name not in ("prefetch", "vectors", "serial"):
            raise InvalidArgumentError(
                f"{VARIABLE} has {part!r}; it takes prefetch=BYTES, vectors=256 or vectors=512, and"
                " serial=ELEMENTS, with commas between them."
            )
        numbers[name] = number
    return found._replace(**numbers, measured=VARIABLE)
