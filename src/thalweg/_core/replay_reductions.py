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
from thalweg._engines.array_types import Int64
from thalweg._engines.cpu.openmp import parallel_address
from thalweg._engines.cpu.replay_records import make_program_records, rule_scalars_record
from thalweg._engines.cpu.replay_routines import measures_routine

if TYPE_CHECKING:
    from thalweg._engines.protocol import Dtype, Stages
    from thalweg.formula import Rule

_DTYPES = {np.float32: torch.float32, np.float64: torch.float64}


class ReplayedReductions:
    """Reductions and their scalars for the variables of one kernel, each with a row of scalars.

    Args:
        rule: The rule.
        launch: The kernel, a `Launch`.
        stages: The transforms of gradients before the reductions.
        slots: The slots of shape () of each variable, in the rule's order.

    Attributes:
        names: The names of the scalars that the reductions use.

    Raises:
        TypeError: Native code cannot compute the scalars of the rule, a slot is not of the compute
            dtype, or two variables share a slot.
    """

    def __init__(
        self, rule: Rule, launch: Any, stages: Stages, slots: Sequence[Sequence[Tensor]]
    ) -> None:
        places, own_rows = launch.use_member_rows()
        count = len(launch.places)
        formulas = tuple(rule.measures.values())
        self.sweep = launch.group.sweep(formulas, stages, launch.base, len(places))
        self.names = self.sweep.kernel.scalars
        self._places = places
        self._rows = np.zeros((count, len(self.names)), np.float64)
        letter = "f" if launch.dtype is np.float32 else "d"
        # Updates read scalars in the compute dtype, so reductions use the rounded values.
        self._scalar_layout = Struct(f"={len(self.names)}{letter}")
        first = _program_of(rule, launch.dtype)
        self._programs = [first.again() for _ in launch.places]
        self._input_layout = Struct(f"={len(first.names)}{letter}")
        self._records = make_program_records(count)
        for program, record in zip(self._programs, self._records, strict=True):
            program.place(record, launch.names, 0, 1)
        self._slot_places = _addresses_of(slots, _DTYPES[launch.dtype])
        self._results = first.registers_of([slot.name for slot in rule.measured_slots])
        self.record = rule_scalars_record(
            measures_routine(),
            self.sweep.record(),
            len(formulas),
            (places, self._records),
            own_rows,
            self._slot_places,
            self._results,
            len(rule.measured_slots),
        )

    def column(self, name: str) -> tuple[int, int, int]:
        """Return address, row count and byte stride of a float64 scalar, as `Launch.columns`."""
        rows = self.sweep.rows
        return rows.ctypes.data + 8 * self.names.index(name), len(rows), rows.strides[0]

    def launched(self) -> tuple[int, int, int, int]:
        """Return the record of the launch, as `Launch.record`."""
        return self.sweep.kernel.address, self.sweep.address, 0, 1

    def threads(self) -> tuple[int, int]:
        """Return the address of the parallel routine, or 0, and the number of threads."""
        count = self.sweep.threads()
        return parallel_address() if count > 1 else 0, count

    def set_scalars(self, scalars: Sequence[Mapping[str, Any]]) -> None:
        """Set the scalars that the reductions and the programs use.

        Args:
            scalars: The scalars by name, for each place of the launch.
        """
        for index, (values, program) in enumerate(zip(scalars, self._programs, strict=True)):
            self._rows[index] = _rounded(self._scalar_layout, [values[name] for name in self.names])
            program.give(_rounded(self._input_layout, [values[name] for name in program.names]))
        np.take(self._rows, self._places, 0, self.sweep.rows, "clip")


def _addresses_of(slots: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> Int64:
    """Return the addresses of all slots; raise TypeError if two are equal or a dtype is another."""
    flat_slots = [slot for var_slots in slots for slot in var_slots]
    if {slot.dtype for slot in flat_slots} - {dtype}:
        raise TypeError("A slot has another dtype than the arithmetic.")
    addresses = [slot.data_ptr() for slot in flat_slots]
    if len({*addresses}) < len(flat_slots):
        raise TypeError("Two variables have a slot in common.")
    return np.array(addresses, np.int64)


def _rounded(layout: Struct, values: Sequence[Any]) -> tuple[Any, ...]:
    return layout.unpack(layout.pack(*values))


def _program_of(rule: Rule, dtype: Dtype) -> Program:
    """Return the program of `rule.per_variable`; its first inputs are measures and scalar slots."""
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
