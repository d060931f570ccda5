"""The reference engine: whole arrays, one NumPy operation at a time. It is the specification.

NumPy rather than torch on CPU memory, because torch.sqrt is 1 ulp off on 0.64 % of float32 inputs.
Tensors elsewhere are computed with torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.engines import libm
from thalweg.engines.denormals import denormals
from thalweg.engines.layout import compute_dtype
from thalweg.engines.transcribe import bind, transcribe
from thalweg.errors import RuleError
from thalweg.formula import Formula, Rule, narrow, wide

Scalars = Mapping[str, Any]
_WIDE = (torch.float32, torch.float64)


def _rounded_once(function: Callable[..., float], arguments: int) -> Callable[..., Any]:
    """The C library's double function on every element, rounded once to the operands' type."""
    elementwise = np.frompyfunc(function, arguments, 1)

    def apply(*values: Any) -> Any:
        dtype = np.result_type(*values)
        result = elementwise(*(np.asarray(value, np.float64) for value in values))
        return np.asarray(result, np.float64).astype(dtype)[()]

    return apply


def _where(condition: Any, a: Any, b: Any) -> Any:
    return np.where(condition, a, b)


def _maximum(a: Any, b: Any) -> Any:
    return np.where((a > b) | (a != a), a, b)


def _minimum(a: Any, b: Any) -> Any:
    return np.where((a < b) | (a != a), a, b)


def _sign(x: Any) -> Any:
    one = np.asarray(x).dtype.type(1)
    return np.where(x > 0, one, np.where(x < 0, -one, x))


NUMPY: dict[str, Callable[..., Any]] = {
    "sqrt": np.sqrt,
    "absolute": np.absolute,
    "sign": _sign,
    "where": _where,
    "maximum": _maximum,
    "minimum": _minimum,
    "square": lambda x: x * x,
    "exp": _rounded_once(libm.exp, 1),
    "log": _rounded_once(libm.log, 1),
    "power": _rounded_once(libm.power, 2),
    "wide": wide,
    "narrow": narrow,
}


def _torch_rounded(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def apply(*values: Any) -> Any:
        dtype = next(value.dtype for value in values if isinstance(value, Tensor))
        wide = [torch.as_tensor(value, dtype=torch.float64) for value in values]
        return function(*wide).to(dtype)

    return apply


TORCH: dict[str, Callable[..., Any]] = {
    "sqrt": torch.sqrt,
    "absolute": torch.abs,
    "sign": lambda x: torch.where(x > 0, 1.0, torch.where(x < 0, -1.0, x)),
    "where": torch.where,
    "maximum": lambda a, b: torch.where((a > b) | (a != a), a, b),
    "minimum": lambda a, b: torch.where((a < b) | (a != a), a, b),
    "square": lambda x: x * x,
    "exp": _torch_rounded(torch.exp),
    "log": _torch_rounded(torch.log),
    "power": _torch_rounded(torch.pow),
    "wide": wide,
    "narrow": narrow,
}


@cache
def numpy_formula(formula: Formula, dtype: type[np.floating]) -> Formula:
    """The formula on NumPy arrays of `dtype`."""
    return bind(formula, NUMPY, dtype)


@cache
def torch_formula(formula: Formula) -> Formula:
    """The formula on tensors."""
    return bind(formula, TORCH, float)


@cache
def _wanted(rule: Rule) -> tuple[str, ...]:
    return () if rule.prepare is None else tuple(inspect.signature(rule.prepare).parameters)


def prepared(rule: Rule, hypers: Scalars) -> dict[str, Any]:
    """The hypers (scalars of a compute dtype) and what the rule's `prepare` makes of them.

    Raises:
        RuleError: `prepare` asks for what there is not, or returns no dict.
    """
    if rule.prepare is None:
        return dict(hypers)
    try:
        arguments = {name: hypers[name] for name in _wanted(rule)}
    except KeyError:
        _check_given(rule, "prepare", _wanted(rule), hypers)
        raise
    with np.errstate(all="ignore"):
        made = rule.prepare(**arguments)
    if not isinstance(made, dict):
        raise RuleError(f"prepare of rule {rule.name!r} must return a dict, not {made!r}.")
    return {**hypers, **made}


def check_scalars(rule: Rule, scalars: Scalars) -> None:
    """Refuse a rule whose formulas ask for scalars that nobody gives.

    Raises:
        RuleError: Names the formula and the scalars.
    """
    for role in ("update", "update_sparse", "update_single", "update_untouched"):
        formula = getattr(rule, role)
        if formula is not None:
            _check_given(rule, role, transcribe(formula).scalars, scalars)


def _check_given(rule: Rule, role: str, wanted: Iterable[str], given: Scalars) -> None:
    missing = [name for name in wanted if name not in given]
    if missing:
        raise RuleError(
            f"{role} of rule {rule.name!r} asks for {', '.join(missing)}, which is neither a"
            " hyperparameter nor a power of it, and not made by its prepare."
        )


def _pick(formula: Formula, scalars: Scalars, dtype: Callable[[Any], Any]) -> dict[str, Any]:
    code = formula.__code__
    wanted = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    return {name: dtype(scalars[name]) for name in wanted}


def _numpy(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().resolve_neg()
    return tensor.numpy() if tensor.dtype in _WIDE else tensor.float().numpy()


def _store(tensor: Tensor, array: np.ndarray, rows: np.ndarray | None) -> None:
    target = tensor.detach()
    values = torch.from_numpy(np.array(array, order="C")).to(tensor.dtype)
    if rows is None:
        target.copy_(values)
    else:
        target[torch.from_numpy(rows)] = values


def evaluate(
    formula: Formula, tensors: list[Tensor], scalars: Scalars, rows: np.ndarray | None = None
) -> list[np.ndarray]:
    """A formula over NumPy copies of tensors, or of `rows` of them, in the compute dtype."""
    dtype = compute_dtype(tensors[0].dtype)
    arrays = [_numpy(tensor) for tensor in tensors]
    # Copies, because a result may be a parameter into which another result is stored first.
    arrays = [array.copy() if rows is None else array[rows] for array in arrays]
    function = numpy_formula(formula, dtype)
    with np.errstate(all="ignore"):
        results = function(*arrays, **_pick(formula, scalars, dtype))
        return _flushed(formula, results, arrays[0], len(arrays) - len(results))


def _flushed(
    formula: Formula, results: Sequence[Any], var: np.ndarray, grad: int
) -> list[np.ndarray]:
    """The results as arrays; times 1, which flushes a number that was chosen and not computed."""
    one, transcript = var.dtype.type(1), transcribe(formula)
    arrays = []
    for index, result in enumerate(results):
        passed = transcript.passes(index, index + (grad if index else 0))
        array = np.asarray(result, var.dtype)
        arrays.append(np.broadcast_to(array if passed else array * one, var.shape))
    return arrays


def transform(stages: tuple[Formula, ...], grad: Tensor, scalars: Scalars, flush: bool) -> Tensor:
    """The gradient after the stages, a new tensor; the gradient itself if there are none."""
    with denormals(flush):
        for stage in stages:
            if grad.device.type == "cpu":
                result = evaluate(stage, [grad], scalars)[0]
                grad = torch.from_numpy(np.array(result, order="C")).to(grad.dtype)
            else:
                result = torch_formula(stage)(_wide(grad), **_pick(stage, scalars, float))[0]
                grad = result.to(grad.dtype)
    return grad


def _wide(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _waves(rows: np.ndarray) -> list[np.ndarray]:
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


def _grouped(values: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row once, in order of first appearance, with its values added in order of appearance."""
    waves = _waves(rows)
    first = waves[0] if waves else np.empty(0, np.int64)
    position = {row: index for index, row in enumerate(rows[first].tolist())}
    total = values[first].copy()
    for wave in waves[1:]:
        target = np.array([position[row] for row in rows[wave].tolist()], np.int64)
        total[target] = total[target] + values[wave]
    return total, rows[first]


def update_dense(
    rule: Rule,
    stages: tuple[Formula, ...],
    var: Tensor,
    grad: Tensor,
    slots: list[Tensor],
    scalars: Scalars,
    flush: bool,
) -> None:
    """One variable, one dense gradient, in place."""
    tensors = [var, *slots]
    if var.device.type != "cpu":
        return _update_torch(rule, stages, var, grad, slots, scalars)
    with denormals(flush):
        for stage in stages:
            array = evaluate(stage, [grad], scalars)[0]
            grad = torch.from_numpy(np.array(array, order="C"))
        results = evaluate(rule.update, [var, grad, *slots], scalars)
        for tensor, array in zip(tensors, results, strict=True):
            _store(tensor, array, None)


def _update_torch(
    rule: Rule,
    stages: tuple[Formula, ...],
    var: Tensor,
    grad: Tensor,
    slots: list[Tensor],
    scalars: Scalars,
) -> None:
    plain = {name: float(value) for name, value in scalars.items()}
    grad = _wide(grad)
    for stage in stages:
        grad = torch_formula(stage)(grad, **_pick(stage, plain, float))[0]
    wide = [_wide(tensor) for tensor in (var, *slots)]
    results = torch_formula(rule.update)(
        wide[0], grad, *wide[1:], **_pick(rule.update, plain, float)
    )
    for tensor, result in zip((var, *slots), results, strict=True):
        tensor.detach().copy_(result)


def saturate(var: Tensor, copy: Tensor) -> None:
    """Set a copy in a narrower type to its variable; numbers too large become the largest."""
    largest = torch.finfo(copy.dtype).max
    copy.detach().copy_(var.detach().clamp(-largest, largest))


def update_sparse(
    rule: Rule,
    var: Tensor,
    values: Tensor,
    indices: Tensor,
    slots: list[Tensor],
    scalars: Scalars,
    flush: bool,
) -> None:
    """One variable, one sparse gradient (rows of dimension 0), in place."""
    if var.device.type != "cpu":
        var_cpu, slots_cpu = var.detach().cpu(), [slot.detach().cpu() for slot in slots]
        update_sparse(
            rule, var_cpu, values.detach().cpu(), indices.cpu(), slots_cpu, scalars, flush
        )
        for tensor, result in zip((var, *slots), (var_cpu, *slots_cpu), strict=True):
            tensor.detach().copy_(result)
        return
    formula = rule.update_sparse or rule.update
    if rule.update_single is not None and var.shape[1:].numel() == 1:
        formula = rule.update_single
    tensors = [var, *slots]
    dtype = compute_dtype(var.dtype)
    rows = indices.numpy().astype(np.int64)
    array = _numpy(values)
    touched = np.unique(rows)
    with denormals(flush), np.errstate(all="ignore"):
        if rule.duplicates == "sum":
            array, rows = _grouped(array, rows)
            # TensorFlow adds the rows onto zeros, which takes the sign from -0.
            array = _numpy(torch.from_numpy(array).to(values.dtype)) + dtype(0)
            steps = [np.arange(len(rows))]
        else:
            steps = _waves(rows)
        function = numpy_formula(formula, dtype)
        picked = _pick(formula, scalars, dtype)
        for step in steps:
            arrays = [_numpy(tensor)[rows[step]] for tensor in tensors]
            results = function(arrays[0], array[step], *arrays[1:], **picked)
            results = _flushed(formula, results, arrays[0], 1)
            for tensor, result in zip(tensors, results, strict=True):
                _store(tensor, result, rows[step])
        if rule.update_untouched is not None:
            others = np.setdiff1d(np.arange(var.shape[0]), touched)
            results = evaluate(rule.update_untouched, tensors, scalars, others)
            for tensor, result in zip(tensors, results, strict=True):
                _store(tensor, result, others)
