"""System calls of an atomic write, repeated after signals, and names of temporary files.

A temporary file's name contains the process id. The process locks the file while writing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Generator
from typing import Any, ParamSpec, TypeVar

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

P = ParamSpec("P")
T = TypeVar("T")

SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_LINKS = 40  # the limit of Linux

active_paths: set[str] = set()  # temporary files that this process is writing


def retry_interrupted(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Return `call(*args, **options)`, repeated after interruptions by signals."""
    while True:
        try:
            return call(*args, **options)
        except InterruptedError:
            continue


def without_links(path: str) -> str:
    """Resolve all links in a path, and return the result. The file need not exist."""
    # `realpath` with `strict` fails for a missing file, so the last name is resolved here.
    for _ in range(_LINKS):
        directory, name = os.path.split(path)
        if name in ("", ".", ".."):
            return retry_interrupted(os.path.realpath, path, strict=True)
        path = os.path.join(retry_interrupted(os.path.realpath, directory, strict=True), name)
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


def copy_access(descriptor: int, previous: os.stat_result) -> None:
    """Give a new file the owner, group and permissions of an earlier file.

    The owner can always read and write. If the group cannot be set, the file's group has no access.

    Args:
        descriptor: The new file, open.
        previous: The status of the earlier file.
    """
    if not hasattr(os, "fchown"):
        return
    current = retry_interrupted(os.fstat, descriptor)
    mode = previous.st_mode & 0o777 | 0o600
    if (current.st_uid, current.st_gid) != (previous.st_uid, previous.st_gid):
        for owner in (previous.st_uid, -1):  # Only root can give a file to another user.
            with contextlib.suppress(OSError):
                retry_interrupted(os.fchown, descriptor, owner, previous.st_gid)
                break
        else:
            mode &= ~0o070
    # Some file systems have no permissions.
    with contextlib.suppress(OSError):
        retry_interrupted(os.fchmod, descriptor, mode)


def close(descriptor: int) -> None:
    """Close a descriptor that was written; ignore interruptions."""
    # Linux closes the file even if the call is interrupted.
    with contextlib.suppress(InterruptedError):
        os.close(descriptor)


def start_writeback(descriptor: int, begin: int, size: int) -> None:
    """Start writing a range of a file to the disk now, instead of at `fsync`."""
    advise = getattr(os, "posix_fadvise", None)
    if advise is not None:
        with contextlib.suppress(OSError):
            # Linux starts writing dirty pages that it is advised to drop.
            advise(descriptor, begin, size, os.POSIX_FADV_DONTNEED)


def sync(descriptor: int) -> None:
    """Wait until the written bytes of a file are on the disk."""
    # On macOS, `fsync` leaves the bytes in the disk's cache.
    full: Any = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None and fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, full)
            return
    retry_interrupted(os.fsync, descriptor)


@contextlib.contextmanager
def opened_folder(path: str) -> Generator[int | None]:
    """Open a directory, and yield its descriptor; yield None on Windows."""
    if not hasattr(os, "O_DIRECTORY"):
        yield None
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | getattr(os, "O_CLOEXEC", 0)
    directory = retry_interrupted(os.open, path, flags)
    try:
        yield directory
    finally:
        # Nothing was written to the descriptor: errors of closing it have no consequence.
        with contextlib.suppress(OSError):
            os.close(directory)


def sync_folder(directory: int | None) -> None:
    """Wait until the entries of a directory are on the disk; do nothing for None."""
    if directory is None:
        return
    try:
        sync(directory)
    except OSError as error:
        # EINVAL: this file system cannot sync directories.
        if error.errno != errno.EINVAL:
            raise


def make_temporary_name(target: str) -> str:
    """Return a new name for a temporary file of `target`."""
    directory, name = os.path.split(target)
    return os.path.join(directory, f".{name}.{os.getpid()}-{os.urandom(8).hex()}.tmp")


def remove_abandoned(target: str) -> None:
    """Delete temporary files of `target` that no process is writing; do nothing on Windows."""
    # On Windows, `os.kill(process, 0)` ends the process.
    if os.name != "posix":
        return
    directory, name = os.path.split(target)
    pattern = re.compile(rf"\.{re.escape(name)}\.([0-9]{{1,9}})-[0-9a-f]{{16}}\.tmp")
    with contextlib.suppress(OSError):
        for candidate in os.listdir(directory):
            match, full = pattern.fullmatch(candidate), os.path.join(directory, candidate)
            if match and _is_abandoned(full, int(match[1])):
                with contextlib.suppress(OSError):
                    os.unlink(full)


def _is_abandoned(path: str, process: int) -> bool:
    """Return True if no process is writing a temporary file; `process` is the id in its name."""
    if path in active_paths:
        return False
    # An unknown file with the id of this process is from an earlier one: in containers, ids repeat.
    if process != os.getpid() and _is_alive(process):
        return False
    return not _is_locked(path)


def _is_alive(process: int) -> bool:
    """Return True if the process exists."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def lock_file(descriptor: int) -> None:
    """Lock a file until it is closed. The lock is visible in other containers, too."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_locked(path: str) -> bool:
    """Return True if a file is locked, cannot be opened, or is not a regular file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | SAFELY)
    except OSError:
        return True
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return True
        lock_file(descriptor)
    except BlockingIOError:
        return True
    except OSError:  # This file system has no locks.
        return False
    finally:
        os.close(descriptor)
    return False
