"""Reductions of a rule over each variable, and the resulting scalars, in replayed steps."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterable, Mapping, Sequence
from struct import Struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg._core.scalar_tracing import Program
from thalweg._engines.array_types import Array, Float64, Int64
from thalweg._engines.cpu.replay_records import (
    make_program_records,
    rule_scalars_record,
    set_row_count,
)
from thalweg._engines.cpu.replay_routines import routine_address
from thalweg._engines.cpu.scalar_program import NONE

if TYPE_CHECKING:
    from thalweg._engines.protocol import Dtype, Stages
    from thalweg.formula import Rule


class PlaceScalars:
    """Scalars that programs compute in a replay, in float64.

    A *place* is a set of variables with equal hyperparameters. Each place has a program, which
    computes the scalars once for each step number among the place's variables.

    Args:
        names: The names of the scalars; a name that no program computes is dropped.
        places: For each variable the key of its place.

    Attributes:
        places: The distinct keys.
        names: The names of a row.
        row_of: For each variable the index of its row in the rows of its place.
        row_counts: The number of rows in use of each place.
    """

    def __init__(self, names: Sequence[str], places: Sequence[Hashable]) -> None:
        self.places, self.names = list(dict.fromkeys(places)), list(names)
        self._place_of = np.array([self.places.index(place) for place in places], np.int64)
        # A place has a row for each step count of its variables.
        self._rows = np.zeros((len(self.places), len(places), len(self.names)))
        self.row_counts = np.zeros(len(self.places), np.int64)
        self.row_of = np.zeros(len(places), np.int64)
        self._records = make_program_records(len(self.places))

    def place_program(
        self, index: int, program: Program, inputs: Sequence[tuple[int, int, int]]
    ) -> int:
        """Make replays compute the scalars of a place (variables with equal hyperparameters).

        Return the address of the integers from which native code runs the program.

        Args:
            index: The index of the place. Set index 0 first: its program decides which scalars are
                stored.
            program: The program, whose first register is the step count.
            inputs: (register, address of a number, type code of the number) for each register that
                every run loads from memory.
        """
        if index == 0:
            registers = zip(self.names, program.registers_of(self.names), strict=True)
            self.names = [name for name, register in registers if register != NONE]
            self._rows = np.zeros((*self._rows.shape[:2], len(self.names)))
        record = self._records[index]
        program.place(record, self.names, self._rows[index].ctypes.data, 1, inputs)
        set_row_count(record, self.row_counts[index:])
        return record.ctypes.data

    def row_cell(self, index: int) -> int:
        """Return the address of the element of `row_of` for the variable with this index."""
        return self.row_of[index:].ctypes.data

    @property
    def row_size(self) -> int:
        """Bytes of a row."""
        return self._rows.strides[1]

    def rows(self) -> Float64:
        """Return the present scalars of all variables, (variables, names)."""
        return self._rows[self._place_of, self.row_of]

    def first_rows(self) -> Int64:
        """Return for each variable the address of the first row of its place."""
        return self._rows.ctypes.data + self._rows.strides[0] * self._place_of


class _ScalarTable(NamedTuple):
    """Scalars that native code reads: names, a row per variable, and `struct`'s type letter."""

    names: Sequence[str]
    rows: Array
    letter: str


class VariableScalars:
    """Launch that computes scalars of each variable from a rule's reductions.

    Args:
        target: The names and rows of the scalars of the kernel that reads the results; a row for
            each variable.
        program: Computes the scalars; its first inputs are `sums`, then `slots`.
        sums: (address of the results of reductions, number of variables, address of the leaf
            counts). A leaf is a run of elements that is summed by itself. The results of a variable
            and of a leaf are adjacent.
        slots: The slots of shape () of each variable, in the rule's order.
        slot_names: The scalars that become the values of these slots.

    Attributes:
        kernel, address: The compiled function and the address of its argument, a block of
            `_engines/cpu/replay_reductions.py`.
        rows: The scalars that the program reads.
        letter: The type of `struct` to which `rows` are rounded.

    Raises:
        TypeError: A slot is not of the compute dtype, or two variables share a slot.
    """

    is_serial = True

    def __init__(
        self,
        target: tuple[Sequence[str], Array],
        program: Program,
        sums: tuple[int, int, int],
        slots: Sequence[Sequence[Tensor]] = (),
        slot_names: Sequence[str] = (),
    ) -> None:
        names, target_rows = target
        (record,) = make_program_records(1)
        program.place(record, names, 0, 1)
        self.kernel = SimpleNamespace(
            address=routine_address("set_rule_scalars"), scalars=program.names
        )
        self.rows = np.zeros((len(target_rows), len(program.names)))
        self.letter = "f" if program.is_narrow else "d"
        slot_dtype = torch.float32 if program.is_narrow else torch.float64
        addresses = _addresses_of(slots, slot_dtype)
        results = program.registers_of(slot_names)
        count = len(program.inputs) - len(program.names) - len(slot_names)
        arrays = self.rows, record, target_rows, addresses, results
        self._block = rule_scalars_record(sums, count, *arrays)
        self.address = self._block.ctypes.data
        # The block has only addresses, so the attribute keeps their memory alive.
        self._references = program, arrays


class AddressCopies:
    """Launch that copies the addresses of gradients to the tables of other kernels.

    Args:
        pairs: (source, target) addresses of the words to copy.

    Attributes:
        kernel, address: The compiled function and the address of its argument.
        rows: The scalars of the function, which has none.
    """

    is_serial = True

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        self._pairs = np.array([*pairs], np.int64).reshape(-1, 2)
        self.kernel = SimpleNamespace(address=routine_address("copy_words"), scalars=())
        self.rows = np.zeros((0, 0))
        self._block = np.array([0, len(self._pairs), self._pairs.ctypes.data], np.int64)
        self.address = self._block.ctypes.data

    def record(self) -> tuple[int, int, int, int]:
        """Return (function address, argument address, 0, 1) for a call on one thread."""
        return self.kernel.address, self.address, 0, 1


class ReplayedReductions:
    """Kernel launches that reduce over the variables of an update before the update runs.

    Args:
        launch: The kernel of the update, a `Launch`.
        sweeps: The launches, in order. Each has the attributes `kernel`, `address`, `rows` (one for
            each variable), `is_serial` and, if that is False, `threads` of a `Sweep`.
        letter: The type of `struct` to which scalars of launches without a `letter` are rounded.
        references: Objects that keep memory of the launches alive.

    Attributes:
        given: The scalars of the tables, if the native call computes them.
    """

    def __init__(
        self, launch: Any, sweeps: Sequence[Any], letter: str, references: Any = None
    ) -> None:
        self._places, own_rows = launch.use_member_rows()
        self.sweeps, self._references = sweeps, references
        tables = [
            _ScalarTable(x.kernel.scalars, x.rows, getattr(x, "letter", letter)) for x in sweeps
        ]
        self._tables = [table for table in tables if table.names]
        kernel_letter = "f" if own_rows.itemsize == 4 else "d"
        self._all_tables = [*self._tables, _ScalarTable(launch.names, own_rows, kernel_letter)]
        names = dict.fromkeys(name for table in self._all_tables for name in table.names)
        self.given = PlaceScalars([*names], [launch.places[place] for place in self._places])

    def columns(self, name: str) -> list[tuple[int, int, int]]:
        """Return address, row count and byte stride of a float64 scalar in each sweep with it."""
        return [
            (rows.ctypes.data + 8 * names.index(name), len(rows), rows.strides[0])
            for names, rows, _ in self._tables
            if name in names
        ]

    def set_scalars(self, scalars: Sequence[Mapping[str, Any]]) -> None:
        """Round the scalars, and write them to the rows of each sweep and of the program.

        Args:
            scalars: {name: scalar} for each place, a set of variables with equal hyperparameters.
                Missing names are 0 until a launch computes them.
        """
        for names, rows, letter in self._tables:
            layout = Struct(f"={len(names)}{letter}")
            rows_by_place = ([values.get(name, 0) for name in names] for values in scalars)
            place_rows = [_rounded(layout, row) for row in rows_by_place]
            np.take(np.array(place_rows), self._places, 0, rows, "clip")

    def set_shared(self, scalars: Mapping[str, Any]) -> None:
        """Write scalars to all rows of each sweep and of the program; other names are ignored."""
        for names, rows, letter in self._tables:
            for name in {*names} & scalars.keys():
                rows[:, names.index(name)] = _rounded(Struct(f"={letter}"), [scalars[name]])

    def spread_record(self) -> list[int]:
        """Return integers by which a native call copies the scalars of `self.given`.

        The call copies to the rows of the sweeps, the program and the kernel.
        """
        columns = [
            (
                self.given.names.index(name),
                rows.ctypes.data + rows.itemsize * column,
                rows.strides[0],
                letter == "f",
                rows.itemsize == 4,
            )
            for names, rows, letter in self._all_tables
            for column, name in enumerate(names)
            if name in self.given.names
        ]
        self._spread = np.array(columns, np.int64).reshape(-1, 5), self.given.first_rows()
        addresses = [self._spread[1].ctypes.data, self.given.row_cell(0), self.given.row_size]
        return [len(self._places), *addresses, len(columns), self._spread[0].ctypes.data]


def replay_sums(
    rule: Rule, launch: Any, stages: Stages, slots: Sequence[Sequence[Tensor]]
) -> ReplayedReductions:
    """Return the reductions that the rule's `per_variable` needs, for the variables of a kernel.

    Args:
        launch: The kernel, a `Launch`.
        stages: The transforms of gradients before the sums.
        slots: The slots of shape () of each variable, in the rule's order.

    Raises:
        TypeError: Native code cannot compute the scalars of the rule. Or a slot has another dtype
            than the compute dtype, or belongs to two variables.
    """
    formulas = tuple(rule.measures.values())
    sweep = launch.group.sweep(formulas, stages, launch.base, len(launch.members))
    slot_names = [slot.name for slot in rule.measured_slots]
    program = program_of(rule, launch.dtype)
    scalars = VariableScalars(launch.row_target(), program, sweep.record(), slots, slot_names)
    # Updates read scalars in the compute dtype, so reductions use the rounded values.
    return ReplayedReductions(launch, [sweep, scalars], scalars.letter)


def _addresses_of(slots: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> Int64:
    """Return the addresses of all slots, variable by variable.

    Raises:
        TypeError: A slot is not of `dtype`, or two slots have one address.
    """
    flat_slots = [slot for var_slots in slots for slot in var_slots]
    if {slot.dtype for slot in flat_slots} - {dtype}:
        raise TypeError("A slot has another dtype than the arithmetic.")
    addresses = [slot.data_ptr() for slot in flat_slots]
    if len({*addresses}) < len(flat_slots):
        raise TypeError("Two variables have a slot in common.")
    return np.array(addresses, np.int64)


def _rounded(layout: Struct, values: Sequence[Any]) -> tuple[Any, ...]:
    return layout.unpack(layout.pack(*values))


def program_of(rule: Rule, dtype: Dtype) -> Program:
    """Return a new program that computes the results of `rule.per_variable` as scalars.

    Its first inputs are the sums of the rule's `measures`, then the slots of shape ().
    """
    single_inputs: dict[str, Dtype] = dict.fromkeys(rule.measures, np.float64)
    single_inputs |= {slot.name: dtype for slot in rule.measured_slots}
    function: Any = rule.per_variable
    # A `functools.partial` has bound these arguments already.
    bound_names = getattr(function, "keywords", ())
    names = [name for name in inspect.signature(function).parameters if name not in bound_names]
    scalar_names = [name for name in names if name not in single_inputs]
    return Program(
        dtype,
        single_inputs,
        scalar_names,
        lambda inputs, _: function(**{n: inputs[n] for n in names}),
    )
