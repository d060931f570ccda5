"""Plans of steps over dense gradients, reused until an address or a layout changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import eq, is_
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, UntypedStorage
from torch._C import DisableTorchFunctionSubclass

from thalweg._base.context_managers import calls, drain
from thalweg._base.lazy import lazy
from thalweg._base.locks import importing
from thalweg._engines import layout
from thalweg._engines.array_types import Int64
from thalweg._engines.formula_parser import Composed
from thalweg._engines.held_memory import (
    are_in_storages,
    check_access,
    check_call,
    hold_memory,
    moved_error,
    raise_cut,
    read_addresses,
)
from thalweg._engines.metadata_guard import MetadataGuard
from thalweg._engines.protocol import (
    Call,
    Columns,
    Formulas,
    Reduction,
    Results,
    StepRequest,
    WriteRound,
)
from thalweg._engines.storage_guard import StorageGuard

if TYPE_CHECKING:
    from thalweg._engines.row_major import RowMajorGroups


_DTYPE: Any = Tensor.dtype.__get__  # pyright: ignore


def _ids(tensors: Sequence[Any]) -> list[int]:
    return list(map(id, tensors))


def _read_layouts(tensors: Sequence[Tensor]) -> list[list[Any]]:
    """Return the shapes, strides and dtypes of tensors."""
    return [list(map(getter, tensors)) for getter in (Tensor.size, Tensor.stride, _DTYPE)]


def _group_by_signature(request: StepRequest) -> list[list[int]]:
    """Return groups of variables that one kernel can update, as lists of indices.

    The variables of a group have one device and equal dtypes. Variables with True in
    `request.short` are also grouped by matrix shape. Variables without elements are left out.
    """
    copies = request.copies or [None] * len(request.variables)
    signatures: dict[Any, list[int]] = {}
    for index, (var, copy) in enumerate(zip(request.variables, copies, strict=True)):
        if var.numel():
            key = (request.gradients[index].dtype, None if copy is None else copy.dtype, var.dtype)
            key += (var.get_device(), *(slot.dtype for slot in request.slots[index]))
            if request.short and request.short[index]:
                key += tuple(var.shape[-2:])
            signatures.setdefault(key, []).append(index)
    return list(signatures.values())


def _select_one_per_storage(slots: Sequence[Tensor]) -> list[int]:
    """Return the index of one slot for each storage: slots of a storage share a version counter.

    A slot with elements is preferred, because an empty tensor has no address.
    """
    blocks: dict[int, int] = {}
    for index, slot in enumerate(slots):
        key = slot.untyped_storage().data_ptr() or id(slot)
        if key not in blocks or not slots[blocks[key]].numel():
            blocks[key] = index
    return list(blocks.values())


class Group(Protocol):
    """Variables (members) with equal dtypes on one device, updated by one kernel.

    Attributes:
        members: Indices of the group's variables in the plan.
        has_all_variables: True if the group has all variables of the plan.
        bytes: The size of each gradient in bytes.
        device: The device of sums and peaks, or None for the host.
    """

    members: list[int]
    has_all_variables: bool
    bytes: Int64

    @property
    def device(self) -> torch.device | None: ...

    @property
    def measures_in_place(self) -> bool:
        """Return True if measuring non-contiguous members in place is faster than copying them."""
        ...

    @property
    def positions(self) -> Tensor:
        """Return `members` as a tensor on their device."""
        ...

    def point_at(self, addresses: Int64) -> None:
        """Set the addresses of the members' gradients in this step."""
        ...

    def reduce(self, reduction: Reduction, columns: Columns) -> Results:
        """Return the results of a reduction for each member; see `Reductions`."""
        ...

    def make_calls(self, columns: Columns) -> list[Call]:
        """Return functions without arguments that launch the kernel."""
        ...


class DensePlan:
    """A `StepPlan` for variables with dense gradients that kernels access by address.

    The plan holds the memory at all addresses in its tables, of gradients until it releases them.

    Args:
        request: The step. Its variables are distinct; each gradient has its variable's strides, and
            is an alias that only the caller has.
        make_group: `make_group(request, indices of variables)` returns an engine's `Group`.

    Attributes:
        written: The tensors that the step writes; one slot for each storage of slots.
        bounds: The sorted memory ranges that the step writes; see `layout.merge_byte_spans`.
        is_bound: True if the tables have the addresses of a step's gradients.
    """

    is_single = True

    def __init__(
        self, request: StepRequest, make_group: Callable[[StepRequest, list[int]], Group]
    ) -> None:
        self.rule, self.stages = request.rule, request.stages
        self.variables = variables = list(request.variables)
        self.slots = [list(var_slots) for var_slots in request.slots]
        self.copies = list(request.copies or [None] * len(variables))
        self._grad_dtypes = [grad.dtype for grad in request.gradients]
        self._devices = list(map(Tensor.get_device, variables))
        self._copy_tensors = [copy for copy in self.copies if copy is not None]
        aliases = self._hold_tensors(request)
        self.groups = [make_group(aliases, members) for members in _group_by_signature(aliases)]
        dtypes = [layout.compute_dtype(var.dtype) for var in aliases.variables]
        self.dtypes = tuple(dict.fromkeys(dtypes))
        self._contiguous = all(map(Tensor.is_contiguous, aliases.variables))
        self._make_group, self._request = make_group, aliases._replace(gradients=())
        # Of variables and copies.
        self._metadata_guard = MetadataGuard()
        self._gradient_guard = MetadataGuard()
        update: Any = request.rule.update
        marked_tensors = [] if isinstance(update, Composed) and update.is_pass else self.written
        self.mark_written = partial(torch._C._increment_version, marked_tensors)  # pyright: ignore[reportPrivateUsage]
        # Gradients whose addresses are in the tables, and the last ones that passed all checks.
        self._gradients: Sequence[Any] = ()
        self._gradient_storages: Sequence[UntypedStorage] = ()
        self._gradient_starts: Sequence[int] = ()
        self._ids: list[int] = []
        self._gradient_addresses = np.empty(0, np.int64)
        self._checked_bounds = self.bounds
        sizes = zip(aliases.variables, self._grad_dtypes, strict=True)
        self._bytes = np.array([var.numel() * dtype.itemsize for var, dtype in sizes], np.int64)
        self.is_bound = False
        self.point_at(aliases.gradients)

    def _hold_tensors(self, request: StepRequest) -> StepRequest:
        """Record addresses and layouts of all tensors; return the request with detached tensors.

        Raises:
            LayoutError: Another thread has replaced a tensor since validation.
        """
        all_slots = list(chain.from_iterable(request.slots))
        # Before aliases are made: an assignment by another thread counts itself last.
        self._storage_guard = StorageGuard(all_slots)
        aliases = hold_memory(request)
        copies = [copy for copy in aliases.copies or () if copy is not None]
        all_aliases = list(chain.from_iterable(aliases.slots))
        self._storage_guard.record_memory(all_aliases)
        indices = _select_one_per_storage(all_aliases)
        written_slots = [all_slots[index] for index in indices]
        self.written = [*self.variables, *written_slots, *self._copy_tensors]
        written_slots = [all_aliases[index] for index in indices]
        self._held_tensors = [*aliases.variables, *written_slots, *copies]
        self._pointers = list(map(Tensor.data_ptr, self._held_tensors))
        check_access(aliases)
        self._layouts = _read_layouts([*aliases.variables, *copies])
        count = len(self.variables)
        self._shapes, self._strides = (column[:count] for column in self._layouts[:2])
        self.bounds = layout.merge_byte_spans([*aliases.variables, *all_aliases, *copies])
        return aliases

    def tensor_addresses(self) -> list[tuple[Tensor, int]]:
        """Return (tensor, address in the tables) of all variables, slots and copies."""
        pairs = list(zip(self.written, self._pointers, strict=True))
        return pairs + self._storage_guard.slot_addresses()

    def try_rebind(self, request: StepRequest, bounds: Int64 | None = None) -> bool:
        """Bind the plan to the gradients of a request; return True on success.

        Slots and names of the request are ignored. Return False if anything else differs from the
        plan, if memory has moved, or if a gradient must first be validated or copied.

        Args:
            bounds: Optional. Address ranges, from `merge_byte_spans`, that gradients must not
                overlap; by default `self.bounds`.
        """
        if not self._has_options_of(request):
            return False
        # Without this, each attribute of a `Variable` goes through `__torch_function__`.
        with DisableTorchFunctionSubclass():
            return self._is_unmoved(request.variables) and self._bind(request.gradients, bounds)

    def serves(self, request: StepRequest) -> bool:
        """Return True if the plan can execute a request, after `point_at(request.gradients)`.

        The rule, options, variables and slots must be the plan's. Gradients must have the dtypes
        and shapes that the plan's gradients had.
        """
        return (
            self._has_options_of(request)
            and [grad.dtype for grad in request.gradients] == self._grad_dtypes
            and [grad.size() for grad in request.gradients] == self._shapes
            and self._is_unmoved(request.variables)
            and all(all(map(is_, a, b)) for a, b in zip(request.slots, self.slots, strict=True))
            and len(request.vectors) == len(self._request.vectors)
            and all(map(is_, request.vectors, self._request.vectors))
        )

    def _has_options_of(self, request: StepRequest) -> bool:
        """Return True if rule, stages, selection, `places` and copies are those of the plan."""
        copies = request.copies
        if copies is None:
            has_copies = not self._copy_tensors
        else:
            has_copies = len(copies) == len(self.copies) and all(map(is_, copies, self.copies))
            has_copies = has_copies and request.from_copies == self._request.from_copies
        return (
            has_copies
            and request.rule is self.rule
            and request.stages == self.stages
            and request.selection == self._request.selection
            and list(request.places) == list(self._request.places)
        )

    def _is_unmoved(self, variables: Sequence[Tensor]) -> bool:
        """Return True if `variables` are the plan's, in unchanged memory and layout."""
        if len(variables) != len(self.variables) or not all(map(is_, variables, self.variables)):
            return False
        try:
            if list(map(Tensor.data_ptr, self.written)) != self._pointers:
                return False
            if not self._storage_guard.confirm_places():
                return False
        except RuntimeError:
            return False
        # An assignment to `.data` can keep the address and change shape, strides or dtype.
        tensors = [*self.variables, *self._copy_tensors]
        if not self._metadata_guard.holds(tensors):
            if _read_layouts(tensors) != self._layouts:
                return False
            self._metadata_guard = MetadataGuard(tensors)
        return True

    def _bind(self, gradients: Sequence[Any], bounds: Int64 | None) -> bool:
        """Bind gradients; return False if a gradient must first be validated or copied.

        Addresses that have changed since the last call are written to the tables of the groups.
        """
        try:
            if not self._gradient_guard.holds(gradients):
                if not self._has_planned_gradients(gradients):
                    return False
                self._gradient_guard = MetadataGuard(gradients)
            # Held before addresses are read, since another thread may replace a gradient's memory.
            storages = list(map(Tensor.untyped_storage, gradients))
            addresses = read_addresses(gradients)
            bounds = self.bounds if bounds is None else bounds
            starts = list(map(UntypedStorage.data_ptr, storages))
            if not are_in_storages(addresses, self._bytes, storages, starts).all():
                return False
            if not self._points_at(gradients, addresses, bounds):
                # Until all tables are written: an interrupted call must not count as done.
                self._ids = []
                for group in self.groups:
                    group_addresses = (
                        addresses if group.has_all_variables else addresses[group.members]
                    )
                    # A gradient inside memory that the step writes has to be copied.
                    if not layout.lie_apart(group_addresses, group.bytes, bounds):
                        return False
                    group.point_at(group_addresses)
                self._ids, self._gradient_addresses = _ids(gradients), addresses
                self._checked_bounds = bounds
        except RuntimeError:
            return False
        self._gradients, self.is_bound = gradients, True
        self._gradient_storages, self._gradient_starts = storages, starts
        return True

    def _points_at(self, gradients: Sequence[Any], addresses: Int64, bounds: Int64) -> bool:
        """Return True if gradients, addresses and bounds are unchanged since the last `_bind`.

        Gradients and bounds are compared by identity.
        """
        return (
            self._checked_bounds is bounds
            and self._ids == _ids(gradients)
            and bool((addresses == self._gradient_addresses).all())
        )

    def _has_planned_gradients(self, gradients: Sequence[Any]) -> bool:
        """Return True if gradients are plain tensors of the planned shapes, dtypes and strides."""
        if (
            set(map(type, gradients)) != {Tensor}
            or not all(map(eq, map(Tensor.size, gradients), self._shapes))
            or [grad.dtype for grad in gradients] != self._grad_dtypes
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
        """Bind gradients of the planned layout: write their addresses to the tables of the groups.

        Args:
            gradients: Detached tensors that only the caller has.

        Raises:
            LayoutError: A gradient has lost its memory.
        """
        self._ids = []
        storages = list(map(Tensor.untyped_storage, gradients))
        addresses, starts = read_addresses(gradients), list(map(UntypedStorage.data_ptr, storages))
        is_inside = are_in_storages(addresses, self._bytes, storages, starts)
        if not is_inside.all():
            raise moved_error(self._request.titles, int(is_inside.argmin()))
        for group in self.groups:
            group.point_at(addresses[group.members])
        self._gradient_addresses = addresses
        self._gradient_storages, self._gradient_starts = storages, starts
        self._gradients, self.is_bound = gradients, True

    @property
    def device(self) -> torch.device | None:
        """Device of sums and peaks; None unless all variables are on one device."""
        return self._common_device

    @lazy
    def _common_device(self) -> torch.device | None:
        return self.groups[0].device if self.groups and len(set(self._devices)) == 1 else None

    def reduce(self, reduction: Reduction, columns: Columns) -> Results:
        """Return the results of a reduction for all variables; see `Reductions`.

        Sums and peaks are a tensor on `device`, or an array if `device` is None. Variables without
        elements have sums and peaks of 0, and no leaves or measures.

        Raises:
            LayoutError: The memory of a variable, a slot, a copy or a gradient was freed.
        """
        drain(calls(self.memory_checks()))
        groups = self.groups
        if reduction.kind in ("sums", "leaves"):
            groups = self._as_row_major(groups, reduction.formulas)
        results = [group.reduce(reduction, columns) for group in groups]
        if self.device is None or reduction.kind in ("leaves", "measures"):
            members = (group.members for group in groups)
            return reduction.gather(len(self.variables), zip(members, results, strict=True))
        if groups[0].has_all_variables:
            return results[0]
        # Variables without elements are in no group.
        tensors = cast("list[Tensor]", results)
        values = tensors[0].new_zeros(len(self.variables), *tensors[0].shape[1:])
        for group, group_values in zip(groups, tensors, strict=True):
            values.index_copy_(0, group.positions, group_values)
        return values

    @lazy
    def measures_in_place(self) -> bool:
        """Return True if groups measure elements in row-major order without copies."""
        return self._contiguous or all(group.measures_in_place for group in self.groups)

    @lazy
    def _row_major_groups(self) -> RowMajorGroups:
        """Return groups over row-major copies of the tensors that measures read."""
        with importing:
            from thalweg._engines.row_major import RowMajorGroups
        return RowMajorGroups(self._request, self._make_group)

    def _as_row_major(self, groups: Sequence[Group], formulas: Formulas) -> Sequence[Group]:
        """Return the groups, or groups over row-major copies of tensors that `formulas` read."""
        if self.measures_in_place:
            return groups
        gradients = list(map(Tensor.detach, self._gradients))
        are_moved = read_addresses(gradients) != self._gradient_addresses
        if are_moved.any():
            raise moved_error(self._request.titles, int(are_moved.argmax()))
        return self._row_major_groups.refresh(groups, gradients, formulas)

    def memory_checks(self) -> list[Call]:
        """Return [function to call once; it raises LayoutError if memory has been freed]."""
        present = chain(
            map(Tensor.data_ptr, self._held_tensors),
            map(UntypedStorage.data_ptr, self._gradient_storages),
        )
        addresses = [*self._pointers, *self._gradient_starts]
        request = self._request
        others = zip(request.variables, self._gradients, self.copies, strict=False)
        # The iterators serve one call.
        fail = partial(raise_cut, request.titles, map(chain, others, request.slots))
        return [check_call(present, addresses, fail)]

    def make_calls(self, columns: Columns) -> list[Call]:
        """Return functions without arguments that write all variables, slots and copies."""
        calls = [call for group in self.groups for call in group.make_calls(columns)]
        return [*calls, self.mark_written]

    def make_rounds(self, columns: Columns) -> Iterator[WriteRound]:
        yield WriteRound(range(len(self.variables)), self.make_calls(columns), self.memory_checks())

    def release_gradients(self) -> None:
        self._gradients, self.is_bound = (), False
        self._gradient_storages, self._gradient_starts = (), ()
