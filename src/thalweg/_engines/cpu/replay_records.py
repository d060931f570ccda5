"""Memory of a replay that native code reads: records of programs, and arguments of kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thalweg._engines.array_types import Array, Float64, Int64
from thalweg._engines.cpu import scalar_program
from thalweg._engines.cpu.work_table import BASE, CHUNKS, SCALAR_ROW, SCALARS, Table


class ReplayArgument:
    """Argument block of a kernel; a replay sets its scalars, chunk lengths and gradient addresses.

    Args:
        table: The work of the kernel, which must outlive the argument.
        flush: True if denormals become 0.
        base: Optional. The `base` of another argument over these tensors, which is then shared.

    Attributes:
        address: The address of the argument.
        base: The addresses of the first elements, as `Table.base`.
        cells: For each tensor the address at which its gradient's address is stored.
    """

    def __init__(self, table: Table, flush: bool, base: Int64 | None = None) -> None:
        self._table, self.base = table, table.base.copy() if base is None else base
        self._words = table.copy_of_argument(flush)
        self._words[BASE] = self.base.ctypes.data
        self.address: int = self._words.ctypes.data
        # Column 1 of the table has the addresses of gradients.
        first, (step, item) = self.base.ctypes.data, self.base.strides
        self.cells: list[int] = [first + step * k + item for k in range(len(self.base))]

    def use_rows(self, rows: Array, row_of: Int64) -> None:
        """Make tensor i read the scalars `rows[row_of[i]]`; the caller keeps both arrays alive."""
        self._words[SCALAR_ROW], self._words[SCALARS] = row_of.ctypes.data, rows.ctypes.data

    def copy_chunks(self) -> None:
        """Make the kernel read a copy of the chunks. Replays may change lengths in the copy.

        A chunk is a range of elements of one tensor.
        """
        self._chunks = self._table.chunks.copy()
        self._words[CHUNKS] = self._chunks.ctypes.data

    def span(self, member: int) -> tuple[int, int, int]:
        """Return two addresses and a count for the chunks of the tensor at an index; see `span_of`.

        Call `copy_chunks` first.
        """
        return span_of(self._chunks, self._table.chunks, member)


def span_of(chunks: Int64, full: Int64, member: int) -> tuple[int, int, int]:
    """Return the addresses of the lengths of one tensor's chunks, which are ranges of elements.

    Args:
        chunks: The chunks that a kernel reads, whose lengths may be 0.
        full: The same chunks with their full lengths, in the order of tensors.
        member: The index of the tensor.

    Returns:
        The addresses of the first length in `chunks` and in `full`, and the number of chunks.
    """
    begin, end = map(int, np.searchsorted(full[:, 0], [member, member + 1]))
    length = full.strides[0] * begin + full.strides[1] * 3
    return chunks.ctypes.data + length, full.ctypes.data + length, end - begin


def make_program_records(count: int) -> Int64:
    return np.zeros((count, scalar_program.PROGRAM // 8), np.int64)


def make_inputs(inputs: Sequence[tuple[int, int, int]]) -> Int64:
    """Return an array with a row for each value that a program loads from memory.

    `inputs` has triples: index of a register, address of the value, format of the value.
    """
    return np.array(inputs, np.int64).reshape(-1, scalar_program.INPUT // 8)


def write_program_record(
    record: Int64,
    operations: Int64,
    registers: int,
    names: Int64,
    rows: tuple[int, int],
    inputs: Int64,
    power: int,
    *,
    in_float32: bool,
    stores_float32: bool,
    is_pythons: bool,
) -> None:
    """Overwrite a record with a scalar program; the caller keeps all arrays alive.

    Args:
        operations: The operations of the program.
        registers: The address of the first register.
        names: For each scalar of a row the index of its register.
        rows: The number of rows that the program writes, and the address of the first row.
        inputs: The result of `make_inputs`.
        power: The address of C's power function.
        in_float32, stores_float32, is_pythons: The arithmetic; see `scalar_program`.
    """
    arrays = [len(operations), operations.ctypes.data, registers, len(names), names.ctypes.data]
    kinds = [power, stores_float32, is_pythons]
    loads = [len(inputs), inputs.ctypes.data]
    state = [scalar_program.NONE, 0, 0, 0, 0]
    record[:] = [in_float32, *arrays, *rows, *kinds, *loads, *state]


def set_row_count(record: Int64, row_count: Int64) -> None:
    """Make a program read the number of rows in use from `row_count`; the caller keeps it alive."""
    record[scalar_program.ROW_COUNT] = row_count.ctypes.data


def set_state_numbers(record: Int64, registers: Int64) -> None:
    """Make a program compute new values for numbers in a variable's state, one per register.

    Args:
        record: The record of the program; changed.
        registers: The indices of the registers; the caller keeps the array alive.
    """
    first = scalar_program.STATE_NUMBERS
    record[first : first + 2] = len(registers), registers.ctypes.data


def rule_scalars_record(
    sweep_record: tuple[int, int, int],
    measures: int,
    inputs: Float64,
    program: Int64,
    rows: Array,
    slot_addresses: Int64,
    slot_registers: Int64,
) -> Int64:
    """Return the block that `replay_reductions.set_rule_scalars` reads.

    The block has addresses of the arrays, which the caller keeps alive.

    Args:
        sweep_record: The address of the leaves, which are the partial sums of measures; the number
            of variables; and the address of the number of leaves of each variable.
        measures: The number of measures of a leaf.
        inputs: Scalars that the program reads, a row for each variable.
        program: The record of the program.
        rows: The kernel's scalars, a row for each variable.
        slot_addresses: The addresses of scalar slots, variable after variable.
        slot_registers: The register with the new value of each slot of a variable.
    """
    leaves, variables, counts = sweep_record
    addresses = [array.ctypes.data for array in (inputs, program, rows)]
    slot_words = [len(slot_registers), slot_addresses.ctypes.data, slot_registers.ctypes.data]
    sizes = [leaves, measures, variables, counts]
    words = [0, *sizes, *addresses, rows.strides[0], *slot_words, inputs.shape[1]]
    return np.array(words, np.int64)
