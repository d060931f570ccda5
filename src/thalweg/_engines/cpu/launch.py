"""The CPU engine: compiled kernels over work tables, on torch's threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from thalweg._base.locks import importing
from thalweg._engines.array_types import Array
from thalweg._engines.codegen import Kernel, Update
from thalweg._engines.cpu import kernel_cache, openmp
from thalweg._engines.cpu.codegen import STORAGE, generate_update
from thalweg._engines.cpu.machine_code import tuning
from thalweg._engines.cpu.work_table import Table
from thalweg.formula import Formula

if TYPE_CHECKING:
    from thalweg._base.rule_passes import Measure
    from thalweg._engines.cpu.compiled_loops import Loop


class Compiled:
    """A kernel ready to run.

    Attributes:
        scalars: Names of the scalars it reads, in the order of a scalar row.
        dtype: The type of its scalars, which is that of its arithmetic.
        measures: How many numbers it makes of each leaf, if it measures.
        vectors: Names of what it reads of rows and columns, in the order of the table.
    """

    def __init__(
        self, kernel: Kernel, compute: type[np.floating], vectors: tuple[str, ...] = ()
    ) -> None:
        self.scalars = kernel.scalars
        self.dtype = compute
        self.measures, self.vectors = kernel.measures, vectors
        self.address = kernel_cache.address_of(kernel.name, kernel.source)

    def bind_table(self, table: Table, scalars: Array, flush: bool) -> Callable[[], object]:
        """A function in C that updates everything the table points at.

        Args:
            table: The work; whoever calls keeps the memory it points at alive.
            scalars: (rows, scalars) contiguous, in the kernel's dtype.
            flush: Whether denormals are treated as zero.
        """
        argument = table.fill_argument(scalars, flush)
        return self.bind_argument(argument, threads_for(len(table.bounds) - 1, table.elements))

    def bind_argument(self, argument: int, threads: int) -> Callable[[], object]:
        """A function in C that calls the kernel on so many threads at once."""
        return openmp.call_on_team(self.address, argument, threads)

    def run_on_threads(self, argument: int, threads: int) -> None:
        """Call the kernel on so many threads at once."""
        openmp.run_on_team(self.address, argument, threads)


def threads_for(slices: int, elements: int) -> int:
    """How many threads the work deserves."""
    return 1 if is_serial(elements) else min(openmp.team_size(), slices)


def is_serial(elements: int) -> bool:
    """Whether work over so many elements is done by one thread."""
    return elements < tuning().serial


@cache
def update_kernel(
    formula: Formula,
    stages: tuple[Formula, ...],
    storage: tuple[str, ...],
    compute: type[np.floating],
    grad: bool = True,
    duplicates: Literal["sum", "successive"] | None = None,
    copy: bool = False,
    entries: tuple[Formula, ...] = (),
    before: Formula | None = None,
    from_copy: bool = False,
    vectors: tuple[tuple[str, str], ...] = (),
    draws: bool = False,
) -> Compiled:
    """The compiled kernel of a formula for these storage types, from memory, disk or LLVM."""
    name = np.dtype(compute).name
    if draws or not STORAGE.keys() >= {*storage}:  # slots are encoded
        with importing:
            from thalweg._engines.cpu.codegen_blocks import generate_blocks
        kernel, read = generate_blocks(
            formula, storage, stages, before, copy, from_copy, draws, dict(vectors)
        )
        return Compiled(kernel, compute, read)
    update = Update(
        formula, storage, stages, grad, entries, before, copy, from_copy, vectors=dict(vectors)
    )
    if update.vectors:
        with importing:
            from thalweg._engines.cpu.codegen_broadcast import generate_seeing
        return Compiled(generate_seeing(update, name), compute, tuple(update.vectors))
    if duplicates is None:
        return Compiled(generate_update(update, name), compute, tuple(update.vectors))
    with importing:
        from thalweg._engines.cpu.codegen_sparse import generate_rows
    return Compiled(generate_rows(update, name, duplicates), compute)


@cache
def jit_loop(*functions: Callable[..., Any]) -> Loop:
    """A plain function over arrays and integers, compiled; followed by the functions it calls."""
    with importing:
        from thalweg._engines.cpu.compiled_loops import Loop
    return Loop(*functions)


@cache
def sum_kernel(
    formulas: tuple[Formula, ...],
    stages: tuple[Formula, ...],
    storage: tuple[str, ...],
    compute: type[np.floating],
    from_copy: bool = False,
    gathers: bool = False,
) -> Compiled:
    """Return the compiled kernel that sums formulas over leaves; see `generate_measure`."""
    with importing:
        from thalweg._engines.cpu.codegen_measure import generate_measure
    kernel = generate_measure(formulas, stages, storage, np.dtype(compute).name, from_copy, gathers)
    return Compiled(kernel, np.float64)


@cache
def lines_kernel(
    measures: tuple[Measure, ...],
    stages: tuple[Formula, ...],
    storage: tuple[str, ...],
    compute: type[np.floating],
    vectors: tuple[tuple[str, str], ...],
    from_copy: bool,
) -> Compiled:
    """The compiled kernel that measures rows, columns and variables, tile by tile."""
    with importing:
        from thalweg._engines.cpu.codegen_row_column import generate_lines
    name = np.dtype(compute).name
    kernel, read = generate_lines(measures, stages, storage, name, dict(vectors), from_copy)
    return Compiled(kernel, np.float64, read)


@cache
def peak_kernel(size: int) -> Compiled:
    """The compiled kernel that finds the largest magnitude among numbers of so many bytes."""
    with importing:
        from thalweg._engines.cpu.codegen_measure import generate_peak
    return Compiled(generate_peak(size), np.float64)
