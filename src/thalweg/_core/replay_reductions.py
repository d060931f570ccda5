"""What a rule measures in a step that is taken in one call, and makes of it for each variable."""

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
from thalweg._engines.cpu import scalar_program
from thalweg._engines.cpu.openmp import parallel_address
from thalweg._engines.cpu.replay_routines import measures_routine

if TYPE_CHECKING:
    from thalweg._engines.protocol import Dtype, Stages
    from thalweg.formula import Rule

_DTYPES = {np.float32: torch.float32, np.float64: torch.float64}


class ReplayedReductions:
    """The same, of the variables of a kernel; each has a row of scalars of its own.

    Args:
        rule: The rule.
        launch: The kernel, a `Launch`.
        stages: What happens to gradients before.
        slots: For each variable its slots of shape (), in the rule's order.

    Attributes:
        names: Of the scalars that measures depend on.

    Raises:
        TypeError: What the rule makes of its measures is no arithmetic of `program.py`, or a slot
            is not of the compute dtype.
    """

    def __init__(
        self, rule: Rule, launch: Any, stages: Stages, slots: Sequence[Sequence[Tensor]]
    ) -> None:
        places, own_rows = launch.separate()
        count = len(launch.places)
        formulas = tuple(rule.measures.values())
        self.sweep = launch.group.sweep(formulas, stages, launch.base, len(places))
        self.names = self.sweep.kernel.scalars
        self._places = places
        self._rows = np.zeros((count, len(self.names)), np.float64)
        letter = "f" if launch.dtype is np.float32 else "d"
        self._measured = Struct(f"={len(self.names)}{letter}")  # rounded as updates see them
        first = _program_of(rule, launch.dtype)
        self._programs = [first.again() for _ in launch.places]
        self._given = Struct(f"={len(first.names)}{letter}")
        self._records: Int64 = np.zeros((count, scalar_program.PROGRAM // 8), np.int64)
        for own, record in zip(self._programs, self._records, strict=True):
            own.place(record, launch.names, 0, 1)
        every = [each for own in slots for each in own]
        if {each.dtype for each in every} - {_DTYPES[launch.dtype]}:
            raise TypeError("A slot has another dtype than the arithmetic.")
        places_of_slots = [each.data_ptr() for each in every]
        if len({*places_of_slots}) < len(every):
            raise TypeError("Two variables have a slot in common.")
        self._slot_places = np.array(places_of_slots, np.int64)
        self._results = first.registers_of([slot.name for slot in rule.measured_slots])
        leaves, variables, counts = self.sweep.record()
        self.record = [
            measures_routine(),
            leaves,
            len(formulas),
            variables,
            counts,
            places.ctypes.data,
            self._records.ctypes.data,
            own_rows.ctypes.data,
            own_rows.strides[0],
            len(rule.measured_slots),
            self._slot_places.ctypes.data,
            self._results.ctypes.data,
        ]

    def column(self, name: str) -> tuple[int, int, int]:
        """Where a scalar of the measures is, of float64; as `Launch.columns`."""
        rows = self.sweep.rows
        return rows.ctypes.data + 8 * self.names.index(name), len(rows), rows.strides[0]

    def launched(self) -> tuple[int, int, int, int]:
        """As `Launch.record`."""
        return self.sweep.kernel.address, self.sweep.address, 0, 1

    def threads(self) -> tuple[int, int]:
        """As those of `Launch`."""
        count = self.sweep.threads()
        return parallel_address() if count > 1 else 0, count

    def set_scalars(self, scalars: Sequence[Mapping[str, Any]]) -> None:
        """Set what measures, and what is made of them, depend on.

        Args:
            scalars: Of each place.
        """
        for k, (made, own) in enumerate(zip(scalars, self._programs, strict=True)):
            self._rows[k] = _rounded(self._measured, [made[name] for name in self.names])
            own.give(_rounded(self._given, [made[name] for name in own.names]))
        np.take(self._rows, self._places, 0, self.sweep.rows, "clip")


def _rounded(kind: Struct, values: Sequence[Any]) -> tuple[Any, ...]:
    return kind.unpack(kind.pack(*values))


def _program_of(rule: Rule, dtype: Dtype) -> Program:
    """What a rule makes of its measures and then its scalar slots, which come first."""
    own: dict[str, Dtype] = dict.fromkeys(rule.measures, np.float64)
    own |= {slot.name: dtype for slot in rule.measured_slots}
    function: Any = rule.per_variable
    bound = getattr(function, "keywords", ())  # of a `functools.partial`
    wanted = [name for name in inspect.signature(function).parameters if name not in bound]
    known = [name for name in wanted if name not in own]
    return Program(
        dtype, own, known, lambda given, _: function(**{name: given[name] for name in wanted})
    )
