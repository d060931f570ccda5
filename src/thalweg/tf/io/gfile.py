"""Local files with the functions of `tf.io.gfile`; cloud storage is not supported."""

from __future__ import annotations

import contextlib
import errno
import glob as patterns
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from thalweg.errors import MissingFileError
from thalweg.tf.errors import AlreadyExistsError

__all__ = [
    "GFile", "copy", "exists", "glob", "isdir", "join", "listdir", "makedirs", "mkdir", "remove",
    "rename", "rmtree", "stat", "walk",
]  # fmt: skip

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class FileStatistics:
    """Result of `stat`."""

    length: int
    mtime_nsec: int
    is_directory: bool


class ExistingFileError(AlreadyExistsError, FileExistsError):
    """Error of an operation that would replace a file or folder."""


@contextlib.contextmanager
def _raise_tensorflow_errors() -> Iterator[None]:
    """Raise MissingFileError or ExistingFileError in place of Python's errors in a `with` block.

    Both are OSErrors and errors of TensorFlow.
    """
    try:
        yield
    except FileExistsError as error:
        raise ExistingFileError(f"{error.filename}; {error.strerror}") from error
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG):
            raise
        raise MissingFileError(f"{error.filename}; {error.strerror}") from error


def GFile(name: Path, mode: str = "r") -> IO[Any]:
    """Return an open Python file: text in UTF-8, or bytes for a mode with "b".

    Raise MissingFileError if the file or its folder does not exist.
    """
    is_text = "b" not in mode
    with _raise_tensorflow_errors():
        return open(
            name, mode, encoding="utf-8" if is_text else None, newline="" if is_text else None
        )


def exists(path: Path) -> bool:
    """Return True if a file or folder exists."""
    return os.path.exists(path)


def isdir(path: Path) -> bool:
    """Return True if a folder of this name exists."""
    return os.path.isdir(path)


def join(path: Path, *paths: Path) -> str:
    """Join parts of a path."""
    return os.path.join(path, *paths)


def glob(pattern: Path | Sequence[Path]) -> list[str]:
    """Return the paths that match a pattern, or one of several, in order."""
    pattern_list = [pattern] if isinstance(pattern, str | os.PathLike) else pattern
    return [path for entry in pattern_list for path in sorted(patterns.glob(os.fspath(entry)))]


def listdir(path: Path) -> list[str]:
    """Return the sorted names in a folder; raise MissingFileError if it does not exist."""
    with _raise_tensorflow_errors():
        return sorted(os.listdir(path))


def mkdir(path: Path) -> None:
    """Make a folder; raise MissingFileError without a parent, ExistingFileError if it exists."""
    with _raise_tensorflow_errors():
        os.mkdir(path)


def makedirs(path: Path) -> None:
    """Make a folder and its parents, unless they exist."""
    with _raise_tensorflow_errors():
        os.makedirs(path, exist_ok=True)


def remove(path: Path) -> None:
    """Remove a file; raise MissingFileError if it does not exist."""
    with _raise_tensorflow_errors():
        os.remove(path)


def rmtree(path: Path) -> None:
    """Remove a folder and its contents; raise MissingFileError if it does not exist."""
    with _raise_tensorflow_errors():
        shutil.rmtree(path)


def copy(src: Path, dst: Path, overwrite: bool = False) -> None:
    """Copy a file; raise ExistingFileError if the target exists, unless `overwrite`."""
    _refuse_existing(dst, overwrite)
    with _raise_tensorflow_errors():
        shutil.copyfile(src, dst)


def rename(src: Path, dst: Path, overwrite: bool = False) -> None:
    """Move a file or folder; errors as in `copy`."""
    _refuse_existing(dst, overwrite)
    with _raise_tensorflow_errors():
        os.replace(src, dst)


def stat(path: Path) -> FileStatistics:
    """Return length, time of the last change and type of a file or folder."""
    with _raise_tensorflow_errors():
        status = os.stat(path)
    return FileStatistics(status.st_size, status.st_mtime_ns, os.path.isdir(path))


def walk(top: Path, topdown: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder below `top`, with the names of the folders and files in it."""
    return os.walk(os.fspath(top), topdown)


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if not overwrite and os.path.exists(path):
        raise ExistingFileError(f"{os.fspath(path)} exists already; give overwrite=True.")
