"""Memory that may be read but not written: to write to it would end the process."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path

from torch import Tensor

from thalweg.engines.layout import byte_span
from thalweg.errors import LayoutError

_MAPS = "/proc/self/maps"
_PROTECTED = re.compile(rb"\n([0-9a-f]+)-([0-9a-f]+) .-")  # a newline is found at once, `^` is not


def _protected_runs() -> tuple[list[int], list[int]]:
    """Where runs of addresses of this process that may not be written begin, and where they end.

    They are in order; there are none where nobody tells.
    """
    try:
        found = _PROTECTED.findall(b"\n" + Path(_MAPS).read_bytes())
    except OSError:
        return [], []
    # A process that has compiled much has thousands: no line of Python for each.
    starts, ends = zip(*found, strict=True) if found else ((), ())
    return list(map(int, starts, repeat(16))), list(map(int, ends, repeat(16)))


def check_writable(named: Iterable[tuple[Tensor, str]]) -> None:
    """Refuse tensors over memory that was mapped for reading only, as `np.memmap` of mode "r" does.

    A NumPy array that is read-only by its flag alone cannot be told from others: its memory can be
    written, and torch, which warns when it makes a tensor of one, keeps no trace of the flag.

    Raises:
        LayoutError: Names the first.
    """
    # What torch allocated can be resized, and written.
    foreign = [
        (tensor, name)
        for tensor, name in named
        if tensor.device.type == "cpu" and not tensor.untyped_storage().resizable()
    ]
    if not foreign:
        return
    starts, ends = _protected_runs()
    for tensor, name in foreign:
        first, end = byte_span(tensor)
        next_one = bisect_right(ends, first)
        if next_one < len(starts) and starts[next_one] < end:
            raise LayoutError(
                f"cannot update '{name}' in place: its memory may only be read. Give the optimizer"
                " a .clone() of it, or map the file for writing."
            )
