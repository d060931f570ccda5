"""Trees of a group's tables and a dataset's chunks (HDF5's B-trees of version 1)."""

from __future__ import annotations

from collections.abc import Iterator

from thalweg._formats.source import FilePart, SourceFile

_MAX_DEPTH = 16


def iterate_leaves(
    source: SourceFile, address: int, kind: int, width: int
) -> Iterator[tuple[FilePart, int]]:
    """Yield (key, address of the child) of all entries of the lowest nodes, in order.

    Args:
        source: The file.
        address: The address of the tree.
        kind: The kind of the tree: 0 for tables of links, 1 for chunks.
        width: The number of bytes of a key.
    """
    pending: list[tuple[int, int | None]] = [(address, None)]
    while pending:
        begin, parent_level = pending.pop()
        signature = b"TREE" + bytes([kind])
        head = source.read_structure(begin, 24, signature, "a node of a tree")
        level, count = head.take_number(1), head.take_number(2)
        if level > _MAX_DEPTH or (parent_level is not None and level != parent_level - 1):
            raise source.data_loss_error(begin + 5, f"a node of level {level} is out of place")
        payload = source.read_part(begin + 24, count * (width + 8), "a node of a tree")
        pairs = [
            (payload.take_part(width), payload.take_stored_address("a child of a node"))
            for _ in range(count)
        ]
        if level:
            pending += [(child, level) for _, child in reversed(pairs)]
        else:
            yield from pairs
