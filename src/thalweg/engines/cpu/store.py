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
from functools import cache
from pathlib import Path
from types import ModuleType

from thalweg.engines.cpu import machine_code
from thalweg.errors import PerformanceWarning, warn
from thalweg.locks import Awaited

_lock = Awaited()
_addresses: dict[str, int] = {}
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


def _write(path: Path, content: bytes) -> None:
    # Atomically: other processes may be reading the file, or writing it, too.
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _holds(path: Path, content: bytes) -> bool:
    with contextlib.suppress(OSError):
        return path.read_bytes() == content
    return False


def _sealed(path: Path, code: bytes) -> bytes:
    # The name is sealed with the code: nothing can take another kernel's place.
    return hashlib.blake2b(path.name.encode() + b"\0" + code).digest() + code


def _read(path: Path) -> bytes | None:
    """The code in a file, empty where Numba's own cache must do; None if missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    code = content[hashlib.blake2b().digest_size :]
    return code if content == _sealed(path, code) else None


def address(name: str, source: str) -> int:
    """The address of the C function of a generated source, from memory, disk or Numba.

    Args:
        name: The function's name, which holds the hash of all that matters to its code.
        source: Its text; must define it as a `numba.cfunc`.
    """
    with _lock:
        found = _addresses.get(name)
        if found is None:
            found = _addresses[name] = _address(name, source)
        return found


def _address(name: str, source: str) -> int:
    if not (machine_code.available() and _usable(folder())):
        return getattr(load(name, source), name).address
    path = folder() / f"{name}.{digest(machine_code.target())}.o"
    code = _read(path)
    if code is not None:
        return machine_code.link(name, code) or getattr(load(name, source), name).address
    function = getattr(load(name, source, cached=False), name)
    code = machine_code.emit(function, name)
    found = machine_code.link(name, code)
    with contextlib.suppress(OSError):
        _write(path, _sealed(path, code if found else b""))
    return found or function.address


def load(name: str, source: str, cached: bool = True) -> ModuleType:
    """The module of a generated source, run with Numba.

    Args:
        name: A Python identifier that holds the hash of the source.
        source: Its text; `{cache}` in it becomes whether Numba may cache on disk.
        cached: Whether it should, where the folder can be used.
    """
    with _lock:
        module = _loaded.get(name)
        if module is None:
            module = _loaded[name] = _load(name, source, cached)
        return module


def _load(name: str, source: str, cached: bool) -> ModuleType:
    qualified = f"thalweg_kernels.{name}"
    text, file = source.replace("{cache}", "False"), f"<{qualified}>"
    if _usable(folder()):
        path, kept = folder() / f"{name}.py", source.replace("{cache}", str(cached))
        try:
            if not _holds(path, kept.encode()):  # Numba asks when the file was written
                _write(path, kept.encode())
            return _execute(qualified, kept, str(path))
        except OSError:
            pass
        except Exception:
            if kept == text:
                raise
            # A damaged file of Numba's beside ours: compile in memory, where none is read.
    return _execute(qualified, text, file)


def _execute(name: str, text: str, file: str) -> ModuleType:
    # Not by Python's import system, which would trust a .pyc of the same size and second.
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), module.__dict__)
    return module
