"""System calls as a commit needs them: retried after signals, and durable on the disk itself."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

P = ParamSpec("P")
T = TypeVar("T")

_LINKS = 40  # as many as Linux follows


def retry_interrupted(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Retry a call that a signal interrupted; Python does so for most calls, not for all."""
    while True:
        try:
            return call(*args, **options)
        except InterruptedError:
            continue


def without_links(path: str) -> str:
    """Return the file that a path leads to, which may not be there."""
    for _ in range(_LINKS):
        folder, name = os.path.split(path)
        if name in ("", ".", ".."):
            return retry_interrupted(os.path.realpath, path, strict=True)
        path = os.path.join(retry_interrupted(os.path.realpath, folder, strict=True), name)
        found = status(path)
        if found is None or not stat.S_ISLNK(found.st_mode):
            return path
        path = os.path.join(os.path.dirname(path), retry_interrupted(os.readlink, path))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def status(path: str) -> os.stat_result | None:
    """Return the status of a path itself, not of what a link leads to; None if there is nothing."""
    try:
        return retry_interrupted(os.lstat, path)
    except FileNotFoundError:
        return None


def give_ownership(file: int, old: os.stat_result) -> None:
    """Give a new file the owner and group of another; a group that cannot get it gets no access.

    Args:
        file: The new file, open.
        old: What the system says of the other.
    """
    new = retry_interrupted(os.fstat, file)
    if (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid) or not hasattr(os, "fchown"):
        return
    for owner in (old.st_uid, -1):  # to another user it can be given by root alone
        with contextlib.suppress(OSError):
            return retry_interrupted(os.fchown, file, owner, old.st_gid)
    retry_interrupted(os.fchmod, file, stat.S_IMODE(new.st_mode) & ~0o070)


def close(file: int) -> None:
    """Close a file that was written."""
    with contextlib.suppress(InterruptedError):  # Linux has closed it then
        os.close(file)


def start_writeback(file: int, begin: int, size: int) -> None:
    """Start writing to the disk now what would otherwise wait for `fsync`."""
    advise = getattr(os, "posix_fadvise", None)
    if advise is not None:
        with contextlib.suppress(OSError):
            # Linux begins to write what it is told to forget, and forgets only what is written.
            advise(file, begin, size, os.POSIX_FADV_DONTNEED)


def sync(file: int) -> None:
    """Wait until what was written is on the disk."""
    full: Any = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: `fsync` leaves it in the disk's cache
    if full is not None and fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(file, full)
            return
    retry_interrupted(os.fsync, file)


def open_folder(path: str) -> int | None:
    """Return a folder's descriptor; None on systems that have none."""
    if not hasattr(os, "O_DIRECTORY"):
        return None
    flags = os.O_RDONLY | os.O_DIRECTORY | getattr(os, "O_CLOEXEC", 0)
    return retry_interrupted(os.open, path, flags)


def close_folder(folder: int | None) -> None:
    """Close a folder; nothing depends on it any more, so errors are ignored."""
    if folder is not None:
        with contextlib.suppress(OSError):
            os.close(folder)


def sync_folder(folder: int | None) -> None:
    """Return when the disk has the names in a folder."""
    if folder is None:
        return
    try:
        sync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system keeps names without being asked
            raise
