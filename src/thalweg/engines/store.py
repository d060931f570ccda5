"""Where generated kernels live: a private folder whose file names hold a hash of their content.

Numba's disk cache keys a function by its file, name and bytecode, not by its globals or constants.
One file per content, named by its hash, keeps an edited rule from running its old formula and one
rule from loading another's kernel.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import linecache
import os
import stat
import sys
import tempfile
import threading
import warnings
from functools import cache
from pathlib import Path
from types import ModuleType

from thalweg.errors import PerformanceWarning

_lock = threading.RLock()
_loaded: dict[str, ModuleType] = {}


def digest(*parts: str) -> str:
    """A short hash of texts, for names of files and functions."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


def folder() -> Path:
    """The folder of the kernels: `THALWEG_CACHE_DIR`, else `thalweg` in the user's cache folder."""
    given = os.environ.get("THALWEG_CACHE_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "thalweg"


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
        warnings.warn(
            f"Kernels cannot be kept in {path} ({error}); they are compiled again in each process."
            " Set THALWEG_CACHE_DIR to a folder of your own.",
            PerformanceWarning,
            stacklevel=2,
        )
        return False
    return True


def _write(path: Path, source: str) -> None:
    with contextlib.suppress(OSError):
        if path.read_text() == source:
            return
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
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
    path = folder() / f"{name}.py"
    qualified = f"thalweg_kernels.{name}"
    if _usable(folder()):
        try:
            _write(path, source.replace("{cache}", "True"))
        except OSError:
            pass
        else:
            spec = importlib.util.spec_from_file_location(qualified, path)
            if spec is not None and spec.loader is not None:
                module = importlib.util.module_from_spec(spec)
                sys.modules[qualified] = module
                spec.loader.exec_module(module)
                return module
    text = source.replace("{cache}", "False")
    module = ModuleType(qualified)
    sys.modules[qualified] = module
    module.__file__ = f"<{qualified}>"
    linecache.cache[module.__file__] = (len(text), None, text.splitlines(True), module.__file__)
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    return module
