"""Where generated kernels live: a private folder whose file names hold a hash of their content.

Numba's disk cache keys a function by its file, name and bytecode, not by its globals or constants.
One file per content, named by its hash, keeps an edited rule from running its old formula and one
rule from loading another's kernel.
"""

from __future__ import annotations

import contextlib
import hashlib
import linecache
import os
import stat
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from types import ModuleType

from thalweg.errors import PerformanceWarning, warn

_lock = threading.RLock()
_loaded: dict[str, ModuleType] = {}


def digest(*parts: str) -> str:
    """A short hash of texts, for names of files and functions."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


def folder() -> Path:
    """`kernels` in `THALWEG_CACHE_DIR`, by default in `thalweg` in the user's cache folder."""
    given = os.environ.get("THALWEG_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return (Path(given) if given else Path(base) / "thalweg") / "kernels"


@cache
def _usable(path: Path) -> bool:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if hasattr(os, "getuid") and status.st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to user {status.st_uid}")
        if stat.S_IMODE(status.st_mode) != 0o700:
            path.chmod(0o700)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        warn(
            f"Kernels cannot be kept in {path} ({error}); they are compiled again in each process."
            " Set THALWEG_CACHE_DIR to a folder of your own.",
            PerformanceWarning,
        )
        return False
    return True


def _write(path: Path, source: str) -> None:
    with contextlib.suppress(OSError):
        if path.read_bytes() == source.encode():
            return
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(source)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def load(name: str, source: str) -> ModuleType:
    """The module of a generated source; `{cache}` in it becomes whether Numba may cache on disk.

    Args:
        name: A Python identifier that holds the hash of the source.
        source: Its text.
    """
    with _lock:
        module = _loaded.get(name)
        if module is None:
            module = _loaded[name] = _load(name, source)
        return module


def _load(name: str, source: str) -> ModuleType:
    qualified = f"thalweg_kernels.{name}"
    text, file = source.replace("{cache}", "False"), f"<{qualified}>"
    if _usable(folder()):
        path, cached = folder() / f"{name}.py", source.replace("{cache}", "True")
        with contextlib.suppress(OSError):
            _write(path, cached)
            text, file = cached, str(path)
    try:
        return _execute(qualified, text, file)
    except Exception:
        if "{cache}" not in source or file.startswith("<"):
            raise
        # A damaged file of Numba's beside ours: compile in memory, where none is read.
        return _execute(qualified, source.replace("{cache}", "False"), f"<{qualified}>")


def _execute(name: str, text: str, file: str) -> ModuleType:
    # Not by Python's import system, which would trust a .pyc of the same size and second.
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), module.__dict__)
    return module
