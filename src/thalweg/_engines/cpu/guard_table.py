"""Guard tables: the memory from which `replay_kernel.py` checks and repeats a step.

A table records the parameters, state, gradients and kernels of a planned step. The native replay
compares the record with the present objects, and then repeats the step.
"""

from __future__ import annotations

import ctypes
import operator
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import astuple
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._engines import guards, torch_layout_probe
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.cpu import openmp, replay_kernel
from thalweg._engines.cpu.replay_routines import (
    bind_replay,
    kernels_routine,
    parts_routine,
    python_functions,
)
from thalweg._engines.protocol import Call
from thalweg._engines.torch_layout_probe import Layout

# Formats of columns and of watched numbers, as constants of `replay_kernel`.
KINDS = {
    torch.float32: replay_kernel.FLOAT32,
    torch.float64: replay_kernel.FLOAT64,
    torch.int64: replay_kernel.INT64,
}
# torch stores sizes and strides of at most five dimensions in the TensorImpl itself.
_DIMENSIONS = 5


def _word(address: int, offset: int) -> int:
    """Return the 64-bit word at an address plus an offset in bytes."""
    return ctypes.c_int64.from_address(address + offset).value


def _records(rows: Sequence[Sequence[int]], size: int) -> Int64:
    """Return an int64 array with a record in each row; `size` is the size of a record in bytes."""
    return np.array(rows, np.int64).reshape(-1, size // 8)


Numbers = Float64  # the numbers of an option, one for each item of a tuple


class Member(NamedTuple):
    """Variable whose scalars depend on its own step count.

    Attributes:
        step_count: Address of the count, or 0 if the rule counts no steps.
        kind: Format of the count, from `KINDS`.
        program: Address of the record of the program that computes the scalars of the variable, or
            0 if the variable has no elements.
        row_cell: Address of the index of the row of scalars that the kernel reads.
        row_size: Bytes of a row.
        numbers: Address of the records of other numbers that the step replaces, or 0.
        spans: For each work table with chunks of the variable: the address of the first length in
            that table, its address in an unchanged copy, and the number of chunks.
    """

    step_count: int
    kind: int
    program: int
    row_cell: int
    row_size: int
    numbers: int
    spans: Sequence[tuple[int, int, int]]


class GuardedStep(NamedTuple):
    """Contents of a step that is replayed, apart from the guards of lists and dictionaries.

    A launch is the address of a kernel, the address of its argument, the address of the function
    that calls it on several threads, or 0, and the number of threads.

    Attributes:
        gradients: For each parameter: the parameter, its gradient, and the address of the cell that
            receives the gradient's address.
        launches: Launches of the update.
        columns: Scalars that change: address, number of elements, and format.
        written_tensors: Tensors whose version counters the step increments. All were added by
            `guard_tensor`.
        bounds: Begin and end addresses of the memory that the step writes, in ascending order.
        watched_numbers: Tensors of one number, of 4 or 8 bytes, which only steps may write. All
            were added by `guard_tensor`. Those of `columns` come first.
        measures: Launches that compute the norms of gradients.
        clipping: Address of the block of `replay_global_norm`, or 0.
        programs: Records of programs that compute scalars; a record of zeros has no program.
        rule_measures: Launches that compute the measures of rules.
        rule_scalars: Blocks of `replay_reductions`, which compute scalars from rule measures.
        spreads: Records of scalars that are copied before the launches of rule measures.
        members: The variables of the first gradients, if each has scalars for its own step count.
        pass_members: Members whose scalars are those of passes and stages, a multiple of `members`:
            each has the gradient of the member at its index modulo their number.
        may_be_absent: True if members without a gradient are left out of a step.
        writer_indices: For tensors that only some members write: the indices of those members, by
            the `id` of the tensor.
    """

    gradients: Sequence[tuple[Tensor, Tensor | None, int]]
    launches: Sequence[tuple[int, int, int, int]]
    columns: Sequence[tuple[int, int, int]]
    written_tensors: Sequence[Tensor]
    bounds: Int64
    watched_numbers: Sequence[Tensor] = ()
    measures: Sequence[tuple[int, int, int, int]] = ()
    clipping: int = 0
    programs: Int64 | None = None
    rule_measures: Sequence[tuple[int, int, int, int]] = ()
    rule_scalars: Int64 | None = None
    spreads: Sequence[Sequence[int]] = ()
    members: Sequence[Member] = ()
    pass_members: Sequence[Member] = ()
    may_be_absent: bool = False
    writer_indices: Mapping[int, Sequence[int]] = MappingProxyType({})


class GuardTable:
    """Record of one step, and the native call that checks the record and repeats the step.

    Call the methods `guard_*` for all objects that the step depends on, then `write_block`, then
    `replay` for each step.

    Args:
        layout: Offsets of the fields of torch's tensors.

    Attributes:
        block: (replay_kernel.BLOCK,) words that the native replay reads.
        detects_tracing: True if `replay` detects that this thread traces or records operations.
        releases_lock: True if the kernels of the update run without Python's lock. The caller of
            `replay` then passes `pairs`, and keeps the memory of all tensors alive. Set by callers.
        replay_counter: The number of replayed steps; a ctypes integer in the block.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._references: list[Any] = []
        self._tables: dict[int, tuple[Int64, Int64]] = {}  # step tables and their spans, by address
        self._lists: list[tuple[list[Any], Int64]] = []
        self._dicts: list[tuple[Mapping[Any, Any], Int64, int]] = []
        self._tensors: list[Tensor] = []
        self._indices: dict[int, int] = {}
        self._options: list[tuple[int, Numbers, Int64]] = []
        self.block = np.zeros(replay_kernel.BLOCK, np.int64)
        self.detects_tracing = self.releases_lock = False

    def guard_list(self, items: list[Any]) -> None:
        """Make `replay` refuse steps in which the list has other items, by identity, than it has
        now.

        The table keeps the present items alive.
        """
        self._lists.append((items, np.array(list(map(id, items)), np.int64)))
        self._references.append([*items])

    def guard_dict(
        self,
        entries: dict[Any, Any],
        varying: str | None = None,
        numbers: Mapping[str, Numbers] | None = None,
        pointer: int = 0,
    ) -> None:
        """Make `replay` refuse steps in which a dictionary has other keys, values or another order
        than now.

        Keys and values are compared by identity, and the table keeps them alive.

        Args:
            entries: The dictionary.
            varying: Optional. A key whose value may change.
            numbers: Optional. For keys whose value is a float, or a tuple of floats, that may
                change: the array to which each replay copies the value. Signs may not change.
            pointer: Optional. The address of a pointer that must refer to the dictionary; 0 for no
                comparison.
        """
        numbers = numbers or {}
        words: list[int] = []
        for key, entry in entries.items():
            if key in numbers:
                words += [id(key), self._add_option(entry, numbers[key])]
            else:
                words += [id(key), id(entry) if key != varying else 0]
        self._dicts.append((entries, np.array(words, np.int64), pointer))
        guarded_values = [
            entry_value
            for key, entry_value in entries.items()
            if key != varying and key not in numbers
        ]
        self._references.append([*entries, *guarded_values])

    def _add_option(self, option: Any, numbers: Numbers) -> int:
        """Add a float or tuple of floats that each replay copies to `numbers`; copy it there now,
        too.

        Return the negative word that stands for its value in the record of the dictionary: -1 for
        the first option that was added, -2 for the next one, and so on.
        """
        is_tuple = isinstance(option, tuple)
        numbers[:] = option
        length = len(numbers) if is_tuple else 0
        self._options.append((length, numbers, np.sign(numbers).astype(np.int64)))
        return -len(self._options)

    def release_dicts(self, ids: Set[int]) -> None:
        """Drop the table's references to the dictionaries with these `id`s, which replays still
        compare.

        The caller must keep them alive while it calls `replay`.
        """
        self._dicts = [
            ({} if id(entries) in ids else entries, items, pointer)
            for entries, items, pointer in self._dicts
        ]

    def guard_attributes(self, owner: object) -> bool:
        """Make `replay` refuse steps in which an object has another `__dict__`, or other attributes
        in it.

        Return True; or False, and add nothing, if the address of the object's pointer to its
        `__dict__` is unknown.
        """
        pointer = torch_layout_probe.find_attributes_pointer(owner)
        if pointer:
            self._references.append(owner)
            self.guard_dict(vars(owner), pointer=pointer)
        return bool(pointer)

    def guard_tensor(self, tensor: Tensor) -> int | None:
        """Make `replay` refuse steps in which the memory, shape, strides or dtype of a tensor has
        changed.

        The values of its elements are not compared. Return the index of the tensor in the table,
        the old one for a tensor that is already there; or None, and add nothing, if it has more
        than five dimensions. The table keeps the tensor alive.
        """
        index = self._indices.get(id(tensor))
        if index is None:
            if tensor.dim() > _DIMENSIONS:
                return None
            index = self._indices[id(tensor)] = len(self._tensors)
            self._tensors.append(tensor)
        return index

    def write_block(self, contents: GuardedStep) -> None:
        """Write all records and the block, and bind the compiled replay to them.

        Call it once, after all tensors, lists and dictionaries were added.

        Args:
            contents: The gradients, kernels, scalars and written tensors of the step.
        """
        self._write_tensors(contents.gradients)
        self._write_kernels(contents)
        self._write_written(contents.written_tensors, contents.writer_indices)
        self._write_watched(contents.watched_numbers)
        self._write_containers()
        self._set_members(contents.members, contents.pass_members, contents.may_be_absent)
        self._set_tables()
        self._set_constants()
        self.block[replay_kernel.CLIPPING] = contents.clipping
        self._is_long = len(self._tensors) >= replay_kernel.TEAM_MIN_TENSORS
        self._address = self.block.ctypes.data
        self.replay_counter = ctypes.c_int64.from_address(
            self._address + 8 * replay_kernel.REPLAY_COUNT
        )
        self._call = bind_replay(self._address)

    def _write_tensors(self, gradients: Sequence[tuple[Tensor, Tensor | None, int]]) -> None:
        """Fill `records` from the guarded tensors, and `gradients` from the gradients of
        parameters.

        Args:
            gradients: As in `GuardedStep`.
        """
        shape = max(len(self._tensors), 1), replay_kernel.TENSOR_BYTES // 8
        self.records = np.zeros(shape, np.int64)
        for record, tensor in zip(self.records, self._tensors, strict=False):
            self._write_tensor_record(record, tensor)
        self._gradient_count = len(gradients)
        self.gradients = np.zeros(
            (max(len(gradients), 1), replay_kernel.GRADIENT_BYTES // 8), np.int64
        )
        for record, (param, grad, cell) in zip(self.gradients, gradients, strict=False):
            owner = self.records[self._indices[id(param)]].ctypes.data
            self._write_gradient_record(record, owner, param, grad, cell)

    def _write_kernels(self, contents: GuardedStep) -> None:
        """Store the records of kernels, columns, written memory and programs as arrays of this
        table.

        A column is an array whose elements a step sets to one number; a program computes scalars.
        """
        self.launches = _records(contents.launches, replay_kernel.LAUNCH_BYTES)
        self.measures = _records(contents.measures, replay_kernel.LAUNCH_BYTES)
        self.rule_measures = _records(contents.rule_measures, replay_kernel.LAUNCH_BYTES)
        self._spreads = _records(contents.spreads, replay_kernel.SPREAD_BYTES)
        columns = contents.columns
        self.columns = np.zeros((len(columns), replay_kernel.COLUMN_BYTES // 8), np.int64)
        self.columns[:, :3] = np.array(columns, np.int64).reshape(-1, 3)
        words = self.columns.data.cast("B") if columns else memoryview(b"")
        ints, floats = words.cast("q"), words.cast("d")
        self._column_words = [
            ints if kind == replay_kernel.INT64 else floats for *_, kind in columns
        ]
        self.bounds = np.ascontiguousarray(contents.bounds, np.int64).reshape(-1)
        no_records = np.zeros((0, 1), np.int64)
        self._programs = no_records if contents.programs is None else contents.programs
        self._rule_scalars = no_records if contents.rule_scalars is None else contents.rule_scalars

    def _write_written(
        self, written_tensors: Sequence[Tensor], writer_indices: Mapping[int, Sequence[int]]
    ) -> None:
        """Store a record for each tensor whose version counter a step increments.

        Args:
            written_tensors, writer_indices: As in `GuardedStep`. A tensor that is not in
                `writer_indices` is written by each step.
        """
        self._writers = [
            np.array(writer_indices.get(id(tensor), ()), np.int64) for tensor in written_tensors
        ]
        rows = [
            (self._indices[id(tensor)], len(writers), writers.ctypes.data)
            for tensor, writers in zip(written_tensors, self._writers, strict=True)
        ]
        self._write_records = _records(rows, replay_kernel.WRITE_BYTES)

    def _write_watched(self, watched_numbers: Sequence[Tensor]) -> None:
        """Create the records of numbers that only steps may write."""
        rows = [(tensor.data_ptr(), tensor.element_size(), 0) for tensor in watched_numbers]
        self._watch_records = _records(rows, replay_kernel.WATCH_BYTES)
        self._as_floats = self._watch_records.view(np.float32), self._watch_records.view(np.float64)

    def _write_containers(self) -> None:
        """Create the records of lists, of dictionaries and of options that may change."""
        lists = [(id(items), len(ids), ids.ctypes.data) for items, ids in self._lists]
        dicts = [
            (id(entries), len(words) // 2, words.ctypes.data, pointer, 0, int((words < 0).any()))
            for entries, words, pointer in self._dicts
        ]
        options = [
            (length, numbers.ctypes.data, signs.ctypes.data)
            for length, numbers, signs in self._options
        ]
        self._list_records = _records(lists, replay_kernel.LIST_BYTES)
        self._dict_records = _records(dicts, replay_kernel.DICT_BYTES)
        self._option_records = _records(options, replay_kernel.OPTION_BYTES)

    def _set_tables(self) -> None:
        """Write to the block the count of each kind of records, and the address of the first one.

        Find torch's functions that detect tracing, too; set `detects_tracing` to True if there are
        any.
        """
        guard_functions = guards.find_guards()
        self._guards = _records(guard_functions, replay_kernel.GUARD_BYTES)
        self.detects_tracing = bool(guard_functions)
        for word, records, count in (
            (replay_kernel.TENSORS, self.records, len(self._tensors)),
            (replay_kernel.GRADIENTS, self.gradients, self._gradient_count),
            *(
                (word, records, len(records))
                for word, records in (
                    (replay_kernel.LISTS, self._list_records),
                    (replay_kernel.DICTS, self._dict_records),
                    (replay_kernel.LAUNCHES, self.launches),
                    (replay_kernel.COLUMNS, self.columns),
                    (replay_kernel.WRITTEN_TENSORS, self._write_records),
                    (replay_kernel.BOUNDS, self.bounds),
                    (replay_kernel.WATCHED_NUMBERS, self._watch_records),
                    (replay_kernel.MEASURES, self.measures),
                    (replay_kernel.PROGRAMS, self._programs),
                    (replay_kernel.RULE_MEASURES, self.rule_measures),
                    (replay_kernel.RULE_SCALARS, self._rule_scalars),
                    (replay_kernel.SPREADS, self._spreads),
                    (replay_kernel.OPTIONS, self._option_records),
                    (replay_kernel.MEMBERS, self._members),
                    (replay_kernel.GUARDS, self._guards),
                )
            ),
        ):
            self.block[word : word + 2] = count, records.ctypes.data

    def _set_constants(self) -> None:
        """Set addresses of Python's functions and classes, and offsets of torch, in the block."""
        block = self.block
        for word, address in python_functions().items():
            block[word] = address
        block[replay_kernel.CLASS_OF_LISTS] = id(list)
        block[replay_kernel.CLASS_OF_TUPLES] = id(tuple)
        block[replay_kernel.CLASS_OF_GRADIENTS] = id(Tensor)
        block[replay_kernel.CLASS_OF_FLOATS] = id(float)
        block[replay_kernel.CLASS_OF_NUMPY_FLOATS] = id(np.float64)
        block[replay_kernel.IN_FLOAT] = torch_layout_probe.float_offset()
        block[replay_kernel.IN_DICT_VERSION] = torch_layout_probe.dict_version_offset()
        block[replay_kernel.UNDEFINED_IMPL] = torch_layout_probe.no_gradient()
        block[replay_kernel.NONE_OBJECT] = id(None)
        offsets = astuple(self._layout)
        block[replay_kernel.IN_OBJECT : replay_kernel.IN_OBJECT + len(offsets)] = offsets

    def _set_members(
        self, members: Sequence[Member], pass_members: Sequence[Member], may_be_absent: bool
    ) -> None:
        """Store the records of members and pass members; enable the gradient of each member.

        Args:
            members, pass_members, may_be_absent: As in `GuardedStep`. The record of each member's
                gradient, which must exist, gets the addresses of chunk lengths that are set to 0 to
                skip the member.
        """
        # The references keep the tables of the spans alive.
        self._spans = [member.spans for member in members]
        rows = [member[:-1] for member in (*members, *pass_members)]
        self._members = _records(rows, replay_kernel.MEMBER_BYTES)
        self.block[replay_kernel.COUNTED_MEMBERS] = len(members)
        for record, member in zip(self.gradients, members, strict=False):
            presence = replay_kernel.MAY_BE_ABSENT if may_be_absent else replay_kernel.PRESENT
            record[replay_kernel.PRESENCE] = presence
            record[replay_kernel.IS_ENABLED] = 1
            for index, span in enumerate(member.spans):
                first = replay_kernel.SPANS + 3 * index
                record[first : first + 3] = span

    @property
    def gradient_switches(self) -> tuple[int, int]:
        """Address of the first gradient's flag, 1 if its variable is updated, and bytes between
        flags.
        """
        return (
            self.gradients.ctypes.data + 8 * replay_kernel.IS_ENABLED,
            replay_kernel.GRADIENT_BYTES,
        )

    def set_column(self, index: int, number: Any, expected: Any = None) -> None:
        """Set the number that the next step writes to all elements of a column, one of `columns` of
        the step.

        Args:
            index: The index of the column.
            number: The number, in the column's format.
            expected: Optional. The number that all elements must have before the next step; other
                values make `replay` refuse it.
        """
        numbers, first = self._column_words[index], replay_kernel.COLUMN_BYTES // 8 * index
        numbers[first + 3] = number
        if expected is not None:
            numbers[first + 4] = expected
            self.columns[index, 5] = 1

    def set_watched_number(self, index: int, kind: int, number: Any) -> None:
        """Set the value that a watched number must have, bit for bit, so that `replay` takes the
        next step.

        Args:
            index: The index of the number in `watched_numbers` of the step.
            kind: `replay_kernel.FLOAT32`, `replay_kernel.FLOAT64` or `replay_kernel.INT64`.
            number: The value.
        """
        float32, float64 = self._as_floats
        if kind == replay_kernel.FLOAT32:
            float32[index, 4] = number
        elif kind == replay_kernel.FLOAT64:
            float64[index, 2] = number
        else:
            self._watch_records[index, 2] = number

    def make_step_table(self, spans: Int64, rows: int) -> None:
        """Allocate the table of precomputed scalars, without rows, from which `TABLED` replays
        read.

        An older table is kept alive, but no longer read.

        Args:
            spans: For each scalar program: the address of its first input register, and the number
                of these registers. A row of the table has the values of all of them, then one for
                each column.
            rows: The largest number of rows; there is one for each coming step.
        """
        width = int(spans[:, 1].sum()) + len(self.columns)
        table = np.zeros(replay_kernel.TABLE_HEAD_BYTES // 8 + width * rows, np.int64)
        # A signal handler may allocate a table, too: all are kept, and the block has the last one.
        self._tables[table.ctypes.data] = table, spans
        self.block[replay_kernel.STEP_TABLE : replay_kernel.STEP_TABLE_ROW_BYTES + 1] = (
            table.ctypes.data,
            len(spans),
            spans.ctypes.data,
            8 * width,
        )

    @property
    def _table(self) -> Int64:
        """Return the table of coming steps whose address is in the block."""
        return self._tables[int(self.block[replay_kernel.STEP_TABLE])][0]

    def set_reads(self, reads: Sequence[tuple[Tensor, int, bool]]) -> None:
        """Make `TABLED` replays copy scalars from tensors to registers, which programs then read.

        Args:
            reads: Tensors of shape () that were added by `guard_tensor`, each with the address of
                the register that receives the value, and True to round the value to float32.
        """
        rows = [(x.data_ptr(), KINDS[x.dtype], register, narrow) for x, register, narrow in reads]
        records = _records(rows, replay_kernel.READ_BYTES)
        self._references.append(records)
        self.block[replay_kernel.READS : replay_kernel.READS + 2] = len(rows), records.ctypes.data

    def set_register_columns(self, rows: Sequence[tuple[int, int]]) -> None:
        """Make each replay write the values that programs have left in registers to columns.

        Args:
            rows: Pairs: the address of a register, and the index of the column that receives its
                value.
        """
        records = _records(rows, replay_kernel.REGISTER_COLUMN_BYTES)
        self._references.append(records)
        first = replay_kernel.REGISTER_COLUMNS
        self.block[first : first + 2] = len(rows), records.ctypes.data

    def set_step_table(self, first: int, rows: Sequence[bytes]) -> None:
        """Write rows of precomputed scalars, one for each coming step, to the step table.

        Args:
            first: The count of replayed steps at which the first row is used; the next row is used
                at `first + 1`.
            rows: Bytes of each row: the values of registers, then the new values of the columns.
        """
        head = np.array((first, len(rows)), np.int64).tobytes()
        words = np.frombuffer(b"".join((head, *rows)), np.int64)
        # One assignment, because a signal handler may take steps, too.
        self._table[: len(words)] = words

    def has_row(self, replay_count: int) -> bool:
        """Return True if the table has a row for the step after `replay_count` replayed steps."""
        first, count = self._table[:2].tolist()
        return first <= replay_count < first + count

    def _write_tensor_record(self, record: Int64, tensor: Tensor) -> None:
        """Write the present fields of a tensor to its record, which the replay compares."""
        layout = self._layout
        impl = _word(id(tensor), layout.impl)
        storage = _word(impl, layout.storage)
        record[replay_kernel.OBJECT], record[replay_kernel.CLASS] = id(tensor), id(type(tensor))
        record[replay_kernel.IMPL], record[replay_kernel.STORAGE] = impl, storage
        record[replay_kernel.DATA], record[replay_kernel.BYTES] = (
            _word(storage, layout.data),
            _word(storage, layout.nbytes),
        )
        record[replay_kernel.DELETER] = _word(storage, layout.deleter)
        record[replay_kernel.CONTEXT] = _word(storage, layout.context)
        dims = tensor.dim()
        record[replay_kernel.SHAPE] = dims
        record[replay_kernel.SHAPE + 1 : replay_kernel.SHAPE + 1 + dims] = tuple(tensor.shape)
        record[replay_kernel.SHAPE + 6 : replay_kernel.SHAPE + 6 + dims] = tensor.stride()
        record[replay_kernel.OFFSET] = tensor.storage_offset()
        record[replay_kernel.COUNT] = tensor.numel()
        record[replay_kernel.FLAGS] = _word(impl, layout.flags) & layout.flags_mask
        record[replay_kernel.KEYS] = _word(impl, layout.keys)
        self._references.append(type(tensor))

    def _write_gradient_record(
        self, record: Int64, owner: int, param: Tensor, grad: Tensor | None, cell: int
    ) -> None:
        """Write the fields of a gradient that each replay compares; without a gradient, write that
        there is none.

        Args:
            record: The record, all zeros; changed in place.
            owner: The address of the parameter's record.
            param, grad: The parameter, and its gradient or None.
            cell: The address at which each replay stores the gradient's address for kernels.
        """
        layout = self._layout
        record[replay_kernel.OWNER] = owner
        if grad is None:
            autograd = _word(_word(id(param), layout.impl), layout.autograd)
            undefined = _word(autograd, layout.grad) if autograd else 0
            record[replay_kernel.GRADIENT_KEYS] = _word(undefined, layout.keys) if undefined else 0
            return
        record[replay_kernel.PRESENCE], record[replay_kernel.CELL] = replay_kernel.PRESENT, cell
        record[replay_kernel.EXTENT] = grad.numel() * grad.element_size()
        record[replay_kernel.ELEMENT_BYTES] = grad.element_size()
        record[replay_kernel.GRADIENT_FLAGS] = _word(grad._cdata, layout.flags) & layout.flags_mask
        record[replay_kernel.GRADIENT_KEYS] = _word(grad._cdata, layout.keys)

    def _has_threads(self) -> bool:
        """Return True if a kernel of the step runs on several threads."""
        return bool(self.launches[:, 2].any())

    def _set_team(self) -> None:
        """Write to the block how many threads compare tensors: those of the kernels, or one if each
        kernel runs on one thread.

        If other processes use the cores, waiting for a thread takes far longer than all checks.
        Therefore checks use only threads that the kernels wait for anyway.
        """
        size = openmp.team_size() if self._has_threads() else 1
        caller = openmp.parallel_address() if size > 1 else 0
        team = (caller, parts_routine(), size) if caller else (0, 0, 0)
        self.block[replay_kernel.TEAM : replay_kernel.TEAM + 3] = team

    @property
    def replay_count(self) -> int:
        """Return the number of steps that this table has replayed."""
        return self.replay_counter.value

    def set_pass(self, launches: Int64) -> None:
        """Set the launches of the next `RUN_PASS`; the caller keeps the array."""
        self.block[replay_kernel.PASS : replay_kernel.PASS + 2] = (
            len(launches),
            launches.ctypes.data,
        )

    def replay(
        self,
        pairs: list[Any] | None = None,
        replay_count: int = replay_kernel.ANY_STEP,
        part: int = replay_kernel.FULL_STEP,
        end_calls: Sequence[Call] = (),
        flags: int = 0,
    ) -> int:
        """Replay the step, or a part of it, if nothing differs from the record.

        Args:
            pairs: Optional. A list of gradients and variables, if gradients are not those of the
                parameters.
            replay_count: Optional. The number of replayed steps when this step began. A signal
                handler may have replayed a step since then, which is a difference.
            part: A constant of `replay_kernel`: `FULL_STEP` or `CLIPPED`; or `MEASURE`, or
                `RUN_PASS` for each pass, and then `UPDATE`.
            end_calls: C functions that complete the step and return None. They run right
                after a replay without a difference.
            flags: `replay_kernel.TABLED` and `replay_kernel.UNRECORDED`, or 0.

        Returns:
            0 if the step was replayed. Otherwise a constant of `replay_kernel` for the first
            difference, such as `OTHER_TENSOR`; nothing was written then.
        """
        if self._is_long:
            self._set_team()
        if self.releases_lock:
            kernels = openmp.call_on_team(kernels_routine(), self._address, 1)
            end_calls = [kernels, partial(self._call, None, 0, replay_kernel.FINISH), *end_calls]
            flags |= replay_kernel.PREPARED
        if not end_calls:
            return self._call(pairs, replay_count, part | flags)
        # No Python instruction runs between the calls, so that a signal handler cannot interrupt
        # the step. `next` stops at the first result that is not 0 or None.
        calls: list[Any] = [partial(self._call, pairs, replay_count, part | flags), *end_calls]
        results: Iterator[int] = filter(None, map(operator.call, calls))
        return next(results, 0)


def find_obstacle() -> str:
    """Return the reason for which no step can be replayed natively, or "" if steps can be."""
    if os.environ.get("THALWEG_NATIVE_LOOK") == "0":
        return "THALWEG_NATIVE_LOOK is 0"
    layout = torch_layout_probe.layout()
    return layout if isinstance(layout, str) else ""


def make_guard_table() -> GuardTable | None:
    """Return an empty table, or None if steps cannot be replayed (`find_obstacle`)."""
    return None if find_obstacle() else GuardTable(cast("Layout", torch_layout_probe.layout()))
