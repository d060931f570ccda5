"""Variables with equal dtypes on one GPU: one kernel, one table of addresses and one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.lazy import lazy
from thalweg._base.locks import importing
from thalweg._engines.array_types import Array, Int64, enumerate_runs
from thalweg._engines.codegen import distinct_formulas, find_codecs
from thalweg._engines.cuda import launch
from thalweg._engines.cuda.codegen import CHUNK, WIDTH
from thalweg._engines.cuda.host_device_mirror import Mirror, Rows, send_constant
from thalweg._engines.cuda.tree_reduction import LaunchedTree
from thalweg._engines.kernel_streams import streams_of
from thalweg._engines.protocol import (
    Call,
    Columns,
    Formulas,
    Reduction,
    Results,
    Stages,
    StepRequest,
)
from thalweg._engines.random_bits import GROUP, UNCOUNTED
from thalweg._engines.reduction_order import LEAF, leaf_counts

if TYPE_CHECKING:
    from thalweg._engines.cuda.row_column_reductions import Lines


class Group:
    """Group of variables that one kernel updates; see `thalweg._engines.dense_plan.Group`.

    Args:
        members: The indices in the step of the group's variables.
    """

    measures_in_place = False

    def __init__(self, request: StepRequest, members: list[int]) -> None:
        kernel_streams = streams_of(request, members)
        self._names, self.dtype = kernel_streams.names, kernel_streams.compute
        self._memory = kernel_streams.describe_memory(kernel_streams.names)
        self._flush = request.selection.denormals == "flush"
        update = kernel_streams.describe_update(request)
        self._kinds = update.vectors
        is_fast = request.selection.math == "fast"
        self.kernel = launch.update_kernel(update, self.dtype, self._flush, is_fast)
        self.members = members
        self.has_all_variables = len(members) == len(request.variables)
        self._sizes, self.bytes = kernel_streams.sizes, kernel_streams.bytes
        self.device = device = request.variables[members[0]].device
        n_streams = len(kernel_streams.names)
        base = np.ascontiguousarray(kernel_streams.base[:, :n_streams])
        self._base = Mirror(base, device)
        self._table: Tensor | None = None  # addresses on the device, once this step has sent them
        codecs = find_codecs(kernel_streams.names)
        # Records of codes are never read by wide loads.
        singles = [k for k in range(n_streams) if k not in codecs or codecs[k].is_beside]
        self._is_aligned = bool((base[:, singles] % WIDTH == 0).all())
        # The kernel's arguments after tables and scalars.
        self._extra_arguments: tuple[Tensor, ...] = ()
        # True if the chunks of all variables begin at groups of random bits.
        self._is_grouped = True
        if kernel_streams.positions:
            origins = kernel_streams.base[:, n_streams:]
            self._extra_arguments = (send_constant(origins, np.int64, device),)
            self._is_grouped = not (origins[:, 1] % GROUP).any()
        self._shapes = [request.variables[index].shape for index in members]
        self._vectors = [request.vectors[index] for index in members] if request.vectors else []
        if self.kernel.vectors:
            self._extra_arguments += (self.lines.table_of(self.kernel.vectors),)
        self._chunks = send_constant(chunks_of(kernel_streams.sizes, CHUNK), np.int32, device)
        self._sizes_on_device = send_constant(kernel_streams.sizes, np.int64, device)
        self._one_row = send_constant(np.zeros(len(members)), np.int64, device)
        self._rows: dict[launch.Compiled, Rows] = {}
        self._bound: launch.Bound | None = None
        self._bound_to: tuple[Sequence[Any], bool] = (), False

    @lazy
    def _leaves(self) -> _Leaves:
        return _Leaves(self._sizes, self.device)

    @lazy
    def lines(self) -> Lines:
        """Return the row and column tables of the members."""
        with importing:
            from thalweg._engines.cuda.row_column_reductions import Lines
        return Lines(self._shapes, self._vectors, self.device)

    @property
    def positions(self) -> Tensor:
        """Return the indices of the members as a tensor on their device."""
        return self._member_positions

    @lazy
    def _member_positions(self) -> Tensor:
        return send_constant(self.members, np.int64, self.device)

    @lazy
    def _own_rows(self) -> Tensor:
        return send_constant(np.arange(len(self.members)), np.int64, self.device)

    @lazy
    def _written_sizes(self) -> Tensor:
        return torch.empty_like(self._sizes_on_device)

    def point_at(self, addresses: Int64) -> None:
        self._base.host[:, 1] = addresses
        self._base.mark_changed()
        self._table = None

    def _send_addresses(self) -> Tensor:
        if self._table is None:
            self._table = self._base.send_if_changed()
        return self._table

    def _send_scalars(self, kernel: launch.Compiled, columns: Columns) -> tuple[Tensor, Tensor]:
        """Send changed scalars to the device; return (row index of each variable, rows of scalars).

        If no scalar of the kernel differs between variables, there is one row.
        """
        shared, by_variable = columns.shared.get(self.dtype, {}), columns.by_variable
        shared = {**UNCOUNTED, **shared}
        is_shared = by_variable.keys().isdisjoint(kernel.scalars)
        values: dict[str, Any] = {}
        for name in kernel.scalars:
            value = by_variable.get(name)
            if isinstance(value, Tensor):
                values[name] = value if self.has_all_variables else value[self._member_positions]
            else:
                values[name] = shared[name] if value is None else value[self.members]
        n_rows = 1 if is_shared else len(self.members)
        device_rows = self._rows.get(kernel)
        if device_rows is None or device_rows.count != n_rows:
            device_rows = self._rows[kernel] = Rows(n_rows, kernel, self.device)
        return self._one_row if is_shared else self._own_rows, device_rows.send_if_changed(values)

    def _select_sizes(self, columns: Columns) -> Tensor:
        """Return the sizes of variables on the device; all 0 if `apply_flag` skips the step."""
        # Kernels write nothing for sizes of 0, and the host does not wait for the flag.
        if columns.apply_flag is None:
            return self._sizes_on_device
        return torch.mul(self._sizes_on_device, columns.apply_flag, out=self._written_sizes)

    def _all_aligned(self) -> bool:
        """Return True if all variables, slots and gradients begin at multiples of 16 bytes."""
        return self._is_aligned and not (self._base.host[:, 1] % WIDTH).any()

    def make_calls(self, columns: Columns) -> list[Call]:
        """Send changed addresses and scalars; return functions that launch the kernel."""
        rows, scalars = self._send_scalars(self.kernel, columns)
        aligned = self._is_grouped and self._all_aligned()
        base, self._table = self._send_addresses(), None
        arguments = (
            base,
            self._chunks,
            self._select_sizes(columns),
            rows,
            scalars,
            *self._extra_arguments,
        )
        bound_arguments, was_aligned = self._bound_to
        # Tables are new tensors while a CUDA graph is captured, and mostly the old ones otherwise.
        can_reuse_binding = aligned == was_aligned and all(map(is_, arguments, bound_arguments))
        if self._bound is None or not can_reuse_binding:
            self._bound = self.kernel.bind_to((len(self._chunks), 1), arguments, aligned)
            self._bound_to = arguments, aligned
        return self._bound.make_calls()

    def reduce(self, reduction: Reduction, columns: Columns) -> Results:
        """Return a reduction for each member; sums and peaks stay on the device."""
        if reduction.kind == "peaks":
            return self._reduce_peaks(reduction.is_checked)
        if reduction.kind == "measures":
            return self._reduce_lines(reduction, columns)
        leaves = self._reduce_leaves(reduction.formulas, reduction.stages, columns)
        if reduction.kind == "sums":
            return self._leaves.tree.combine(leaves)
        return np.split(leaves.cpu().numpy(), np.cumsum(self._leaves.counts)[:-1])

    def _reduce_leaves(self, formulas: Formulas, stages: Stages, columns: Columns) -> Tensor:
        """Return the float64 sums of formulas over leaves, (leaves, formulas)."""
        flush = self._flush and bool(stages)
        measurement = replace(self._memory, formulas=tuple(formulas), stages=stages)
        kernel = launch.sum_kernel(measurement, flush)
        rows, scalars = self._send_scalars(kernel, columns)
        leaves = torch.empty(
            (len(self._leaves.chunks), kernel.measures), dtype=torch.float64, device=self.device
        )
        arguments = (
            self._send_addresses(),
            self._leaves.chunks,
            self._sizes_on_device,
            rows,
            scalars,
            leaves,
            LEAF,
        )
        kernel.bind_to((len(leaves), 1), arguments, self._all_aligned()).run()
        return leaves

    def _reduce_lines(self, reduction: Reduction, columns: Columns) -> list[list[Tensor]]:
        """Return a list for each member, with a tensor for each measure."""
        measures, stages = reduction.formulas, reduction.stages
        flush = self._flush and bool(stages)
        formulas = distinct_formulas(measures)
        measurement = replace(self._memory, formulas=formulas, stages=stages, vectors=self._kinds)
        kernel_for = partial(launch.lines_kernel, measures, measurement, flush)
        kernels = self.lines.kernels(kernel_for)
        scalars, base = self._send_scalars(kernels[0], columns), self._send_addresses()
        return self.lines.measure(kernels, measures, base, scalars, flush)

    def _reduce_peaks(self, is_checked: Tensor | None) -> Tensor:
        """Return each variable's largest gradient magnitude; all 0 if `is_checked` is False."""
        sizes = self._sizes_on_device
        sizes = sizes if is_checked is None else sizes * is_checked
        storage = self._names[1]
        peaks = torch.zeros(len(self._leaves.chunks), dtype=torch.int64, device=self.device)
        n_streams = len(self._names)
        arguments = (self._send_addresses(), self._leaves.chunks, sizes, peaks, peaks, n_streams)
        launch.peak_kernel(storage).bind_to((len(peaks), 1), arguments, self._all_aligned()).run()
        return self._leaves.largest_of(peaks, storage)


class _Leaves:
    """Leaves (65,536 elements each) of a group's variables, in the order of `launch.sum_kernel`."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self.counts = leaf_counts(sizes)
        self.chunks = send_constant(chunks_of(sizes, LEAF), np.int32, device)
        self.tree = LaunchedTree(self.counts, device)
        self._members = len(sizes)

    def largest_of(self, bits: Tensor, dtype_name: str) -> Tensor:
        """Return each variable's largest magnitude, as float64.

        Args:
            bits: (leaves,) int64: the bits of each leaf's largest magnitude.
            dtype_name: The dtype of the magnitudes.
        """
        peaks = torch.zeros(self._members, dtype=torch.int64, device=bits.device)
        # As integers, bits are ordered like magnitudes, and NaN is above infinity.
        peaks.scatter_reduce_(0, self.chunks[:, 0].long(), bits, "amax")
        dtype: torch.dtype = getattr(torch, dtype_name)
        integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        return peaks.to(integer).view(dtype).double()


def chunks_of(sizes: Sequence[int], chunk: int) -> Array:
    """Return an array (chunks, 2) with (index of the tensor, index in the tensor) of each chunk."""
    counts = -(-np.asarray(sizes, np.int64) // chunk)
    return np.stack(enumerate_runs(counts), axis=1)
