"""Memory that may be read but not written: to write to it would end the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import Tensor

from thalweg.engines.layout import span
from thalweg.errors import LayoutError

_MAPS = "/proc/self/maps"


def _protected() -> Iterator[tuple[int, int]]:
    """The runs of addresses of this process that may not be written; none where nobody tells."""
    try:
        lines = Path(_MAPS).read_text().splitlines()
    except OSError:
        return
    for line in lines:
        addresses, rights = line.split()[:2]
        if "w" not in rights:
            first, end = addresses.split("-")
            yield int(first, 16), int(end, 16)


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
    runs = list(_protected())
    for tensor, name in foreign:
        first, end = span(tensor)
        if any(first < stop and start < end for start, stop in runs):
            raise LayoutError(
                f"cannot update '{name}' in place: its memory may only be read. Give the optimizer"
                " a .clone() of it, or map the file for writing."
            )
