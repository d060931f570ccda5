"""The links of a group: names of its groups and datasets, and where they are.

A group has them in a tree of tables (as h5py writes it unless asked for something newer), in
messages of its header, or, if those are many, in a heap.
"""

from __future__ import annotations

from collections.abc import Iterator

from thalweg.storage.hdf5.dense import objects
from thalweg.storage.hdf5.headers import LINK, LINK_INFO, SYMBOL_TABLE, Message
from thalweg.storage.hdf5.heaps import LocalHeap, decoded
from thalweg.storage.hdf5.trees import leaves
from thalweg.storage.source import Part, Source

_NAMES = 5  # the kind of tree that has links by their names
_KINDS = {1: "a soft link", 64: "an external link"}


def links(source: Source, messages: list[Message]) -> dict[str, int]:
    """The addresses of a group's members by name, in the file's order.

    Raises:
        UnsafeCheckpointError: A link leads to another place, or out of the file.
        DataLossError: Names are there twice.
    """
    found: dict[str, int] = {}
    for name, address, offset in _links(source, messages):
        if name in found or "/" in name:
            text = "is there twice" if name in found else "has a path in it"
            raise source.damaged(offset, f"the name {name!r} {text}")
        found[name] = address
    return found


def _links(source: Source, messages: list[Message]) -> Iterator[tuple[str, int, int]]:
    for kind, body in messages:
        if kind == SYMBOL_TABLE:
            tree, heap = body.stored("a group's tree"), body.stored("a heap of names")
            yield from _old(source, tree, LocalHeap(source, heap))
        elif kind == LINK:
            yield _link(body)
        elif kind == LINK_INFO:
            body.version((0,), "links")
            body.take(8 if body.number(1) & 1 else 0)
            heap, tree = body.address(), body.address()
            if heap is not None and tree is not None:
                for part in objects(source, heap, tree, _NAMES):
                    yield _link(part)


def _old(source: Source, tree: int, heap: LocalHeap) -> Iterator[tuple[str, int, int]]:
    for _, node in leaves(source, tree, kind=0, width=8):
        source.visit(node, "a table of links")
        head = source.part(node, 8, "a table of links")
        head.expect(b"SNOD\1\0", "a table of links")
        table = source.part(node + 8, 40 * head.number(2), "a table of links")
        while table.left:
            begin, entry = table.offset, table.cut(40)
            name = heap.name(entry.number(8))
            address = entry.address()
            if entry.number(4) == 2 or address is None:
                raise source.unsafe(begin, f"{name!r} is a soft link")
            yield name, address, begin


def _link(body: Part) -> tuple[str, int, int]:
    source, begin = body.source, body.offset
    body.version((1,), "links")
    flags = body.number(1)
    kind = body.number(1) if flags & 8 else 0
    body.take((8 if flags & 4 else 0) + (1 if flags & 16 else 0))
    name = decoded(source, begin, bytes(body.take(body.number(1 << (flags & 3)))))
    if kind:
        raise source.unsafe(begin, f"{name!r} is {_KINDS.get(kind, f'a link of kind {kind}')}")
    return name, body.stored(f"{name!r}"), begin
