"""The files of a checkpoint, opened in its own folder: none is a link that leads elsewhere."""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import Self

from thalweg._formats.bundle.errors import CorruptFileError
from thalweg.errors import MissingFileError, UnsafeCheckpointError

# Elsewhere, as on Windows, files are opened by their paths, and links are looked for before.
_BY_FOLDER = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class File:
    """A file that is read.

    Args:
        descriptor: It is closed with the file.
        title: Its name in errors.
    """

    def __init__(self, descriptor: int, title: str) -> None:
        self._file = io.FileIO(descriptor)
        self._title = title
        self.size = os.fstat(descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        """Some bytes from a position on. They must lie in the file."""
        made = bytearray(length)
        self.read_into(offset, memoryview(made))
        return bytes(made)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a buffer from a position on."""
        self._file.seek(offset)
        done = 0
        while done < len(buffer):
            count = self._file.readinto(buffer[done:])
            if not count:
                raise CorruptFileError(
                    f"{self._title} ends at {offset + done}, within what is read"
                )
            done += count

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Folder:
    """The folder of a checkpoint; use it in a `with` block.

    Args:
        prefix: What the names of all files of the checkpoint begin with.

    Raises:
        MissingFileError: There is no such folder.
        CorruptFileError: The links on the way lead to one another.
    """

    def __init__(self, prefix: str) -> None:
        self._path, self._base = os.path.split(prefix)
        self._descriptor: int | None = None
        self._shard: tuple[str, File] | None = None
        if _BY_FOLDER:
            try:
                self._descriptor = os.open(self._path or ".", _FLAGS | os.O_DIRECTORY)
            except (FileNotFoundError, NotADirectoryError):
                raise MissingFileError(f"{prefix}: {os.strerror(errno.ENOENT)}.") from None
            except OSError as error:
                # Links that lead to one another are no folder that is not there yet.
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
        """Return a file of the checkpoint, which stays open until another one is asked for."""
        if self._shard is None or self._shard[0] != suffix:
            before, self._shard = self._shard, None
            if before is not None:
                before[1].close()
            self._shard = suffix, self.open_file(suffix)
        return self._shard[1]

    def open_file(self, suffix: str) -> File:
        """Return a file of the checkpoint; the caller closes it.

        Args:
            suffix: What its name has after the prefix.

        Raises:
            MissingFileError: There is none.
            UnsafeCheckpointError: It is a link.
            CorruptFileError: It is no regular file.
        """
        name = self._base + suffix
        title = os.path.join(self._path, name)
        try:
            found = self._open_descriptor(name, title)
        except FileNotFoundError:
            raise MissingFileError(f"{title}: {os.strerror(errno.ENOENT)}.") from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):
                raise CorruptFileError(
                    f"{name} is a link, which may lead anywhere; name the files it leads to",
                    UnsafeCheckpointError,
                ) from None
            raise
        if not stat.S_ISREG(os.fstat(found).st_mode):
            os.close(found)
            raise CorruptFileError(f"{name} is no regular file")
        return File(found, name)

    def list_suffixes(self) -> list[str]:
        """Return the suffixes of all files whose names begin with the prefix, in order."""
        here = self._path or "." if self._descriptor is None else self._descriptor
        names = sorted(os.listdir(here))
        return [name[len(self._base) :] for name in names if name.startswith(self._base)]

    def _open_descriptor(self, name: str, title: str) -> int:
        if self._descriptor is None:
            if os.path.islink(title):
                raise OSError(errno.ELOOP, "link", title)
            return os.open(title, _FLAGS)
        # A pipe in its place must not make us wait.
        flags = _FLAGS | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(name, flags, dir_fd=self._descriptor)
