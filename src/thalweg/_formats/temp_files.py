"""Temporary files: named after their process, and locked while it writes."""

from __future__ import annotations

import contextlib
import os
import re
import stat

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

active_paths: set[str] = set()  # files that this process is writing


def name_of(target: str) -> str:
    """Return a new name for a temporary file of `target`."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name}.{os.getpid()}-{os.urandom(8).hex()}.tmp")


def remove_abandoned(target: str) -> None:
    """Delete the temporary files of `target` that no process writes any more."""
    if os.name != "posix":
        return
    folder, name = os.path.split(target)
    pattern = re.compile(rf"\.{re.escape(name)}\.([0-9]{{1,9}})-[0-9a-f]{{16}}\.tmp")
    with contextlib.suppress(OSError):
        for candidate in os.listdir(folder):
            match, full = pattern.fullmatch(candidate), os.path.join(folder, candidate)
            if match and _is_abandoned(full, int(match[1])):
                with contextlib.suppress(OSError):
                    os.unlink(full)


def _is_abandoned(path: str, process: int) -> bool:
    """Return True if neither this process nor the one in the file's name is writing it."""
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
    """Lock a file until it is closed. Processes of other containers see the lock, too."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_locked(path: str) -> bool:
    """Return True if a file is locked or cannot be opened."""
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
