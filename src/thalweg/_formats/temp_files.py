"""Temporary files: the name tells which process writes one, a lock whether it still does."""

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

under_way: set[str] = set()  # those that this process writes now


def name_of(target: str) -> str:
    """Return a new name for a temporary file of `target`."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name}.{os.getpid()}-{os.urandom(8).hex()}.tmp")


def remove_abandoned(target: str) -> None:
    """Delete the temporary files of this path that nobody writes any more."""
    if os.name != "posix":
        return
    folder, name = os.path.split(target)
    pattern = re.compile(rf"\.{re.escape(name)}\.([0-9]{{1,9}})-[0-9a-f]{{16}}\.tmp")
    with contextlib.suppress(OSError):
        for each in os.listdir(folder):
            found, full = pattern.fullmatch(each), os.path.join(folder, each)
            if found and _is_abandoned(full, int(found[1])):
                with contextlib.suppress(OSError):
                    os.unlink(full)


def _is_abandoned(path: str, process: int) -> bool:
    if path in under_way:
        return False
    # An own number that we know nothing of is that of a process before us: in a container all of
    # them have the same.
    if process != os.getpid() and _is_alive(process):
        return False
    return not _is_locked(path)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def lock_file(file: int) -> None:
    """Hold a lock until the file is closed. Processes of other containers see it, too."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_locked(path: str) -> bool:
    try:
        file = os.open(path, os.O_RDWR | os.O_NONBLOCK | SAFELY)
    except OSError:
        return True
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return True
        lock_file(file)
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return False
    finally:
        os.close(file)
    return False
