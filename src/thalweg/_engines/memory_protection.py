"""Detection of read-only memory, because a write to it would end the process."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

from torch import Tensor, UntypedStorage

from thalweg._engines.layout import byte_span
from thalweg.errors import LayoutError

_MAPS = "/proc/self/maps"
# A line of a mapping that may not be written: its first address, its end, "r-" or "--".
_RUN = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) .-", re.MULTILINE)


def _read_protected_ranges() -> list[tuple[int, int]]:
    """Return the read-only address ranges of this process, ascending; empty if unknown."""
    try:
        maps = Path(_MAPS).read_bytes()
    except OSError:
        return []
    return [(int(run[1], 16), int(run[2], 16)) for run in _RUN.finditer(maps)]


# Addresses of numbers that were found writable, by storage. They are dropped with the storage,
# because the same address may be mapped read-only later. Reading the list of mappings takes longer
# than a step.
_writable_numbers: WeakKeyDictionary[UntypedStorage, set[int]] = WeakKeyDictionary()


def check_numbers_writable(tensors: Sequence[Tensor], name_of: Callable[[int], str]) -> None:
    """Raise if memory of a tensor was mapped read-only.

    A writable tensor is not checked again while it keeps its storage and address.

    Args:
        name_of: `name_of(index)` returns the name of a tensor, for messages.

    Raises:
        LayoutError: A tensor is read-only; the message names the first such tensor.
    """
    if are_allocated_by_torch(tensors):
        return
    unknown: list[int] = []
    for index, tensor in enumerate(tensors):
        storage = tensor.untyped_storage()
        if not storage.resizable() and tensor.data_ptr() not in _writable_numbers.get(storage, ()):
            unknown.append(index)
    if unknown:
        check_writable([(tensors[index], name_of(index)) for index in unknown])
        for index in unknown:
            storage = tensors[index].untyped_storage()
            _writable_numbers.setdefault(storage, set()).add(tensors[index].data_ptr())


def are_allocated_by_torch(tensors: Iterable[Tensor]) -> bool:
    """Return True if torch allocated the memory of all tensors. The memory is then writable."""
    return all(map(UntypedStorage.resizable, map(Tensor.untyped_storage, tensors)))


def check_writable(named_tensors: Iterable[tuple[Tensor, str]]) -> None:
    """Raise if memory of a tensor was mapped read-only, as by `np.memmap` of mode "r".

    A NumPy array with a read-only flag, but in writable memory, is not detected.

    Args:
        named_tensors: Pairs of a tensor and its name for messages.

    Raises:
        LayoutError: A tensor is read-only; the message names the first such tensor.
    """
    # Memory that torch allocated is resizable, and can be written.
    foreign = [
        (tensor, name)
        for tensor, name in named_tensors
        if tensor.device.type == "cpu" and not tensor.untyped_storage().resizable()
    ]
    if not foreign:
        return
    ranges = _read_protected_ranges()
    for tensor, name in foreign:
        first, end = byte_span(tensor)
        # The last range that begins before the tensor ends.
        index = bisect_left(ranges, (end, 0)) - 1
        if index >= 0 and ranges[index][1] > first:
            raise LayoutError(
                f"cannot update '{name}' in place: its memory may only be read. Give the optimizer"
                " a .clone() of it, or map the file for writing."
            )
