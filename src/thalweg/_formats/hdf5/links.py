"""Links of a group: names and addresses of its members.

A group has them in a tree of tables (as h5py writes by default), in messages of its header, or, if
there are many, in a heap.
"""

from __future__ import annotations

from collections.abc import Iterator

from thalweg._formats.hdf5.dense_links import iterate_objects
from thalweg._formats.hdf5.headers import LINK, LINK_INFO, SYMBOL_TABLE, HeaderMessage
from thalweg._formats.hdf5.heaps import LocalHeap, decode_name
from thalweg._formats.hdf5.trees import iterate_leaves
from thalweg._formats.source import FilePart, SourceFile

_NAMES = 5  # kind of trees with links by name
_KINDS = {1: "a soft link", 64: "an external link"}


def read_links(source: SourceFile, messages: list[HeaderMessage]) -> dict[str, int]:
    """Return the addresses of a group's members by name, in the file's order.

    Raises:
        UnsafeCheckpointError: A link leads to another path or another file.
        DataLossError: A name exists twice.
    """
    addresses: dict[str, int] = {}
    for name, address, offset in _iterate_links(source, messages):
        if name in addresses or "/" in name:
            text = "is there twice" if name in addresses else "has a path in it"
            raise source.data_loss_error(offset, f"the name {name!r} {text}")
        addresses[name] = address
    return addresses


def _iterate_links(
    source: SourceFile, messages: list[HeaderMessage]
) -> Iterator[tuple[str, int, int]]:
    """Yield (name, address, offset in the file) of each link."""
    for kind, payload in messages:
        if kind == SYMBOL_TABLE:
            tree, heap = (
                payload.take_stored_address("a group's tree"),
                payload.take_stored_address("a heap of names"),
            )
            yield from _symbol_table_links(source, tree, LocalHeap(source, heap))
        elif kind == LINK:
            yield _read_link(payload)
        elif kind == LINK_INFO:
            payload.take_version((0,), "links")
            payload.take(8 if payload.take_number(1) & 1 else 0)
            heap, tree = payload.take_address(), payload.take_address()
            if heap is not None and tree is not None:
                for part in iterate_objects(source, heap, tree, _NAMES):
                    yield _read_link(part)


def _symbol_table_links(
    source: SourceFile, tree: int, heap: LocalHeap
) -> Iterator[tuple[str, int, int]]:
    """Yield (name, address, offset in the file) of the links in a tree of tables."""
    for _, node in iterate_leaves(source, tree, kind=0, width=8):
        head = source.read_structure(node, 8, b"SNOD\1\0", "a table of links")
        table = source.read_part(node + 8, 40 * head.take_number(2), "a table of links")
        while table.left:
            begin, entry = table.offset, table.take_part(40)
            name = heap.name_at(entry.take_number(8))
            address = entry.take_address()
            if entry.take_number(4) == 2 or address is None:
                raise source.unsafe_error(begin, f"{name!r} is a soft link")
            yield name, address, begin


def _read_link(payload: FilePart) -> tuple[str, int, int]:
    """Return (name, address, offset in the file) of a link message."""
    source, begin = payload.source, payload.offset
    payload.take_version((1,), "links")
    flags = payload.take_number(1)
    kind = payload.take_number(1) if flags & 8 else 0
    payload.take((8 if flags & 4 else 0) + (1 if flags & 16 else 0))
    name = decode_name(source, begin, bytes(payload.take(payload.take_number(1 << (flags & 3)))))
    if kind:
        raise source.unsafe_error(
            begin, f"{name!r} is {_KINDS.get(kind, f'a link of kind {kind}')}"
        )
    return name, payload.take_stored_address(f"{name!r}"), begin
