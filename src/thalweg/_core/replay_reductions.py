"""Reductions of a rule over each variable, and scalars computed from them, in replayed steps."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from thalweg._core.scalar_tracing import Program
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.cpu.replay_records import make_program_records, rule_scalars_record
from thalweg._engines.cpu.replay_routines import measures_routine

if TYPE_CHECKING:
    from thalweg._engines.protocol import Dtype, Stages
    from thalweg.formula import Rule

_DTYPES = {np.float32: torch.float32, np.float64: torch.float64}


class VariableScalars:
    """Programs that compute scalars of each variable natively, between a rule's reductions and its
    kernel.

    Args:
        launch: The kernel, a `Launch`; each of its variables gets a row of scalars.
        program: Computes the scalars; its first inputs are `sums`, then `slots`.
        sums: The address of the results of reductions, those of a variable and of a leaf adjacent;
            the number of variables; and the address of the number of leaves of each. A leaf is a
            run of elements that is summed by itself.
        slots: The slots of shape () of each variable, in the rule's order.
        slot_names: The scalars that become the values of these slots.

    Attributes: record: The block of `_engines/cpu/replay_reductions.py`. references: Further
    objects that keep the memory of `sums` alive.

    Raises:
        TypeError: A slot is not of the compute dtype, or two variables share a slot.
    """

    def __init__(
        self,
        launch: Any,
        program: Program,
        sums: tuple[int, int, int],
        slots: Sequence[Sequence[Tensor]],
        slot_names: Sequence[str],
    ) -> None:
        self.references: Any = None
        places, own_rows = launch.use_member_rows()
        self._programs = [program.again() for _ in launch.places]
        self._layout = Struct(f"={len(program.names)}{'f' if program.is_narrow else 'd'}")
        self._records = make_program_records(len(launch.places))
        for place_program, record in zip(self._programs, self._records, strict=True):
            place_program.place(record, launch.names, 0, 1)
        self._slot_addresses = _addresses_of(slots, _DTYPES[launch.dtype])
        self._results = program.registers_of(slot_names)
        self.record = rule_scalars_record(
            measures_routine(),
            sums,
            len(program.inputs) - len(program.names) - len(slot_names),
            (places, self._records),
            own_rows,
            self._slot_addresses,
            self._results,
            len(slot_names),
        )

    def set(self, scalars: Sequence[Mapping[str, Any]]) -> None:
        """Round inputs to the program's dtype and store them in the registers of each place's
        program.

        Args:
            scalars: For each place, a set of variables with equal hyperparameters, its scalars by
                name.
        """
        for values, program in zip(scalars, self._programs, strict=True):
            program.give(_rounded(self._layout, [values[name] for name in program.names]))


class ReplayedReductions:
    """Launches that reduce the variables of a kernel before it.

    Args:
        launch: The kernel, a `Launch`.
        sweeps: The launches, in order. Each has the attributes `kernel`, `address`, `rows` (one for
            each variable), `is_serial` and `threads` of a `Sweep`.
        scalars: Computes scalars of the kernel from the reductions; None if none depends on these.
        letter: The type of `struct` to which scalars of launches are rounded.
    """

    def __init__(
        self, launch: Any, sweeps: Sequence[Any], scalars: VariableScalars | None, letter: str
    ) -> None:
        self._places, _ = launch.use_member_rows()
        self.sweeps, self.scalars = sweeps, scalars
        self._tables: list[tuple[Any, Float64, Struct]] = []
        for sweep in sweeps:
            if count := len(sweep.kernel.scalars):
                rows = np.zeros((len(launch.places), count), np.float64)
                self._tables.append((sweep, rows, Struct(f"={count}{letter}")))

    def columns(self, name: str) -> list[tuple[int, int, int]]:
        """Return address, row count and byte stride of a float64 scalar in each sweep with it."""
        return [
            (rows.ctypes.data + 8 * sweep.kernel.scalars.index(name), len(rows), rows.strides[0])
            for sweep, rows in ((sweep, sweep.rows) for sweep, *_ in self._tables)
            if name in sweep.kernel.scalars
        ]

    def set_scalars(self, scalars: Sequence[Mapping[str, Any]]) -> None:
        """Round the scalars, and write them to the registers of programs and to the rows of each
        sweep.

        Args:
            scalars: For each place, a set of variables with equal hyperparameters, its scalars by
                name.
        """
        if self.scalars is not None:
            self.scalars.set(scalars)
        for sweep, rows, layout in self._tables:
            for index, values in enumerate(scalars):
                rows[index] = _rounded(layout, [values[name] for name in sweep.kernel.scalars])
            np.take(rows, self._places, 0, sweep.rows, "clip")


def replay_sums(
    rule: Rule, launch: Any, stages: Stages, slots: Sequence[Sequence[Tensor]]
) -> ReplayedReductions:
    """Return the sums of a rule with `per_variable` over the variables of a kernel.

    Args:
        rule: The rule.
        launch: The kernel, a `Launch`.
        stages: The transforms of gradients before the sums.
        slots: The slots of shape () of each variable, in the rule's order.

    Raises:
        TypeError: Native code cannot compute the scalars of the rule, or as of `VariableScalars`.
    """
    formulas = tuple(rule.measures.values())
    sweep = launch.group.sweep(formulas, stages, launch.base, len(launch.members))
    slot_names = [slot.name for slot in rule.measured_slots]
    program = program_of(rule, launch.dtype)
    scalars = VariableScalars(launch, program, sweep.record(), slots, slot_names)
    # Updates read scalars in the compute dtype, so reductions use the rounded values.
    return ReplayedReductions(launch, [sweep], scalars, "f" if program.is_narrow else "d")


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
    bound_names = getattr(function, "keywords", ())  # of a `functools.partial`
    names = [name for name in inspect.signature(function).parameters if name not in bound_names]
    scalar_names = [name for name in names if name not in single_inputs]
    return Program(
        dtype,
        single_inputs,
        scalar_names,
        lambda inputs, _: function(**{n: inputs[n] for n in names}),
    )
