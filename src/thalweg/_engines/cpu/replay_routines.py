"""Compiled functions of the native replay, and how Python calls them."""

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
# table's block; its arguments are those of `GuardTable.take`. A ctypes call takes several times as
# long.
_MAIN = """

def LOOK_NAME(owner, arguments, count):
    block, words = int64_pointer(word(owner + IN_BYTES)), int64_pointer(arguments)
    pairs = words[0]
    if pairs == block[NONE_OBJECT]:
        pairs = 0
    taken = call(block[PY_LONG_AS_LONG], words[1])
    result = step(block, pairs, taken, call(block[PY_LONG_AS_LONG], words[2]))
    return call(block[PY_LONG_FROM_LONG], result)
"""
# The offset of the contents of a bytes object.
_IN_BYTES = bytes.__basicsize__ - 1
_FASTCALL = 0x80  # METH_FASTCALL
_MAIN_OF_PARTS = """

def LOOK_NAME(argument):
    check_parts(int64_pointer(address_of(argument)))
"""
_MAIN_OF_NORM = """

def LOOK_NAME(argument):
    clip(int64_pointer(address_of(argument)))
"""
_MAIN_OF_MEASURES = """

def LOOK_NAME(argument):
    set_own_scalars(int64_pointer(address_of(argument)))
"""
_FUNCTIONS = {
    replay_kernel.PY_LIST_SIZE: "PyList_Size",
    replay_kernel.PY_LIST_GET_ITEM: "PyList_GetItem",
    replay_kernel.PY_DICT_SIZE: "PyDict_Size",
    replay_kernel.PY_DICT_NEXT: "PyDict_Next",
    replay_kernel.PY_TUPLE_SIZE: "PyTuple_Size",
    replay_kernel.PY_TUPLE_GET_ITEM: "PyTuple_GetItem",
    replay_kernel.PY_LONG_AS_LONG: "PyLong_AsLongLong",
    replay_kernel.PY_LONG_FROM_LONG: "PyLong_FromLongLong",
}


def _address_of(main: str, *files: str) -> int:
    """Compile files and a main function unless cached; return the address of that function."""
    # Complete files: a search for the functions that are needed would take longer than a step.
    source = "\n".join([*(Path(file).read_text() for file in files), main])
    name = f"l_{kernel_cache.digest(source, compiler_digest())}"
    return kernel_cache.address_of(name, source.replace("LOOK_NAME", name), briefly=True)


class _Method(ctypes.Structure):
    """A PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@cache
def _method() -> int:
    """Return the address of the PyMethodDef of the compiled replay."""
    main = _MAIN.replace("IN_BYTES", str(_IN_BYTES))
    address = _address_of(main, replay_kernel.__file__, scalar_program.__file__)
    method = _Method(b"look", address, _FASTCALL, None)
    # Built-in functions refer to the definition until the interpreter exits.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(method))
    return ctypes.addressof(method)


def routine(block: int) -> Callable[[list[Any] | None, int, int], int]:
    """Return the compiled replay of a block; arguments and result are those of `GuardTable.take`.

    Args:
        block: The address of the block.
    """
    return _builtin_maker()(_method(), block.to_bytes(8, sys.byteorder), None)


@cache
def _builtin_maker() -> Callable[[int, bytes, None], Any]:
    """Return `PyCFunction_NewEx` of Python's C interface."""
    prototype = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
    )
    return prototype(("PyCFunction_NewEx", ctypes.pythonapi))


@cache
def parts_routine() -> int:
    """Return the address of the function that checks guards of parts of the tensors."""
    return _address_of(_MAIN_OF_PARTS, replay_kernel.__file__)


@cache
def norm_routine() -> int:
    """Return the address of the compiled `replay_global_norm`."""
    return _address_of(_MAIN_OF_NORM, replay_global_norm.__file__, leaf_sums.__file__)


@cache
def measures_routine() -> int:
    """Return the address of the compiled `replay_reductions`."""
    files = replay_reductions.__file__, scalar_program.__file__, leaf_sums.__file__
    return _address_of(_MAIN_OF_MEASURES, *files)


@cache
def python_functions() -> dict[int, int]:
    """Return the addresses of functions of Python's C interface, by their word in a block."""
    return {
        word: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
        for word, name in _FUNCTIONS.items()
    }
