"""Compiled functions of the native replay, and their bindings to Python."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from thalweg._engines.cpu import (
    kernel_cache,
    leaf_sums,
    replay_block,
    replay_global_norm,
    replay_guards,
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
_ROUTINE = """

def FUNCTION_NAME(argument):
    {name}(int64_pointer(address_of(argument)))
"""
_PYTHON_FUNCTIONS = {
    replay_block.PY_LIST_SIZE: "PyList_Size",
    replay_block.PY_LIST_GET_ITEM: "PyList_GetItem",
    replay_block.PY_DICT_SIZE: "PyDict_Size",
    replay_block.PY_DICT_NEXT: "PyDict_Next",
    replay_block.PY_TUPLE_SIZE: "PyTuple_Size",
    replay_block.PY_TUPLE_GET_ITEM: "PyTuple_GetItem",
    replay_block.PY_LONG_AS_LONG: "PyLong_AsLongLong",
    replay_block.PY_LONG_FROM_LONG: "PyLong_FromLongLong",
}
_GUARD_FILES = replay_block.__file__, replay_guards.__file__
_KERNEL_FILES = *_GUARD_FILES, replay_kernel.__file__, scalar_program.__file__
_REDUCTION_FILES = replay_reductions.__file__, scalar_program.__file__, leaf_sums.__file__
# The files with the text of each function that takes a block.
_ROUTINE_FILES = {
    "check_parts": _GUARD_FILES,
    "run_kernels": _KERNEL_FILES,
    "clip": (replay_global_norm.__file__, leaf_sums.__file__),
    "set_rule_scalars": _REDUCTION_FILES,
    "copy_words": _REDUCTION_FILES,
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
def _make_binder() -> Callable[[bytes, None], Any]:
    """Compile the replay; return a function that makes a built-in function for a block."""
    entry_function = _REPLAY_FUNCTION.replace("IN_BYTES", str(_IN_BYTES))
    address = _compiled_address(entry_function, *_KERNEL_FILES)
    method = _MethodDefinition(b"look", address, _FASTCALL, None)
    # Built-in functions refer to the definition until the interpreter exits.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(method))
    prototype = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
    )
    make_function = prototype(("PyCFunction_NewEx", ctypes.pythonapi))
    return partial(make_function, ctypes.addressof(method))


def bind_replay(block: int) -> Callable[[list[Any] | None, int, int], int]:
    """Return a built-in function of Python that replays the step of the guard table at `block`.

    `function(pairs, replay_count, part | flags)` returns 0, or a constant of `replay_block` for
    the first difference. The arguments are as in `GuardTable.replay`.
    """
    return _make_binder()(block.to_bytes(8, sys.byteorder), None)


@cache
def routine_address(name: str) -> int:
    """Return the address of a native function that takes the address of a block; compile it once.

    Args:
        name: "check_parts" of `replay_guards`, "run_kernels" of `replay_kernel`, "clip" of
            `replay_global_norm`; "set_rule_scalars" or "copy_words" of `replay_reductions`.
    """
    return _compiled_address(_ROUTINE.format(name=name), *_ROUTINE_FILES[name])


@cache
def python_functions() -> dict[int, int]:
    """Return the addresses of functions of Python's C interface, by their index in a block."""
    return {
        word: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
        for word, name in _PYTHON_FUNCTIONS.items()
    }
