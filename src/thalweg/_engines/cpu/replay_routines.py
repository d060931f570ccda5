"""Compiled functions of the native replay, and their bindings to Python."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from thalweg._engines.cpu import (
    kernel_cache,
    leaf_sums,
    replay_global_norm,
    replay_kernel,
    replay_reductions,
    scalar_program,
)
from thalweg._engines.cpu.codegen import compiler_digest

# Source of a built-in function of Python. Its `self` is a bytes object with the address of a guard
# table's block; its arguments are those of the function that `bind_replay` returns. A ctypes call
# takes several times as long.
_REPLAY_FUNCTION = """

def FUNCTION_NAME(owner, arguments, count):
    block, words = int64_pointer(word(owner + IN_BYTES)), int64_pointer(arguments)
    pairs = words[0]
    if pairs == block[NONE_OBJECT]:
        pairs = 0
    replay_count = call(block[PY_LONG_AS_LONG], words[1])
    difference = step(block, pairs, replay_count, call(block[PY_LONG_AS_LONG], words[2]))
    return call(block[PY_LONG_FROM_LONG], difference)
"""
# The offset of the contents of a bytes object.
_IN_BYTES = bytes.__basicsize__ - 1
_FASTCALL = 0x80  # METH_FASTCALL
_CHECK_PARTS_FUNCTION = """

def FUNCTION_NAME(argument):
    check_parts(int64_pointer(address_of(argument)))
"""
_KERNELS_FUNCTION = """

def FUNCTION_NAME(argument):
    run_kernels(int64_pointer(address_of(argument)))
"""
_CLIP_FUNCTION = """

def FUNCTION_NAME(argument):
    clip(int64_pointer(address_of(argument)))
"""
_RULE_SCALARS_FUNCTION = """

def FUNCTION_NAME(argument):
    set_rule_scalars(int64_pointer(address_of(argument)))
"""
_PYTHON_FUNCTIONS = {
    replay_kernel.PY_LIST_SIZE: "PyList_Size",
    replay_kernel.PY_LIST_GET_ITEM: "PyList_GetItem",
    replay_kernel.PY_DICT_SIZE: "PyDict_Size",
    replay_kernel.PY_DICT_NEXT: "PyDict_Next",
    replay_kernel.PY_TUPLE_SIZE: "PyTuple_Size",
    replay_kernel.PY_TUPLE_GET_ITEM: "PyTuple_GetItem",
    replay_kernel.PY_LONG_AS_LONG: "PyLong_AsLongLong",
    replay_kernel.PY_LONG_FROM_LONG: "PyLong_FromLongLong",
}


def _compiled_address(entry_function: str, *files: str) -> int:
    """Return the address of `entry_function`; compile it together with files unless cached.

    Args:
        entry_function: Source of a function FUNCTION_NAME that calls functions of the files.
        files: Paths of Python files in the language of `compiler`.
    """
    # Complete files: a search for the functions that are needed would take longer than a step.
    source = "\n".join([*(Path(file).read_text() for file in files), entry_function])
    name = f"l_{kernel_cache.digest(source, compiler_digest())}"
    return kernel_cache.address_of(name, source.replace("FUNCTION_NAME", name), briefly=True)


class _MethodDefinition(ctypes.Structure):
    """PyMethodDef of Python's C interface."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@cache
def _method_address() -> int:
    """Compile the replay; return the address of its PyMethodDef, which is never freed."""
    entry_function = _REPLAY_FUNCTION.replace("IN_BYTES", str(_IN_BYTES))
    address = _compiled_address(entry_function, replay_kernel.__file__, scalar_program.__file__)
    method = _MethodDefinition(b"look", address, _FASTCALL, None)
    # Built-in functions refer to the definition until the interpreter exits.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(method))
    return ctypes.addressof(method)


def bind_replay(block: int) -> Callable[[list[Any] | None, int, int], int]:
    """Return a built-in function of Python that replays the step of the guard table at `block`.

    `function(pairs, replay_count, part | flags)` returns 0, or a constant of `replay_kernel` for
    the first difference. The arguments are as in `GuardTable.replay`.
    """
    return _builtin_maker()(_method_address(), block.to_bytes(8, sys.byteorder), None)


@cache
def _builtin_maker() -> Callable[[int, bytes, None], Any]:
    """Return `PyCFunction_NewEx` of Python's C interface."""
    prototype = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
    )
    return prototype(("PyCFunction_NewEx", ctypes.pythonapi))


@cache
def parts_routine() -> int:
    """Return the address of the compiled `replay_kernel.check_parts`."""
    return _compiled_address(_CHECK_PARTS_FUNCTION, replay_kernel.__file__)


@cache
def kernels_routine() -> int:
    """Return the address of the compiled `replay_kernel.run_kernels`."""
    return _compiled_address(_KERNELS_FUNCTION, replay_kernel.__file__)


@cache
def norm_routine() -> int:
    """Return the address of the compiled `replay_global_norm.clip`."""
    return _compiled_address(_CLIP_FUNCTION, replay_global_norm.__file__, leaf_sums.__file__)


@cache
def measures_routine() -> int:
    """Return the address of the compiled `replay_reductions.set_rule_scalars`."""
    files = replay_reductions.__file__, scalar_program.__file__, leaf_sums.__file__
    return _compiled_address(_RULE_SCALARS_FUNCTION, *files)


@cache
def python_functions() -> dict[int, int]:
    """Return the addresses of functions of Python's C interface, by their index in a block."""
    return {
        word: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
        for word, name in _PYTHON_FUNCTIONS.items()
    }
