"""Where compiled kernels live: a private folder whose file names hold a hash of their source.

One file of machine code per source, named by its hash, keeps an edited rule from running its old
formula and one rule from loading another's kernel.
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
    """`kernels` in `THALWEG_CACHE_DIR`, by default in `thalweg` in the user's cache folder."""
    configured_path = os.environ.get("THALWEG_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return (Path(configured_path) if configured_path else Path(base) / "thalweg") / "kernels"


def _warn_once(error: OSError) -> None:
    path = str(kernels_folder())
    if path not in _warned_paths:
        _warned_paths.add(path)
        warn(
            f"Kernels cannot be kept in {path} ({error}); they are compiled again in each process."
            " Set THALWEG_CACHE_DIR to a folder of your own, by an absolute path.",
            PerformanceWarning,
        )


def _seal_code(name: str, code: bytes) -> bytes:
    # Against damage; who may have written it is for `private` to know. The name is sealed with the
    # code: nothing can take another kernel's place.
    return hashlib.blake2b(name.encode() + b"\0" + code).digest() + code


def _read_code(name: str) -> bytes:
    """The code in a file, empty if it is missing or damaged."""
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
    if not private_directory.AVAILABLE:
        return
    try:
        with ExitStack() as stack:
            descriptor = private_directory.open_folder(stack, str(kernels_folder()))
            private_directory.write_file(descriptor, name, _seal_code(name, code))
    except OSError as error:
        _warn_once(error)


def address_of(name: str, source: str, briefly: bool = False) -> int:
    """The address of the function of a generated source, from memory, disk or LLVM.

    Args:
        name: The function's name, which holds the hash of all that matters to its code.
        source: Its text, in the language of `compiler`.
        briefly: How it is compiled, see `machine_code.compile_kernel`; always the same for a name.
    """
    machine_code.tuning()  # which takes another lock: never within this one, for forks take both
    with _lock:
        address = _addresses.get(name)
        if address is None:
            address = _addresses[name] = _load_address(name, source, briefly)
        return address


def _load_address(name: str, source: str, briefly: bool) -> int:
    file = f"{name}.{digest(machine_code.target_digest())}.o"
    address = machine_code.link_kernel(name, _read_code(file))
    if address:
        return address
    code = machine_code.compile_kernel(name, source, briefly)
    address = machine_code.link_kernel(name, code)
    if address:
        _write_code(file, code)
    return address or machine_code.compile_in_memory(name, source, briefly)
