"""Parameters of kernels by processor. No parameter changes a bit of a result."""

from __future__ import annotations

from typing import NamedTuple

from thalweg._engines.cpu.work_table import SERIAL
from thalweg.errors import InvalidArgumentError

VARIABLE = "THALWEG_TUNING"
_WIDTHS = (256, 512)


class Tuning(NamedTuple):
    """Parameters of how kernels are generated and run on a processor.

    Attributes:
        prefetch: Distance of prefetches in bytes; 0 for none.
        vectors: Bits of vectors, 256 or 512, on processors that have 512.
        serial: Number of elements below which a kernel runs on one thread.
        measured: The processor on which the parameters were measured, or the environment variable.
    """

    prefetch: int = 2048
    vectors: int = 512
    serial: int = SERIAL
    measured: str = "Intel Xeon (Ice Lake), 2 cores"


# By the beginning of LLVM's name of a processor; others have the defaults of `Tuning`.
_ROWS = {
    # Prefetches made Adam take 1.12 of the time, RMSprop 1.14, Adagrad 1.17 and Ftrl 1.06. Vectors
    # and threads were not measured.
    "znver": Tuning(prefetch=0, measured="AMD EPYC, 2 cores: prefetches alone"),
}


def tuning_of(processor: str, changes: str = "") -> Tuning:
    """Return the kernel parameters for a processor with this LLVM name.

    Args:
        changes: Parameters that replace the defaults for the processor, such as
            "prefetch=0,vectors=256,serial=20000"; "" for none.

    Raises:
        InvalidArgumentError: `changes` is malformed.
    """
    parameters = next((row for name, row in _ROWS.items() if processor.startswith(name)), Tuning())
    if not changes:
        return parameters
    numbers: dict[str, int] = {}
    for part in changes.split(","):
        name, _, text = part.strip().partition("=")
        number = int(text) if text.isascii() and text.isdigit() else -1
        allowed = number in _WIDTHS if name == "vectors" else number >= 0
        if not allowed or name not in ("prefetch", "vectors", "serial"):
            raise InvalidArgumentError(
                f"{VARIABLE} has {part!r}; it takes prefetch=BYTES, vectors=256 or vectors=512, and"
                " serial=ELEMENTS, with commas between them."
            )
        numbers[name] = number
    return parameters._replace(**numbers, measured=VARIABLE)
