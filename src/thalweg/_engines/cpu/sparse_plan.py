"""Base class of the plans of one variable with sparse gradients, for all engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass

from thalweg._base.context_managers import calls, drain
from thalweg._engines import layout
from thalweg._engines.array_types import Int64
from thalweg._engines.codegen import Update
from thalweg._engines.cpu.reductions import max_abs, sums_of
from thalweg._engines.held_memory import check_access, check_call, hold_memory, raise_cut
from thalweg._engines.low_precision_copies import resumed
from thalweg._engines.protocol import (
    Call,
    Columns,
    Reduction,
    Results,
    StepRequest,
    select_row_formula,
)
from thalweg.formula import variable_squares
from thalweg.indexed_slices import IndexedSlices

_INDICES = (torch.int64, torch.int32)


def values_and_indices(grad: Any) -> tuple[Tensor, Tensor] | None:
    """Return values and indices of `IndexedSlices` or a torch sparse tensor; None for others."""
    if type(grad) is IndexedSlices:
        return grad.values, grad.indices
    if type(grad) is Tensor and grad.layout is torch.sparse_coo and grad.sparse_dim() == 1:
        return grad._values(), grad._indices()[0]
    return None


def from_zero(grad: Any) -> Any:
    """Return the gradient added to zero, as in TensorFlow's sums of rows: -0 becomes +0."""
    return grad + 0


class RowsPlan(ABC):
    """Plan that updates one variable by sparse gradients; a `Part` of a step.

    Each step calls `try_rebind` or `point_at`, then `make_calls`. The plan keeps the tensors that
    it writes alive.

    Args:
        request: The step, of a contiguous variable whose gradient is `IndexedSlices`.

    Attributes:
        written: [variable, *slots], followed by the low-precision copy if there is one.
        var: An alias of the variable, whose memory other threads cannot replace.
    """

    def __init__(self, request: StepRequest) -> None:
        aliases = hold_memory(request)
        (var,), (slots,), (grad,) = aliases.variables, aliases.slots, aliases.gradients
        self._request = aliases._replace(gradients=())
        self.rule = request.rule
        self.var = var
        self.slots = list(request.slots[0])
        self._copy = copy = request.copies[0] if request.copies else None
        self._copy_alias = aliases.copies[0] if aliases.copies else None
        self._from_copy = copy is not None and request.from_copies
        self._flush = request.selection.denormals == "flush"
        self.compute = layout.compute_dtype(var.dtype)
        self._kind = grad.dtype
        self.written = [request.variables[0], *self.slots, *([] if copy is None else [copy])]
        # The memory at the addresses of the kernels' tables.
        self._aliases = [var, *slots, *([] if self._copy_alias is None else [self._copy_alias])]
        self._device = var.get_device()
        self._shape = var.shape
        self._row_shape = var.shape[1:]
        self._width = var.numel() // var.shape[0] if var.shape[0] else 0
        self._pointers = list(map(Tensor.data_ptr, self._aliases))
        check_access(aliases)
        self._shapes = list(map(Tensor.size, self._aliases))
        self._dtypes = [tensor.dtype for tensor in self._aliases]
        self._values: Tensor | None = None
        self._values_address = 0
        self._mark = partial(torch._C._increment_version, self.written)  # pyright: ignore[reportPrivateUsage]

    def _describe_touched(self) -> Update:
        """Return the description of the update of rows that a gradient has entries for."""
        var_name, *other_names = self._storage_names()
        return Update(
            select_row_formula(self.rule, self.var),
            (var_name, layout.STORAGE_NAMES[self._kind], *other_names),
            (from_zero,) if self.rule.duplicates == "sum" else (),
            entries=self._request.stages,
            before=self.rule.before,
            copy=self._copy is not None,
            from_copy=self._from_copy,
        )

    def _describe_untouched(self) -> Update | None:
        """Return the description of the update of rows without entries, or None for no update."""
        if self.rule.update_untouched is None:
            return None
        return Update(
            self.rule.update_untouched,
            self._storage_names(),
            grad=False,
            copy=self._copy is not None,
            from_copy=self._from_copy,
        )

    def _storage_names(self) -> tuple[str, ...]:
        return tuple(layout.STORAGE_NAMES[dtype] for dtype in self._dtypes)

    def _has_same_memory(self) -> bool:
        """Return True if the written tensors have the addresses, shapes and dtypes of the plan."""
        try:
            return (
                list(map(Tensor.data_ptr, self.written)) == self._pointers
                and list(map(Tensor.size, self.written)) == self._shapes
                and [tensor.dtype for tensor in self.written] == self._dtypes
                and all(map(Tensor.is_contiguous, self.written))
            )
        except RuntimeError:
            return False

    def _matches_request(self, request: StepRequest) -> bool:
        """Return True if the plan serves a request, apart from its gradient and slots.

        Rule, variable and copy must be the plan's objects; stages and options must be equal. The
        written tensors must have the addresses, shapes and dtypes of the plan.
        """
        planned = self._request
        if (
            request.rule is not planned.rule
            or request.stages != planned.stages
            or request.variables[0] is not self.written[0]
            or request.selection != planned.selection
            or (request.copies[0] if request.copies else None) is not self._copy
            or request.from_copies != planned.from_copies
        ):
            return False
        # Without this, torch dispatches each attribute of a `Variable` to its override.
        with DisableTorchFunctionSubclass():
            return self._has_same_memory()

    def serves(self, request: StepRequest) -> bool:
        """Return True if the plan fits a request: slots, gradient dtype, and `_matches_request`."""
        (slots,) = request.slots
        return (
            request.gradients[0].dtype == self._kind
            and len(slots) == len(self.slots)
            and all(map(is_, slots, self.slots))
            and self._matches_request(request)
        )

    def try_rebind(self, request: StepRequest, bounds: Int64) -> bool:
        """Bind the plan to the gradient of a request; return True if this was possible.

        Return False if the request does not match the plan. Return False if the gradient is invalid
        or overlaps `bounds`. After False, the caller must validate the step.

        Args:
            bounds: The address ranges that the step writes, from `layout.merge_byte_spans`.
        """
        return self._matches_request(request) and self._bind_gradient(request.gradients[0], bounds)

    def _bind_gradient(self, grad: Any, bounds: Int64) -> bool:
        """Bind a gradient and return True; return False if it is invalid or overlaps `bounds`.

        `bounds` has address ranges, as in `try_rebind`.
        """
        try:
            values_with_indices = values_and_indices(grad) or ()
            if {*map(type, values_with_indices)} != {Tensor}:
                return False
            values, indices = map(Tensor.detach, values_with_indices)
            start = self._values_address = values.data_ptr()
            # `IndexedSlices` may have no shape.
            shape = grad.shape
            if (
                (shape is not None and shape != self._shape)
                or not len(indices)
                or not self._can_read(values, indices)
                or not self._is_readable(indices)
            ):
                return False
        # Tensors without memory, such as fake ones, have no address.
        except RuntimeError:
            return False
        return layout.lie_apart(start, values.nbytes, bounds) and self._take_entries(
            values, indices
        )

    def _can_read(self, values: Tensor, indices: Tensor) -> bool:
        """Return True if kernels can read `values`, a row for each index."""
        return (
            values.dtype is self._kind
            and indices.dtype in _INDICES
            and indices.dim() == 1
            and values.shape == indices.shape + self._row_shape
            and (not values.numel() or self._is_readable(values))
        )

    def _pack(self, slices: IndexedSlices) -> tuple[Tensor, Tensor]:
        """Return values and indices in memory that kernels can read; copied only if necessary.

        Raises:
            LayoutError: Another thread has replaced values or indices since the validation.
        """
        values, indices = layout.as_packed(slices.values), layout.as_packed(slices.indices)
        self._values_address = values.data_ptr()
        if not self._can_read(values, indices):
            raise_cut(self._request.titles, ())
        return values, indices

    def _is_readable(self, tensor: Tensor) -> bool:
        """Return True if kernels can read a tensor: on the plan's device, contiguous and aligned.

        A tensor with a lazy negation, or without memory, is not readable.
        """
        return (
            tensor.get_device() == self._device
            and tensor.is_contiguous()
            and not tensor.is_neg()
            and layout.is_aligned(tensor)
            and tensor.untyped_storage().nbytes()
            >= (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
            and (tensor.data_ptr() != 0)
        )

    @abstractmethod
    def _take_entries(self, values: Tensor, indices: Tensor) -> bool:
        """Bind valid entries; return False if an index is out of range, or there are too many."""

    @abstractmethod
    def point_at(self, slices: IndexedSlices) -> None:
        """Bind the plan to a gradient. Values and indices that kernels cannot read are copied.

        Raises:
            InvalidArgumentError: An index is out of range.
            LayoutError: See `_pack`.
        """

    @property
    def values(self) -> Tensor:
        """Return the values of the gradient in use; raise RuntimeError without one."""
        if self._values is None:
            raise RuntimeError("the plan is not aimed at a gradient")
        return self._values

    def reduce(self, reduction: Reduction, columns: Columns) -> Results:
        """Return a reduction over the bound gradient and the variable, on the host.

        Returns:
            For "peaks": the largest magnitude of the gradient's values, (1,). For "sums": (1,
            formulas); `variable_squares` is summed over the variable, other formulas over the
            values. For "leaves": [an array without rows].

        Raises:
            NotImplementedError: The kind is "measures".
            LayoutError: The memory of the variable or the gradient was replaced or freed.
        """
        drain(calls(self.memory_checks()))
        if reduction.kind == "peaks":
            return max_abs([self.values])
        if reduction.kind == "measures":
            raise NotImplementedError("rows of a sparse gradient are no rows of a matrix")
        if reduction.kind == "leaves":
            return [np.empty((0, len(reduction.formulas)))]
        var, copy = self.var, self._copy_alias
        if copy is not None and self._from_copy and variable_squares in reduction.formulas:
            var = resumed(var, copy)
        scalars = columns.scalars_of(0, self.compute)
        stage_args = reduction.stages, scalars, self.compute, self._flush
        sums = [
            sums_of(formula, [var])
            if formula is variable_squares
            else sums_of(formula, [self.values], *stage_args)
            for formula in reduction.formulas
        ]
        return np.stack(sums, axis=-1)

    @abstractmethod
    def make_calls(self, columns: Columns) -> list[Call]:
        """Return calls that update rows with entries; with `update_untouched`, also other rows."""

    def memory_checks(self) -> list[Call]:
        """Return `WriteRound.checks` of the plan and its gradient."""
        addresses = [*self._pointers, self._values_address]
        present = map(Tensor.data_ptr, [*self._aliases, self.values])
        return [check_call(present, addresses, partial(raise_cut, self._request.titles, ()))]

    def release_gradients(self) -> None:
        self._values = None
