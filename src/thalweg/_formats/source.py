"""Bounded reading of untrusted binary files, on disk or in memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator

from thalweg._formats import atomic_write
from thalweg._formats.atomic_write import Path, Progress
from thalweg.errors import DataLossError, UnsafeCheckpointError, UnsupportedCheckpointError

UNDEFINED = 2**64 - 1  # the address of missing data


class SourceFile:
    """An untrusted file, on disk or in memory.

    Reading more than twice `size` bytes raises. In a valid file, no byte needs a second read.

    Args:
        title: The name of the file in errors.
        size: The number of bytes.
        read: `read(offset, size)` returns bytes of the file, in memory that nothing else writes to.
    """

    def __init__(self, title: str, size: int, read: Callable[[int, int], memoryview]) -> None:
        self.title = title
        self.size = size
        self._read = read
        self._budget = 2 * size
        self._visited: set[int] = set()

    def read_part(self, begin: int, size: int, label: str) -> FilePart:
        """Return a range of bytes.

        Args:
            begin, size: Offset and number of the bytes.
            label: A description for errors.

        Raises:
            DataLossError: The file is too short, or all reads together exceed twice its size.
        """
        if begin + size > self.size:
            raise self.data_loss_error(
                begin, f"{label} of {size} bytes goes beyond the end of the file"
            )
        self.charge_read(size, begin)
        return FilePart(self, self.read_uncounted(begin, size), begin)

    def read_uncounted(self, begin: int, size: int) -> memoryview:
        """Return bytes within the file, without counting them as read."""
        buffer = self._read(begin, size)
        if len(buffer) != size:
            raise self.data_loss_error(begin, f"{size} bytes are no longer there")
        return buffer

    def charge_read(self, size: int, offset: int) -> None:
        """Count bytes as read; raise DataLossError if the total exceeds twice the file's size."""
        self._budget -= size
        if self._budget < 0:
            raise self.data_loss_error(offset, "structures of the file overlap")

    def visit_once(self, address: int, label: str) -> None:
        """Mark an address as read; raise DataLossError if it is already marked."""
        if address in self._visited:
            raise self.data_loss_error(address, f"{label} is reached twice")
        self._visited.add(address)

    def read_structure(self, begin: int, size: int, signature: bytes, label: str) -> FilePart:
        """Return a structure as a `FilePart`, which is positioned after the signature.

        Args:
            begin, size: Offset and number of the bytes, including the signature.
            signature: The bytes with which a valid structure begins.
            label: A description for errors.

        Raises:
            DataLossError: The signature differs, the file is too short, or the structure was read
                before.
        """
        self.visit_once(begin, label)
        piece = self.read_part(begin, size, label)
        piece.expect_signature(signature, label)
        return piece

    def begins_with(self, signature: bytes) -> bool:
        """Return True if the file begins with a signature."""
        size = len(signature)
        return self.size >= size and bytes(self.read_uncounted(0, size)) == signature

    def data_loss_error(self, offset: int, text: str) -> DataLossError:
        """Return the error for damaged content."""
        return DataLossError(f"{self.title}: at byte {offset}: {text}")

    def unsafe_error(self, offset: int, text: str) -> UnsafeCheckpointError:
        """Return the error for content that refers to other files."""
        return UnsafeCheckpointError(f"{self.title}: at byte {offset}: {text}")

    def unsupported_error(self, offset: int, text: str) -> UnsupportedCheckpointError:
        """Return the error for a feature that is not supported."""
        return UnsupportedCheckpointError(f"{self.title}: at byte {offset}: {text}")


class FilePart:
    """A range of bytes of a file, read sequentially.

    Attributes:
        source: The file.
        data: The bytes.
    """

    def __init__(self, source: SourceFile, data: memoryview, begin: int) -> None:
        self.source = source
        self.data = data
        self._begin = begin
        self._position = 0

    @property
    def offset(self) -> int:
        """Position of the next byte in the file."""
        return self._begin + self._position

    @property
    def left(self) -> int:
        """Number of remaining bytes."""
        return len(self.data) - self._position

    def take(self, size: int) -> memoryview:
        """Return the next bytes; raise `DataLossError` if there are fewer."""
        if not 0 <= size <= self.left:
            text = f"{size} bytes should follow, and there are {self.left}"
            raise self.source.data_loss_error(self.offset, text)
        self._position += size
        return self.data[self._position - size : self._position]

    def take_part(self, size: int) -> FilePart:
        """Return the next bytes as a separate `FilePart`."""
        begin = self.offset
        return FilePart(self.source, self.take(size), begin)

    def take_number(self, width: int) -> int:
        """Return the next bytes as an unsigned little-endian number."""
        return int.from_bytes(self.take(width), "little")

    def take_numbers(self, *widths: int) -> list[int]:
        """Return consecutive unsigned little-endian numbers with these numbers of bytes."""
        return [self.take_number(width) for width in widths]

    def take_address(self) -> int | None:
        """Return the next eight bytes as an address; None for the undefined address."""
        address = self.take_number(8)
        return None if address == UNDEFINED else address

    def take_stored_address(self, label: str) -> int:
        """Return the next eight bytes as an address; raise DataLossError if it is undefined."""
        address = self.take_address()
        if address is None:
            raise self.source.data_loss_error(self.offset - 8, f"{label} is not stored")
        return address

    def expect_signature(self, signature: bytes, label: str) -> None:
        """Take a signature; raise `DataLossError` if the bytes differ."""
        actual = bytes(self.take(len(signature)))
        if actual != signature:
            text = f"{label} begins with {actual!r} and not with {signature!r}"
            raise self.source.data_loss_error(self.offset - len(signature), text)

    def take_version(self, supported: tuple[int, ...], label: str) -> int:
        """Return the next byte; raise `UnsupportedCheckpointError` unless it is in `supported`."""
        version = self.take_number(1)
        if version not in supported:
            text = f"version {version} of {label} is not read"
            raise self.source.unsupported_error(self.offset - 1, text)
        return version


@contextlib.contextmanager
def open_source(path: Path, progress: Progress | None = None) -> Generator[SourceFile]:
    """Open a file, and yield it as a `SourceFile` that is usable in the `with` block.

    Args:
        path: The file.
        progress: `progress(bytes_read, total_bytes)` is called during reading.

    Raises:
        MissingFileError: The file does not exist.
    """
    with atomic_write.open_for_reading(path) as stream:
        file_size, bytes_read = os.fstat(stream.fileno()).st_size, 0

        def read_bytes(begin: int, size: int) -> memoryview:
            """Return bytes from an offset on, and report progress."""
            nonlocal bytes_read
            buffer = bytearray(size)
            stream.seek(begin)
            bytes_read = min(bytes_read + size, file_size)
            if progress is not None:
                progress(bytes_read, file_size)
            return memoryview(buffer)[: stream.readinto(buffer)]  # pyright: ignore

        yield SourceFile(os.fsdecode(path), file_size, read_bytes)
