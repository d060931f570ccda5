"""A file: its first group, and from there all others."""

from __future__ import annotations

from collections.abc import Iterator

from thalweg._formats.hdf5 import headers
from thalweg._formats.hdf5.attributes import TextAttribute, attributes_of
from thalweg._formats.hdf5.datasets import ArrayDataset
from thalweg._formats.hdf5.headers import HeaderMessage, read_messages
from thalweg._formats.hdf5.heaps import GlobalHeap
from thalweg._formats.hdf5.links import read_links
from thalweg._formats.hdf5.lookup3 import check_sum
from thalweg._formats.source import FilePart, SourceFile

MAGIC = b"\x89HDF\r\n\x1a\n"
_LONGEST, _DEEPEST = 1024, 64  # of a path: its letters, its names


class Group:
    """A group of groups and datasets.

    Args:
        source: The file.
        name: Its path; "" for the first.
        found: The messages of its header.
        heap: Where texts of any length lie.

    Attributes:
        name: Its path.
        attributes: Its attributes by name.
    """

    def __init__(
        self, source: SourceFile, name: str, found: list[HeaderMessage], heap: GlobalHeap
    ) -> None:
        self.name = name
        self.attributes: dict[str, TextAttribute] = attributes_of(found, heap)
        self._addresses = read_links(source, found)
        self._source, self._heap = source, heap
        self._members: dict[str, Group | ArrayDataset] | None = None

    @property
    def members(self) -> dict[str, Group | ArrayDataset]:
        """Its groups and datasets by name, in the file's order; what they hold is not read."""
        if self._members is None:
            self._members = {
                name: self._open_member(name, address) for name, address in self._addresses.items()
            }
        return self._members

    def _open_member(self, name: str, address: int) -> Group | ArrayDataset:
        path = f"{self.name}/{name}" if self.name else name
        if len(path) > _LONGEST or path.count("/") >= _DEEPEST:
            raise self._source.data_loss_error(address, f"the path {path[:40]!r}... is too long")
        return _open_object(self._source, path, address, self._heap)

    def iterate_datasets(self) -> Iterator[ArrayDataset]:
        """Yield all datasets in the group and in its groups."""
        for member in self.members.values():
            if isinstance(member, ArrayDataset):
                yield member
            else:
                yield from member.iterate_datasets()


def _open_object(
    source: SourceFile, name: str, address: int, heap: GlobalHeap
) -> Group | ArrayDataset:
    found = read_messages(source, address)
    kinds = {kind for kind, _ in found}
    if headers.LAYOUT in kinds:
        return ArrayDataset(source, name, found, attributes_of(found, heap))
    if kinds & {headers.SYMBOL_TABLE, headers.LINK_INFO}:
        return Group(source, name, found, heap)
    if headers.DATATYPE in kinds:
        raise source.unsupported_error(address, f"{name!r} is a named type, which is not read")
    raise source.data_loss_error(address, f"{name!r} is neither a group nor a dataset")


def root_group(source: SourceFile) -> Group:
    """Return the first group of a file.

    Raises:
        DataLossError: It is no HDF5 file, or ends too early.
        UnsupportedCheckpointError: It is one of a kind that is not read.
    """
    head = source.read_part(0, min(source.size, 96), "the beginning of a file")
    head.expect_signature(MAGIC, "the file")
    version = head.take_version((0, 1, 2, 3), "HDF5 files")
    if version < 2:
        head.take(4)
    widths = head.take_number(1), head.take_number(1)
    if widths != (8, 8):
        raise source.unsupported_error(head.offset, f"addresses and lengths of {widths} bytes")
    head.take((9 if version == 0 else 13) if version < 2 else 1)
    address = _root_address(head, version)
    found = _open_object(source, "", address, GlobalHeap(source))
    if isinstance(found, ArrayDataset):
        raise source.data_loss_error(address, "the first group is a dataset")
    return found


def _root_address(head: FilePart, version: int) -> int:
    """The address of the first group, after all else has been looked at."""
    source = head.source
    base, _, end = head.take_number(8), head.take_address(), head.take_number(8)
    if base:
        raise source.unsupported_error(head.offset - 24, f"the file begins at {base}")
    if end > source.size:
        text = f"the file is cut off: it has {source.size} bytes and should have {end}"
        raise source.data_loss_error(head.offset - 8, text)
    if version < 2:
        head.take_address()  # a driver's
        head.take_number(8)  # the name, which it has not
        return head.take_stored_address("the first group")
    found = head.take_stored_address("the first group")
    check_sum(head, "the beginning of the file")
    return found
