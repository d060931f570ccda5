"""Groups of an HDF5 file, beginning with the root group."""

from __future__ import annotations

from collections.abc import Iterator

from thalweg._base.lazy import lazy
from thalweg._formats.hdf5 import headers
from thalweg._formats.hdf5.attributes import TextAttribute, attributes_of
from thalweg._formats.hdf5.datasets import ArrayDataset
from thalweg._formats.hdf5.headers import HeaderMessage, read_messages
from thalweg._formats.hdf5.heaps import GlobalHeap
from thalweg._formats.hdf5.links import read_links
from thalweg._formats.hdf5.lookup3 import check_sum
from thalweg._formats.source import FilePart, SourceFile

MAGIC = b"\x89HDF\r\n\x1a\n"
_MAX_LENGTH, _MAX_DEPTH = 1024, 64  # letters and names of a path


class Group:
    """A group of groups and datasets.

    Args:
        source: The file.
        name: The path; "" for the root group.
        messages: The messages of the group's header.
        heap: The heap of variable-length texts.

    Attributes:
        name: The path.
        attributes: {name: attribute}.
    """

    def __init__(
        self, source: SourceFile, name: str, messages: list[HeaderMessage], heap: GlobalHeap
    ) -> None:
        self.name = name
        self.attributes: dict[str, TextAttribute] = attributes_of(messages, heap)
        self._addresses = read_links(source, messages)
        self._source, self._heap = source, heap

    @lazy
    def members(self) -> dict[str, Group | ArrayDataset]:
        """{name: group or dataset} in the file's order; the members' contents are not read."""
        return {name: self._open_member(name, address) for name, address in self._addresses.items()}

    def _open_member(self, name: str, address: int) -> Group | ArrayDataset:
        """Return the group or dataset at an address; `name` is relative to this group."""
        path = f"{self.name}/{name}" if self.name else name
        if len(path) > _MAX_LENGTH or path.count("/") >= _MAX_DEPTH:
            raise self._source.data_loss_error(address, f"the path {path[:40]!r}... is too long")
        return _open_object(self._source, path, address, self._heap)

    def iterate_datasets(self) -> Iterator[ArrayDataset]:
        """Yield all datasets in the group and, recursively, in its groups."""
        for member in self.members.values():
            if isinstance(member, ArrayDataset):
                yield member
            else:
                yield from member.iterate_datasets()


def _open_object(
    source: SourceFile, name: str, address: int, heap: GlobalHeap
) -> Group | ArrayDataset:
    """Return the group or dataset at an address; raise for other kinds of objects."""
    messages = read_messages(source, address)
    kinds = {kind for kind, _ in messages}
    if headers.LAYOUT in kinds:
        return ArrayDataset(source, name, messages, attributes_of(messages, heap))
    if kinds & {headers.SYMBOL_TABLE, headers.LINK_INFO}:
        return Group(source, name, messages, heap)
    if headers.DATATYPE in kinds:
        raise source.unsupported_error(address, f"{name!r} is a named type, which is not read")
    raise source.data_loss_error(address, f"{name!r} is neither a group nor a dataset")


def root_group(source: SourceFile) -> Group:
    """Return the root group of a file.

    Raises:
        DataLossError: The file is not HDF5, or too short.
        UnsupportedCheckpointError: The file has a version that is not supported.
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
    root = _open_object(source, "", address, GlobalHeap(source))
    if isinstance(root, ArrayDataset):
        raise source.data_loss_error(address, "the first group is a dataset")
    return root


def _root_address(head: FilePart, version: int) -> int:
    """Read the rest of the superblock, and return the address of the root group."""
    source = head.source
    base, _, end = head.take_number(8), head.take_address(), head.take_number(8)
    if base:
        raise source.unsupported_error(head.offset - 24, f"the file begins at {base}")
    if end > source.size:
        text = f"the file is cut off: it has {source.size} bytes and should have {end}"
        raise source.data_loss_error(head.offset - 8, text)
    if version < 2:
        head.take_address()  # driver information
        head.take_number(8)  # offset of the name, which is empty
        return head.take_stored_address("the first group")
    address = head.take_stored_address("the first group")
    check_sum(head, "the beginning of the file")
    return address
