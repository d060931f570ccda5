"""Plans: what a step over dense gradients needs again and again, kept until an address changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import add, eq, ge, is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, UntypedStorage
from torch._C import DisableTorchFunctionSubclass

from thalweg.engines import layout
from thalweg.engines.arrays import Float64, Int64
from thalweg.engines.cpu import launch
from thalweg.engines.cpu.likeness import Likeness
from thalweg.engines.cpu.measure import Leaves, table_peaks
from thalweg.engines.cpu.watched import Watched
from thalweg.engines.cpu.work import chunk_of, dense_chunks, slices, table
from thalweg.engines.engine import Call, Columns, Copies, Request, Round, Scalars, Stages
from thalweg.formula import Formula, Rule
from thalweg.lazily import lazy

_CPU = {-1}


def _addresses(tensors: Sequence[Tensor]) -> Int64:
    return np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))


def _ids(tensors: Sequence[Any]) -> list[int]:
    return list(map(id, tensors))


def _whole(tensors: Sequence[Tensor], sizes: Sequence[int]) -> bool:
    """Whether tensors of so many bytes, each in one run, lie within their storages."""
    storages = map(Tensor.untyped_storage, tensors)
    if any(map(Tensor.storage_offset, tensors)):
        begins = [int(each.storage_offset()) * each.element_size() for each in tensors]
        sizes = list(map(add, begins, sizes))
    return all(map(ge, map(UntypedStorage.nbytes, storages), sizes))


class Group:
    """Variables of one storage signature: one kernel, one table.

    Args:
        rule, stages: What to run.
        members: Positions of these variables in the plan's lists.
        variables: The plan's variables.
        slots: The plan's slots, a list per variable.
        gradients: Dtypes of the plan's gradients.
        copies: The plan's copies, a tensor or None per variable.
    """

    def __init__(
        self,
        rule: Rule,
        stages: Stages,
        members: list[int],
        variables: Sequence[Tensor],
        slots: Sequence[Sequence[Tensor]],
        gradients: Sequence[torch.dtype],
        copies: Sequence[Tensor | None],
    ) -> None:
        first = members[0]
        var, copied = variables[first], copies[first] is not None
        streams = [[variables[i], *slots[i], *_given(copies[i])] for i in members]
        storage = [each.dtype for each in streams[0]]
        storage.insert(1, gradients[first])
        names = tuple(layout.STORAGE_NAMES[dtype] for dtype in storage)
        self.dtype = layout.compute_dtype(var.dtype)
        self.kernel = launch.compiled(
            rule.update, stages, names, self.dtype, copy=copied, before=rule.before
        )
        self._storage = storage
        self._streams = names[: len(names) - copied]  # what can be measured
        self.members = members
        self.whole = len(members) == len(variables)
        sizes = [variables[index].numel() for index in members]
        base = np.zeros((len(members), len(storage)), np.int64)
        for row, own in enumerate(streams):
            base[row, 0], *base[row, 2:] = map(Tensor.data_ptr, own)
        self.bytes = np.array(sizes, np.int64) * storage[1].itemsize
        chunk = chunk_of(sum(sizes))
        chunks = dense_chunks(sizes, chunk)
        self.table = table(base, chunks, slices(chunks, chunk), np.zeros(len(members), np.int64))
        self.scalars = np.zeros((1, len(self.kernel.scalars)), self.dtype)
        self._rows = np.arange(len(members), dtype=np.int64)
        self._sizes = sizes

    @lazy
    def _leaves(self) -> Leaves:
        return Leaves(self._sizes)

    def point_at(self, addresses: Int64) -> None:
        """Set the addresses of this step's gradients, one per member."""
        self.table.base[:, 1] = addresses

    def _set_scalars(self, shared: Scalars, separate: Any) -> None:
        """Fill the scalar rows.

        Args:
            shared: Scalars of the group's compute dtype.
            separate: Scalars that differ by variable, an array over the plan's variables each.
        """
        names = self.kernel.scalars
        if separate.keys().isdisjoint(names):
            self.scalars[:] = [shared[name] for name in names]
            return
        if len(self.scalars) != len(self.members):
            self.scalars = np.zeros((len(self.members), len(names)), self.dtype)
            self.table.scalar_row[:] = self._rows
        for column, name in enumerate(names):
            value = separate[name][self.members] if name in separate else shared[name]
            self.scalars[:, column] = value

    def sums(
        self, formulas: tuple[Formula, ...], stages: Stages, columns: Columns, flush: bool
    ) -> Float64:
        """For each member the sums of formulas over its elements: (members, formulas)."""
        return self._leaves.combined(self._measured(formulas, stages, columns, flush))

    def leaves(
        self, formulas: tuple[Formula, ...], stages: Stages, columns: Columns, flush: bool
    ) -> list[Float64]:
        """What is added up to them: (leaves, formulas) for each member."""
        return self._leaves.apart(self._measured(formulas, stages, columns, flush))

    def _measured(
        self, formulas: tuple[Formula, ...], stages: Stages, columns: Columns, flush: bool
    ) -> Float64:
        kernel = launch.measuring(formulas, stages, self._streams, self.dtype)
        shared, separate = columns.shared.get(self.dtype, {}), columns.separate
        scalars = {
            name: separate[name][self.members] if name in separate else shared[name]
            for name in kernel.scalars
        }
        return self._leaves.measure(kernel, self.table.base, scalars, flush and bool(stages))

    def peaks(self) -> Float64:
        """Largest magnitude of each member's gradient."""
        return table_peaks(self.table, self._storage[1], 1)

    def call(self, columns: Columns, flush: bool) -> Call:
        """What launches the kernel."""
        self._set_scalars(columns.shared[self.dtype], columns.separate)
        return self.kernel.call(self.table, self.scalars, flush)


def _given(copy: Tensor | None) -> list[Tensor]:
    return [] if copy is None else [copy]


class DensePlan:
    """A `Ready` for CPU variables with dense gradients, all fit for raw memory.

    It owns references to everything its tables point at.

    Args:
        asked: The step. Its variables are distinct; its gradients have their strides.

    Attributes:
        written: What it writes.
        is_aimed: Whether its tables point at a step's gradients.
    """

    is_single = True

    def __init__(self, asked: Request) -> None:
        self.rule = rule = asked.rule
        self.stages = stages = asked.stages
        self._selection = asked.selection
        self.variables = variables = list(asked.variables)
        self.slots = slots = [list(each) for each in asked.slots]
        self.copies = list(asked.copies or [None] * len(variables))
        self._grad_dtypes = gradients = [grad.dtype for grad in asked.gradients]
        signatures: dict[Any, list[int]] = {}
        for index, var in enumerate(variables):
            if var.numel():
                copy = self.copies[index]
                key = (gradients[index], None if copy is None else copy.dtype, var.dtype)
                key += tuple(slot.dtype for slot in slots[index])
                signatures.setdefault(key, []).append(index)
        self.groups = [
            Group(rule, stages, members, variables, slots, gradients, self.copies)
            for members in signatures.values()
        ]
        self.dtypes = tuple(dict.fromkeys(layout.compute_dtype(var.dtype) for var in variables))
        # Slots of one block share storage and version counter: one tensor stands for them all. It
        # is one with elements, if there are any, for torch tells no address of others.
        blocks: dict[int, Tensor] = {}
        for each in slots:
            for slot in each:
                key = slot.untyped_storage().data_ptr() or id(slot)
                if key not in blocks or not blocks[key].numel():
                    blocks[key] = slot
        slot_blocks = list(blocks.values())
        self._copied = copied = [copy for copy in self.copies if copy is not None]
        self.written = [*variables, *slot_blocks, *copied]
        self._storages = [tensor.untyped_storage() for tensor in self.written]
        self._copied_shapes = list(map(Tensor.size, copied))
        self._copied_strides = list(map(Tensor.stride, copied))
        self._copied_dtypes = [each.dtype for each in copied]
        apart = [slot for each in slots for slot in each]
        self._watched = Watched(apart)
        self._pointers = list(map(Tensor.data_ptr, self.written))
        self._shapes = list(map(Tensor.size, variables))
        self._strides = list(map(Tensor.stride, variables))
        self._dtypes = [each.dtype for each in variables]
        self._contiguous = all(map(Tensor.is_contiguous, variables))
        self.bounds = layout.bounds([*variables, *apart, *copied])
        self._checked = Likeness()  # variables and copies
        self._checked_gradients = Likeness()
        self._mark = partial(torch._C._increment_version, self.written)  # pyright: ignore[reportPrivateUsage]
        self._held: Sequence[Any] = ()  # the gradients that the tables point at
        self._ids: list[int] = []  # those that were last found to be whole, where they lay,
        self._aimed = np.empty(0, np.int64)
        self._apart_from = self.bounds  # and what they lay apart from
        sizes = zip(variables, self._grad_dtypes, strict=True)
        self._bytes = [var.numel() * dtype.itemsize for var, dtype in sizes]
        self.is_aimed = False
        self.point_at(asked.gradients)

    def again(self, asked: Request, bounds: Int64 | None = None) -> bool:
        """See `Ready`.

        Args:
            asked: The step.
            bounds: Of the memory that the step writes, if that is more than the plan does.
        """
        if (
            asked.rule is not self.rule
            or asked.stages != self.stages
            or asked.selection != self._selection
            or not self._copied_to(asked.copies)
        ):
            return False
        # Else torch looks for an override whenever a `Variable` is asked for something.
        with DisableTorchFunctionSubclass():
            return self._stands(asked.variables) and self._aim(asked.gradients, bounds)

    def serves(self, asked: Request) -> bool:
        """Whether a plan made for this step would be this one."""
        return (
            asked.rule is self.rule
            and asked.stages == self.stages
            and asked.selection == self._selection
            and self._copied_to(asked.copies)
            and [grad.dtype for grad in asked.gradients] == self._grad_dtypes
            and self._stands(asked.variables)
            and all(all(map(is_, a, b)) for a, b in zip(asked.slots, self.slots, strict=True))
        )

    def _copied_to(self, copies: Copies) -> bool:
        """Whether these are the plan's copies; None stands for no copies at all."""
        if copies is None:
            return not self._copied
        return len(copies) == len(self.copies) and all(map(is_, copies, self.copies))

    def _stands(self, variables: Sequence[Tensor]) -> bool:
        """Whether this plan was made for these very variables, and they lie where they lay."""
        if len(variables) != len(self.variables) or not all(map(is_, variables, self.variables)):
            return False
        try:
            if list(map(Tensor.data_ptr, self.written)) != self._pointers:
                return False
            if not self._watched.stand():
                return False
        except RuntimeError:
            return False
        # An assignment to `.data` may keep the address and change the rest.
        seen = [*self.variables, *self._copied]
        if not self._checked.holds(seen):
            if not self._as_planned():
                return False
            self._checked = Likeness(seen)
        return True

    def _as_planned(self) -> bool:
        if not all(map(eq, map(Tensor.size, self.variables), self._shapes)):
            return False
        if [each.dtype for each in self.variables] != self._dtypes:
            return False
        if self._copied and not (
            all(map(eq, map(Tensor.size, self._copied), self._copied_shapes))
            and list(map(Tensor.stride, self._copied)) == self._copied_strides
            and [each.dtype for each in self._copied] == self._copied_dtypes
        ):
            return False
        if self._contiguous:
            return all(map(Tensor.is_contiguous, self.variables))
        return list(map(Tensor.stride, self.variables)) == self._strides

    def _aim(self, gradients: Sequence[Any], bounds: Int64 | None) -> bool:
        """Point the tables at these gradients; False if one does not fit as it is.

        Nothing is written; a False return leaves the reasons to the careful path.
        """
        try:
            if not self._checked_gradients.holds(gradients):
                if not self._fit(gradients):
                    return False
                self._checked_gradients = Likeness(gradients)
            addresses = _addresses(gradients)
            bounds = self.bounds if bounds is None else bounds
            if not self._is_aimed_at(gradients, addresses, bounds):
                if not _whole(gradients, self._bytes):
                    return False
                self._ids = []
                for group in self.groups:
                    own = addresses if group.whole else addresses[group.members]
                    # A gradient inside memory that the step writes must be copied first.
                    if not layout.apart(own, group.bytes, bounds):
                        return False
                    group.point_at(own)
                self._ids, self._aimed, self._apart_from = _ids(gradients), addresses, bounds
        except RuntimeError:
            return False
        self._held, self.is_aimed = gradients, True
        return True

    def _is_aimed_at(self, gradients: Sequence[Any], addresses: Int64, bounds: Int64) -> bool:
        """Whether these are the gradients of the step before, where they lay.

        A storage that was cut lies elsewhere.
        """
        return (
            self._apart_from is bounds
            and self._ids == _ids(gradients)
            and bool((addresses == self._aimed).all())
        )

    def _fit(self, gradients: Sequence[Any]) -> bool:
        if (
            set(map(type, gradients)) != {Tensor}
            or not all(map(eq, map(Tensor.size, gradients), self._shapes))
            or [each.dtype for each in gradients] != self._grad_dtypes
            or set(map(Tensor.get_device, gradients)) != _CPU
        ):
            return False
        if self._contiguous:
            if not all(map(Tensor.is_contiguous, gradients)):
                return False
        elif list(map(Tensor.stride, gradients)) != self._strides:
            return False
        return not any(map(Tensor.is_neg, gradients))

    def point_at(self, gradients: Sequence[Tensor]) -> None:
        """Point the tables at gradients that fit: same strides as the variables, memory apart."""
        self._ids = []
        addresses = _addresses(gradients)
        for group in self.groups:
            group.point_at(addresses[group.members])
        self._held, self.is_aimed = gradients, True

    def sums(
        self, formulas: tuple[Formula, ...], stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """See `Ready`."""
        found = np.zeros((len(self.variables), len(formulas)), np.float64)
        flush = self._selection.denormals == "flush"
        for group in self.groups:
            found[group.members] = group.sums(formulas, stages, columns, flush)
        return list(found.T)

    def leaves(
        self, formulas: tuple[Formula, ...], stages: Stages, columns: Columns
    ) -> list[Float64]:
        """See `Ready`."""
        found = [np.empty((0, len(formulas)))] * len(self.variables)
        flush = self._selection.denormals == "flush"
        for group in self.groups:
            parts = group.leaves(formulas, stages, columns, flush)
            for index, leaves in zip(group.members, parts, strict=True):
                found[index] = leaves
        return found

    def peaks(self) -> Float64:
        """See `Ready`."""
        result = np.zeros(len(self.variables), np.float64)
        for group in self.groups:
            result[group.members] = group.peaks()
        return result

    def calls(self, columns: Columns) -> list[Call]:
        """What updates everything, as functions in C."""
        flush = self._selection.denormals == "flush"
        return [*(group.call(columns, flush) for group in self.groups), self._mark]

    def rounds(self, columns: Columns) -> Iterator[Round]:
        """See `Ready`."""
        yield Round(range(len(self.variables)), self.calls(columns))

    def let_go(self) -> None:
        """See `Ready`."""
        self._held, self.is_aimed = (), False
