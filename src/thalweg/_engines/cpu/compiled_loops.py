"""Python loops over NumPy arrays, compiled like kernels for each combination of dtypes."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from ctypes import addressof, c_char
from operator import index
from struct import Struct
from typing import Any

import numpy as np

from thalweg._engines.array_types import Array
from thalweg._engines.codegen import digest
from thalweg._engines.cpu import kernel_cache, openmp
from thalweg._engines.cpu.codegen import compiler_digest

_Memory = c_char * 0

Kind = tuple[np.dtype[Any], int] | None  # dtype and rank of an array; None for an integer

_SOURCE = """
{functions}


def LOOP_NAME(argument):
    block = int64_pointer(address_of(argument))
    {results} = {function}({arguments})
"""


def _address_of(memory: Any) -> int:
    # `array.ctypes.data` takes six times as long.
    return addressof(_Memory.from_buffer(memory))


class Loop:
    """Compiled form of a Python function over contiguous arrays and integers; runs without the GIL.

    The function returns an integer or a tuple of integers, as in its first `return` statement.

    Args:
        functions: The function, then the functions that it calls.
    """

    def __init__(self, *functions: Callable[..., Any]) -> None:
        self._name = functions[0].__name__
        texts = [textwrap.dedent(inspect.getsource(function)) for function in functions]
        self._text = "\n\n".join(reversed(texts))
        nodes = ast.walk(ast.parse(texts[0]))
        first = next((x.value for x in nodes if isinstance(x, ast.Return) and x.value), None)
        self._returns_tuple = isinstance(first, ast.Tuple)
        self._result_count = len(first.elts) if isinstance(first, ast.Tuple) else 1
        self._compiled: dict[tuple[Kind, ...], tuple[Callable[[int], None], Struct]] = {}

    def __call__(self, *arguments: Array | int) -> Any:
        """Run the function; return its integer or tuple of integers.

        The first call with a combination of dtypes and ranks compiles the function.

        Raises:
            TypeError: An argument is neither an integer nor a contiguous array.
        """
        kinds: list[Kind] = []
        block = [0] * self._result_count
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                flags = argument.flags
                if not flags.c_contiguous:
                    raise TypeError(f"{self._name} takes contiguous arrays only.")
                kinds.append((argument.dtype, argument.ndim))
                # `from_buffer` takes only memory that can be written.
                block += (
                    _address_of(argument) if flags.writeable else argument.ctypes.data,
                    *argument.shape,
                )
            else:
                kinds.append(None)
                block.append(index(argument))
        key = tuple(kinds)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self._compile_for(key), Struct(f"{len(block)}q")
        function, layout = compiled
        # Calls of several threads may overlap, so that each needs a block.
        memory = bytearray(layout.pack(*block))
        function(_address_of(memory))
        results = layout.unpack(memory)[: self._result_count]
        return results if self._returns_tuple else results[0]

    def _compile_for(self, kinds: tuple[Kind, ...]) -> Callable[[int], None]:
        """Compile the function; return a C function that takes the address of a block of int64.

        The block contains the results, then the arguments.
        """
        arguments: list[str] = []
        position = self._result_count
        for kind in kinds:
            if kind is None:
                arguments.append(f"block[{position}]")
                position += 1
                continue
            dtype, rank = kind
            item = "uint8" if dtype.name == "bool" else dtype.name
            shape = "".join(f", block[{position + 1 + axis}]" for axis in range(rank))
            arguments.append(f"array({item}_pointer(block[{position}]){shape})")
            position += 1 + rank
        source = _SOURCE.format(
            functions=self._text,
            function=self._name,
            results=", ".join(f"block[{position}]" for position in range(self._result_count)),
            arguments=", ".join(arguments),
        )
        name = f"j_{digest(source, compiler_digest())}"
        return openmp.ENTRY(kernel_cache.address_of(name, source.replace("LOOP_NAME", name)))
