"""What a step looked like: the block that `look.py` compares with what is there now."""

from __future__ import annotations

import ctypes
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import astuple
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._engines import guards, torch_layout_probe
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.cpu import (
    kernel_cache,
    leaf_sums,
    openmp,
    replay_global_norm,
    replay_kernel,
    replay_reductions,
    scalar_program,
)
from thalweg._engines.cpu.codegen import compiler_digest
from thalweg._engines.protocol import Call
from thalweg._engines.torch_layout_probe import Layout

# How a column or a number that is watched is stored.
KINDS = {
    torch.float32: replay_kernel.FLOAT32,
    torch.float64: replay_kernel.FLOAT64,
    torch.int64: replay_kernel.INT64,
}
_DIMENSIONS = 5  # that a tensor has in itself
# A builtin function of Python whose `self` is a bytes object with the address of a block; its
# arguments are those of `GuardTable.take`. Calls of ctypes take several times as long.
_MAIN = """

def LOOK_NAME(owner, arguments, count):
    block, given = int64_pointer(word(owner + IN_BYTES)), int64_pointer(arguments)
    pairs = given[0]
    if pairs == block[NONE_OBJECT]:
        pairs = 0
    taken = call(block[PY_LONG_AS_LONG], given[1])
    result = step(block, pairs, taken, call(block[PY_LONG_AS_LONG], given[2]))
    return call(block[PY_LONG_FROM_LONG], result)
"""
_IN_BYTES = bytes.__basicsize__ - 1  # where the bytes of such an object begin
_FASTCALL = 0x80  # METH_FASTCALL
_MAIN_OF_PARTS = """

def LOOK_NAME(argument):
    look_at_parts(int64_pointer(address_of(argument)))
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
    # Whole files: a search for their functions would take longer than a step.
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
    """Return the address of the definition of the compiled look."""
    main = _MAIN.replace("IN_BYTES", str(_IN_BYTES))
    address = _address_of(main, replay_kernel.__file__, scalar_program.__file__)
    made = _Method(b"look", address, _FASTCALL, None)
    # Functions refer to it until the interpreter has gone.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return ctypes.addressof(made)


def routine(block: int) -> Callable[[list[Any] | None, int, int], int]:
    """Return the compiled look at a block, with the arguments and the result of `GuardTable.take`.

    Args:
        block: The address of the block.
    """
    return _builtin_maker()(_method(), block.to_bytes(8, sys.byteorder), None)


@cache
def _builtin_maker() -> Callable[[int, bytes, None], Any]:
    """Return `PyCFunction_NewEx` of Python's C interface."""
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return kind(("PyCFunction_NewEx", ctypes.pythonapi))


@cache
def parts_routine() -> int:
    """The address of the compiled look at parts of what there is."""
    return _address_of(_MAIN_OF_PARTS, replay_kernel.__file__)


@cache
def norm_routine() -> int:
    """The address of the compiled `look_norm`."""
    return _address_of(_MAIN_OF_NORM, replay_global_norm.__file__, leaf_sums.__file__)


@cache
def measures_routine() -> int:
    """The address of the compiled `look_measures`."""
    files = replay_reductions.__file__, scalar_program.__file__, leaf_sums.__file__
    return _address_of(_MAIN_OF_MEASURES, *files)


@cache
def _functions() -> dict[int, int]:
    """The addresses of Python's functions, by the word of a block that has them."""
    pointer = ctypes.c_void_p
    return {
        place: ctypes.cast(getattr(ctypes.pythonapi, name), pointer).value or 0
        for place, name in _FUNCTIONS.items()
    }


def _at(address: int, offset: int) -> int:
    return ctypes.c_int64.from_address(address + offset).value


Numbers = Float64  # where the numbers of an entry go, one for each item of a tuple


class Member(NamedTuple):
    """Variable whose scalars are made for the number of its steps.

    Attributes:
        step_count: Address of that number, or 0 if the rule counts no steps.
        kind: Kind of the number, from `KINDS`.
        program: Address of the record of the program that makes its scalars, or 0 if it has no
            elements.
        row_cell: Address of the index of the row of scalars that its kernel reads.
        row_size: Bytes of a row.
        spans: For each table with chunks of the variable the addresses of the first length in that
            table and in a copy that stays, and the number of chunks.
    """

    step_count: int
    kind: int
    program: int
    row_cell: int
    row_size: int
    spans: Sequence[tuple[int, int, int]]


class GuardTable:
    """A step that was taken, and may be taken again.

    Args:
        layout: Where torch keeps what is looked at.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._held: list[Any] = []
        self._tables: dict[int, tuple[Int64, Int64]] = {}  # and their spans, by address
        self._lists: list[tuple[list[Any], Int64]] = []
        self._dicts: list[tuple[Mapping[Any, Any], Int64, int]] = []
        self._tensors: list[Tensor] = []
        self._places: dict[int, int] = {}
        self._options: list[tuple[int, Numbers, Int64]] = []
        self.block = np.zeros(replay_kernel.BLOCK, np.int64)
        self.is_guarded = False

    def hold_list(self, items: list[Any]) -> None:
        """A list that has these items."""
        self._lists.append((items, np.array(list(map(id, items)), np.int64)))
        self._held.append([*items])

    def hold_dict(
        self,
        entries: dict[Any, Any],
        varying: str | None = None,
        numbers: Mapping[str, Numbers] | None = None,
        pointer: int = 0,
    ) -> None:
        """Compare the keys and values of a dictionary, and their order, at every step.

        Args:
            entries: The dictionary.
            varying: A key whose value may be any.
            numbers: Keys whose value is a float, or a tuple of floats, that may change, and where
                each step writes those numbers. Their signs may not change.
            pointer: The address of the pointer to the dictionary, which is compared too; 0 if
                there is none.
        """
        numbers = numbers or {}
        words: list[int] = []
        for key, value in entries.items():
            if key in numbers:
                words += [id(key), self._add_option(value, numbers[key])]
            else:
                words += [id(key), id(value) if key != varying else 0]
        self._dicts.append((entries, np.array(words, np.int64), pointer))
        compared = [x for key, x in entries.items() if key != varying and key not in numbers]
        self._held.append([*entries, *compared])

    def _add_option(self, value: Any, numbers: Numbers) -> int:
        """Add an entry that is read at every step; return the word that stands for it."""
        is_tuple = isinstance(value, tuple)
        numbers[:] = value
        length = len(numbers) if is_tuple else 0
        self._options.append((length, numbers, np.sign(numbers).astype(np.int64)))
        return -len(self._options)

    def let_go(self, ids: Set[int]) -> None:
        """Keep no reference to dictionaries with these ids, which the caller has to keep alive."""
        self._dicts = [
            ({} if id(entries) in ids else entries, items, pointer)
            for entries, items, pointer in self._dicts
        ]

    def hold_attributes(self, owner: object) -> bool:
        """Have the look compare the `__dict__` of an object; return False if it cannot."""
        pointer = torch_layout_probe.find_attributes_pointer(owner)
        if pointer:
            self._held.append(owner)
            self.hold_dict(vars(owner), pointer=pointer)
        return bool(pointer)

    def tensor(self, tensor: Tensor) -> int | None:
        """The number of a tensor that is as it is now; None if nobody could tell."""
        place = self._places.get(id(tensor))
        if place is None:
            if tensor.dim() > _DIMENSIONS:
                return None
            place = self._places[id(tensor)] = len(self._tensors)
            self._tensors.append(tensor)
        return place

    def finish(
        self,
        gradients: Sequence[tuple[Tensor, Tensor | None, int]],
        launches: Sequence[tuple[int, int, int, int]],
        columns: Sequence[tuple[int, int, int]],
        written: Sequence[Tensor],
        bounds: Int64,
        watched: Sequence[Tensor] = (),
        measures: Sequence[tuple[int, int, int, int]] = (),
        clipping: int = 0,
        programs: Int64 | None = None,
        rule_measures: Sequence[tuple[int, int, int, int]] = (),
        measured: Int64 | None = None,
        members: Sequence[Member] = (),
        may_lack: bool = False,
        written_by: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """Write the block.

        Args:
            gradients: For each parameter itself, its gradient, and where its address goes.
            launches: Kernels and arguments; what calls them on several threads, and on how many.
            columns: Where numbers lie, how many, and of which kind.
            written: Tensors whose writes are counted, all of them known.
            bounds: Begins and ends of what is written, ascending.
            watched: Tensors of one number each, of 4 or 8 bytes, which nobody else may write
                meanwhile; all of them known. Those of the columns come first.
            measures: Of gradients: kernels and arguments, as those of `launches`.
            clipping: Where the block of `look_norm` lies.
            programs: Records of what makes scalars; one of zeros makes none.
            rule_measures: Of what rules ask for, before they write: as those of `measures`.
            measured: Records of what is made of that for each variable.
            members: The variables of the first gradients, if scalars are made for the step count
                of each.
            may_lack: Whether a step may lack gradients of members, which it then leaves out.
            written_by: The positions of the members that write a tensor, by its `id`; every step
                writes others.
        """
        block, layout = self.block, self._layout
        shape = max(len(self._tensors), 1), replay_kernel.TENSOR // 8
        self.records = records = np.zeros(shape, np.int64)
        for record, tensor in zip(records, self._tensors, strict=False):
            self._record(record, tensor)
        self.gradients = np.zeros((max(len(gradients), 1), replay_kernel.GRADIENT // 8), np.int64)
        for record, (param, grad, cell) in zip(self.gradients, gradients, strict=False):
            owner = records[self._places[id(param)]].ctypes.data
            self._gradient(record, owner, param, grad, cell)
        self.launches = np.array(launches, np.int64).reshape(-1, replay_kernel.LAUNCH // 8)
        self.measures = np.array(measures, np.int64).reshape(-1, replay_kernel.LAUNCH // 8)
        self.rule_measures = np.array(rule_measures, np.int64)
        self.rule_measures = self.rule_measures.reshape(-1, replay_kernel.LAUNCH // 8)
        self.columns = np.zeros((len(columns), replay_kernel.COLUMN // 8), np.int64)
        self.columns[:, :3] = np.array(columns, np.int64).reshape(-1, 3)
        words = self.columns.data.cast("B") if columns else memoryview(b"")
        whole, numbers = words.cast("q"), words.cast("d")
        self._numbers = [whole if kind == replay_kernel.INT64 else numbers for *_, kind in columns]
        self.bounds = np.ascontiguousarray(bounds, np.int64).reshape(-1)
        self._set_members(members, may_lack)
        lists = [(id(own), len(items), items.ctypes.data) for own, items in self._lists]
        dicts = [
            (id(own), len(items) // 2, items.ctypes.data, pointer)
            for own, items, pointer in self._dicts
        ]
        self._list_records = np.array(lists, np.int64).reshape(-1, 3)
        self._dict_records = np.array(dicts, np.int64).reshape(-1, replay_kernel.DICT // 8)
        self._writers = [
            np.array((written_by or {}).get(id(each), ()), np.int64) for each in written
        ]
        self._written = np.array(
            [
                (self._places[id(each)], len(writers), writers.ctypes.data)
                for each, writers in zip(written, self._writers, strict=True)
            ],
            np.int64,
        ).reshape(-1, replay_kernel.WRITE // 8)
        options = [
            (length, own.ctypes.data, signs.ctypes.data) for length, own, signs in self._options
        ]
        self._option_records = np.array(options, np.int64).reshape(-1, replay_kernel.OPTION // 8)
        none = np.zeros((0, 1), np.int64)
        self._programs = none if programs is None else programs
        self._measured = none if measured is None else measured
        own = [(each.data_ptr(), each.element_size(), 0) for each in watched]
        self._watched = np.array(own, np.int64).reshape(-1, replay_kernel.WATCH // 8)
        self._as_floats = self._watched.view(np.float32), self._watched.view(np.float64)
        for place, array, count in (
            (replay_kernel.LISTS, self._list_records, len(lists)),
            (replay_kernel.DICTS, self._dict_records, len(dicts)),
            (replay_kernel.TENSORS, records, len(self._tensors)),
            (replay_kernel.GRADIENTS, self.gradients, len(gradients)),
            (replay_kernel.LAUNCHES, self.launches, len(launches)),
            (replay_kernel.COLUMNS, self.columns, len(columns)),
            (replay_kernel.WRITTEN, self._written, len(written)),
            (replay_kernel.BOUNDS, self.bounds, len(self.bounds)),
            (replay_kernel.WATCHED, self._watched, len(watched)),
            (replay_kernel.MEASURES, self.measures, len(measures)),
            (replay_kernel.PROGRAMS, self._programs, len(self._programs)),
            (replay_kernel.RULE_MEASURES, self.rule_measures, len(rule_measures)),
            (replay_kernel.RULE_MEASURED, self._measured, len(self._measured)),
            (replay_kernel.OPTIONS, self._option_records, len(options)),
            (replay_kernel.MEMBERS, self._members, len(members)),
        ):
            block[place], block[place + 1] = count, array.ctypes.data
        for place, address in _functions().items():
            block[place] = address
        block[replay_kernel.CLASS_OF_LISTS] = id(list)
        block[replay_kernel.CLASS_OF_TUPLES] = id(tuple)
        block[replay_kernel.CLASS_OF_GRADIENTS] = id(Tensor)
        block[replay_kernel.CLASS_OF_FLOATS] = id(float)
        block[replay_kernel.CLASS_OF_NUMPY_FLOATS] = id(np.float64)
        block[replay_kernel.IN_FLOAT] = torch_layout_probe.float_offset()
        block[replay_kernel.NO_GRADIENT] = torch_layout_probe.no_gradient()
        block[replay_kernel.NONE_OBJECT] = id(None)
        found = guards.find_guards()
        self._guards = np.array(found, np.int64).reshape(-1, replay_kernel.GUARD // 8)
        block[replay_kernel.GUARDS] = len(found)
        block[replay_kernel.GUARDS + 1] = self._guards.ctypes.data
        # Whether `take` finds out if this thread traces operations, in place of the caller.
        self.is_guarded = bool(found)
        block[replay_kernel.CLIPPING] = clipping
        self._is_long = len(self._tensors) >= replay_kernel.MANY
        fields = astuple(layout)
        block[replay_kernel.IN_OBJECT : replay_kernel.IN_OBJECT + len(fields)] = fields
        self._address = block.ctypes.data
        self.count = ctypes.c_int64.from_address(self._address + 8 * replay_kernel.TAKEN)
        self._call = routine(self._address)

    def _set_members(self, members: Sequence[Member], may_lack: bool) -> None:
        """Write the records of members, and what switches their chunks off."""
        self._spans = [member.spans for member in members]  # whose tables they keep alive
        rows = [(*member[:5],) for member in members]
        self._members = np.array(rows, np.int64).reshape(-1, replay_kernel.MEMBER // 8)
        for record, member in zip(self.gradients, members, strict=False):
            presence = replay_kernel.MAY_BE_ABSENT if may_lack else replay_kernel.PRESENT
            record[replay_kernel.IS_THERE] = presence
            record[replay_kernel.IS_ON] = 1
            for place, span in enumerate(member.spans):
                first = replay_kernel.SPANS + 3 * place
                record[first : first + 3] = span

    @property
    def gradient_switches(self) -> tuple[int, int]:
        """Address of the flag of the first gradient, and the stride of flags in bytes."""
        return self.gradients.ctypes.data + 8 * replay_kernel.IS_ON, replay_kernel.GRADIENT

    def set_number(self, place: int, number: Any, now: Any = None) -> None:
        """Say what the numbers of a column become.

        Args:
            place: Which column it is.
            number: The number.
            now: Optional. What they are to be before.
        """
        numbers, first = self._numbers[place], replay_kernel.COLUMN // 8 * place
        numbers[first + 3] = number
        if now is not None:
            numbers[first + 4] = now
            self.columns[place, 5] = 1

    def expect(self, place: int, kind: int, number: Any) -> None:
        """Say what a number that is watched is to be.

        Args:
            place: Which one it is.
            kind: `replay_kernel.FLOAT32`, `replay_kernel.FLOAT64` or `replay_kernel.INT64`.
            number: The number.
        """
        narrow, wide = self._as_floats
        if kind == replay_kernel.FLOAT32:
            narrow[place, 4] = number
        elif kind == replay_kernel.FLOAT64:
            wide[place, 2] = number
        else:
            self._watched[place, 2] = number

    def make_step_table(self, spans: Int64, rows: int) -> None:
        """Make room for the numbers of coming steps, for `take` with `replay_kernel.TABLED`.

        Args:
            spans: The address of the first register of each program that has its numbers in a row,
                and how many these are.
            rows: The largest number of steps.
        """
        width = int(spans[:, 1].sum()) + len(self.columns)
        table = np.zeros(replay_kernel.TABLE_HEAD // 8 + width * rows, np.int64)
        # A signal's function may make one, too: all are kept, and the block names the present one.
        self._tables[table.ctypes.data] = table, spans
        self.block[replay_kernel.STEP_TABLE : replay_kernel.STEP_TABLE_ROW + 1] = (
            table.ctypes.data,
            len(spans),
            spans.ctypes.data,
            8 * width,
        )

    @property
    def _table(self) -> Int64:
        """The table that the block names."""
        return self._tables[int(self.block[replay_kernel.STEP_TABLE])][0]

    def set_reads(self, reads: Sequence[tuple[Tensor, int, bool]]) -> None:
        """Have steps with numbers of the table read others from tensors.

        Args:
            reads: Tensors of shape () that were given to `tensor`; for each the address of the
                register that its number goes to, and whether the number is rounded to float32.
        """
        rows = [(x.data_ptr(), KINDS[x.dtype], register, narrow) for x, register, narrow in reads]
        words = np.array(rows, np.int64).reshape(-1, replay_kernel.READ // 8)
        self._held.append(words)
        self.block[replay_kernel.READS : replay_kernel.READS + 2] = len(rows), words.ctypes.data

    def set_step_table(self, first: int, rows: Sequence[bytes]) -> None:
        """Set the numbers of coming steps.

        Args:
            first: How many steps were taken before the one of the first row.
            rows: The numbers of each step, and what the columns become.
        """
        head = np.array((first, len(rows)), np.int64).tobytes()
        words = np.frombuffer(b"".join((head, *rows)), np.int64)
        self._table[: len(words)] = words  # at once: a signal's function may take steps, too

    def has_row(self, taken: int) -> bool:
        """Return whether the table has the numbers of the step after this many steps."""
        first, count = self._table[:2].tolist()
        return first <= taken < first + count

    def _record(self, record: Int64, tensor: Tensor) -> None:
        layout = self._layout
        impl = _at(id(tensor), layout.impl)
        storage = _at(impl, layout.storage)
        record[replay_kernel.OBJECT], record[replay_kernel.CLASS] = id(tensor), id(type(tensor))
        record[replay_kernel.IMPL], record[replay_kernel.STORAGE] = impl, storage
        record[replay_kernel.DATA], record[replay_kernel.BYTES] = (
            _at(storage, layout.data),
            _at(storage, layout.nbytes),
        )
        record[replay_kernel.DELETER] = _at(storage, layout.deleter)
        record[replay_kernel.CONTEXT] = _at(storage, layout.context)
        dims = tensor.dim()
        record[replay_kernel.SHAPE] = dims
        record[replay_kernel.SHAPE + 1 : replay_kernel.SHAPE + 1 + dims] = tuple(tensor.shape)
        record[replay_kernel.SHAPE + 6 : replay_kernel.SHAPE + 6 + dims] = tensor.stride()
        record[replay_kernel.OFFSET] = tensor.storage_offset()
        record[replay_kernel.COUNT] = tensor.numel()
        record[replay_kernel.FLAGS] = _at(impl, layout.flags) & layout.flags_mask
        record[replay_kernel.KEYS] = _at(impl, layout.keys)
        self._held.append(type(tensor))

    def _gradient(
        self, record: Int64, owner: int, param: Tensor, grad: Tensor | None, cell: int
    ) -> None:
        layout = self._layout
        record[replay_kernel.OWNER] = owner
        if grad is None:
            autograd = _at(_at(id(param), layout.impl), layout.autograd)
            none = _at(autograd, layout.grad) if autograd else 0
            record[replay_kernel.GRADIENT_KEYS] = _at(none, layout.keys) if none else 0
            return
        record[replay_kernel.IS_THERE], record[replay_kernel.CELL] = replay_kernel.PRESENT, cell
        record[replay_kernel.NEEDED] = grad.numel() * grad.element_size()
        record[replay_kernel.ITEM] = grad.element_size()
        record[replay_kernel.GRADIENT_FLAGS] = _at(grad._cdata, layout.flags) & layout.flags_mask
        record[replay_kernel.GRADIENT_KEYS] = _at(grad._cdata, layout.keys)

    def _has_threads(self) -> bool:
        """Whether kernels of the step have several threads, which then have to come anyway."""
        return bool(self.launches[:, 2].any())

    def _set_team(self) -> None:
        """Have all threads that torch has now look at parts, if kernels have several threads.

        They come if they come anyway: where others use the cores, to wait for a thread costs far
        more than a look.
        """
        size = openmp.team_size() if self._has_threads() else 1
        caller = openmp.parallel_address() if size > 1 else 0
        found = (caller, parts_routine(), size) if caller else (0, 0, 0)
        self.block[replay_kernel.TEAM : replay_kernel.TEAM + 3] = found

    @property
    def taken(self) -> int:
        """How many steps were taken by it."""
        return self.count.value

    def take(
        self,
        pairs: list[Any] | None = None,
        taken: int = replay_kernel.ANY_STEP,
        part: int = replay_kernel.WHOLE,
        then: Sequence[Call] = (),
        flags: int = 0,
    ) -> int:
        """Take the step, or a part of it, if all is as it was: 0; else what is not.

        Args:
            pairs: Optional. Gradients and variables, where gradients are not the parameters' own.
            taken: Optional. How many were taken when this one was begun: a signal's function may
                take steps, too.
            part: A constant of `replay_kernel`: `WHOLE` or `CLIPPED`; or `MEASURE`, and then
                `UPDATE`.
            then: Functions in C that belong to the step, and return None.
            flags: `replay_kernel.TABLED` and `replay_kernel.UNRECORDED`, or 0.
        """
        if self._is_long:
            self._set_team()
        if not then:
            return self._call(pairs, taken, part | flags)
        # Nothing comes between them: `next` stops at what is not as it was.
        calls: list[Any] = [partial(self._call, pairs, taken, part | flags), *then]
        results: Iterator[int] = filter(None, map(operator.call, calls))
        return next(results, 0)


def trouble() -> str:
    """Why no step is taken in one call; empty if they are."""
    if os.environ.get("THALWEG_NATIVE_LOOK") == "0":
        return "THALWEG_NATIVE_LOOK is 0"
    found = torch_layout_probe.layout()
    return found if isinstance(found, str) else ""


def snapshot() -> GuardTable | None:
    """A new one, where torch's layout is known, and `THALWEG_NATIVE_LOOK` is not 0."""
    return None if trouble() else GuardTable(cast("Layout", torch_layout_probe.layout()))
