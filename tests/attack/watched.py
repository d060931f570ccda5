"""Limits for reading hostile files: time, memory and paths."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 2.0  # of the processor
MEGABYTES = 256
# Events of Python's audit hooks that no reader of a file has a reason for.
FORBIDDEN = (
    "exec", "compile", "import", "pickle.find_class", "marshal.loads", "code.__new__",
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.chmod",
    "os.truncate", "shutil.", "socket.", "ctypes.dlopen", "tempfile.",
)  # fmt: skip

_noted: list[str] = []
_allowed: list[str] = []
_is_on: list[bool] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _is_on:
        return
    if event == "open" and isinstance(args[0], str | bytes):
        path = os.path.abspath(os.fsdecode(args[0]))
        if not any(path == folder or path.startswith(f"{folder}/") for folder in _allowed):
            _noted.append(f"open {path[:200]!r}")
    elif event.startswith(FORBIDDEN):
        _noted.append(f"{event} {str(args)[:200]}")


def begin() -> None:
    """Add the hook of audit events, which cannot be removed from this process."""
    sys.addaudithook(_hook)


def watched(work: Callable[[], str], folder: Path) -> str:
    """Return the result of some work, or the limit that it broke.

    Args:
        work: Reads files in `folder`.
        folder: Where files may be read.
    """
    _noted.clear()
    _allowed[:] = [str(folder.absolute()), "/proc/self/maps"]  # which says what may be written
    most_before, start = _reset(), time.process_time()
    _is_on.append(True)
    try:
        outcome = work()
    finally:
        _is_on.clear()
    seconds, growth = time.process_time() - start, (_most() - most_before) / 1e6
    if _noted:
        return f"{outcome}, but it did {_noted[0]}"
    if seconds > SECONDS:
        return f"{outcome}, but after {seconds:.1f} s"
    return f"{outcome}, but with {growth:.0f} MB" if growth > MEGABYTES else outcome


def _reset() -> int:
    """Reset the peak of memory; return the bytes held now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not Linux
        return 0
    return _most()


def _most() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
