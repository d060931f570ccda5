"""Object headers: the messages that describe a group or a dataset."""

from __future__ import annotations

from typing import NamedTuple

from thalweg._formats.hdf5 import lookup3
from thalweg._formats.source import FilePart, SourceFile

DATASPACE, LINK_INFO, DATATYPE, FILL_VALUE, LINK = 1, 2, 3, 5, 6
EXTERNAL_FILES, LAYOUT, FILTERS, ATTRIBUTE, CONTINUATION = 7, 8, 11, 12, 16
SYMBOL_TABLE, ATTRIBUTE_INFO = 17, 21
_REGISTERED_KINDS = range(24)
_SHARED, _MUST_BE_READ = 2, 128


class HeaderMessage(NamedTuple):
    """Message of an object header."""

    kind: int
    body: FilePart


def read_messages(source: SourceFile, address: int) -> list[HeaderMessage]:
    """Return all messages of the object header at an address.

    Raises:
        DataLossError: The header is damaged, or was read before.
        UnsupportedCheckpointError: A message is shared, or of a later version of HDF5.
    """
    source.visit_once(address, "an object")
    if bytes(source.read_part(address, 4, "an object's header").data) == b"OHDR":
        return _read_version_2(source, address)
    return _read_version_1(source, address)


def _read_version_1(source: SourceFile, address: int) -> list[HeaderMessage]:
    """Return the messages of the version 1 object header at an address."""
    piece = source.read_part(address, 16, "an object's header")
    piece.expect_signature(b"\x01\x00", "an object's header")
    count, _, size = piece.take_number(2), piece.take_number(4), piece.take_number(4)
    messages: list[HeaderMessage] = []
    # The first 12 bytes of the header are padded to 16.
    blocks, message_count = [(address + 16, size)], 0
    while blocks:
        begin, size = blocks.pop(0)
        block = source.read_part(begin, size, "a block of messages")
        while block.left >= 8:
            kind, size, flags, _ = block.take_numbers(2, 2, 1, 3)
            _note_message(messages, blocks, kind, flags, block.take_part(size))
            message_count += 1
    if message_count != count:
        text = f"{message_count} messages are there, and should be {count}"
        raise source.data_loss_error(address, text)
    return messages


def _read_version_2(source: SourceFile, address: int) -> list[HeaderMessage]:
    """Return the messages of the version 2 object header at an address."""
    head = source.read_part(address, 6, "an object's header")
    head.take(4)
    head.take_version((2,), "object headers")
    flags = head.take_number(1)
    extra_size = (16 if flags & 32 else 0) + (4 if flags & 16 else 0)
    width = 1 << (flags & 3)
    piece = source.read_part(address + 6 + extra_size, width, "the size of a header")
    prefix_size = 6 + extra_size + width
    messages: list[HeaderMessage] = []
    blocks = [(address, prefix_size + piece.take_number(width) + 4)]
    while blocks:
        begin, size = blocks.pop(0)
        block = source.read_part(begin, size, "a block of messages")
        if prefix_size == 4:
            block.expect_signature(b"OCHK", "a block of messages")
        else:
            block.take(prefix_size)
        prefix_size = 4
        while block.left >= 4 + 4 + (2 if flags & 4 else 0):
            kind, size, message_flags = block.take_numbers(1, 2, 1)
            block.take(2 if flags & 4 else 0)
            if size > block.left - 4:
                raise source.data_loss_error(block.offset, f"a message of {size} bytes has no room")
            _note_message(messages, blocks, kind, message_flags, block.take_part(size))
        block.take(block.left - 4)  # a gap
        lookup3.check_sum(block, "a block of messages")
    return messages


def _note_message(
    messages: list[HeaderMessage],
    blocks: list[tuple[int, int]],
    kind: int,
    flags: int,
    payload: FilePart,
) -> None:
    """Append a message to `messages`, or the (offset, size) in a continuation to `blocks`."""
    source = payload.source
    if kind == CONTINUATION:
        begin, size = payload.take_stored_address("a block of messages"), payload.take_number(8)
        source.visit_once(begin, "a block of messages")
        blocks.append((begin, size))
    elif kind not in _REGISTERED_KINDS and flags & _MUST_BE_READ:
        raise source.unsupported_error(payload.offset, f"messages of kind {kind} are not read")
    elif flags & _SHARED and kind in (DATASPACE, DATATYPE, FILTERS, ATTRIBUTE):
        raise source.unsupported_error(
            payload.offset, "what objects share, as a named type, is not read"
        )
    elif kind:
        messages.append(HeaderMessage(kind, payload))
