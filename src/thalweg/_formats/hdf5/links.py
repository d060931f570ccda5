"""Links of a group: names and addresses of its members.

A group has them in a tree of tables (as h5py writes by default), in messages of its header, or, if
there are many, in a heap, if the file was written for HDF5 1.8 or later.

Then a tree (HDF5's B-tree of version 2) has a record for each link; the record has the address of
the link's message in a heap ("fractal heap"). The heap's address space consists of blocks whose
size doubles from row to row of a table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from thalweg._formats.hdf5 import lookup3
from thalweg._formats.hdf5.headers import LINK, LINK_INFO, SYMBOL_TABLE, HeaderMessage
from thalweg._formats.hdf5.heaps import decode_name, name_at, read_local_heap
from thalweg._formats.hdf5.trees import iterate_leaves
from thalweg._formats.source import FilePart, SourceFile

_MAX_DEPTH, _MAX_ROWS = 8, 64  # levels of a tree; rows of a table
_BY_NAME = b"\0\5"  # version and kind of a tree with links by name


def _bytes_for(limit: int) -> int:
    """Return the number of bytes that store a number up to `limit`."""
    return max(limit.bit_length() - 1, 0) // 8 + 1


def _tree_records(source: SourceFile, address: int) -> Iterator[FilePart]:
    """Yield the records of the version 2 B-tree at an address, in no particular order."""
    head = source.read_structure(address, 38, b"BTHD" + _BY_NAME, "a tree")
    node, width, depth, _ = head.take_numbers(4, 2, 2, 2)
    root, count, record_count = head.take_address(), head.take_number(2), head.take_number(8)
    lookup3.check_sum(head, "a tree")
    if not record_count:
        return
    if root is None or depth > _MAX_DEPTH or not 0 < width < node:
        raise source.data_loss_error(
            address, f"a tree of depth {depth} with records of {width} bytes"
        )
    # `count_widths`: the width of the number of records below a node, by level.
    max_records, count_widths = (node - 10) // width, [0]
    count_width, total = _bytes_for(max_records), max_records
    for _ in range(depth):
        pointer = 8 + count_width + count_widths[-1]
        records = max(node - 10 - pointer, 0) // (width + pointer)
        total = (records + 1) * total + records
        count_widths.append(_bytes_for(total))
    pending = [(root, count, depth)]
    while pending:
        begin, count, level = pending.pop()
        pointer = 8 + count_width + count_widths[level - 1] if level else 0
        size = 10 + count * width + (count + 1) * pointer
        signature = (b"BTIN" if level else b"BTLF") + _BY_NAME
        piece = source.read_structure(begin, size, signature, "a node of a tree")
        yield from (piece.take_part(width) for _ in range(count))
        for _ in range(count + 1 if level else 0):
            child = piece.take_stored_address("a child of a node")
            pending.append((child, piece.take_number(count_width), level - 1))
            piece.take(count_widths[level - 1])
        lookup3.check_sum(piece, "a node of a tree")


class _Heap:
    """Fractal heap (a heap in blocks of growing size) with links."""

    def __init__(self, source: SourceFile, address: int) -> None:
        self._source = source
        head = source.read_structure(address, 146, b"FRHP\0", "a heap")
        _, filters, self._flags, largest = head.take_numbers(2, 2, 1, 4)
        head.take(96)
        columns, self._first, direct, bits, _ = head.take_numbers(2, 8, 8, 2, 2)
        root, rows = head.take_address(), head.take_number(2)
        if filters:
            raise source.unsupported_error(address, "links in compressed heaps are not read")
        lookup3.check_sum(head, "a heap")
        if not (columns and self._first and direct) or bits > 64 or rows > _MAX_ROWS:
            raise source.data_loss_error(address, "a heap without room")
        self._columns, self._direct, self._offset = columns, direct, (bits + 7) // 8
        self._length = min(((direct.bit_length() - 1) + 7) // 8, _bytes_for(largest))
        blocks = [] if root is None else list(self._direct_blocks(root, rows))
        self._offsets = [begin for begin, _, _ in blocks]
        self._blocks = blocks
        self._read: dict[int, FilePart] = {}

    def _direct_blocks(self, address: int, rows: int) -> Iterator[tuple[int, int, int]]:
        """Yield (offset in the heap, size, address) of all blocks that contain objects.

        With 0 `rows`, the only block is at `address`. With more, a table with this number of rows
        of blocks is at `address`; the table may refer to further tables.
        """
        if not rows:
            yield 0, self._first, address
            return
        pending = [(0, address, rows)]
        while pending:
            offset, address, rows = pending.pop(0)
            head = 13 + self._offset
            table_size = head + 8 * rows * self._columns + 4
            piece = self._source.read_structure(address, table_size, b"FHIB\0", "a table of blocks")
            piece.take(head - 5)
            for row in range(rows):
                size = self._first << max(row - 1, 0)
                for _ in range(self._columns):
                    child = piece.take_address()
                    if child is not None and size <= self._direct:
                        yield offset, size, child
                    elif child is not None:
                        child_rows = (size // (self._first * self._columns)).bit_length()
                        pending.append((offset, child, child_rows))
                    offset += size
            lookup3.check_sum(piece, "a table of blocks")

    def object_at(self, record: FilePart) -> FilePart:
        """Return the object to which a record points, as a `FilePart`."""
        source, begin = self._source, record.offset
        if record.take_number(1):
            raise source.unsupported_error(begin, "large or tiny objects of heaps are not read")
        offset, length = record.take_number(self._offset), record.take_number(self._length)
        block_index = bisect_right(self._offsets, offset) - 1
        if block_index < 0:
            raise source.data_loss_error(begin, f"nothing is at {offset} in the heap")
        first, size, address = self._blocks[block_index]
        if address not in self._read:
            self._read[address] = self._read_block(address, size)
        block = self._read[address]
        if offset - first + length > size:
            raise source.data_loss_error(
                begin, f"{length} bytes at {offset} go beyond a block of the heap"
            )
        # A malicious tree may point to the same bytes many times.
        source.charge_read(length, begin)
        view = block.data[offset - first : offset - first + length]
        return FilePart(source, view, address + offset - first)

    def _read_block(self, address: int, size: int) -> FilePart:
        """Return the heap block at an address; raise DataLossError if its checksum differs."""
        source = self._source
        piece = source.read_structure(address, size, b"FHDB\0", "a block of a heap")
        if self._flags & 2:
            piece.take(8 + self._offset)
            begin = 13 + self._offset
            stored_checksum = piece.take_number(4)
            bare = bytes(piece.data[:begin]) + bytes(4) + bytes(piece.data[begin + 4 :])
            if lookup3.lookup3(bare) != stored_checksum:
                raise source.data_loss_error(address, "a block of a heap: Checksum does not match")
        return piece


_KINDS = {1: "a soft link", 64: "an external link"}


def read_links(source: SourceFile, messages: list[HeaderMessage]) -> dict[str, int]:
    """Return {name: address} of a group's members, in the file's order.

    Raises:
        UnsafeCheckpointError: A link leads to a path or to another file.
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
    """Yield (name, address of the member, offset of the link in the file) of each link."""
    for kind, payload in messages:
        if kind == SYMBOL_TABLE:
            tree = payload.take_stored_address("a group's tree")
            heap = payload.take_stored_address("a heap of names")
            yield from _symbol_table_links(source, tree, read_local_heap(source, heap))
        elif kind == LINK:
            yield _read_link(payload)
        elif kind == LINK_INFO:
            payload.take_version((0,), "links")
            payload.take(8 if payload.take_number(1) & 1 else 0)
            heap, tree = payload.take_address(), payload.take_address()
            if heap is not None and tree is not None:
                holder = _Heap(source, heap)
                for record in _tree_records(source, tree):
                    record.take(4)  # a hash of the name
                    yield _read_link(holder.object_at(record))


def _symbol_table_links(
    source: SourceFile, tree: int, heap: FilePart
) -> Iterator[tuple[str, int, int]]:
    """Yield (name, address, offset in the file) of the links in the tree at address `tree`."""
    for _, node in iterate_leaves(source, tree, kind=0, width=8):
        head = source.read_structure(node, 8, b"SNOD\1\0", "a table of links")
        table = source.read_part(node + 8, 40 * head.take_number(2), "a table of links")
        while table.left:
            begin, entry = table.offset, table.take_part(40)
            name = name_at(heap, entry.take_number(8))
            address = entry.take_address()
            if entry.take_number(4) == 2 or address is None:
                raise source.unsafe_error(begin, f"{name!r} is a soft link")
            yield name, address, begin


def _read_link(payload: FilePart) -> tuple[str, int, int]:
    """Return (name, address of the member, offset of the link in the file) of a link message."""
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
