"""A step once more, in one call that looks and writes: what faces have in common of it.

A first, careful step has planned it (`core/step.py`), a second one has repeated it; from the third
on it is taken so, as long as everything lies where it lay: see `engines/cpu/look.py`. Whatever does
not is left to the careful way, which says what there is to say.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from struct import Struct
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, is_inference_mode_enabled

from thalweg.core.hooks import Hooks
from thalweg.core.plan_cache import Planned
from thalweg.engines.arrays import Int64
from thalweg.engines.cpu import group as engine
from thalweg.engines.cpu import look as look
from thalweg.engines.cpu import program
from thalweg.engines.cpu.launch import is_serial, threads_for
from thalweg.engines.cpu.snapshot import KINDS as KINDS
from thalweg.engines.cpu.snapshot import Snapshot as Snapshot
from thalweg.engines.cpu.snapshot import snapshot as snapshot
from thalweg.engines.cpu.team import parallel_address
from thalweg.engines.engine import Stages
from thalweg.engines.plan import DensePlan

ERRORS = (TypeError, ValueError, ArithmeticError, RuntimeError)  # of the numbers of a step
_LARGE = 4 << 20  # elements of a step above which Python's lock is let go meanwhile
_torch: Any = torch._C  # pyright: ignore[reportPrivateUsage]


class Launch:
    """A kernel's argument block and scalars, the steady step's own.

    Args:
        own: The variables that it updates.
        first: The position in the step of the first variable of its plan.
        places: For each variable of the step which scalars it has.

    Attributes:
        members: Positions in the step of the variables that it updates.
    """

    def __init__(self, own: engine.Group, first: int, places: Sequence[int]) -> None:
        self.group = own
        self.members = [first + member for member in own.members]
        self._table = table = own.table  # whose chunks and bounds the block below names
        self.kernel, self.names = own.kernel, own.kernel.scalars
        self.dtype = own.dtype
        self.unset: dict[str, Any] = dict.fromkeys(self.names, 0)
        # A tuple, of one name, too.
        self._chosen: Any = itemgetter(*self.names, *self.names[:1])
        self.places = list(dict.fromkeys(places[member] for member in self.members))
        rows = [self.places.index(places[member]) for member in self.members]
        self.base = table.base.copy()
        layout = Struct(f"={len(self.names)}{'f' if own.dtype is np.float32 else 'd'}")
        self._pack, self._size = layout.pack_into, layout.size
        self._argument = table.copy_of_argument(own.flush)
        self._argument[5] = self.base.ctypes.data
        self.elements, self._slices = table.elements, len(table.bounds) - 1
        self.place_rows(rows, len(self.places))
        self._programs: Int64 = np.zeros((0, program.PROGRAM // 8), np.int64)

    def place_rows(self, rows: Sequence[int], count: int) -> None:
        """Have each member read one of so many rows of scalars."""
        self._scalar_row = np.array(rows, np.int64)
        self.rows = bytearray(self._size * count)
        self._argument[6] = self._scalar_row.ctypes.data
        self._argument[7] = ctypes.addressof(ctypes.c_char.from_buffer(self.rows))

    def take_programs(self, records: Int64) -> None:
        """Have the programs that make scalars, one for each place, in these records."""
        self._programs = records

    def program(self, at: int) -> tuple[Int64, Sequence[str], int, int]:
        """The record of a place; the names of a row, where the first row lies, how many."""
        rows = len(self.rows) // self._size if len(self.places) == 1 else 1
        return self._programs[at], self.names, int(self._argument[7]) + at * self._size, rows

    def cells(self) -> list[int]:
        """Where the addresses of gradients go, for each member."""
        first, (step, item) = self.base.ctypes.data, self.base.strides
        return [first + step * k + item for k in range(len(self.base))]

    def record(self) -> tuple[int, int, int, int]:
        """The kernel and its argument; what calls it on several threads, and on how many."""
        return self.kernel.address, self._argument.ctypes.data, 0, 1

    def column(self, name: str) -> tuple[int, int, int, bool]:
        """Where a scalar lies, how many rows have it, their bytes, and whether it is float32."""
        item = self._size // len(self.names)
        first = int(self._argument[7]) + item * self.names.index(name)
        return first, len(self.rows) // self._size, self._size, self.dtype is np.float32

    def threads(self) -> tuple[int, int]:
        """What calls it on several threads now, and on how many."""
        count = threads_for(self._slices, self.elements)
        return parallel_address() if count > 1 else 0, count

    def set_scalars(self, made: Mapping[int, Mapping[str, Any]]) -> None:
        """Set the scalars of each place."""
        at = 0
        for place in self.places:
            self._pack(self.rows, at, *self._chosen(made[place])[:-1])
            at += self._size


class Launches:
    """The kernels of a step.

    Args:
        plans: Of each rule, whose variables are those of the step, one after the other.
        places: For each variable which scalars it has.

    Attributes:
        of: Those of each plan.
        cells: Where the address of each variable's gradient goes.
    """

    def __init__(self, plans: Sequence[Planned], places: Sequence[int]) -> None:
        self.of: list[list[Launch]] = []
        first = 0
        for planned in plans:
            groups = cast("list[engine.Group]", plan_of(planned).groups)
            self.of.append([Launch(each, first, places) for each in groups])
            first += len(planned.request.variables)
        self.all = list(chain.from_iterable(self.of))
        self._large = [k for k, each in enumerate(self.all) if not is_serial(each.elements)]
        self._spare = np.zeros(1, np.int64)  # for gradients without elements
        self.cells = [self._spare.ctypes.data] * len(places)
        count = sum(len(each.places) for each in self.all)
        self.programs = np.zeros((count, program.PROGRAM // 8), np.int64)
        left = self.programs
        for launch in self.all:
            launch.take_programs(left)
            left = left[len(launch.places) :]
            for member, cell in zip(launch.members, launch.cells(), strict=True):
                self.cells[member] = cell

    def records(self) -> list[tuple[int, int, int, int]]:
        return [each.record() for each in self.all]

    def set_threads(self, records: Int64) -> None:
        """Have those that are worth it run on as many threads as torch has now."""
        for k in self._large:
            records[k, 2:] = self.all[k].threads()


def is_repeatable(planned: Planned | None, hooks: Hooks, stages: Stages = ()) -> bool:
    """Whether a step needs no more than a plan over dense gradients, its scalars and counts.

    Args:
        planned: The step.
        hooks: What the face said about it.
        stages: What the face does to gradients in it.
    """
    if planned is None or not isinstance(planned.ready, DensePlan):
        return False
    ready, rule = planned.ready, planned.request.rule
    return (
        all(isinstance(each, engine.Group) and each.kernel.scalars for each in ready.groups)
        and sum(each.table.elements for each in cast("list[engine.Group]", ready.groups)) <= _LARGE
        and ready.stages == stages
        and not rule.measures
        and rule.per_variable is None
        and not rule.calls_users
        and not hooks.selection.check_numerics
        and hooks.sharing is None
        and hooks.there is None
        and hooks.taken is None
        and not hooks.calls
    )


def plan_of(planned: Planned) -> DensePlan:
    """The plan of a step that is repeatable."""
    return cast("DensePlan", planned.ready)


def stands(planned: Planned, gradients: Sequence[Any]) -> bool:
    """Whether the careful look finds a step to be the one before, with these gradients."""
    try:
        return planned.ready.try_rebind(planned.request._replace(gradients=gradients))
    finally:
        planned.ready.release_gradients()


def hold_tensors(found: Snapshot, tensors: Sequence[Tensor]) -> bool:
    """Have the look compare tensors; False if it could not."""
    return all(
        each.device.type == "cpu"
        and each.layout == torch.strided
        and found.tensor(each) is not None
        for each in tensors
    )


def is_traced() -> bool:
    """Whether somebody wants to see what is done to tensors, or they have no versions."""
    return bool(
        _torch._len_torch_dispatch_stack()
        or _torch._len_torch_function_stack()
        or is_inference_mode_enabled()
        or _torch._get_tracing_state() is not None
    )
