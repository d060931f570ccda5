"""Files of a checkpoint, opened in its own directory without following links."""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import Self

from thalweg._formats.bundle.errors import CorruptFileError
from thalweg.errors import MissingFileError, UnsafeCheckpointError

# Without these, as on Windows, files are opened by path after a check for links.
_BY_DIRECTORY = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class File:
    """A file open for reading.

    Args:
        descriptor: The descriptor; it is closed with the file.
        name: The name in errors.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self._file = io.FileIO(descriptor)
        self._name = name
        self.size = os.fstat(descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset`; raise CorruptFileError if there are fewer."""
        buffer = bytearray(length)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with bytes at `offset`; raise CorruptFileError if the file is too short."""
        self._file.seek(offset)
        filled = 0
        while filled < len(buffer):
            count = self._file.readinto(buffer[filled:])
            if not count:
                raise CorruptFileError(
                    f"{self._name} ends at {offset + filled}, within what is read"
                )
            filled += count

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Folder:
    """Directory of a checkpoint. Leaving the context closes the open files.

    Args:
        prefix: The common prefix of the paths of all files of the checkpoint.

    Raises:
        MissingFileError: The directory does not exist.
        CorruptFileError: Links on the path form a cycle.
    """

    def __init__(self, prefix: str) -> None:
        self._path, self._base = os.path.split(prefix)
        self._descriptor: int | None = None
        self._shard: tuple[str, File] | None = None
        if _BY_DIRECTORY:
            try:
                self._descriptor = os.open(self._path or ".", _FLAGS | os.O_DIRECTORY)
            except (FileNotFoundError, NotADirectoryError):
                raise MissingFileError(f"{prefix}: {os.strerror(errno.ENOENT)}.") from None
            except OSError as error:
                # A cycle of links is not a directory that may be created later.
                if error.errno == errno.ELOOP:
                    raise CorruptFileError(
                        os.strerror(errno.ELOOP), UnsafeCheckpointError
                    ) from None
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shard is not None:
            self._shard[1].close()
        if self._descriptor is not None:
            os.close(self._descriptor)

    def open_shard(self, suffix: str) -> File:
        """Return a file of the checkpoint, which is closed when another shard is opened."""
        if self._shard is None or self._shard[0] != suffix:
            previous, self._shard = self._shard, None
            if previous is not None:
                previous[1].close()
            self._shard = suffix, self.open_file(suffix)
        return self._shard[1]

    def open_file(self, suffix: str) -> File:
        """Return a file of the checkpoint; the caller closes it.

        Args:
            suffix: The end of the file's name, after the prefix.

        Raises:
            MissingFileError: The file does not exist.
            UnsafeCheckpointError: The file is a link.
            CorruptFileError: The path is not a regular file.
        """
        name = self._base + suffix
        path = os.path.join(self._path, name)
        try:
            descriptor = self._open_descriptor(name, path)
        except FileNotFoundError:
            raise MissingFileError(f"{path}: {os.strerror(errno.ENOENT)}.") from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):
                raise CorruptFileError(
                    f"{name} is a link, which may lead anywhere; name the files it leads to",
                    UnsafeCheckpointError,
                ) from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise CorruptFileError(f"{name} is no regular file")
        return File(descriptor, name)

    def list_suffixes(self) -> list[str]:
        """Return the sorted suffixes of all files whose names begin with the prefix."""
        directory = self._path or "." if self._descriptor is None else self._descriptor
        names = sorted(os.listdir(directory))
        return [name[len(self._base) :] for name in names if name.startswith(self._base)]

    def _open_descriptor(self, name: str, path: str) -> int:
        """Return the descriptor of a file, opened without following links."""
        if self._descriptor is None:
            if os.path.islink(path):
                raise OSError(errno.ELOOP, "link", path)
            return os.open(path, _FLAGS)
        # Opening a pipe must not block.
        flags = _FLAGS | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(name, flags, dir_fd=self._descriptor)
