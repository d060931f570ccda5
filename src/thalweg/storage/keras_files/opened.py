"""A file of the disk as a source of bytes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from thalweg.storage import disk
from thalweg.storage.source import Source


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Source]:
    """The bytes of a file, as long as the block runs.

    Raises:
        MissingFileError: There is none.
    """
    with disk.opened(path) as stream:

        def read(begin: int, size: int) -> memoryview:
            found = bytearray(size)
            stream.seek(begin)
            return memoryview(found)[: stream.readinto(found)]  # pyright: ignore

        yield Source(os.fsdecode(path), os.fstat(stream.fileno()).st_size, read)
