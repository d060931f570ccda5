"""Guard tables: records of a step's objects that native code compares before it repeats the step.

A replay compares the records with the present objects. If nothing differs, the replay runs the
kernels of the step again. If something differs, it returns the first difference, writing nothing.
"""

from __future__ import annotations

import ctypes
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import astuple
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._engines import guards, torch_layout_probe
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.cpu import openmp, replay_block, scalar_program
from thalweg._engines.cpu.replay_routines import (
    bind_replay,
    python_functions,
    routine_address,
)
from thalweg._engines.protocol import Call
from thalweg._engines.torch_layout_probe import Layout

# Formats of columns and of watched numbers, as constants of `replay_block`.
KINDS = {
    torch.float32: replay_block.FLOAT32,
    torch.float64: replay_block.FLOAT64,
    torch.int64: replay_block.INT64,
}
# torch stores sizes and strides of at most five dimensions in the TensorImpl itself.
_DIMENSIONS = 5


def _word(address: int, offset: int) -> int:
    """Return the 64-bit word at an address plus an offset in bytes."""
    return ctypes.c_int64.from_address(address + offset).value


Numbers = Float64  # the numbers of an option, one for each item of a tuple


class Member(NamedTuple):
    """Variable that counts its own steps; scalars of the kernel depend on the count.

    Attributes:
        step_count: Address of the count, or 0 if the rule counts no steps.
        kind: Format of the count, from `KINDS`.
        program: Address of the record of the program that computes the scalars, or 0 if the
            variable has no elements.
        row_cell: Address of the row index with which the kernel finds the scalars.
        row_size: Bytes of a row of scalars.
        numbers: Address of the records of state numbers that the step overwrites, or 0.
        spans: For each work table that has chunks of the variable: the address of the first chunk's
            length, the address of this length in an unchanged copy of the table, the number of
            chunks.
    """

    step_count: int
    kind: int
    program: int
    row_cell: int
    row_size: int
    numbers: int
    spans: Sequence[tuple[int, int, int]]


class GuardedStep(NamedTuple):
    """Tensors, kernels and scalars of a step that a `GuardTable` repeats.

    A launch is four numbers: the address of a kernel, the address of its argument, the address of
    the function that calls it on several threads (0 for one thread), the number of threads.

    Attributes:
        gradients: For each parameter: the parameter, its gradient, and the address of the cell that
            receives the gradient's address.
        launches: Launches of the update.
        columns: Scalars that change: address, number of elements, and format.
        written_tensors: Tensors whose version counters the step increments. All were added by
            `guard_tensor`.
        bounds: Begin and end addresses of the memory that the step writes, in ascending order.
        watched_numbers: Tensors of one number, of 4 or 8 bytes, which only steps may write. All
            were added by `guard_tensor`. The tensors of `columns` come first.
        measures: Launches that compute the norms of gradients.
        clipping: Address of the block of `replay_global_norm`; 0 without clipping.
        programs: Records of programs that compute scalars; a record of zeros has no program.
        rule_measures: Launches that compute the reductions of rules, and scalars from these.
        spreads: Records of scalars that are copied before these launches.
        members: The variables of the first gradients if every variable has a step count, else ().
        pass_members: Further members, for scalars of passes and stages. Entry i has the gradient of
            `members[i % len(members)]`.
        may_be_absent: True if a step leaves out members without a gradient.
        writer_indices: {id of a tensor: indices of the members that write it}. A missing tensor is
            written by each step.
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
    spreads: Sequence[Sequence[int]] = ()
    members: Sequence[Member] = ()
    pass_members: Sequence[Member] = ()
    may_be_absent: bool = False
    writer_indices: Mapping[int, Sequence[int]] = MappingProxyType({})


class GuardTable:
    """Record of a step in the int64 array `block`; `replay` checks the record and repeats the step.

    Call the methods `guard_*` for all objects that the step depends on, then `write_block`, then
    `replay` for each step.

    Args:
        layout: Offsets of the fields of torch's tensors.

    Attributes:
        block: (replay_block.BLOCK,) words that the native replay reads.
        detects_tracing: True if `replay` detects that this thread traces or records operations.
        releases_lock: True if all kernels of a step run without Python's lock. Set by callers,
            which then pass `pairs` to `replay` and keep the memory of all tensors alive.
        replay_counter: The number of replayed steps; a ctypes integer in `block`.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._references: list[Any] = []
        self._tables: dict[int, tuple[Int64, Int64]] = {}  # step tables and their spans, by address
        self._lists: list[tuple[list[Any], Int64]] = []
        self._dicts: list[tuple[Mapping[Any, Any], Int64, int]] = []
        self._tensors: list[Tensor] = []
        self._addresses: list[int] = []  # of the tensors when they were added
        self._indices: dict[int, int] = {}
        self._options: list[tuple[int, Numbers, Int64]] = []
        self.block = np.zeros(replay_block.BLOCK, np.int64)
        self.detects_tracing = self.releases_lock = False

    def guard_list(self, items: list[Any]) -> None:
        """Make `replay` return a difference if items of a list were replaced, added or removed.

        Items are compared by identity. The table keeps the present items alive.
        """
        self._lists.append((items, np.array(list(map(id, items)), np.int64)))
        # The address of a dead item could become that of a new one.
        self._references.append([*items])

    def guard_dict(
        self,
        entries: dict[Any, Any],
        varying: str | None = None,
        numbers: Mapping[str, Numbers] | None = None,
        pointer: int = 0,
    ) -> None:
        """Make `replay` return a difference if keys, values or order of a dictionary changed.

        Keys and values are compared by identity. The table keeps the compared objects alive.

        Args:
            varying: Optional. A key whose value may change.
            numbers: Optional. {key: array}, for values that are a float or a tuple of floats. The
                numbers may change, but not in sign. Each replay copies them to the array.
            pointer: Optional. The address of a pointer that must refer to the dictionary; 0 for no
                comparison.
        """
        numbers = numbers or {}
        words: list[int] = []
        references: list[Any] = [*entries]
        for key, entry in entries.items():
            if key in numbers:
                words += [id(key), self._add_option(entry, numbers[key])]
            elif key == varying:
                words += [id(key), 0]
            else:
                words += [id(key), id(entry)]
                references.append(entry)
        self._dicts.append((entries, np.array(words, np.int64), pointer))
        self._references.append(references)

    def _add_option(self, option: Any, numbers: Numbers) -> int:
        """Copy an option, a float or tuple of floats, to `numbers`, now and in each replay.

        Return a number that stands for the option in a dictionary's record: -1 for the first option
        of the table, -2 for the second, and so on.
        """
        is_tuple = isinstance(option, tuple)
        numbers[:] = option
        length = len(numbers) if is_tuple else 0
        self._options.append((length, numbers, np.sign(numbers).astype(np.int64)))
        return -len(self._options)

    def release_dicts(self, ids: Set[int]) -> None:
        """Drop the table's references to dictionaries with these `id`s; replays still compare them.

        Call `write_block` before. The caller must keep the dictionaries alive until the last
        `replay`.
        """
        self._dicts = [
            ({} if id(entries) in ids else entries, items, pointer)
            for entries, items, pointer in self._dicts
        ]

    def guard_attributes(self, owner: object) -> bool:
        """Make `replay` return a difference if an object's `__dict__` was replaced or changed.

        Return True. Return False, and add nothing, if the address of the object's pointer to
        `__dict__` is unknown.
        """
        pointer = torch_layout_probe.find_attributes_pointer(owner)
        if pointer:
            self._references.append(owner)
            self.guard_dict(vars(owner), pointer=pointer)
        return bool(pointer)

    def guard_tensor(self, tensor: Tensor) -> int | None:
        """Make `replay` return a difference if memory, shape, strides or dtype of a tensor changed.

        Values of elements are not compared. The table keeps the tensor alive. Return the index of
        the tensor in the table. A tensor that was added before keeps its index. Return None, and
        add nothing, if the tensor has more than five dimensions.
        """
        index = self._indices.get(id(tensor))
        if index is None:
            if tensor.dim() > _DIMENSIONS:
                return None
            index = self._indices[id(tensor)] = len(self._tensors)
            self._tensors.append(tensor)
            self._addresses.append(tensor.data_ptr())
        return index

    def has_recorded(self, places: Iterable[tuple[Tensor, int]]) -> bool:
        """Return True if the records have the addresses that kernels use.

        False means that another thread has given a tensor other memory before `write_block`.

        Args:
            places: (tensor, address) pairs. Tensors that `guard_tensor` did not add are skipped.
                For added tensors, the addresses of that time are compared, too.
        """
        for tensor, address in (*zip(self._tensors, self._addresses, strict=True), *places):
            index = self._indices.get(id(tensor))
            if index is not None and tensor.numel():
                data, offset = self.records[index, [replay_block.DATA, replay_block.OFFSET]]
                if data + offset * tensor.element_size() != address:
                    return False
        return True

    def write_block(self, contents: GuardedStep) -> None:
        """Write all records to memory, and make `replay` callable.

        Call it once, after all `guard_*` methods.

        Args:
            contents: The gradients, kernels, scalars and written tensors of the step.
        """
        self._write_tensors(contents.gradients)
        self._write_kernels(contents)
        self._write_columns(contents.columns, contents.watched_numbers)
        self._write_written(contents.written_tensors, contents.writer_indices)
        self._write_containers()
        self._set_members(contents.members, contents.pass_members, contents.may_be_absent)
        self._set_constants()
        self.block[replay_block.CLIPPING] = contents.clipping
        self._is_long = len(self._tensors) >= replay_block.TEAM_MIN_TENSORS
        self._address = self.block.ctypes.data
        self.replay_counter = ctypes.c_int64.from_address(
            self._address + 8 * replay_block.REPLAY_COUNT
        )
        self._call = bind_replay(self._address)

    def _set_table(self, word: int, rows: Any, size: int) -> Int64:
        """Make `block` refer to an array of records; return the array, which the table keeps.

        Args:
            word: The index in `block` for the number of records. The next word gets the address.
            rows: The words of each record. A contiguous int64 array is not copied.
            size: Bytes of a record.
        """
        records = np.ascontiguousarray(rows, np.int64).reshape(-1, size // 8)
        self._references.append(records)
        self.block[word : word + 2] = len(records), records.ctypes.data
        return records

    def _write_tensors(self, gradients: Sequence[tuple[Tensor, Tensor | None, int]]) -> None:
        """Set `records` and `gradients`, arrays with a record per guarded tensor and per parameter.

        Args:
            gradients: As in `GuardedStep`.
        """
        words = np.zeros((len(self._tensors), replay_block.TENSOR_BYTES // 8), np.int64)
        self.records = self._set_table(replay_block.TENSORS, words, replay_block.TENSOR_BYTES)
        for record, tensor in zip(self.records, self._tensors, strict=True):
            self._write_tensor_record(record, tensor)
        words = np.zeros((len(gradients), replay_block.GRADIENT_BYTES // 8), np.int64)
        self.gradients = self._set_table(replay_block.GRADIENTS, words, replay_block.GRADIENT_BYTES)
        for record, (param, grad, cell) in zip(self.gradients, gradients, strict=True):
            owner = self.records[self._indices[id(param)]].ctypes.data
            self._write_gradient_record(record, owner, param, grad, cell)

    def _write_kernels(self, contents: GuardedStep) -> None:
        """Create the records of kernel launches, programs, written memory and torch functions.

        The functions detect tracing. Set the attribute `detects_tracing` to False if torch lacks
        one of them, else to True.
        """
        launch_bytes = replay_block.LAUNCH_BYTES
        self.launches = self._set_table(replay_block.LAUNCHES, contents.launches, launch_bytes)
        self.measures = self._set_table(replay_block.MEASURES, contents.measures, launch_bytes)
        self.rule_measures = self._set_table(
            replay_block.RULE_MEASURES, contents.rule_measures, launch_bytes
        )
        self._set_table(replay_block.SPREADS, contents.spreads, replay_block.SPREAD_BYTES)
        self._set_table(replay_block.BOUNDS, contents.bounds, 8)
        if contents.programs is not None:
            self._set_table(replay_block.PROGRAMS, contents.programs, scalar_program.PROGRAM)
        guard_functions = guards.find_guards()
        self._set_table(replay_block.GUARDS, guard_functions, replay_block.GUARD_BYTES)
        self.detects_tracing = bool(guard_functions)

    def _write_columns(
        self, columns: Sequence[tuple[int, int, int]], watched_numbers: Sequence[Tensor]
    ) -> None:
        """Create the records of columns, and of numbers that only steps may write.

        A column is an array whose elements a step sets to one number. Arguments as in
        `GuardedStep`.
        """
        rows = [(*column, 0, 0, 0) for column in columns]
        self.columns = self._set_table(replay_block.COLUMNS, rows, replay_block.COLUMN_BYTES)
        words = self.columns.data.cast("B") if columns else memoryview(b"")
        ints, floats = words.cast("q"), words.cast("d")
        self._column_words = [
            ints if kind == replay_block.INT64 else floats for *_, kind in columns
        ]
        rows = [(tensor.data_ptr(), tensor.element_size(), 0) for tensor in watched_numbers]
        self._watch_records = self._set_table(
            replay_block.WATCHED_NUMBERS, rows, replay_block.WATCH_BYTES
        )
        self._as_floats = self._watch_records.view(np.float32), self._watch_records.view(np.float64)

    def _write_written(
        self, written_tensors: Sequence[Tensor], writer_indices: Mapping[int, Sequence[int]]
    ) -> None:
        """Create a record for each tensor whose version counter a step increments.

        Args:
            written_tensors: The tensors.
            writer_indices: {id of a tensor: indices in `GuardedStep.members` of its writers}.
        """
        rows: list[tuple[int, int, int]] = []
        for tensor in written_tensors:
            writers = np.array(writer_indices.get(id(tensor), ()), np.int64)
            self._references.append(writers)
            rows.append((self._indices[id(tensor)], len(writers), writers.ctypes.data))
        self._set_table(replay_block.WRITTEN_TENSORS, rows, replay_block.WRITE_BYTES)

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
        self._set_table(replay_block.LISTS, lists, replay_block.LIST_BYTES)
        self._set_table(replay_block.DICTS, dicts, replay_block.DICT_BYTES)
        self._set_table(replay_block.OPTIONS, options, replay_block.OPTION_BYTES)

    def _set_constants(self) -> None:
        """Write addresses of Python's functions and classes, and torch's offsets, to `block`."""
        constants = {
            **python_functions(),
            replay_block.CLASS_OF_LISTS: id(list),
            replay_block.CLASS_OF_TUPLES: id(tuple),
            replay_block.CLASS_OF_GRADIENTS: id(Tensor),
            replay_block.CLASS_OF_FLOATS: id(float),
            replay_block.CLASS_OF_NUMPY_FLOATS: id(np.float64),
            replay_block.IN_FLOAT: torch_layout_probe.float_offset(),
            replay_block.IN_DICT_VERSION: torch_layout_probe.dict_version_offset(),
            replay_block.UNDEFINED_IMPL: torch_layout_probe.no_gradient(),
            replay_block.NONE_OBJECT: id(None),
            **dict(enumerate(astuple(self._layout), replay_block.IN_OBJECT)),
        }
        self.block[[*constants]] = [*constants.values()]

    def _set_members(
        self, members: Sequence[Member], pass_members: Sequence[Member], may_be_absent: bool
    ) -> None:
        """Create the records of members, which are variables that count their own steps.

        Also write to the gradient records of members that gradients are present, and the
        `Member.spans`. A replay uses the spans to skip a member. Call `_write_tensors` before. For
        arguments see `GuardedStep`.
        """
        # The references keep the tables of the spans alive.
        self._spans = [member.spans for member in members]
        rows = [member[:-1] for member in (*members, *pass_members)]
        self._set_table(replay_block.MEMBERS, rows, replay_block.MEMBER_BYTES)
        self.block[replay_block.COUNTED_MEMBERS] = len(members)
        presence = replay_block.MAY_BE_ABSENT if may_be_absent else replay_block.PRESENT
        for record, member in zip(self.gradients, members, strict=False):
            record[replay_block.PRESENCE] = presence
            record[replay_block.IS_ENABLED] = 1
            words = [word for span in member.spans for word in span]
            record[replay_block.SPANS : replay_block.SPANS + len(words)] = words

    @property
    def gradient_switches(self) -> tuple[int, int]:
        """Address of the first gradient's flag (1: variable is updated), bytes between flags."""
        return (
            self.gradients.ctypes.data + 8 * replay_block.IS_ENABLED,
            replay_block.GRADIENT_BYTES,
        )

    def set_column(self, index: int, number: Any, expected: Any = None) -> None:
        """Set the number that the next step writes to all elements of a column, an array.

        Args:
            index: The index of the column in `GuardedStep.columns`.
            expected: Optional. The number that all elements must have before the next step.
                `replay` returns a difference for other values.
        """
        # Words 3, 4 and 5 of the record; see `COLUMN_BYTES` of `replay_block`.
        numbers, first = self._column_words[index], replay_block.COLUMN_BYTES // 8 * index
        numbers[first + 3] = number
        if expected is not None:
            numbers[first + 4] = expected
            self.columns[index, 5] = 1

    def set_watched_number(self, index: int, kind: int, number: Any) -> None:
        """Set the value that a watched number must have, bit for bit, at the next `replay`.

        Args:
            index: The index of the number in `GuardedStep.watched_numbers`.
            kind: `replay_block.FLOAT32`, `replay_block.FLOAT64` or `replay_block.INT64`.
        """
        float32, float64 = self._as_floats
        if kind == replay_block.FLOAT32:
            float32[index, 4] = number
        elif kind == replay_block.FLOAT64:
            float64[index, 2] = number
        else:
            self._watch_records[index, 2] = number

    def make_step_table(self, spans: Int64, rows: int) -> None:
        """Allocate an empty table of precomputed scalars, which `TABLED` replays read from now on.

        A row of the table has the input registers of all scalar programs. The number for each
        column follows. The previous table is kept alive.

        Args:
            spans: (programs, 2): the address of a program's first input register, and the number of
                its input registers.
            rows: The capacity of the table, one row for each coming step.
        """
        width = int(spans[:, 1].sum()) + len(self.columns)
        table = np.zeros(replay_block.TABLE_HEAD_BYTES // 8 + width * rows, np.int64)
        # A signal handler may allocate a table, too: all are kept, and the block has the last one.
        self._tables[table.ctypes.data] = table, spans
        self.block[replay_block.STEP_TABLE : replay_block.STEP_TABLE_ROW_BYTES + 1] = (
            table.ctypes.data,
            len(spans),
            spans.ctypes.data,
            8 * width,
        )

    @property
    def _table(self) -> Int64:
        """Return the table of coming steps whose address is in `block`."""
        return self._tables[int(self.block[replay_block.STEP_TABLE])][0]

    def set_reads(self, reads: Sequence[tuple[Tensor, int, bool]]) -> None:
        """Make `TABLED` replays copy scalars from tensors to the registers of scalar programs.

        Args:
            reads: Triples: a scalar tensor added by `guard_tensor`, the address of a register, and
                True to round the value to float32.
        """
        rows = [(x.data_ptr(), KINDS[x.dtype], register, narrow) for x, register, narrow in reads]
        self._set_table(replay_block.READS, rows, replay_block.READ_BYTES)

    def set_register_columns(self, rows: Sequence[tuple[int, int]]) -> None:
        """Make each replay fill columns with numbers that scalar programs have computed.

        Args:
            rows: Pairs of a register's address and an index in `GuardedStep.columns`.
        """
        word, size = replay_block.REGISTER_COLUMNS, replay_block.REGISTER_COLUMN_BYTES
        self._set_table(word, rows, size)

    def set_step_table(self, first: int, rows: Sequence[bytes]) -> None:
        """Write rows of precomputed scalars, one for each coming step, to the step table.

        Args:
            first: The `replay_count` at which the first row is used; each later row is used one
                step later.
            rows: The bytes of each row: values of registers, then values of columns.
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
        """Write a tensor's present fields to `record`, for comparison by replays."""
        layout = self._layout
        impl = _word(id(tensor), layout.impl)
        storage = _word(impl, layout.storage)
        offsets = layout.data, layout.nbytes, layout.deleter, layout.context
        words = [_word(storage, offset) for offset in offsets]
        # The words from OBJECT to CONTEXT.
        record[: replay_block.SHAPE] = [id(tensor), id(type(tensor)), impl, storage, *words]
        dims = tensor.dim()
        record[replay_block.SHAPE] = dims
        record[replay_block.SHAPE + 1 : replay_block.SHAPE + 1 + dims] = tuple(tensor.shape)
        record[replay_block.SHAPE + 6 : replay_block.SHAPE + 6 + dims] = tensor.stride()
        record[replay_block.OFFSET] = tensor.storage_offset()
        record[replay_block.COUNT] = tensor.numel()
        record[replay_block.FLAGS] = _word(impl, layout.flags) & layout.flags_mask
        record[replay_block.KEYS] = _word(impl, layout.keys)
        self._references.append(type(tensor))

    def _write_gradient_record(
        self, record: Int64, owner: int, param: Tensor, grad: Tensor | None, cell: int
    ) -> None:
        """Write the fields of a gradient, or of a missing gradient, that replays compare.

        Args:
            record: The record, all zeros; changed in place.
            owner: The address of the parameter's record.
            param, grad: The parameter, and its gradient or None.
            cell: The address to which each replay writes the gradient's address for kernels.
        """
        layout = self._layout
        record[replay_block.OWNER] = owner
        # A missing gradient is a null pointer or an undefined TensorImpl, which has keys, too.
        if grad is None:
            autograd = _word(_word(id(param), layout.impl), layout.autograd)
            undefined = _word(autograd, layout.grad) if autograd else 0
            record[replay_block.GRADIENT_KEYS] = _word(undefined, layout.keys) if undefined else 0
            return
        record[replay_block.PRESENCE], record[replay_block.CELL] = replay_block.PRESENT, cell
        record[replay_block.EXTENT] = grad.numel() * grad.element_size()
        record[replay_block.ELEMENT_BYTES] = grad.element_size()
        record[replay_block.GRADIENT_FLAGS] = _word(grad._cdata, layout.flags) & layout.flags_mask
        record[replay_block.GRADIENT_KEYS] = _word(grad._cdata, layout.keys)

    def _has_threads(self) -> bool:
        """Return True if a kernel of the step runs on several threads."""
        return bool(self.launches[:, 2].any())

    def _set_team(self) -> None:
        """Write to `block` the function and thread count for comparisons on several threads.

        Write zeros if no kernel runs on several threads. One thread then compares all tensors.
        """
        size = openmp.team_size() if self._has_threads() else 1
        caller = openmp.parallel_address() if size > 1 else 0
        team = (caller, routine_address("check_parts"), size) if caller else (0, 0, 0)
        self.block[replay_block.TEAM : replay_block.TEAM + 3] = team

    @property
    def replay_count(self) -> int:
        """Return the number of steps that this table has replayed."""
        return self.replay_counter.value

    def set_pass(self, launches: Int64) -> None:
        """Set the launches of the next `RUN_PASS`; the caller keeps the array."""
        self.block[replay_block.PASS : replay_block.PASS + 2] = (
            len(launches),
            launches.ctypes.data,
        )

    def replay(
        self,
        pairs: list[Any] | None = None,
        replay_count: int = replay_block.ANY_STEP,
        part: int = replay_block.FULL_STEP,
        end_calls: Sequence[Call] = (),
        flags: int = 0,
    ) -> int:
        """Replay the step, or a part of it, if nothing differs from the record.

        Args:
            pairs: Optional. A list of (gradient, variable) tuples, used in place of `param.grad`.
            replay_count: Optional. The number of replayed steps when this step began. Another
                number is a difference: a signal handler has replayed a step since then.
            part: A constant of `replay_block`. `FULL_STEP` or `CLIPPED` runs a whole step. A step
                in parts runs `MEASURE`, or `RUN_PASS` for each pass, and then `UPDATE`.
            end_calls: C functions that complete the step and return None. They run directly after a
                replay without a difference.
            flags: `replay_block.TABLED` and `replay_block.UNRECORDED`, or 0. Callers leave out
                `PREPARED`, which is added if `releases_lock` is True.

        Returns:
            0 if the step was replayed. Otherwise a constant of `replay_block` for the first
            difference, such as `OTHER_TENSOR`; no variable and no state was written then.
        """
        if self._is_long:
            self._set_team()
        if self.releases_lock:
            kernels = openmp.call_on_team(routine_address("run_kernels"), self._address, 1)
            end_calls = [kernels, partial(self._call, None, 0, replay_block.FINISH), *end_calls]
            flags |= replay_block.PREPARED
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
