"""The links of a group: names of its groups and datasets, and where they are.

A group has them in a tree of tables (as h5py writes it unless asked for something newer), in
messages of its header, or, if those are many, in a heap.
"""

from __future__ import annotations

from collections.abc import Iterator

from thalweg._formats.hdf5.dense_links import iterate_objects
from thalweg._formats.hdf5.headers import LINK, LINK_INFO, SYMBOL_TABLE, HeaderMessage
from thalweg._formats.hdf5.heaps import LocalHeap, decode_name
from thalweg._formats.hdf5.trees import iterate_leaves
from thalweg._formats.source import FilePart, SourceFile

_NAMES = 5  # the kind of tree that has links by their names
_KINDS = {1: "a soft link", 64: "an external link"}


def read_links(source: SourceFile, messages: list[HeaderMessage]) -> dict[str, int]:
    """Return the addresses of a group's members by name, in the file's order.

    Raises:
        UnsafeCheckpointError: A link leads to another place, or out of the file.
        DataLossError: Names are there twice.
    """
    found: dict[str, int] = {}
    for name, address, offset in _iterate_links(source, messages):
        if name in found or "/" in name:
            text = "is there twice" if name in found else "has a path in it"
            raise source.data_loss_error(offset, f"the name {name!r} {text}")
        found[name] = address
    return found


def _iterate_links(
    source: SourceFile, messages: list[HeaderMessage]
) -> Iterator[tuple[str, int, int]]:
    for kind, body in messages:
        if kind == SYMBOL_TABLE:
            tree, heap = (
                body.take_stored_address("a group's tree"),
                body.take_stored_address("a heap of names"),
            )
            yield from _symbol_table_links(source, tree, LocalHeap(source, heap))
        elif kind == LINK:
            yield _read_link(body)
        elif kind == LINK_INFO:
            body.take_version((0,), "links")
            body.take(8 if body.take_number(1) & 1 else 0)
            heap, tree = body.take_address(), body.take_address()
            if heap is not None and tree is not None:
                for part in iterate_objects(source, heap, tree, _NAMES):
                    yield _read_link(part)


def _symbol_table_links(
    source: SourceFile, tree: int, heap: LocalHeap
) -> Iterator[tuple[str, int, int]]:
    for _, node in iterate_leaves(source, tree, kind=0, width=8):
        source.visit_once(node, "a table of links")
        head = source.read_part(node, 8, "a table of links")
        head.expect_signature(b"SNOD\1\0", "a table of links")
        table = source.read_part(node + 8, 40 * head.take_number(2), "a table of links")
        while table.left:
            begin, entry = table.offset, table.take_part(40)
            name = heap.name_at(entry.take_number(8))
            address = entry.take_address()
            if entry.take_number(4) == 2 or address is None:
                raise source.unsafe_error(begin, f"{name!r} is a soft link")
            yield name, address, begin


def _read_link(body: FilePart) -> tuple[str, int, int]:
    source, begin = body.source, body.offset
    body.take_version((1,), "links")
    flags = body.take_number(1)
    kind = body.take_number(1) if flags & 8 else 0
    body.take((8 if flags & 4 else 0) + (1 if flags & 16 else 0))
    name = decode_name(source, begin, bytes(body.take(body.take_number(1 << (flags & 3)))))
    if kind:
        raise source.unsafe_error(
            begin, f"{name!r} is {_KINDS.get(kind, f'a link of kind {kind}')}"
        )
    return name, body.take_stored_address(f"{name!r}"), begin
