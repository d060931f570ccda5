"""Cache of compiled kernels, in memory and in a private folder.

A file has the object code of one source; the file's name is a hash of the source. An edited rule is
therefore compiled again.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from pathlib import Path

from thalweg._base.locks import Awaited
from thalweg._engines.codegen import digest
from thalweg._engines.cpu import machine_code, private_directory
from thalweg.errors import PerformanceWarning, warn

_lock = Awaited()
_addresses: dict[str, int] = {}
_warned_paths: set[str] = set()


def kernels_folder() -> Path:
    """Return the folder of kernels, in `THALWEG_CACHE_DIR` or the user's cache folder."""
    configured_path = os.environ.get("THALWEG_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return (Path(configured_path) if configured_path else Path(base) / "thalweg") / "kernels"


def _warn_once(error: OSError) -> None:
    """Warn, once per folder, that compiled kernels cannot be kept in the folder."""
    path = str(kernels_folder())
    if path not in _warned_paths:
        _warned_paths.add(path)
        warn(
            f"Kernels cannot be kept in {path} ({error}); they are compiled again in each process."
            " Set THALWEG_CACHE_DIR to a folder of your own, by an absolute path.",
            PerformanceWarning,
        )


def _seal_code(name: str, code: bytes) -> bytes:
    """Return the content of a file: a hash of name and code, then the code."""
    # The hash detects damage and swapped files; `private_directory` checks who may write them.
    return hashlib.blake2b(name.encode() + b"\0" + code).digest() + code


def _read_code(name: str) -> bytes:
    """Return the object code in the cache file `name`; b"" if it is missing or damaged."""
    if not private_directory.AVAILABLE:
        return b""
    try:
        with ExitStack() as stack:
            descriptor = private_directory.open_folder(stack, str(kernels_folder()))
            content = private_directory.read_file(descriptor, name) or b""
    except OSError as error:
        _warn_once(error)
        return b""
    code = content[hashlib.blake2b().digest_size :]
    return code if content == _seal_code(name, code) else b""


def _write_code(name: str, code: bytes) -> None:
    """Write object code to the cache file `name`; warn if this fails."""
    if not private_directory.AVAILABLE:
        return
    try:
        with ExitStack() as stack:
            descriptor = private_directory.open_folder(stack, str(kernels_folder()))
            private_directory.write_file(descriptor, name, _seal_code(name, code))
    except OSError as error:
        _warn_once(error)


def address_of(name: str, source: str, briefly: bool = False) -> int:
    """Return the address of a generated function, which is compiled if no cache has it.

    Args:
        name: The name of the function, with a hash of its source.
        source: The text, in the language of `compiler`.
        briefly: True to compile faster, without vectorization. Pass an equal value for equal names.
    """
    # It acquires `importing`, never within `_lock`: forks acquire both, and must not deadlock.
    machine_code.tuning()
    with _lock:
        address = _addresses.get(name)
        if address is None:
            address = _addresses[name] = _load_address(name, source, briefly)
        return address


def _load_address(name: str, source: str, briefly: bool) -> int:
    """Load a kernel from its cache file, else compile it and write the file; return its address."""
    file = f"{name}.{digest(machine_code.target_digest())}.o"
    address = machine_code.link_kernel(name, _read_code(file))
    if address:
        return address
    code = machine_code.compile_kernel(name, source, briefly)
    address = machine_code.link_kernel(name, code)
    # Code that cannot be loaded here would fail in the next process, too.
    if address:
        _write_code(file, code)
    return address or machine_code.compile_in_memory(name, source, briefly)
