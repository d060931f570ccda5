"""System calls of an atomic write: retried after signals, and durable."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator
from typing import Any, ParamSpec, TypeVar

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

P = ParamSpec("P")
T = TypeVar("T")

_LINKS = 40  # the limit of Linux


def retry_interrupted(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Return `call(*args, **options)`, repeated after interruptions by signals."""
    while True:
        try:
            return call(*args, **options)
        except InterruptedError:
            continue


def without_links(path: str) -> str:
    """Return the file that a path leads to; it need not exist."""
    for _ in range(_LINKS):
        folder, name = os.path.split(path)
        if name in ("", ".", ".."):
            return retry_interrupted(os.path.realpath, path, strict=True)
        path = os.path.join(retry_interrupted(os.path.realpath, folder, strict=True), name)
        info = status(path)
        if info is None or not stat.S_ISLNK(info.st_mode):
            return path
        path = os.path.join(os.path.dirname(path), retry_interrupted(os.readlink, path))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def status(path: str) -> os.stat_result | None:
    """Return the status of a path itself, not of a link's target; None if it does not exist."""
    try:
        return retry_interrupted(os.lstat, path)
    except FileNotFoundError:
        return None


def give_ownership(descriptor: int, previous: os.stat_result) -> None:
    """Set owner and group of a new file; without that right, remove group access.

    Args:
        descriptor: The new file, open.
        previous: The status of the other file.
    """
    current = retry_interrupted(os.fstat, descriptor)
    is_same = (current.st_uid, current.st_gid) == (previous.st_uid, previous.st_gid)
    if is_same or not hasattr(os, "fchown"):
        return
    for owner in (previous.st_uid, -1):  # Only root can give a file to another user.
        with contextlib.suppress(OSError):
            return retry_interrupted(os.fchown, descriptor, owner, previous.st_gid)
    retry_interrupted(os.fchmod, descriptor, stat.S_IMODE(current.st_mode) & ~0o070)


def close(descriptor: int) -> None:
    """Close a descriptor that was written; ignore interruptions."""
    # Linux closes the file even if the call is interrupted.
    with contextlib.suppress(InterruptedError):
        os.close(descriptor)


def start_writeback(descriptor: int, begin: int, size: int) -> None:
    """Start writing to the disk now, instead of at `fsync`."""
    advise = getattr(os, "posix_fadvise", None)
    if advise is not None:
        with contextlib.suppress(OSError):
            # Linux starts writing dirty pages that it is advised to drop.
            advise(descriptor, begin, size, os.POSIX_FADV_DONTNEED)


def sync(descriptor: int) -> None:
    """Wait until written bytes are on the disk."""
    # On macOS, `fsync` leaves the bytes in the disk's cache.
    full: Any = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None and fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, full)
            return
    retry_interrupted(os.fsync, descriptor)


@contextlib.contextmanager
def opened_folder(path: str) -> Generator[int | None]:
    """Open a directory, yield its descriptor, and close it; yield None on systems without them."""
    if not hasattr(os, "O_DIRECTORY"):
        yield None
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | getattr(os, "O_CLOEXEC", 0)
    folder = retry_interrupted(os.open, path, flags)
    try:
        yield folder
    finally:
        # Nothing was written to the descriptor: errors of closing it have no consequence.
        with contextlib.suppress(OSError):
            os.close(folder)


def sync_folder(folder: int | None) -> None:
    """Wait until the disk has the names in a directory."""
    if folder is None:
        return
    try:
        sync(folder)
    except OSError as error:
        # EINVAL: this file system cannot sync directories.
        if error.errno != errno.EINVAL:
            raise
