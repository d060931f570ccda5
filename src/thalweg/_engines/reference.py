"""Reference engine: full arrays, one NumPy operation at a time. It is the specification.

Tensors of other devices are computed by `torch_part`.
"""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._base.device_numbers import to_host
from thalweg._base.locks import importing
from thalweg._engines import layout
from thalweg._engines.array_types import Array, Float64, Int64
from thalweg._engines.denormals import set_denormals
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.layout import compute_dtype
from thalweg._engines.low_precision_copies import resumed, saturated
from thalweg._engines.numpy_functions import NUMPY as NUMPY
from thalweg._engines.numpy_functions import numpy_formula as numpy_formula
from thalweg._engines.protocol import (
    Call,
    Columns,
    Dtype,
    Gradient,
    Reduction,
    Results,
    Scalars,
    Stages,
    StepRequest,
)
from thalweg._engines.reduction_order import combine_leaves, leaves_of
from thalweg._engines.row_column_reductions import reduce_lines, view_of
from thalweg._engines.torch_functions import torch_dtype, torch_transform
from thalweg.formula import Formula, is_like_update, variable_squares
from thalweg.indexed_slices import IndexedSlices, values_of
from thalweg.variable import REDUCED, numpy_copy

if TYPE_CHECKING:
    from thalweg._base.rule_passes import Measure
    from thalweg._engines.codecs.codec import Codec

_WIDE = (torch.float32, torch.float64)


def _pick_scalars(
    formula: Formula, scalars: Scalars, dtype: Callable[[Any], Any]
) -> dict[str, Any]:
    picked_scalars = {name: scalars[name] for name in trace_formula(formula).scalars}
    return {name: x if isinstance(x, Tensor) else dtype(x) for name, x in picked_scalars.items()}


def _to_numpy(tensor: Tensor) -> Array:
    """Return a copy of a tensor; 16-bit types become float32."""
    source = tensor.detach()
    return numpy_copy(source if source.dtype in _WIDE else source.float())


def evaluate_on(
    formula: Formula, tensors: list[Tensor], scalars: Scalars, dtype: Dtype | None = None
) -> list[Array]:
    """Return the results of a formula over NumPy copies of tensors.

    Results have the first tensor's shape. They may be views or the copies themselves.

    Args:
        scalars: Scalars by name, of which the formula may take a part.
        dtype: The dtype of the arithmetic; by default the compute dtype of the first tensor.
    """
    dtype = dtype or compute_dtype(tensors[0].dtype)
    # Copies, because a result may be a parameter into which another result is stored first.
    arrays = [_to_numpy(tensor).astype(dtype, copy=False) for tensor in tensors]
    function = numpy_formula(formula, dtype)
    with np.errstate(all="ignore"):
        results = function(*arrays, **_pick_scalars(formula, scalars, dtype))
        return _flush_results(formula, results, arrays[0], len(arrays) - len(results))


def _flush_results(
    formula: Formula, results: Sequence[Any], var: Array, grad_count: int
) -> list[Array]:
    """Return results as arrays of the variable's shape and dtype, with denormals flushed.

    A product with 1 flushes a number that was only selected; unchanged inputs are left as they are.

    Args:
        grad_count: 1 if the second input is a gradient, which has no result; else 0.
    """
    unit, formula_graph = var.dtype.type(1), trace_formula(formula)
    arrays: list[Array] = []
    for index, result in enumerate(results):
        is_passthrough = formula_graph.passes_through(index, index + (grad_count if index else 0))
        array = np.asarray(result, var.dtype)
        array = array if is_passthrough else array * unit
        arrays.append(array if array.shape == var.shape else np.broadcast_to(array, var.shape))
    return arrays


def transform(
    stages: Stages, grad: Tensor, scalars: Scalars, flush: bool, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the gradient after the stages, a new tensor; the gradient itself without stages.

    Args:
        stages: The stages; results between them have the compute dtype.
        grad: A gradient, or the values of a sparse one.
        flush: Treat denormals as zero.
        dtype: The dtype of the returned tensor, usually the variable's; by default the
            gradient's.
    """
    if not stages:
        return grad
    dtype = dtype or grad.dtype
    if grad.device.type != "cpu":
        staged_grad = grad.detach().to(torch_dtype(compute_dtype(dtype)))
        return torch_transform(stages, staged_grad, scalars).to(dtype)
    with set_denormals(flush):
        array, compute = grad.detach(), compute_dtype(dtype)
        for stage in stages:
            (array,) = _evaluate(stage, [array], scalars, compute)
        return array.to(dtype)


def _evaluate(
    formula: Formula, tensors: list[Tensor], scalars: Scalars, dtype: Dtype | None = None
) -> list[Tensor]:
    """Return the arrays of `evaluate_on` as new contiguous CPU tensors."""
    arrays = evaluate_on(formula, tensors, scalars, dtype)
    return [torch.from_numpy(np.array(array, order="C")) for array in arrays]


class ReferencePart:
    """Plan for one variable; a `Part` of a step.

    New values are separate tensors, computed with NumPy on the CPU and with torch elsewhere. The
    returned calls copy them.
    """

    def __init__(self, request: StepRequest) -> None:
        (var,), (slots,), (grad,) = request.variables, request.slots, request.gradients
        self._rule, self._stages = request.rule, request.stages
        self._tensors = [var, *slots]
        self._copy = request.copies[0] if request.copies else None
        self._from_copy = self._copy is not None and request.from_copies
        self._grad: Gradient | None = grad
        self._vectors = dict(request.vectors[0]) if request.vectors else {}
        self._dtype = compute_dtype(var.dtype)
        self._flush = request.selection.denormals == "flush"
        # The number of the random stream, or None, and the positions of the elements.
        self._number, self._origin = request.places[0] if request.places else (None, 0)
        self._codecs: Sequence[Codec | None] = [None] * len(self._tensors)
        if request.rule.codecs:
            with importing:
                from thalweg._engines.codecs.checks import list_codecs
            self._codecs = [None, *list_codecs(request.rule.codecs, slots)]

    @property
    def written(self) -> list[Tensor]:
        return self._tensors if self._copy is None else [*self._tensors, self._copy]

    @property
    def _bound_gradient(self) -> Gradient:
        if self._grad is None:
            raise RuntimeError("the part is not aimed at a gradient")
        return self._grad

    @property
    def _gradient_values(self) -> Tensor:
        """Return the elements of the gradient; of a sparse one its values, duplicates included."""
        return layout.as_packed(values_of(self._bound_gradient))

    @property
    def _slots(self) -> list[Tensor]:
        """Return the slots, decoded if they have codecs."""
        slots = self._tensors[1:]
        if not any(self._codecs):
            return slots
        with importing:
            from thalweg._engines.codecs.records import decode_tensor
        decode = partial(decode_tensor, var=self._tensors[0])
        pairs = zip(self._codecs[1:], slots, strict=True)
        return [slot if codec is None else decode(codec, slot) for codec, slot in pairs]

    def _to_stored(self, index: int, value: Tensor, scalars: Scalars) -> Tensor:
        """Return a new value of the tensor at `index`, rounded or encoded like the tensor."""
        codec, dtype = self._codecs[index], self._tensors[index].dtype
        has_lower = any(
            slot_codec is not None and slot_codec.is_beside for slot_codec in self._codecs
        )
        if has_lower and (not index or (codec is not None and codec.is_beside)):
            return self._split_weights(value, scalars, is_lower=index > 0)
        if codec is not None:
            with importing:
                from thalweg._engines.codecs.records import encode_results
            return encode_results(codec, value, scalars, [(value.numel(), self._origin)])
        if self._number is None or dtype not in REDUCED:
            return value.to(dtype)
        with importing:
            from thalweg._engines.philox import round_randomly
        bits = layout.from_memory_order(self._draw_bits(index, scalars), self._tensors[0])
        return round_randomly(value, dtype, bits)

    def _split_weights(self, value: Tensor, scalars: Scalars, is_lower: bool) -> Tensor:
        """Return the upper or the lower part of split weights, to be stored; see `split8`."""
        with importing:
            from thalweg._engines.codecs.records import split_tensor
        bits = None if self._number is None else self._draw_bits(0, scalars)
        return split_tensor(value, bits)[is_lower]

    def _draw_bits(self, stream: int, scalars: Scalars) -> Tensor:
        """Return 16 random bits for each element; `stream` is the index of the stored tensor."""
        with importing:
            from thalweg._engines.philox import draw_bits
            from thalweg._engines.random_bits import SCALARS
        step, low, high = (int(scalars[name]) for name in SCALARS)
        variable = cast("int", self._number), self._origin, self._tensors[0].numel()
        return draw_bits([variable], step, stream, (low, high))

    @property
    def _start(self) -> Tensor:
        """Return the variable at which the step begins; see `StepRequest.from_copies`."""
        var = self._tensors[0]
        return var if self._copy is None or not self._from_copy else resumed(var, self._copy)

    def try_rebind(self, request: StepRequest, bounds: Int64) -> bool:
        """Return False: each step is planned from scratch."""
        return False

    def reduce(self, reduction: Reduction, columns: Columns) -> Results:
        """Return the results of a reduction for the variable, on the host; see `Reductions`."""
        formulas, stages = reduction.formulas, reduction.stages
        if reduction.kind == "peaks":
            values = self._gradient_values.detach()
            is_empty = not values.numel()
            return np.zeros(1) if is_empty else to_host(values.abs().max().reshape(1))
        if reduction.kind == "measures":
            return [self._reduce_lines(formulas, stages, columns)]
        var = self._start
        if not isinstance(self._bound_gradient, IndexedSlices):
            scalars = columns.scalars_of(0, self._dtype)
            tensors = [var, self._apply_stages(stages, columns), *self._slots]
            flat = [layout.as_packed(tensor).reshape(-1) for tensor in tensors]
            leaves = [_leaves_of_sum(formula, flat, scalars) for formula in formulas]
            if reduction.kind == "leaves":
                return [np.stack(leaves, axis=-1)]
        elif reduction.kind == "leaves":
            return [np.empty((0, len(formulas)))]
        else:
            grad = self._apply_stages(stages, columns)
            sources = [var if formula is variable_squares else grad for formula in formulas]
            pairs = zip(formulas, sources, strict=True)
            leaves = [_leaves_of_sum(formula, [source] * 2, {}) for formula, source in pairs]
        return np.stack([combine_leaves(part, np.array([len(part)])) for part in leaves], axis=-1)

    def _reduce_lines(
        self, measures: tuple[Measure, ...], stages: Stages, columns: Columns
    ) -> list[Tensor]:
        """Return a tensor for each measure; [] for a variable without elements."""
        var, grad = self._tensors[0], cast("Tensor", self._bound_gradient)
        if not var.numel():
            return []
        scalars = self._scalars_of(columns)
        staged_grad = transform(stages, grad, scalars, self._flush, torch_dtype(self._dtype))
        tensors = [self._start, staged_grad, *self._slots]
        view = view_of(var.shape)
        line_tensors: list[Tensor] = []
        with set_denormals(self._flush and bool(stages)):
            for measure in measures:
                values = _values_of(measure.function, tensors, scalars).expand(var.shape)
                lines = reduce_lines(values.reshape(view), measure.over, measure.reduce)
                line_tensors.append(lines)
        return line_tensors

    def _scalars_of(self, columns: Columns) -> dict[str, Any]:
        """Return the scalars of the variable and its vectors over rows and columns, by name."""
        scalars = {**columns.scalars_of(0, self._dtype), **self._vectors}
        return {name: x.numpy() if isinstance(x, Tensor) else x for name, x in scalars.items()}

    def _apply_stages(self, stages: Stages, columns: Columns) -> Tensor:
        """Return the gradient, or the values of a sparse one, after the stages."""
        grad = self._gradient_values
        if not stages:
            return grad
        scalars = columns.scalars_of(0, self._dtype)
        return transform(stages, grad, scalars, self._flush, torch_dtype(self._dtype))

    def make_calls(self, columns: Columns) -> list[Call]:
        """Compute the new values, and return calls that copy them; [] if the step is not taken."""
        if columns.apply_flag is not None and not columns.apply_flag:
            return []
        scalars = self._scalars_of(columns)
        grad = self._bound_gradient
        with no_grad(), set_denormals(self._flush):
            if isinstance(grad, IndexedSlices):
                return self._update_rows(grad, scalars)
            return self._update_whole(grad, scalars)

    def release_gradients(self) -> None:
        self._grad = None

    def _update_whole(self, grad: Tensor, scalars: Scalars) -> list[Call]:
        """Compute the update of all elements now; return calls that copy the results in place.

        There is a call for each tensor that the rule's formula changes: the variable, then slots.
        If the variable has a 16-bit copy, one more call sets the copy to the rounded variable,
        unless the step begins at copies and does not change the variable.

        Args:
            grad: The dense gradient, to which the stages of the request are applied here.
            scalars: The scalars of the step, by name.
        """
        with importing:
            from thalweg._engines.row_updates import find_changed
        var = self._tensors[0]
        # With stochastic rounding `before` stays float32: rounded to the nearest, it could vanish.
        dtype = torch.float32 if self._number is not None and var.dtype in REDUCED else None
        before = () if self._rule.before is None else (self._rule.before,)
        start = transform(before, self._start, scalars, self._flush, dtype)
        grad = transform(self._stages, grad, scalars, self._flush, torch_dtype(self._dtype))
        tensors = [start, *self._slots]
        results = _evaluate(self._rule.update, [start, grad, *tensors[1:]], scalars)
        indices = find_changed(self._rule, self._rule.update, len(tensors))
        values = {index: self._to_stored(index, results[index], scalars) for index in indices}
        pairs = [(self._tensors[index], value) for index, value in values.items()]
        if self._copy is not None and (0 in values or not self._from_copy):
            pairs.append((self._copy, saturated(values.get(0, var), self._copy.dtype)))
        return [partial(tensor.detach().copy_, value) for tensor, value in pairs]

    def _update_rows(self, slices: IndexedSlices, scalars: Scalars) -> list[Call]:
        """Return calls that copy the new rows of variable, slots and copy."""
        with importing:
            from thalweg._engines.row_updates import group_occurrences, make_row_calls, update_rows
        var, dtype = self._tensors[0], self._dtype
        values = transform(self._stages, slices.values, scalars, self._flush, var.dtype)
        gradient = values.detach().to(torch_dtype(dtype)), slices.indices.detach().long()

        def add(values: Tensor, places: Tensor, count: int) -> Tensor:
            """Return the sums of values by place, rounded like the variable."""
            sums = np.zeros((count, *values.shape[1:]), dtype)
            with np.errstate(all="ignore"):
                for wave in group_occurrences(places, count):
                    sums[places[wave].numpy()] += values[wave].numpy()
            # TensorFlow adds the rows onto zeros, which takes the sign from -0.
            return torch.from_numpy(_to_numpy(torch.from_numpy(sums).to(var.dtype)) + dtype(0))

        tensors = [self._start, *self._tensors[1:]]
        evaluate = partial(_evaluate, scalars=scalars)
        updates = update_rows(self._rule, tensors, gradient, evaluate, add)
        return make_row_calls(self._rule, self._tensors, self._copy, self._from_copy, updates)


def flatten_like(tensor: Tensor, var: Tensor) -> Tensor:
    """Return the elements as a vector, in the order of the variable's memory if it is dense."""
    if not layout.is_dense(var):
        return layout.as_packed(tensor).reshape(-1)
    return layout.with_strides_of(tensor, var).as_strided((var.numel(),), (1,))


def _leaves_of_sum(formula: Formula, tensors: Sequence[Tensor], scalars: Scalars) -> Float64:
    """Return the leaves of the sum of a formula over elements; see `reduction_order`."""
    values = _values_of(formula, tensors, scalars).reshape(-1)
    return leaves_of(values.numpy())


def _values_of(formula: Formula, tensors: Sequence[Tensor], scalars: Scalars) -> Tensor:
    """Return the values of a measure's formula for each element, float64."""
    dtype = compute_dtype(tensors[0].dtype) if is_like_update(formula) else np.float64
    kind = torch_dtype(dtype)
    inputs = [tensor.detach().to(kind) for tensor in tensors][
        : len(trace_formula(formula).positional)
    ]
    with np.errstate(all="ignore"):
        values = numpy_formula(formula, dtype)(
            *map(_to_numpy, inputs), **_pick_scalars(formula, scalars, dtype)
        )[0]
    # A formula that reads no element, such as a count, returns one number.
    return torch.from_numpy(np.array(np.broadcast_to(values, inputs[0].shape), np.float64))
