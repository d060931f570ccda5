"""The reference engine: whole arrays, one NumPy operation at a time. It is the specification.

NumPy rather than torch on CPU memory, because torch.sqrt is 1 ulp off on 0.64 % of float32 inputs.
Tensors elsewhere are computed with torch.
"""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial, reduce
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._base.locks import importing
from thalweg._engines import layout
from thalweg._engines.array_types import Array, Float64, Int64
from thalweg._engines.denormals import set_denormals
from thalweg._engines.formula_parser import bind_formula, transcribe
from thalweg._engines.layout import compute_dtype
from thalweg._engines.low_precision_copies import resumed, saturated
from thalweg._engines.numpy_functions import NUMPY as NUMPY
from thalweg._engines.numpy_functions import numpy_formula as numpy_formula
from thalweg._engines.numpy_functions import square
from thalweg._engines.protocol import (
    Call,
    Columns,
    Dtype,
    Formulas,
    Gradient,
    Scalars,
    Stages,
    StepRequest,
    formula_of_rows,
)
from thalweg._engines.reduction_order import combine_leaves, leaves_of
from thalweg._engines.row_column_reductions import reduce_lines, view_of
from thalweg.formula import Formula, Rule, is_like_update, narrow, variable_squares, wide
from thalweg.indexed_slices import IndexedSlices, values_of
from thalweg.variable import REDUCED, numpy_copy

if TYPE_CHECKING:
    from thalweg._engines.codecs.codec import Codec

if TYPE_CHECKING:
    from thalweg._base.rule_passes import Measure

_WIDE = (torch.float32, torch.float64)


def _torch_rounded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(*values: Tensor) -> Tensor:
        dtype = reduce(torch.promote_types, [value.dtype for value in values])
        return function(*(value.double() for value in values)).to(dtype)

    return apply


def _torch_maximum(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((a > b) | (a != a), a, b)


def _torch_minimum(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((a < b) | (a != a), a, b)


def _torch_sign(x: Tensor) -> Tensor:
    return torch.where(x > 0, 1.0, torch.where(x < 0, -1.0, x))


TORCH: dict[str, Callable[..., Any]] = {
    "sqrt": torch.sqrt,
    "absolute": torch.abs,
    "sign": _torch_sign,
    "where": torch.where,
    "maximum": _torch_maximum,
    "minimum": _torch_minimum,
    "square": square,
    "exp": _torch_rounded(torch.exp),
    "log": _torch_rounded(torch.log),
    "power": _torch_rounded(torch.pow),
    "wide": wide,
    "narrow": narrow,
}


@cache
def torch_formula(formula: Formula, dtype: torch.dtype, device: torch.device, dim: int) -> Formula:
    """The formula on tensors of `dtype` with so many dimensions."""
    return bind_formula(formula, TORCH, _torch_number(dtype, device, dim))


def _torch_number(dtype: torch.dtype, device: torch.device, dim: int) -> Callable[[float], Tensor]:
    """What makes a tensor of a number.

    It has one dimension beside tensors that have any: torch would not count the type of a tensor
    of shape () beside those, and NumPy counts that of a number.
    """
    return partial(torch.full, (1,) * min(dim, 1), dtype=dtype, device=device)


def _pick_scalars(
    formula: Formula, scalars: Scalars, dtype: Callable[[Any], Any]
) -> dict[str, Any]:
    own = {name: scalars[name] for name in transcribe(formula).scalars}
    return {name: x if isinstance(x, Tensor) else dtype(x) for name, x in own.items()}


def _to_numpy(tensor: Tensor, rows: Int64 | None = None) -> Array:
    """A copy of a tensor, or of rows of it."""
    own = tensor.detach() if rows is None else tensor.detach()[torch.from_numpy(rows)]
    return numpy_copy(own if own.dtype in _WIDE else own.float())


def evaluate_on(
    formula: Formula,
    tensors: list[Tensor],
    scalars: Scalars,
    dtype: Dtype | None = None,
    rows: Int64 | None = None,
) -> list[Array]:
    """A formula over NumPy copies of tensors, or of `rows` of them.

    It is computed in `dtype`, by default the one that the first tensor is computed in.
    """
    dtype = dtype or compute_dtype(tensors[0].dtype)
    # Copies, because a result may be a parameter into which another result is stored first.
    arrays = [_to_numpy(tensor, rows).astype(dtype, copy=False) for tensor in tensors]
    function = numpy_formula(formula, dtype)
    with np.errstate(all="ignore"):
        results = function(*arrays, **_pick_scalars(formula, scalars, dtype))
        return _flush_results(formula, results, arrays[0], len(arrays) - len(results))


def _flush_results(formula: Formula, results: Sequence[Any], var: Array, grad: int) -> list[Array]:
    """The results as arrays; times 1, which flushes a number that was chosen and not computed."""
    one, transcript = var.dtype.type(1), transcribe(formula)
    arrays: list[Array] = []
    for index, result in enumerate(results):
        passed = transcript.passes_through(index, index + (grad if index else 0))
        array = np.asarray(result, var.dtype)
        array = array if passed else array * one
        arrays.append(array if array.shape == var.shape else np.broadcast_to(array, var.shape))
    return arrays


def torch_evaluate(formula: Formula, tensors: list[Tensor], scalars: Scalars) -> list[Tensor]:
    """A formula over tensors of any device, computed in the dtype of the first."""
    first = tensors[0]
    how = first.dtype, first.device, first.dim()
    function = torch_formula(formula, *how)
    results = function(*tensors, **_pick_scalars(formula, scalars, _torch_number(*how)))
    return [result.to(first.dtype).expand(first.shape) for result in results]


def transform(
    stages: Stages, grad: Tensor, scalars: Scalars, flush: bool, kind: torch.dtype | None = None
) -> Tensor:
    """The gradient after the stages, a new tensor; the gradient itself if there are none.

    Args:
        stages: The stages; in between, numbers have the type of the arithmetic.
        grad: A gradient, or the values of a sparse one.
        scalars: What the stages read.
        flush: Whether denormals are treated as zero.
        kind: The variable's dtype, which the result has; that of the gradient if None.
    """
    if not stages:
        return grad
    kind = kind or grad.dtype
    if grad.device.type != "cpu":
        changed = grad.detach().to(namespace_of(compute_dtype(kind)))
        for stage in stages:
            changed = torch_evaluate(stage, [changed], scalars)[0]
        return changed.to(kind)
    with set_denormals(flush):
        array, dtype = grad.detach(), compute_dtype(kind)
        for stage in stages:
            result = evaluate_on(stage, [array], scalars, dtype)[0]
            array = torch.from_numpy(np.array(result, order="C"))
        return array.to(kind)


def _repeated_waves(rows: Int64) -> list[Int64]:
    """Positions of first, second, third ... occurrences of each row, in order of appearance."""
    seen: dict[int, int] = {}
    waves: list[list[int]] = []
    for position, row in enumerate(rows.tolist()):
        count = seen.get(row, 0)
        seen[row] = count + 1
        if count == len(waves):
            waves.append([])
        waves[count].append(position)
    return [np.array(wave, np.int64) for wave in waves]


def _sum_by_row(values: Array, rows: Int64) -> tuple[Array, Int64]:
    """Each row once, in order of first appearance, with its values added in order of appearance."""
    waves = _repeated_waves(rows)
    first = waves[0] if waves else np.empty(0, np.int64)
    position = {row: index for index, row in enumerate(rows[first].tolist())}
    total = values[first].copy()
    with np.errstate(all="ignore"):
        for wave in waves[1:]:
            target = np.array([position[row] for row in rows[wave].tolist()], np.int64)
            total[target] = total[target] + values[wave]
    return total, rows[first]


class ReferencePart:
    """The update of one variable; a `Part` of a step.

    It computes new values beside the old ones, with NumPy on the CPU's memory and torch elsewhere,
    and then copies them.

    Args:
        asked: The step, of one variable.
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
        self._place = request.places[0] if request.places else None
        self._codecs: Sequence[Codec | None] = [None] * len(self._tensors)
        if request.rule.codecs:
            with importing:
                from thalweg._engines.codecs.checks import codecs_of
            self._codecs = [None, *codecs_of(request.rule.codecs, slots)]

    @property
    def written(self) -> list[Tensor]:
        """See `Part`."""
        return self._tensors if self._copy is None else [*self._tensors, self._copy]

    @property
    def _staged_gradient(self) -> Gradient:
        if self._grad is None:
            raise RuntimeError("the part is not aimed at a gradient")
        return self._grad

    @property
    def _measured_values(self) -> Tensor:
        """The elements of the gradient, or the values of a sparse one as they are."""
        return layout.as_packed(values_of(self._staged_gradient))

    @property
    def _slots(self) -> list[Tensor]:
        """The numbers of slots, whatever they are kept in."""
        var, pairs = self._tensors[0], zip(self._codecs[1:], self._tensors[1:], strict=True)
        return [slot if each is None else _decode(each, slot, var) for each, slot in pairs]

    def _stored(self, index: int, value: Tensor, scalars: Scalars) -> Tensor:
        """A new value of one of the tensors, as that is kept."""
        codec, dtype = self._codecs[index], self._tensors[index].dtype
        has_lower = any(each is not None and each.is_beside for each in self._codecs)
        if has_lower and (not index or (codec is not None and codec.is_beside)):
            return self._part_of(value, scalars, is_lower=index > 0)
        if codec is not None:
            return _encode(codec, value, scalars)
        if self._place is None or dtype not in REDUCED:
            return value.to(dtype)
        with importing:
            from thalweg._engines.philox import round_tensor
        return round_tensor(value, self._tensors[0], dtype, self._place, index, scalars)

    def _part_of(self, value: Tensor, scalars: Scalars, is_lower: bool) -> Tensor:
        """The upper or lower part of a number, see `split8`."""
        with importing:
            from thalweg._engines.codecs.records import split_tensor
            from thalweg._engines.philox import draw_bits
            from thalweg._engines.random_bits import SCALARS
        bits = None
        if self._place is not None:
            step, *key = (int(scalars[name]) for name in SCALARS)
            number, origin = self._place
            bits = draw_bits(value.numel(), origin, step, number, 0, (key[0], key[1]))
        return split_tensor(value, bits)[is_lower]

    @property
    def _resume_at_copy(self) -> Tensor:
        """What the step begins at."""
        var = self._tensors[0]
        return var if self._copy is None or not self._from_copy else resumed(var, self._copy)

    def try_rebind(self, request: StepRequest, bounds: Int64) -> bool:
        """See `Part`: each step is looked at anew."""
        return False

    def compute_sums(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """See `StepPlan`."""
        if isinstance(self._staged_gradient, IndexedSlices):
            grad, var = self._apply_stages(stages, columns), self._resume_at_copy
            beside = [var if each is variable_squares else grad for each in formulas]
            found = [_leaves_of_sum(each, [one, one], {}) for each, one in zip(formulas, beside)]
            return [combine_leaves(each, np.array([len(each)])) for each in found]
        (leaves,) = self.compute_leaves(formulas, stages, columns)
        return list(combine_leaves(leaves, np.array([len(leaves)])).T)

    def compute_leaves(self, formulas: Formulas, stages: Stages, columns: Columns) -> list[Float64]:
        """See `StepPlan`."""
        if isinstance(self._staged_gradient, IndexedSlices):
            return [np.empty((0, len(formulas)))]
        own = columns.scalars_of(0, self._dtype)
        tensors = [self._resume_at_copy, self._apply_stages(stages, columns), *self._slots]
        flat = [layout.as_packed(tensor).reshape(-1) for tensor in tensors]
        return [np.stack([_leaves_of_sum(each, flat, own) for each in formulas], axis=-1)]

    def compute_lines(
        self, measures: tuple[Measure, ...], stages: Stages, columns: Columns
    ) -> list[list[Tensor]]:
        """See `StepPlan`."""
        var, grad = self._tensors[0], cast("Tensor", self._staged_gradient)
        if not var.numel():
            return [[]]
        own = self._scalars_of(columns)
        staged = transform(stages, grad, own, self._flush, namespace_of(self._dtype))
        tensors = [self._resume_at_copy, staged, *self._slots]
        view = view_of(var.shape)
        found: list[Tensor] = []
        with set_denormals(self._flush and bool(stages)):
            for each in measures:
                values = _values_of(each.function, tensors, own).expand(var.shape)
                lines = reduce_lines(values.reshape(view), each.over, each.reduce)
                found.append(lines)
        return [found]

    def _scalars_of(self, columns: Columns) -> dict[str, Any]:
        """The scalars of the variable, and what is given of its rows and columns."""
        own = {**columns.scalars_of(0, self._dtype), **self._vectors}
        if self._tensors[0].device.type != "cpu":
            return own
        return {name: x.numpy() if isinstance(x, Tensor) else x for name, x in own.items()}

    def _apply_stages(self, stages: Stages, columns: Columns) -> Tensor:
        """The gradient, or its values, after the stages."""
        grad = self._measured_values
        if not stages:
            return grad
        own = columns.scalars_of(0, self._dtype)
        return transform(stages, grad, own, self._flush, namespace_of(self._dtype))

    def max_abs(self) -> Float64:
        """See `StepPlan`."""
        values = self._measured_values
        if not values.numel():
            return np.zeros(1)
        return values.detach().abs().max().double().reshape(1).cpu().numpy()

    def make_calls(self, columns: Columns) -> list[Call]:
        """What copies the new values; they are computed now."""
        if columns.taken is not None and not columns.taken:
            return []
        scalars = self._scalars_of(columns)
        grad = self._staged_gradient
        with no_grad(), set_denormals(self._flush):
            if isinstance(grad, IndexedSlices):
                return self._update_rows(grad, scalars)
            return self._update_whole(grad, scalars)

    def release_gradients(self) -> None:
        """See `StepPlan`."""
        self._grad = None

    def _update_whole(self, grad: Tensor, scalars: Scalars) -> list[Call]:
        compute = _numpy_results if self._tensors[0].device.type == "cpu" else _torch_results
        var = self._tensors[0]
        # Random bits round once: a decay that is rounded to the nearest first would not count.
        kind = torch.float32 if self._place is not None and var.dtype in REDUCED else None
        begun = _apply_before(self._rule, self._resume_at_copy, scalars, self._flush, kind)
        tensors = [begun, *self._slots]
        results = compute(self._rule, self._stages, tensors, grad, scalars)
        changed = self._changed_by(self._rule.update, 1)
        values = {index: self._stored(index, results[index], scalars) for index in changed}
        pairs = [(self._tensors[index], value) for index, value in values.items()]
        if self._copy is not None and (0 in values or not self._from_copy):
            pairs.append((self._copy, saturated(values.get(0, var), self._copy.dtype)))
        return [partial(each.detach().copy_, value) for each, value in pairs]

    def _changed_by(self, formula: Formula, grad: int) -> list[int]:
        """Positions of the tensors to which a formula gives new values.

        Others keep theirs to the last bit, which the type of the arithmetic may not hold.
        """
        transcript, begun = transcribe(formula), self._rule.before is not None and grad
        return [
            index
            for index in range(len(self._tensors))
            if not transcript.passes_through(index, index + (grad if index else 0))
            or (begun and not index)
        ]

    def _update_rows(self, grad: IndexedSlices, scalars: Scalars) -> list[Call]:
        values = transform(self._stages, grad.values, scalars, self._flush, self._tensors[0].dtype)
        made: list[Call] = []
        for formula, rows, results in _row_results(
            self._rule,
            [self._resume_at_copy, *self._tensors[1:]],
            values,
            grad.indices,
            scalars,
            self._flush,
        ):
            index = torch.from_numpy(rows).to(self._tensors[0].device)
            values = [
                torch.from_numpy(value).to(each.dtype).to(each.device)
                for each, value in zip(self._tensors, results, strict=True)
            ]
            changed = self._changed_by(formula, int(formula is not self._rule.update_untouched))
            pairs = [(self._tensors[each], values[each]) for each in changed]
            if self._copy is not None and (0 in changed or not self._from_copy):
                pairs.append((self._copy, saturated(values[0], self._copy.dtype)))
            made += [partial(each.detach().index_copy_, 0, index, value) for each, value in pairs]
        return made


def _decode(codec: Codec, records: Tensor, var: Tensor) -> Tensor:
    with importing:
        from thalweg._engines.codecs.records import decode_tensor
    return decode_tensor(codec, records, var)


def _encode(codec: Codec, values: Tensor, scalars: Scalars) -> Tensor:
    with importing:
        from thalweg._engines.codecs.records import encode_tensor
        from thalweg._engines.random_bits import SCALARS, UNCOUNTED
    return encode_tensor(codec, values, int({**UNCOUNTED, **scalars}[SCALARS[0]]))


def namespace_of(dtype: Dtype) -> torch.dtype:
    return torch.float64 if dtype is np.float64 else torch.float32


def flatten_like(tensor: Tensor, var: Tensor) -> Tensor:
    """The elements in the order of the variable's memory, where they fill one run of it."""
    if not layout.is_dense(var):
        return layout.as_packed(tensor).reshape(-1)
    return layout.with_strides_of(tensor, var).as_strided((var.numel(),), (1,))


def _leaves_of_sum(formula: Formula, tensors: Sequence[Tensor], scalars: Scalars) -> Float64:
    """The leaves of the sum of a formula over elements, in the order that all engines have."""
    values = _values_of(formula, tensors, scalars).reshape(-1)
    if values.device.type == "cpu":
        return leaves_of(values.numpy())
    return leaves_of(values).cpu().numpy()


def _values_of(formula: Formula, tensors: Sequence[Tensor], scalars: Scalars) -> Tensor:
    """What a measure adds up, float64."""
    dtype = compute_dtype(tensors[0].dtype) if is_like_update(formula) else np.float64
    kind = namespace_of(dtype)
    taken = [each.detach().to(kind) for each in tensors][: len(transcribe(formula).positional)]
    if taken[0].device.type != "cpu":
        return torch_evaluate(formula, taken, scalars)[0].double()
    with np.errstate(all="ignore"):
        values = numpy_formula(formula, dtype)(
            *map(_to_numpy, taken), **_pick_scalars(formula, scalars, dtype)
        )[0]
    # A formula that reads no element, such as a count, gives one number for all of them.
    return torch.from_numpy(np.array(np.broadcast_to(values, taken[0].shape), np.float64))


def _numpy_results(
    rule: Rule, stages: Stages, tensors: Sequence[Tensor], grad: Tensor, scalars: Scalars
) -> list[Tensor]:
    """The variable and its slots after a step, in the type of the arithmetic."""
    grad = grad.detach()
    for stage in stages:
        array = evaluate_on(stage, [grad], scalars, compute_dtype(tensors[0].dtype))[0]
        grad = torch.from_numpy(np.array(array, order="C"))
    results = evaluate_on(rule.update, [tensors[0], grad, *tensors[1:]], scalars)
    return [torch.from_numpy(np.array(each, order="C")) for each in results]


def _torch_results(
    rule: Rule, stages: Stages, tensors: Sequence[Tensor], grad: Tensor, scalars: Scalars
) -> list[Tensor]:
    """The same on any device."""
    kind = namespace_of(compute_dtype(tensors[0].dtype))
    var, changed, *slots = (each.detach().to(kind) for each in (tensors[0], grad, *tensors[1:]))
    for stage in stages:
        changed = torch_evaluate(stage, [changed], scalars)[0]
    return torch_evaluate(rule.update, [var, changed, *slots], scalars)


def _apply_before(
    rule: Rule, var: Tensor, scalars: Scalars, flush: bool, kind: torch.dtype | None = None
) -> Tensor:
    """The variable, or rows of it, as the rule's other formulas read it; in a dtype, if not its."""
    return var if rule.before is None else transform((rule.before,), var, scalars, flush, kind)


def _row_results(
    rule: Rule,
    tensors: Sequence[Tensor],
    values: Tensor,
    indices: Tensor,
    scalars: Scalars,
    flush: bool,
) -> Iterator[tuple[Formula, Int64, list[Array]]]:
    """Formulas, rows, each once, and what they make of the variable and its slots there."""
    var = tensors[0]
    formula = formula_of_rows(rule, var)
    dtype = compute_dtype(var.dtype)
    rows = indices.detach().cpu().numpy().astype(np.int64)
    array = _to_numpy(values.cpu()).astype(dtype, copy=False)
    touched, places = np.unique(rows, return_inverse=True)
    kept = [_to_numpy(tensor.cpu(), touched) for tensor in tensors]
    begun = _apply_before(rule, torch.from_numpy(kept[0]).to(var.dtype), scalars, flush)
    kept = [each.astype(dtype, copy=False) for each in (_to_numpy(begun), *kept[1:])]
    if rule.duplicates == "sum":
        array, places = _sum_by_row(array, places)
        # TensorFlow adds the rows onto zeros, which takes the sign from -0.
        array = _to_numpy(torch.from_numpy(array).to(var.dtype)) + dtype(0)
        steps = [np.arange(len(places))]
    else:
        steps = _repeated_waves(places)
    function, picked = numpy_formula(formula, dtype), _pick_scalars(formula, scalars, dtype)
    with np.errstate(all="ignore"):
        for step in steps:
            own = places[step]
            arrays = [each[own] for each in kept]
            results = function(arrays[0], array[step], *arrays[1:], **picked)
            results = _flush_results(formula, results, arrays[0], 1)
            for each, tensor, result in zip(kept, tensors, results, strict=True):
                stored = torch.from_numpy(np.array(result, order="C")).to(tensor.dtype)
                each[own] = _to_numpy(stored)
    yield formula, touched, kept
    if rule.update_untouched is not None:
        others = np.setdiff1d(np.arange(var.shape[0]), touched)
        cpu = [tensor.cpu() for tensor in tensors]
        results = evaluate_on(rule.update_untouched, cpu, scalars, rows=others)
        yield rule.update_untouched, others, [np.array(each, order="C") for each in results]
