"""Memory that may be read but not written: to write to it would end the process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

from torch import Tensor, UntypedStorage

from thalweg._engines.layout import byte_span
from thalweg.errors import LayoutError

_MAPS = "/proc/self/maps"
_RUN = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) .(.)[^\n]*\n")


def _maps() -> bytes:
    """The runs of addresses of this process, in order, a line each; none where nobody tells."""
    try:
        return Path(_MAPS).read_bytes()
    except OSError:
        return b""


def _is_protected(maps: bytes, first: int, end: int) -> bool:
    """Whether some of these addresses lie in a run that may not be written."""
    # A process that has compiled much has thousands of runs: only those on the way are parsed.
    low, high = 0, len(maps)
    while low < high:
        run = _RUN.match(maps, maps.rfind(b"\n", 0, (low + high) // 2) + 1)
        if run is None:
            return False
        if int(run[2], 16) > first:
            high = run.start()
        else:
            low = run.end()
    while (run := _RUN.match(maps, low)) and int(run[1], 16) < end:
        if run[3] == b"-":
            return True
        low = run.end()
    return False


# Addresses of numbers that were found writable, by their storage, and forgotten with it: the same
# address may be mapped for reading only later. To read the list of mappings takes longer than a
# step.
_writable_numbers: WeakKeyDictionary[UntypedStorage, set[int]] = WeakKeyDictionary()


def check_numbers_writable(tensors: Sequence[Tensor], name_of: Callable[[int], str]) -> None:
    """Raise if tensors that a step writes lie in memory that was mapped for reading only.

    Unlike `check_writable`, it checks tensors that stay in place only once.

    Args:
        tensors: The tensors.
        name_of: Returns the name of the tensor at an index, for messages.

    Raises:
        LayoutError: Names the first.
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
    """Return whether torch allocated the memory of all tensors, which can be written then.

    Cheap: the loops run in C.
    """
    return all(map(UntypedStorage.resizable, map(Tensor.untyped_storage, tensors)))


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
    maps = _maps()
    for tensor, name in foreign:
        if _is_protected(maps, *byte_span(tensor)):
            raise LayoutError(
                f"cannot update '{name}' in place: its memory may only be read. Give the optimizer"
                " a .clone() of it, or map the file for writing."
            )
