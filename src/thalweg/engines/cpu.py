"""The CPU engine: compiled kernels over work tables, on torch's threads."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np

from thalweg.engines import store, team
from thalweg.engines.codegen import Kernel, generate, generate_measure
from thalweg.engines.work import SERIAL, Table
from thalweg.formula import Formula


class Compiled:
    """A kernel ready to run.

    Attributes:
        scalars: Names of the scalars it reads, in the order of a scalar row.
        dtype: The type of its scalars, which is that of its arithmetic.
    """

    def __init__(self, kernel: Kernel, compute: type[np.floating]) -> None:
        self.scalars = kernel.scalars
        self.dtype = compute
        # The function owns the machine code, so it must live as long as the address is used.
        self._function = getattr(store.load(kernel.name, kernel.source), kernel.name)
        self._address: int = self._function.address

    def run(self, table: Table, scalars: np.ndarray, flush: bool) -> None:
        """Update everything the table points at.

        Args:
            table: The work; whoever calls keeps the memory it points at alive.
            scalars: (rows, scalars) contiguous, in the kernel's dtype.
            flush: Whether denormals are treated as zero.
        """
        if table.elements:
            argument = table.argument(scalars, flush)
            self.launch(argument, threads_for(len(table.bounds) - 1, table.elements))

    def launch(self, argument: int, threads: int) -> None:
        """Call the kernel on so many threads at once."""
        team.run(self._address, argument, threads)


def threads_for(slices: int, elements: int) -> int:
    """How many threads the work deserves."""
    return 1 if elements < SERIAL else min(team.size(), slices)


@cache
def compiled(
    formula: Formula,
    stages: tuple[Formula, ...],
    storage: tuple[str, ...],
    compute: type[np.floating],
    grad: bool = True,
    duplicates: Literal["sum", "successive"] | None = None,
) -> Compiled:
    """The compiled kernel of a formula for these storage types, from memory, disk or Numba."""
    kernel = generate(formula, stages, storage, np.dtype(compute).name, grad, duplicates)
    return Compiled(kernel, compute)


@cache
def jitted(*functions: Callable[..., Any]) -> Any:
    """Plain functions compiled by Numba and kept where kernels are; returns the first."""
    texts = [
        "@numba.njit(nogil=True, cache={cache}, boundscheck=False, error_model='numpy')\n"
        + inspect.getsource(function)
        for function in functions
    ]
    source = "import numba\nimport numpy as np\nfrom thalweg.engines.intrinsics import *\n\n"
    source += "\n\n".join(reversed(texts))
    name = f"j_{store.digest(source)}"
    return getattr(store.load(name, source), functions[0].__name__)


@cache
def measuring(storage: str) -> Compiled:
    """The compiled kernel that sums squares."""
    return Compiled(generate_measure(storage), np.float64)
