"""Files of this machine, as `tf.io.gfile` has them. Paths of cloud storage are not understood."""

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
    "GFile",
    "copy",
    "exists",
    "glob",
    "isdir",
    "join",
    "listdir",
    "makedirs",
    "mkdir",
    "remove",
    "rename",
    "rmtree",
    "stat",
    "walk",
]

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class FileStatistics:
    """Result of `stat`."""

    length: int
    mtime_nsec: int
    is_directory: bool


class ExistingFileError(AlreadyExistsError, FileExistsError):
    """Error of an operation that would replace an existing file or folder."""


@contextlib.contextmanager
def _raise_tensorflow_errors() -> Iterator[None]:
    """A missing file, and one that is in the way, is an error of TensorFlow's, too."""
    try:
        yield
    except FileExistsError as error:
        raise ExistingFileError(f"{error.filename}; {error.strerror}") from error
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG):
            raise
        raise MissingFileError(f"{error.filename}; {error.strerror}") from error


def GFile(name: Path, mode: str = "r") -> IO[Any]:
    """Return a file of Python's: text in UTF-8, or bytes where the mode has a "b".

    Raises:
        MissingFileError: It does not exist, or its folder does not.
    """
    is_text = "b" not in mode
    with _raise_tensorflow_errors():
        return open(
            name,
            mode,
            encoding="utf-8" if is_text else None,
            newline="" if is_text else None,
        )


def exists(path: Path) -> bool:
    """Return True if there is a file or folder of this name."""
    return os.path.exists(path)


def isdir(path: Path) -> bool:
    """Return True if there is a folder of this name."""
    return os.path.isdir(path)


def join(path: Path, *paths: Path) -> str:
    """Parts of a path as one."""
    return os.path.join(path, *paths)


def glob(pattern: Path | Sequence[Path]) -> list[str]:
    """Return the paths that match a pattern, or one of several, in order."""
    several = [pattern] if isinstance(pattern, str | os.PathLike) else pattern
    return [path for each in several for path in sorted(patterns.glob(os.fspath(each)))]


def listdir(path: Path) -> list[str]:
    """Return the names in a folder, in order; MissingFileError if it does not exist."""
    with _raise_tensorflow_errors():
        return sorted(os.listdir(path))


def mkdir(path: Path) -> None:
    """Make a folder; MissingFileError if the one it is to be in does not exist, ExistingFileError
    if it does itself.
    """
    with _raise_tensorflow_errors():
        os.mkdir(path)


def makedirs(path: Path) -> None:
    """Make a folder and those it is in, where they do not exist."""
    with _raise_tensorflow_errors():
        os.makedirs(path, exist_ok=True)


def remove(path: Path) -> None:
    """Remove a file; MissingFileError if it does not exist."""
    with _raise_tensorflow_errors():
        os.remove(path)


def rmtree(path: Path) -> None:
    """Remove a folder and all that is in it; MissingFileError if it does not exist."""
    with _raise_tensorflow_errors():
        shutil.rmtree(path)


def copy(src: Path, dst: Path, overwrite: bool = False) -> None:
    """Copy a file. ExistingFileError if there is one already that may not be overwritten."""
    _refuse_existing(dst, overwrite)
    with _raise_tensorflow_errors():
        shutil.copyfile(src, dst)


def rename(src: Path, dst: Path, overwrite: bool = False) -> None:
    """Move a file or folder; errors as in `copy`."""
    _refuse_existing(dst, overwrite)
    with _raise_tensorflow_errors():
        os.replace(src, dst)


def stat(path: Path) -> FileStatistics:
    """Return the length, the time of the last change, and whether it is a folder."""
    with _raise_tensorflow_errors():
        found = os.stat(path)
    return FileStatistics(found.st_size, found.st_mtime_ns, os.path.isdir(path))


def walk(top: Path, topdown: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder below `top`, with the names of the folders and files in it."""
    return os.walk(os.fspath(top), topdown)


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if not overwrite and os.path.exists(path):
        raise ExistingFileError(f"{os.fspath(path)} exists already; give overwrite=True.")
