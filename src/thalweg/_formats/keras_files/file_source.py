"""A file of the disk as a source of bytes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator

from thalweg._formats import atomic_write
from thalweg._formats.source import SourceFile


@contextlib.contextmanager
def open_source(
    path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> Generator[SourceFile]:
    """Open a file, and yield its bytes as long as the block runs.

    Args:
        path: The file.
        progress: Called with the bytes that are read so far and those there are.

    Raises:
        MissingFileError: There is none.
    """
    with atomic_write.open_for_reading(path) as stream:
        whole, done = os.fstat(stream.fileno()).st_size, 0

        def read_bytes(begin: int, size: int) -> memoryview:
            nonlocal done
            found = bytearray(size)
            stream.seek(begin)
            done = min(done + size, whole)
            if progress is not None:
                progress(done, whole)
            return memoryview(found)[: stream.readinto(found)]  # pyright: ignore

        yield SourceFile(os.fsdecode(path), whole, read_bytes)
