"""Variables of one storage signature on one GPU: one kernel, one table, one launch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.lazy import lazy
from thalweg._base.locks import importing
from thalweg._engines.array_types import Array, Float64, Int64, numbered
from thalweg._engines.cuda import launch
from thalweg._engines.cuda.codegen import CHUNK, SIZES, WIDTH
from thalweg._engines.cuda.device_scalars import Rows
from thalweg._engines.cuda.host_device_mirror import Mirror, send_constant
from thalweg._engines.cuda.tree_reduction import LaunchedTree
from thalweg._engines.kernel_streams import streams_of
from thalweg._engines.protocol import Call, Columns, Formulas, Stages, StepRequest
from thalweg._engines.random_bits import GROUP, UNCOUNTED
from thalweg._engines.reduction_order import LEAF, leaf_counts

if TYPE_CHECKING:
    from thalweg._base.rule_passes import Measure
    from thalweg._engines.cuda.row_column_reductions import Lines


class Group:
    """See `thalweg._engines.dense_plan.Group`.

    Args:
        asked: The step.
        members: Positions of these variables in it.
    """

    measures_in_place = False

    def __init__(self, asked: StepRequest, members: list[int]) -> None:
        own = streams_of(asked, members)
        self._names, self._from_copy = own.names, own.from_copy
        self._measurable = len(own.names) - own.copied
        self.dtype = own.compute
        self._flush = asked.selection.denormals == "flush"
        self._kinds = tuple(getattr(asked.rule.update, "vectors", {}).items())
        self.kernel = launch.update_kernel(
            asked.rule.update,
            asked.stages,
            self._names,
            self.dtype,
            self._flush,
            copy=own.copied,
            before=asked.rule.before,
            fast=asked.selection.math == "fast",
            from_copy=own.from_copy,
            draws=own.draws,
            vectors=self._kinds,
        )
        self.members = members
        self.has_all_variables = len(members) == len(asked.variables)
        self._sizes, self.bytes = own.sizes, own.bytes
        self._device = device = asked.variables[members[0]].device
        streams = len(own.names)
        base = np.ascontiguousarray(own.base[:, :streams])
        self._base = Mirror(base, device)
        self._table: Tensor | None = None  # of this step, once it has been asked for
        self._is_aligned = bool((base[:, _are_elements(own.names)] % WIDTH == 0).all())
        # What the kernel is given beside tables and scalars, and whether chunks begin at eights.
        self._beside: tuple[Tensor, ...] = ()
        self._is_grouped = True
        if own.draws:
            places = own.base[:, streams:]
            self._beside = (send_constant(places, np.int64, device),)
            self._is_grouped = not (places[:, 1] % GROUP).any()
        self._shapes = [asked.variables[i].shape for i in members]
        self._vectors = [asked.vectors[i] for i in members] if asked.vectors else []
        if self.kernel.vectors:
            self._beside += (self.lines.table_of(self.kernel.vectors),)
        self._chunks = send_constant(chunks_of(own.sizes, CHUNK), np.int32, device)
        self._there = send_constant(own.sizes, np.int64, device)
        self._one_row = send_constant(np.zeros(len(members)), np.int64, device)
        self._rows: dict[launch.Compiled, Rows] = {}
        self._bound: launch.Bound | None = None
        self._bound_to: tuple[Sequence[Any], bool] = (), False

    @lazy
    def _leaves(self) -> _Leaves:
        return _Leaves(self._sizes, self._device)

    @lazy
    def lines(self) -> Lines:
        """Rows and columns of the members."""
        with importing:
            from thalweg._engines.cuda.row_column_reductions import Lines
        return Lines(self._shapes, self._vectors, self._device)

    @lazy
    def _member_places(self) -> Tensor:
        return send_constant(self.members, np.int64, self._device)

    def positions(self) -> Tensor:
        """See `thalweg._engines.dense_plan.Group`."""
        return self._member_places

    @lazy
    def _own_rows(self) -> Tensor:
        return send_constant(np.arange(len(self.members)), np.int64, self._device)

    @lazy
    def _sizes_if_taken(self) -> Tensor:
        return torch.empty_like(self._there)

    def point_at(self, addresses: Int64) -> None:
        """See `thalweg._engines.dense_plan.Group`."""
        self._base.host[:, 1] = addresses
        self._base.mark_changed()
        self._table = None

    def _send_addresses(self) -> Tensor:
        if self._table is None:
            self._table = self._base.send_if_changed()
        return self._table

    def _send_scalars(self, kernel: launch.Compiled, columns: Columns) -> tuple[Tensor, Tensor]:
        """Which row of scalars each variable reads, and the rows, which are sent."""
        shared, separate = columns.shared.get(self.dtype, {}), columns.separate
        shared = {**UNCOUNTED, **shared}
        is_shared = separate.keys().isdisjoint(kernel.scalars)
        known: dict[str, Any] = {}
        for name in kernel.scalars:
            value = separate.get(name)
            if isinstance(value, Tensor):
                known[name] = value if self.has_all_variables else value[self._member_places]
            else:
                known[name] = shared[name] if value is None else value[self.members]
        rows = 1 if is_shared else len(self.members)
        own = self._rows.get(kernel)
        if own is None or own.count != rows:
            own = self._rows[kernel] = Rows(rows, kernel, self._device)
        return self._one_row if is_shared else self._own_rows, own.send_if_changed(known)

    def _sizes_of(self, columns: Columns) -> Tensor:
        """The sizes; none of what is not written has any elements."""
        if columns.apply_flag is None:
            return self._there
        return torch.mul(self._there, columns.apply_flag, out=self._sizes_if_taken)

    def _all_aligned(self) -> bool:
        return self._is_aligned and not (self._base.host[:, 1] % WIDTH).any()

    def make_calls(self, columns: Columns) -> list[Call]:
        """See `thalweg._engines.dense_plan.Group`."""
        rows, scalars = self._send_scalars(self.kernel, columns)
        aligned = self._is_grouped and self._all_aligned()
        base, self._table = self._send_addresses(), None
        arguments = (base, self._chunks, self._sizes_of(columns), rows, scalars, *self._beside)
        before, was_aligned = self._bound_to
        is_same = aligned == was_aligned and all(map(is_, arguments, before))
        if self._bound is None or not is_same:
            self._bound = self.kernel.bind_to((len(self._chunks), 1), arguments, aligned)
            self._bound_to = arguments, aligned
        return self._bound.make_calls()

    def sums_on_device(self, formulas: Formulas, stages: Stages, columns: Columns) -> Tensor:
        """See `thalweg._engines.dense_plan.Group`."""
        return self._leaves.combine(self._measure_leaves(formulas, stages, columns))

    def compute_sums(self, formulas: Formulas, stages: Stages, columns: Columns) -> Float64:
        """See `thalweg._engines.dense_plan.Group`."""
        return self.sums_on_device(formulas, stages, columns).cpu().numpy()

    def compute_leaves(self, formulas: Formulas, stages: Stages, columns: Columns) -> list[Float64]:
        """See `thalweg._engines.dense_plan.Group`."""
        found = self._measure_leaves(formulas, stages, columns).cpu().numpy()
        return np.split(found, np.cumsum(self._leaves.counts)[:-1])

    def _measure_leaves(self, formulas: Formulas, stages: Stages, columns: Columns) -> Tensor:
        flush = self._flush and bool(stages)
        kernel = launch.sum_kernel(
            formulas, stages, self._names, self._measurable, self.dtype, flush, self._from_copy
        )
        rows, there = self._send_scalars(kernel, columns)
        found = torch.empty(
            (len(self._leaves.chunks), kernel.measures), dtype=torch.float64, device=self._device
        )
        arguments = (
            self._send_addresses(),
            self._leaves.chunks,
            self._there,
            rows,
            there,
            found,
            LEAF,
        )
        kernel.bind_to((len(found), 1), arguments, self._all_aligned()).run()
        return found

    def compute_lines(
        self, measures: tuple[Measure, ...], stages: Stages, columns: Columns
    ) -> list[list[Tensor]]:
        """See `thalweg._engines.dense_plan.Group`."""
        flush = self._flush and bool(stages)
        kernel_for = partial(
            launch.lines_kernel,
            measures,
            stages,
            self._names,
            self._measurable,
            self.dtype,
            self._kinds,
            flush,
            self._from_copy,
        )
        kernels = self.lines.kernels(kernel_for)
        rows, scalars = self._send_scalars(kernels[0], columns)
        base = self._send_addresses()
        return self.lines.measure(kernels, measures, base, rows, scalars, flush)

    def max_abs(self) -> Float64:
        """See `thalweg._engines.dense_plan.Group`."""
        return self._measure_peaks(self._there).cpu().numpy()

    def max_abs_on_device(self, is_checked: Tensor) -> Tensor:
        """See `thalweg._engines.dense_plan.Group`."""
        return self._measure_peaks(self._there * is_checked)

    def _measure_peaks(self, sizes: Tensor) -> Tensor:
        kind = self._names[1]
        found = torch.zeros(len(self._leaves.chunks), dtype=torch.int64, device=self._device)
        streams = len(self._names)
        arguments = (self._send_addresses(), self._leaves.chunks, sizes, found, found, streams)
        launch.peak_kernel(kind).bind_to((len(found), 1), arguments, self._all_aligned()).run()
        return self._leaves.largest_of(found, kind)


def _are_elements(names: Sequence[str]) -> list[bool]:
    """Which streams have elements, one after the other; others have records."""
    if SIZES.keys() >= {*names}:
        return [True] * len(names)
    with importing:
        from thalweg._engines.codecs import CODECS
    return [name in SIZES or CODECS[name].is_beside for name in names]


class _Leaves:
    """The leaves of a group's gradients, in the order of `sum_kernel`."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self.counts = leaf_counts(sizes)
        self.chunks = send_constant(chunks_of(sizes, LEAF), np.int32, device)
        self._tree = LaunchedTree(self.counts, device)
        self._members = len(sizes)

    def combine(self, leaves: Tensor) -> Tensor:
        """One number for each tensor and measure."""
        return self._tree.combine(leaves)

    def largest_of(self, bits: Tensor, kind: str) -> Tensor:
        """The largest magnitude of each tensor, of those of its leaves."""
        found = torch.zeros(self._members, dtype=torch.int64, device=bits.device)
        found.scatter_reduce_(0, self.chunks[:, 0].long(), bits, "amax")
        dtype: torch.dtype = getattr(torch, kind)
        integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        return found.to(integer).view(dtype).double()


def chunks_of(sizes: Sequence[int], chunk: int) -> Array:
    """Tensor and number of each chunk of so many elements: (n, 2)."""
    counts = -(-np.asarray(sizes, np.int64) // chunk)
    return np.stack(numbered(counts), axis=1)
