"""Plans: what a step over dense gradients needs again and again, kept until an address changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import add, eq, ge, is_
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, UntypedStorage
from torch._C import DisableTorchFunctionSubclass

from thalweg._base.lazy import lazy
from thalweg._base.locks import importing
from thalweg._engines import layout
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.formula_parser import Composed
from thalweg._engines.metadata_guard import MetadataGuard
from thalweg._engines.protocol import Call, Columns, Formulas, Stages, StepRequest, WriteRound
from thalweg._engines.storage_guard import StorageGuard

if TYPE_CHECKING:
    from thalweg._base.rule_passes import Measure
    from thalweg._engines.row_major import RowMajorGroups


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


class Group(Protocol):
    """Variables of one storage signature on one device: one kernel, one table.

    Attributes:
        members: Positions of these variables in the plan's lists.
        has_all_variables: True if the members are all variables of the step.
        bytes: How many each gradient has.
    """

    members: list[int]
    has_all_variables: bool
    bytes: Int64

    @property
    def measures_in_place(self) -> bool:
        """True if it measures members of other layouts in place faster than copies of them."""
        ...

    def positions(self) -> Tensor:
        """`members`, on their device."""
        ...

    def point_at(self, addresses: Int64) -> None:
        """Set the addresses of this step's gradients, one per member."""
        ...

    def compute_sums(self, formulas: Formulas, stages: Stages, columns: Columns) -> Float64:
        """For each member the sums of formulas over its elements: (members, formulas)."""
        ...

    def sums_on_device(self, formulas: Formulas, stages: Stages, columns: Columns) -> Tensor | None:
        """As `compute_sums`, on the device of the members; None if that is the host."""
        ...

    def compute_leaves(self, formulas: Formulas, stages: Stages, columns: Columns) -> list[Float64]:
        """What is added up to them: (leaves, formulas) for each member."""
        ...

    def compute_lines(
        self, measures: tuple[Measure, ...], stages: Stages, columns: Columns
    ) -> list[list[Tensor]]:
        """For each member its measures, of rows, columns or itself."""
        ...

    def max_abs(self) -> Float64:
        """Largest magnitude of each member's gradient."""
        ...

    def max_abs_on_device(self, is_checked: Tensor) -> Tensor | None:
        """Return `max_abs` on the members' device; None if that is the host.

        Args:
            is_checked: A bool tensor of shape () on the device. If it is False, the results are 0.
        """
        ...

    def make_calls(self, columns: Columns) -> list[Call]:
        """What launches the kernel, as functions in C."""
        ...


class DensePlan:
    """A `StepPlan` for variables with dense gradients, all fit for raw memory.

    It owns references to everything its tables point at.

    Args:
        asked: The step. Its variables are distinct; its gradients have their strides.
        group: Makes an engine's group of a step and the positions of its members in it.

    Attributes:
        written: What it writes.
        is_aimed: Whether its tables point at a step's gradients.
    """

    is_single = True

    def __init__(
        self, request: StepRequest, group: Callable[[StepRequest, list[int]], Group]
    ) -> None:
        self.rule = request.rule
        self.stages = request.stages
        self._selection = request.selection
        self._from_copies = request.from_copies
        self._vectors, self._places = list(request.vectors), list(request.places)
        self.variables = variables = list(request.variables)
        self.slots = slots = [list(each) for each in request.slots]
        self.copies = list(request.copies or [None] * len(variables))
        self._grad_dtypes = gradients = [grad.dtype for grad in request.gradients]
        self._devices = list(map(Tensor.get_device, variables))
        signatures: dict[Any, list[int]] = {}
        for index, var in enumerate(variables):
            if var.numel():
                copy = self.copies[index]
                key = (gradients[index], None if copy is None else copy.dtype, var.dtype)
                key += (self._devices[index],)
                key += tuple(slot.dtype for slot in slots[index])
                key += tuple(request.short[index : index + 1])
                signatures.setdefault(key, []).append(index)
        self.groups = [group(request, members) for members in signatures.values()]
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
        self._watched = StorageGuard(apart)
        self._pointers = list(map(Tensor.data_ptr, self.written))
        self._shapes = list(map(Tensor.size, variables))
        self._strides = list(map(Tensor.stride, variables))
        self._dtypes = [each.dtype for each in variables]
        self._contiguous = all(map(Tensor.is_contiguous, variables))
        self._make_group, self._request = group, request._replace(gradients=())
        self.bounds = layout.runs_of([*variables, *apart, *copied])
        self._checked = MetadataGuard()  # variables and copies
        self._checked_gradients = MetadataGuard()
        update: Any = request.rule.update
        marked = [] if isinstance(update, Composed) and update.is_pass else self.written
        self.mark_written = partial(torch._C._increment_version, marked)  # pyright: ignore[reportPrivateUsage]
        self._held: Sequence[Any] = ()  # the gradients that the tables point at
        self._ids: list[int] = []  # those that were last found to be whole, where they lay,
        self._aimed = np.empty(0, np.int64)
        self._apart_from = self.bounds  # and what they lay apart from
        sizes = zip(variables, self._grad_dtypes, strict=True)
        self._bytes = [var.numel() * dtype.itemsize for var, dtype in sizes]
        self.is_aimed = False
        self.point_at(request.gradients)

    def try_rebind(self, request: StepRequest, bounds: Int64 | None = None) -> bool:
        """See `StepPlan`.

        Args:
            request: The step.
            bounds: Of the memory that the step writes, if that is more than the plan does.
        """
        if (
            request.rule is not self.rule
            or request.stages != self.stages
            or request.selection != self._selection
            or ((request.places or self._places) and list(request.places) != self._places)
            or not self._copied_to(request)
        ):
            return False
        # Else torch looks for an override whenever a `Variable` is asked for something.
        with DisableTorchFunctionSubclass():
            return self._stands(request.variables) and self._aim(request.gradients, bounds)

    def serves(self, request: StepRequest) -> bool:
        """Whether a plan made for this step would be this one."""
        return (
            request.rule is self.rule
            and request.stages == self.stages
            and request.selection == self._selection
            and list(request.places) == self._places
            and self._copied_to(request)
            and [grad.dtype for grad in request.gradients] == self._grad_dtypes
            and self._stands(request.variables)
            and all(all(map(is_, a, b)) for a, b in zip(request.slots, self.slots, strict=True))
            and len(request.vectors) == len(self._vectors)
            and all(map(is_, request.vectors, self._vectors))
        )

    def _copied_to(self, request: StepRequest) -> bool:
        """Whether the step's copies are the plan's; None stands for no copies at all."""
        copies = request.copies
        if copies is None:
            return not self._copied
        if request.from_copies != self._from_copies:
            return False
        return len(copies) == len(self.copies) and all(map(is_, copies, self.copies))

    def _stands(self, variables: Sequence[Tensor]) -> bool:
        """Whether this plan was made for these very variables, and they lie where they lay."""
        if len(variables) != len(self.variables) or not all(map(is_, variables, self.variables)):
            return False
        try:
            if list(map(Tensor.data_ptr, self.written)) != self._pointers:
                return False
            if not self._watched.confirm_places():
                return False
        except RuntimeError:
            return False
        # An assignment to `.data` may keep the address and change the rest.
        seen = [*self.variables, *self._copied]
        if not self._checked.holds(seen):
            if not self._as_planned():
                return False
            self._checked = MetadataGuard(seen)
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
                self._checked_gradients = MetadataGuard(gradients)
            addresses = _addresses(gradients)
            bounds = self.bounds if bounds is None else bounds
            if not self._is_aimed_at(gradients, addresses, bounds):
                if not _whole(gradients, self._bytes):
                    return False
                self._ids = []
                for group in self.groups:
                    own = addresses if group.has_all_variables else addresses[group.members]
                    # A gradient inside memory that the step writes must be copied first.
                    if not layout.lie_apart(own, group.bytes, bounds):
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
            or list(map(Tensor.get_device, gradients)) != self._devices
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

    def compute_sums(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """See `StepPlan`."""
        found = np.zeros((len(self.variables), len(formulas)), np.float64)
        for group in self._measured_groups(formulas):
            found[group.members] = group.compute_sums(formulas, stages, columns)
        return list(found.T)

    def sums_on_device(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Tensor] | None:
        """See `StepPlan`."""
        groups = self._measured_groups(formulas)
        found = self._there(groups, lambda group: group.sums_on_device(formulas, stages, columns))
        return None if found is None else found.unbind(1)

    @lazy
    def measures_in_place(self) -> bool:
        """True if groups measure elements in row-major order without copies."""
        return self._contiguous or all(each.measures_in_place for each in self.groups)

    @lazy
    def _copied_groups(self) -> RowMajorGroups:
        """Groups over copies of what measures read."""
        with importing:
            from thalweg._engines.row_major import RowMajorGroups
        return RowMajorGroups(self._request, self._make_group)

    def _measured_groups(self, formulas: Formulas) -> Sequence[Group]:
        """Return groups in whose memory the elements that formulas read are in row-major order."""
        if self.measures_in_place:
            return self.groups
        return self._copied_groups.refresh(self.groups, self._held, formulas)

    def _there(
        self, groups: Sequence[Group], part_of: Callable[[Group], Tensor | None]
    ) -> Tensor | None:
        """What groups tell on the device of all variables, put together; None if there is none."""
        if len(set(self._devices)) > 1 or not groups:
            return None
        found: Tensor | None = None
        for group in groups:
            part = part_of(group)
            if part is None or group.has_all_variables:
                return part
            if found is None:
                found = part.new_zeros(len(self.variables), *part.shape[1:])
            found.index_copy_(0, group.positions(), part)
        return found

    def compute_leaves(self, formulas: Formulas, stages: Stages, columns: Columns) -> list[Float64]:
        """See `StepPlan`."""
        found = [np.empty((0, len(formulas)))] * len(self.variables)
        for group in self._measured_groups(formulas):
            parts = group.compute_leaves(formulas, stages, columns)
            for index, leaves in zip(group.members, parts, strict=True):
                found[index] = leaves
        return found

    def compute_lines(
        self, measures: tuple[Measure, ...], stages: Stages, columns: Columns
    ) -> list[list[Tensor]]:
        """See `StepPlan`."""
        found: list[list[Tensor]] = [[] for _ in self.variables]
        for group in self.groups:
            parts = group.compute_lines(measures, stages, columns)
            for index, each in zip(group.members, parts, strict=True):
                found[index] = each
        return found

    def max_abs(self) -> Float64:
        """See `StepPlan`."""
        result = np.zeros(len(self.variables), np.float64)
        for group in self.groups:
            result[group.members] = group.max_abs()
        return result

    def max_abs_on_device(self, is_checked: Tensor) -> Tensor | None:
        """See `StepPlan`."""
        return self._there(self.groups, lambda group: group.max_abs_on_device(is_checked))

    def make_calls(self, columns: Columns) -> list[Call]:
        """What updates everything, as functions in C."""
        made = [call for group in self.groups for call in group.make_calls(columns)]
        return [*made, self.mark_written]

    def make_rounds(self, columns: Columns) -> Iterator[WriteRound]:
        """See `StepPlan`."""
        yield WriteRound(range(len(self.variables)), self.make_calls(columns))

    def release_gradients(self) -> None:
        """See `StepPlan`."""
        self._held, self.is_aimed = (), False
