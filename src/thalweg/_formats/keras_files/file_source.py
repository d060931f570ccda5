"""A file on disk as a `SourceFile`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator

from thalweg._formats import atomic_write
from thalweg._formats.atomic_write import Path, Progress
from thalweg._formats.source import SourceFile


@contextlib.contextmanager
def open_source(path: Path, progress: Progress | None = None) -> Generator[SourceFile]:
    """Open a file, and yield its bytes while the block runs.

    Args:
        path: The file.
        progress: Called with the bytes read so far and their total.

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
