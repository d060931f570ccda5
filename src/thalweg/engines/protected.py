"""Memory that may be read but not written: to write to it would end the process."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import Tensor

from thalweg.engines.layout import span
from thalweg.errors import LayoutError

_MAPS = "/proc/self/maps"
# A line that begins "7f00a000-7f00b000 r--p": not writable. A process may have thousands of lines.
_PROTECTED = re.compile(rb"\n([0-9a-f]+)-([0-9a-f]+) .-")


def _protected() -> list[tuple[int, int]]:
    """The runs of addresses of this process that may not be written; none where nobody tells."""
    try:
        with open(_MAPS, "rb") as file:
            found = _PROTECTED.findall(b"\n" + file.read())
    except OSError:
        return []
    return [(int(first, 16), int(end, 16)) for first, end in found]


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
    runs = _protected()
    for tensor, name in foreign:
        first, end = span(tensor)
        if any(first < stop and start < end for start, stop in runs):
            raise LayoutError(
                f"cannot update '{name}' in place: its memory may only be read. Give the optimizer"
                " a .clone() of it, or map the file for writing."
            )
