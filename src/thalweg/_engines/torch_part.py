"""Parts of steps with dense gradients, computed by torch functions over batches of variables.

Devices without kernels use these parts. Small variables are joined into batches. An operation of a
formula is then one call of torch for all variables of a batch.
"""

# torch.from_numpy and parts of torch have no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._base.device_numbers import to_host, wide_dtype, widened
from thalweg._base.locks import importing
from thalweg._engines import layout
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.denormals import set_denormals
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.held_memory import hold_memory
from thalweg._engines.layout import compute_dtype
from thalweg._engines.low_precision_copies import resumed, saturated
from thalweg._engines.protocol import (
    Call,
    Columns,
    Reduction,
    Results,
    Scalars,
    Stages,
    StepRequest,
)
from thalweg._engines.random_bits import SCALARS
from thalweg._engines.reduction_order import LANES, LEAF, combine_leaves, fold_lanes, leaf_counts
from thalweg._engines.row_column_reductions import View, reduce_lines, view_of
from thalweg._engines.row_updates import find_changed
from thalweg._engines.torch_functions import torch_dtype, torch_evaluate, torch_transform
from thalweg.formula import Formula, is_like_update
from thalweg.indexed_slices import IndexedSlices, values_of
from thalweg.variable import REDUCED

if TYPE_CHECKING:
    from thalweg._base.rule_passes import Measure
    from thalweg._engines.codecs.codec import Codec

# Elements of a batch; larger variables are computed one by one.
_BATCH = 1 << 20
# Operations whose result may share memory with an argument.
_ALIASING = ("stream", "scalar", "narrow", "wide")


class Batch(NamedTuple):
    """Variables (members) of a part, joined into one tensor and computed together.

    Attributes:
        members: The indices of the variables in the part.
        codecs: None for the variable, then the codec or None of each slot.
        is_stacked: True if joined values have the shape (members, *shape of a variable). If False,
            joined values are one vector.
    """

    members: list[int]
    codecs: list[Codec | None]
    is_stacked: bool


class TorchPart:
    """Plan for distinct variables of one device with dense gradients; a `Part` of a step.

    New values are computed into new tensors. The returned calls copy them to the variables.
    """

    def __init__(self, request: StepRequest) -> None:
        self._rule, self._stages = request.rule, request.stages
        self._planned_request = request._replace(gradients=())
        # Aliases, whose memory other threads cannot replace.
        self._request = hold_memory(request)
        self._flush = request.selection.denormals == "flush"
        self._batches = list(_divide_into_batches(self._request))
        self._kinds = _describe_request(self._request)

    @property
    def written(self) -> list[Tensor]:
        request = self._planned_request
        copies = [copy for copy in request.copies or () if copy is not None]
        slots = [slot for var_slots in request.slots for slot in var_slots]
        return [*request.variables, *slots, *copies]

    def try_rebind(self, request: StepRequest, bounds: Int64) -> bool:
        """Replace the gradients; release them and return False if anything else differs.

        `bounds` is not used: gradients may overlap with variables, which are written last.
        """
        self.release_gradients()
        planned_request = self._planned_request
        can_rebind = (
            request.rule is planned_request.rule
            and request.stages == planned_request.stages
            and request.selection == planned_request.selection
            and list(request.places) == list(planned_request.places)
            and request.from_copies == planned_request.from_copies
            and _are_same(request.copies or (), planned_request.copies or ())
            and _are_same(request.variables, planned_request.variables)
            and _describe_request(request) == self._kinds
        )
        if can_rebind:
            self._request = hold_memory(planned_request._replace(gradients=request.gradients))
        return can_rebind

    def release_gradients(self) -> None:
        self._request = self._request._replace(gradients=())

    def _read_gradient(self, member: int) -> Tensor:
        """Return a contiguous gradient; for a sparse gradient its values, with duplicates."""
        if not self._request.gradients:
            raise RuntimeError("the part is not aimed at a gradient")
        return layout.as_packed(values_of(self._request.gradients[member]))

    def _evaluate(
        self, formula: Formula, tensors: list[Tensor], scalars: Scalars
    ) -> Sequence[Tensor]:
        """Return the results of a formula, in the dtype and shape of the first tensor."""
        return torch_evaluate(formula, tensors, scalars)

    def _transform(self, stages: Stages, values: Tensor, scalars: Scalars) -> Tensor:
        """Return `values` after the formulas `stages`, in the dtype of `values`."""
        return torch_transform(stages, values, scalars)

    def _measure(self, formula: Formula, tensors: Sequence[Tensor], scalars: Scalars) -> Tensor:
        """Return the values of a measure's formula for each element, in the widest dtype.

        Args:
            tensors: The variable, the gradient in the compute dtype, and the slots.
        """
        dtype = wide_dtype(tensors[0].device)
        kind = tensors[1].dtype if is_like_update(formula) else dtype
        count = len(trace_formula(formula).positional)
        inputs = [tensor.to(kind) for tensor in tensors[:count]]
        return torch_evaluate(formula, inputs, scalars, dtype)[0]

    def _join(self, batch: Batch, tensors: Sequence[Tensor]) -> Tensor:
        """Stack tensors if `batch.is_stacked`, else concatenate their elements; avoid copies."""
        detached = [tensor.detach() for tensor in tensors]
        if batch.is_stacked:
            return detached[0].unsqueeze(0) if len(detached) == 1 else torch.stack(detached)
        rows = [tensor.reshape(-1) for tensor in detached]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _split_members(self, batch: Batch, values: Tensor) -> list[Tensor]:
        """Split joined values into one tensor per variable, in the variable's shape."""
        if batch.is_stacked:
            return list(values.unbind(0))
        shapes = [self._request.variables[member].shape for member in batch.members]
        rows = torch.split(values, [shape.numel() for shape in shapes])
        return [row.view(shape) for row, shape in zip(rows, shapes, strict=True)]

    def _compute_kind(self, batch: Batch) -> torch.dtype:
        return torch_dtype(compute_dtype(self._request.variables[batch.members[0]].dtype))

    def _select_scalars(self, batch: Batch, columns: Columns) -> Mapping[str, Any]:
        """Return {name: scalar} for the formulas of a batch, with vectors of rows and columns.

        A scalar that differs between members is a tensor that broadcasts with the joined variables.
        """
        request, members = self._request, batch.members
        first = request.variables[members[0]]
        kind, scalars = self._compute_kind(batch), dict(columns.shared[compute_dtype(first.dtype)])
        sizes = [request.variables[member].numel() for member in members]
        for name, vector in columns.by_variable.items():
            if not isinstance(vector, Tensor) and (vector[members] == vector[members[0]]).all():
                scalars[name] = compute_dtype(first.dtype)(vector[members[0]])
                continue
            if isinstance(vector, Tensor):
                values = torch.stack([vector[member] for member in members])
            else:
                values = torch.tensor(vector[members], dtype=torch.float64, device="cpu")
            values = values.to(kind).to(first.device)
            if batch.is_stacked:
                scalars[name] = values.view(-1, *[1] * first.dim())
            else:
                repeats = torch.tensor(sizes, dtype=torch.int64, device=first.device)
                scalars[name] = values.repeat_interleave(repeats, output_size=sum(sizes))
        if request.vectors:
            for name in request.vectors[members[0]]:
                scalars[name] = torch.stack([request.vectors[member][name] for member in members])
        return scalars

    def _apply_stages(self, batch: Batch, stages: Stages, scalars: Scalars) -> Tensor:
        """Return the joined gradients in the compute dtype, after the transforms `stages`."""
        grads = [self._read_gradient(member) for member in batch.members]
        grad = self._join(batch, grads).to(self._compute_kind(batch))
        return self._transform(stages, grad, scalars)

    def _read_variables(self, batch: Batch) -> Tensor:
        """Return the joined variables; with `from_copies`, with elements written to copies."""
        request = self._request
        var = self._join(batch, [request.variables[member] for member in batch.members])
        if request.copies is None or not request.from_copies:
            return var
        copies = [request.copies[member] for member in batch.members]
        if copies[0] is None:
            return var
        return resumed(var, self._join(batch, cast("list[Tensor]", copies)))

    def _read_slots(self, batch: Batch) -> list[Tensor]:
        """Return for each slot of the rule a tensor: the joined, decoded slots of all members."""
        slots: list[Tensor] = []
        for position, codec in enumerate(batch.codecs[1:]):
            tensors = [self._request.slots[member][position] for member in batch.members]
            if codec is None:
                slots.append(self._join(batch, tensors).to(self._compute_kind(batch)))
                continue
            with importing:
                from thalweg._engines.codecs.records import decode_tensor
            records = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
            slots.append(decode_tensor(codec, records, self._read_variables(batch)))
        return slots

    @no_grad()
    def reduce(self, reduction: Reduction, columns: Columns) -> Results:
        """Return a reduction over the variables, on the host; see `Reductions`."""
        if reduction.kind == "peaks":
            return self._reduce_peaks()
        if reduction.kind == "measures":
            return self._reduce_lines(reduction, columns)
        leaves = self._reduce_leaves(reduction, columns)
        if reduction.kind == "leaves":
            return leaves
        return combine_leaves(np.concatenate(leaves), np.array([len(rows) for rows in leaves]))

    def _iterate_values(
        self, reduction: Reduction, columns: Columns, batch: Batch
    ) -> Iterator[tuple[Any, Tensor]]:
        """Yield (formula or measure, values per element) for each entry of `reduction.formulas`."""
        scalars = self._select_scalars(batch, columns)
        staged_grad = self._apply_stages(batch, reduction.stages, scalars)
        tensors = [self._read_variables(batch), staged_grad, *self._read_slots(batch)]
        for entry in reduction.formulas:
            formula = entry.function if reduction.kind == "measures" else entry
            yield entry, self._measure(formula, tensors, scalars)

    def _reduce_leaves(self, reduction: Reduction, columns: Columns) -> list[Float64]:
        """Return for each variable an array (leaves, formulas) of sums over leaves."""
        values: list[list[Tensor]] = [[] for _ in self._request.variables]
        for batch in self._batches:
            for _, formula_values in self._iterate_values(reduction, columns, batch):
                pieces = self._split_members(batch, formula_values)
                for member, piece in zip(batch.members, pieces, strict=True):
                    values[member].append(piece.reshape(-1))
        flat = leaves_by_tensor([piece for pieces in values for piece in pieces])
        counts = [len(leaves) for leaves in flat]
        split = iter(np.split(to_host(torch.cat(flat)), np.cumsum(counts)[:-1]))
        return [np.stack([next(split) for _ in pieces], axis=-1) for pieces in values]

    def _reduce_lines(self, reduction: Reduction, columns: Columns) -> list[list[Tensor]]:
        """Return a list for each variable, with a tensor for each measure.

        The list of a variable without elements is empty.
        """
        lines: list[list[Tensor]] = [[] for _ in self._request.variables]
        for batch in self._batches:
            shape = self._request.variables[batch.members[0]].shape
            if not shape.numel():
                continue
            for measure, values in self._iterate_values(reduction, columns, batch):
                pieces = _reduce(values, view_of(shape), len(batch.members), measure)
                for member, piece in zip(batch.members, pieces, strict=True):
                    lines[member].append(piece)
        return lines

    def _reduce_peaks(self) -> Float64:
        """Return a float64 NumPy array with the largest magnitude of each variable's gradient.

        The magnitude of a gradient without elements is 0.
        """
        largest = np.zeros(len(self._request.variables))
        grads = {
            index: self._read_gradient(index)
            for index in range(len(largest))
            if self._read_gradient(index).numel()
        }
        if grads:
            norms = torch._foreach_norm(list(grads.values()), torch.inf)  # pyright: ignore
            largest[list(grads)] = to_host(torch.stack([widened(norm) for norm in norms]))
        return largest

    def memory_checks(self) -> list[Call]:
        """Return []: torch's functions check memory themselves."""
        return []

    @no_grad()
    def make_calls(self, columns: Columns) -> list[Call]:
        """Compute new values; return functions that copy them, or [] if `apply_flag` is false."""
        # This waits for the device, unlike kernels, which read the flag themselves.
        if columns.apply_flag is not None and not columns.apply_flag:
            return []
        with set_denormals(self._flush):
            return [call for batch in self._batches for call in self._update(batch, columns)]

    def _update(self, batch: Batch, columns: Columns) -> list[Call]:
        """Compute a batch; return functions that copy new values to variables, slots, copies."""
        request, rule = self._request, self._rule
        scalars = self._select_scalars(batch, columns)
        grad = self._apply_stages(batch, self._stages, scalars)
        tensors = [self._apply_before(batch, scalars), *self._read_slots(batch)]
        graph = trace_formula(rule.update)
        results = self._evaluate(rule.update, [tensors[0], grad, *tensors[1:]], scalars)
        calls: list[Call] = []
        stored_values: dict[int, Tensor] = {}
        for index in find_changed(rule, rule.update, len(tensors)):
            result = results[index]
            # The result must not change when another result is copied to its memory.
            if graph.results[index].op in _ALIASING:
                result = result.clone()
            stored_values[index] = self._to_stored(batch, index, result, scalars)
            columns_of = [request.variables, *zip(*request.slots, strict=True)][index]
            targets = [columns_of[member] for member in batch.members]
            calls.append(self._copy_call(batch, index, targets, stored_values[index]))
        copies = [request.copies[member] for member in batch.members] if request.copies else [None]
        if copies[0] is not None and (0 in stored_values or not request.from_copies):
            values = saturated(stored_values.get(0, self._read_variables(batch)), copies[0].dtype)
            calls.append(self._copy_call(batch, 0, cast("list[Tensor]", copies), values))
        return calls

    def _apply_before(self, batch: Batch, scalars: Scalars) -> Tensor:
        """Return the variables in the compute dtype, after the formula `rule.before` if any."""
        start, kind, rule = self._read_variables(batch), self._compute_kind(batch), self._rule
        if rule.before is None:
            return start.to(kind)
        moved_values = self._transform((rule.before,), start.to(kind), scalars)
        # With stochastic rounding it stays float32: rounded to the nearest, it could vanish.
        draws = self._place(batch.members[0])[0] is not None
        return moved_values if draws else moved_values.to(start.dtype).to(kind)

    def _place(self, member: int) -> tuple[int | None, Any]:
        """Return the entry of a member in `StepRequest.places`, or (None, 0) without entries."""
        return self._request.places[member] if self._request.places else (None, 0)

    def _to_stored(self, batch: Batch, index: int, values: Tensor, scalars: Scalars) -> Tensor:
        """Return new values rounded to the target's dtype, or encoded by the target's codec.

        Args:
            index: 0 for the variables, k + 1 for slot k.
            values: The joined new values.
        """
        codec, request = batch.codecs[index], self._request
        first = batch.members[0]
        has_lower = any(codec is not None and codec.is_beside for codec in batch.codecs)
        draws = self._place(first)[0] is not None
        if has_lower and (not index or (codec is not None and codec.is_beside)):
            with importing:
                from thalweg._engines.codecs.records import split_tensor
            bits = self._draw_bits(batch, 0, scalars) if draws else None
            return split_tensor(values, bits)[index > 0]
        if codec is not None:
            with importing:
                from thalweg._engines.codecs.records import encode_results
            sizes = {member: request.variables[member].numel() for member in batch.members}
            extents = [(size, self._place(member)[1]) for member, size in sizes.items()]
            return encode_results(codec, values, scalars, extents)
        dtype = request.slots[first][index - 1].dtype if index else request.variables[first].dtype
        if not draws or dtype not in REDUCED:
            return values.to(dtype)
        with importing:
            from thalweg._engines.philox import round_randomly
        bits = self._draw_bits(batch, index, scalars)
        if len(batch.members) == 1:  # bits count in the order of the memory, records in row-major
            bits = layout.from_memory_order(bits, request.variables[first])
        return round_randomly(values, dtype, bits.reshape(values.shape))

    def _draw_bits(self, batch: Batch, stream: int, scalars: Scalars) -> Tensor:
        """Return 16 random bits per element; `stream` is 0 for the variables, k + 1 for slot k."""
        with importing:
            from thalweg._engines.philox import draw_bits
        step, low, high = (int(scalars[name]) for name in SCALARS)
        variables = self._request.variables
        element_draws = [
            (cast("int", number), origin, variables[member].numel())
            for member in batch.members
            for number, origin in [self._place(member)]
        ]
        first = variables[batch.members[0]]
        return draw_bits(element_draws, step, stream, (low, high), first.device)

    def _copy_call(
        self, batch: Batch, index: int, targets: Sequence[Tensor], values: Tensor
    ) -> Call:
        """Return a function without arguments that copies values into the tensors `targets`.

        Args:
            index: 0 for the variables or the 16-bit copies, k + 1 for slot k.
            values: The joined values, or the joined records of an encoded slot.
        """
        if batch.codecs[index] is None:
            pieces = self._split_members(batch, values)
        else:
            sizes = [target.numel() for target in targets]
            rows = torch.split(values.reshape(-1), sizes)
            pieces = [row.view(target.shape) for row, target in zip(rows, targets, strict=True)]
        copy = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        return partial(copy, [target.detach() for target in targets], pieces)


def _divide_into_batches(request: StepRequest) -> Iterator[Batch]:
    """Yield batches of variables with equal `_make_batch_key`.

    A batch has at most `_BATCH` elements, or a single larger variable.
    """
    members_by_kind: dict[Any, list[int]] = {}
    for member in range(len(request.variables)):
        members_by_kind.setdefault(_make_batch_key(request, member), []).append(member)
    for members in members_by_kind.values():
        codecs = _list_codecs(request, members[0])
        batch, size = list[int](), 0
        for member in members:
            numel = request.variables[member].numel()
            if batch and size + numel > _BATCH:
                yield Batch(batch, codecs, bool(request.vectors))
                batch, size = [], 0
            batch.append(member)
            size += numel
        yield Batch(batch, codecs, bool(request.vectors))


def _list_codecs(request: StepRequest, member: int) -> list[Codec | None]:
    """Return [None, *(codec or None for each slot)]; the first None is for the variable."""
    slots = request.slots[member]
    if not request.rule.codecs:
        return [None] * (1 + len(slots))
    with importing:
        from thalweg._engines.codecs.checks import list_codecs
    return [None, *list_codecs(request.rule.codecs, slots)]


def _describe_tensors(request: StepRequest, member: int) -> list[Any]:
    """Return [(dtype, shape, device)] of variable, gradient, slots and copy, in this order."""
    copy = request.copies[member] if request.copies else None
    grad = values_of(request.gradients[member])
    tensors = [request.variables[member], grad, *request.slots[member]]
    tensors += [] if copy is None else [copy]
    return [(tensor.dtype, tensor.shape, tensor.device) for tensor in tensors]


def _describe_request(request: StepRequest) -> list[list[Any]]:
    """Return `_describe_tensors` of all variables."""
    return [_describe_tensors(request, member) for member in range(len(request.variables))]


def _make_batch_key(request: StepRequest, member: int) -> tuple[Any, ...]:
    """Return a key; variables with equal keys can be computed in one batch."""
    var = request.variables[member]
    stream = request.places[member][0] if request.places else None
    # A variable is joined with others only if it fills complete blocks of codes, and if its random
    # bits, which are in the order of memory, are in row-major order.
    blocks = [codec.block for codec in _list_codecs(request, member) if codec is not None]
    is_single = (
        isinstance(request.gradients[member], IndexedSlices)
        or any(var.numel() % block for block in blocks)
        or (stream is not None and not var.is_contiguous())
        or not var.numel()
    )
    dtypes = [dtype for dtype, _, _ in _describe_tensors(request, member)]
    has_copy = bool(request.copies) and request.copies[member] is not None
    shape = var.shape if request.vectors else None
    return (*dtypes, has_copy, stream is None, shape, member if is_single else None)


def _are_same(objects: Sequence[object], other_objects: Sequence[object]) -> bool:
    return len(objects) == len(other_objects) and all(map(is_, objects, other_objects))


def _reduce(values: Tensor, view: View, count: int, measure: Measure) -> list[Tensor]:
    """Return the tensor of a measure for each of `count` variables.

    Args:
        values: The values of all elements, variable after variable.
        view: The shape of each variable.
    """
    if measure.over == "variable":
        pieces = values.reshape(count, *view).unbind(0)
        return [reduce_lines(piece, measure.over, measure.reduce) for piece in pieces]
    matrices = values.reshape(count * view.matrices, view.rows, view.columns)
    lines = reduce_lines(matrices, measure.over, measure.reduce)
    return list(torch.split(lines, view.matrices))


def leaves_by_tensor(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return `leaves_of(tensor)` for each tensor, with few calls of torch.

    The tensors have one dtype and device.
    """
    members_by_height: dict[int, list[int]] = {}
    for member, values in enumerate(tensors):
        # A power of two, so that few groups have equal heights and need separate calls.
        height = min(LEAF // LANES, 1 << max(-(-len(values) // LANES) - 1, 0).bit_length())
        members_by_height.setdefault(height, []).append(member)
    leaves: dict[int, Tensor] = {}
    for height, members in members_by_height.items():
        counts = leaf_counts([len(tensors[member]) for member in members]).tolist()
        starts = [sum(counts[:position]) * height * LANES for position in range(len(members))]
        rows = tensors[members[0]].new_zeros((sum(counts), height, LANES))
        flat = rows.view(-1)
        for member, start in zip(members, starts, strict=True):
            flat[start : start + len(tensors[member])].copy_(tensors[member])
        sums = fold_lanes(rows, rows.new_zeros((sum(counts), LANES)))
        leaves |= zip(members, sums.split(counts), strict=True)
    return [leaves[member] for member in range(len(tensors))]
