"""Compiled kernels of the CPU engine, and calls of them on torch's threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from thalweg._base.locks import importing
from thalweg._engines.array_types import Array
from thalweg._engines.codegen import Kernel, Update
from thalweg._engines.cpu import kernel_cache, openmp
from thalweg._engines.cpu.codegen import STORAGE, generate_update
from thalweg._engines.cpu.machine_code import tuning
from thalweg._engines.cpu.work_table import Table

if TYPE_CHECKING:
    from thalweg._base.rule_passes import Measure
    from thalweg._engines.codegen import Measurement


# Kernels over at most so many elements hold Python's lock: no other thread can free their memory.
LOCKED_ELEMENTS = 4 << 20


class Compiled:
    """Compiled kernel.

    Attributes:
        scalars: Names of the scalars that the kernel reads, in the order of a scalar row.
        dtype: The dtype of the scalars and of the arithmetic.
        measures: The number of measures of each leaf, if the kernel measures.
        vectors: Names of the vectors of rows and columns that the kernel reads, in table order.
        address: The address of the machine code.
    """

    def __init__(
        self, kernel: Kernel, compute: type[np.floating], vectors: tuple[str, ...] = ()
    ) -> None:
        self.scalars = kernel.scalars
        self.dtype = compute
        self.measures, self.vectors = kernel.measures, vectors
        self.address = kernel_cache.address_of(kernel.name, kernel.source)

    def bind_table(
        self, table: Table, scalars: Array, flush: bool, *results: int
    ) -> Callable[[], object]:
        """Return a C function without arguments that runs the kernel over a work table.

        Args:
            table: The work table. The caller keeps the tensors of the table alive.
            scalars: (rows, scalars) contiguous, in the kernel's dtype. Tensor i reads the row
                `table.scalar_row[i]`.
            flush: True if denormals are treated as zero.
            results: As for `Table.fill_argument`.
        """
        argument = table.fill_argument(scalars, flush, *results)
        threads = threads_for(len(table.bounds) - 1, table.elements)
        return self.bind_argument(argument, threads, table.elements)

    def bind_argument(self, argument: int, threads: int, elements: int) -> Callable[[], object]:
        """Return a C function that calls the kernel with an argument on a number of threads.

        For at most `LOCKED_ELEMENTS` elements, the function holds Python's lock.
        """
        return openmp.call_on_team(self.address, argument, threads, elements <= LOCKED_ELEMENTS)


def threads_for(slices: int, elements: int) -> int:
    """Return the number of threads for work of so many slices and elements."""
    return 1 if is_serial(elements) else min(openmp.team_size(), slices)


def is_serial(elements: int) -> bool:
    """Return True if work over so many elements is too small for several threads."""
    return elements < tuning().serial


@cache
def update_kernel(
    update: Update,
    compute: type[np.floating],
    duplicates: Literal["sum", "successive"] | None = None,
) -> Compiled:
    """Return the kernel of an update; compile it if no cache has it.

    Args:
        duplicates: For sparse gradients, as in `codegen_sparse.generate_rows`; else None.
    """
    name = np.dtype(compute).name
    if update.draws or not STORAGE.keys() >= {*update.storage}:
        with importing:
            from thalweg._engines.cpu.codegen_blocks import generate_blocks
        kernel = generate_blocks(update)
    elif update.traced.vectors:
        with importing:
            from thalweg._engines.cpu.codegen_broadcast import generate_broadcast
        kernel = generate_broadcast(update, name)
    elif duplicates is None:
        kernel = generate_update(update, name)
    else:
        with importing:
            from thalweg._engines.cpu.codegen_sparse import generate_rows
        kernel = generate_rows(update, name, duplicates)
    return Compiled(kernel, compute, tuple(update.traced.vectors))


@cache
def group_kernel(index: str) -> Compiled:
    """Return the compiled kernel that groups sparse entries by row; see `generate_grouping`."""
    with importing:
        from thalweg._engines.cpu.codegen_sparse import generate_grouping
    return Compiled(generate_grouping(index), np.float64)


@cache
def gap_kernel() -> Compiled:
    """Return the compiled kernel that lists rows without entries; see `generate_gaps`."""
    with importing:
        from thalweg._engines.cpu.codegen_sparse import generate_gaps
    return Compiled(generate_gaps(), np.float64)


@cache
def sum_kernel(measurement: Measurement, gathers: bool = False) -> Compiled:
    """Return the compiled kernel that sums formulas over leaves; see `generate_measure`."""
    with importing:
        from thalweg._engines.cpu.codegen_measure import generate_measure
    return Compiled(generate_measure(measurement, gathers), np.float64)


@cache
def lines_kernel(measures: tuple[Measure, ...], measurement: Measurement) -> Compiled:
    """Return the compiled kernel that measures rows, columns and variables in tiles."""
    with importing:
        from thalweg._engines.codegen_measure import Sweep
        from thalweg._engines.cpu.codegen_row_column import generate_lines
    vectors = tuple(Sweep(measurement).vectors)
    return Compiled(generate_lines(measures, measurement), np.float64, vectors)


@cache
def peak_kernel(size: int) -> Compiled:
    """Return the compiled kernel that finds the largest magnitude of floats of `size` bytes."""
    with importing:
        from thalweg._engines.cpu.codegen_measure import generate_peak
    return Compiled(generate_peak(size), np.float64)
