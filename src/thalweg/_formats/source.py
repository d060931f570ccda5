"""The bytes of a file, read within their bounds and no more often than a whole file needs."""

from __future__ import annotations

from collections.abc import Callable

from thalweg.errors import DataLossError, UnsafeCheckpointError, UnsupportedCheckpointError

UNDEFINED = 2**64 - 1  # the address of what is not stored


class SourceFile:
    """A file that may hold anything.

    Structures of a whole file do not overlap, so reading each once reads at most as many bytes as
    it has. One that asks for more than twice as many is damaged, or made to be read for ever.

    Args:
        title: What errors call the file.
        size: How many bytes it has.
        read: Gives so many bytes from an offset on, in memory that nothing else writes to.
    """

    def __init__(self, title: str, size: int, read: Callable[[int, int], memoryview]) -> None:
        self.title = title
        self.size = size
        self._read = read
        self._left = 2 * size
        self._visited: set[int] = set()

    def read_part(self, begin: int, size: int, what: str) -> FilePart:
        """Some bytes.

        Args:
            begin, size: Where they are.
            what: What they should be, for the error.

        Raises:
            DataLossError: The file ends before they do, or its structures overlap.
        """
        if begin + size > self.size:
            raise self.data_loss_error(
                begin, f"{what} of {size} bytes goes beyond the end of the file"
            )
        self.charge_read(size, begin)
        return FilePart(self, self.read_uncounted(begin, size), begin)

    def read_uncounted(self, begin: int, size: int) -> memoryview:
        """Bytes that are known to be there, and are not counted as read."""
        data = self._read(begin, size)
        if len(data) != size:
            raise self.data_loss_error(begin, f"{size} bytes are no longer there")
        return data

    def charge_read(self, size: int, offset: int) -> None:
        """Count bytes as read; raises `DataLossError` if they are more than there can be."""
        self._left -= size
        if self._left < 0:
            raise self.data_loss_error(offset, "structures of the file overlap")

    def visit_once(self, address: int, what: str) -> None:
        """Note that something is about to be read; raises `DataLossError` the second time."""
        if address in self._visited:
            raise self.data_loss_error(address, f"{what} is reached twice")
        self._visited.add(address)

    def begins_with(self, signature: bytes) -> bool:
        """Return True if the file begins with a signature."""
        size = len(signature)
        return self.size >= size and bytes(self.read_uncounted(0, size)) == signature

    def data_loss_error(self, offset: int, text: str) -> DataLossError:
        """Return the error of a file that is not what was written."""
        return DataLossError(f"{self.title}: at byte {offset}: {text}")

    def unsafe_error(self, offset: int, text: str) -> UnsafeCheckpointError:
        """Return the error of a file that leads elsewhere."""
        return UnsafeCheckpointError(f"{self.title}: at byte {offset}: {text}")

    def unsupported_error(self, offset: int, text: str) -> UnsupportedCheckpointError:
        """Return the error of a feature that is known and not supported."""
        return UnsupportedCheckpointError(f"{self.title}: at byte {offset}: {text}")


class FilePart:
    """Some bytes of a file, taken one after the other.

    Attributes:
        source: The file.
        data: The bytes.
    """

    def __init__(self, source: SourceFile, data: memoryview, begin: int) -> None:
        self.source = source
        self.data = data
        self._begin = begin
        self._next = 0

    @property
    def offset(self) -> int:
        """Position of the next byte in the file."""
        return self._begin + self._next

    @property
    def left(self) -> int:
        """Number of bytes that are left."""
        return len(self.data) - self._next

    def take(self, size: int) -> memoryview:
        """Return the next bytes; raises `DataLossError` if there are not as many."""
        if not 0 <= size <= self.left:
            text = f"{size} bytes should follow, and there are {self.left}"
            raise self.source.data_loss_error(self.offset, text)
        self._next += size
        return self.data[self._next - size : self._next]

    def take_part(self, size: int) -> FilePart:
        """Return the next bytes, to be taken on their own."""
        begin = self.offset
        return FilePart(self.source, self.take(size), begin)

    def take_number(self, width: int) -> int:
        """Return the next bytes as a number."""
        return int.from_bytes(self.take(width), "little")

    def take_address(self) -> int | None:
        """Return the next eight bytes as an address; None for what is not stored."""
        found = self.take_number(8)
        return None if found == UNDEFINED else found

    def take_stored_address(self, what: str) -> int:
        """Return the address of what has to be stored."""
        found = self.take_address()
        if found is None:
            raise self.source.data_loss_error(self.offset - 8, f"{what} is not stored")
        return found

    def expect_signature(self, signature: bytes, what: str) -> None:
        """Take what something begins with; raises `DataLossError` if it begins otherwise."""
        found = bytes(self.take(len(signature)))
        if found != signature:
            text = f"{what} begins with {found!r} and not with {signature!r}"
            raise self.source.data_loss_error(self.offset - len(signature), text)

    def take_version(self, known: tuple[int, ...], what: str) -> int:
        """Take a version; raises `UnsupportedCheckpointError` if it is none of the known."""
        found = self.take_number(1)
        if found not in known:
            text = f"version {found} of {what} is not read"
            raise self.source.unsupported_error(self.offset - 1, text)
        return found
