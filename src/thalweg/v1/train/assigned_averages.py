"""Moving averages stored in a user's variables, as in batch normalisation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.context_managers import no_grad
from thalweg._base.execution_context import is_symbolic
from thalweg._core.options.moving_average import assign_average
from thalweg.errors import InvalidTypeError
from thalweg.v1.train.gradients import title_of
from thalweg.variable import dtype_name, to_tensor


def assign_moving_average(
    variable: Any, value: Any, decay: Any, zero_debias: bool = True, name: str | None = None
) -> Any:
    """Update a variable in place as the moving average of a value.

        variable <- variable - (variable - value)(1 - decay)

    Args:
        variable: The variable.
        value: A tensor of the variable's shape, or an array or number.
        decay: Decay rate of the average.
        zero_debias: True to correct the bias of an average that began at 0. A graph stores the
            biased average and the step count in two new variables per call, `biased` and
            `local_step`. In eager mode each call is corrected as a first step.
        name: Optional.

    Returns:
        `variable`. In graph mode, a tensor that updates the variable and has its new value.

    Raises:
        InvalidTypeError: `value` has another dtype than `variable`.
        InvalidArgumentError: `value` has another shape; in graph mode the run raises.
        LayoutError: The storage of the variable or the value was resized.

    Reference: tensorflow.python.training.moving_averages.assign_moving_average
    """
    if _graph.executing_eagerly():
        tensor = _as_value_of(value, variable)
        with no_grad():
            biased = torch.zeros_like(variable) if zero_debias else None
            assign_average(variable, tensor, decay, biased, None)
        return variable
    variable = _graph.graph_variable_of(variable)
    tensor = _as_value_of(value, variable)
    biased, step = _make_debiasing_variables(variable) if zero_debias else (None, None)
    references = [None if slot is None else _graph.by_reference(slot) for slot in (biased, step)]
    op_name = name or "AssignMovingAvg"
    inputs = [_graph.by_reference(variable), tensor, decay, *references]
    return _graph.operation(assign_average, inputs, op_name, outputs=variable)


def _as_value_of(source: object, variable: Tensor) -> Any:
    """Return `source` as a tensor; raise InvalidTypeError if its dtype is not the variable's."""
    if not (isinstance(source, Tensor) or is_symbolic(source)):
        return to_tensor(source, variable.dtype)
    if getattr(source, "dtype", None) not in (None, variable.dtype):
        kinds = f"{dtype_name(source.dtype)}, and the variable is {dtype_name(variable.dtype)}"  # pyright: ignore
        raise InvalidTypeError(f"The value for '{title_of(variable)}' is {kinds}. Cast it.")
    return source


def _make_debiasing_variables(variable: _graph.GraphVariable) -> tuple[Any, Any]:
    """Create variables `biased` and `local_step` below the name of `variable`; return both.

    Both are initialized with zeros.
    """
    shapes: dict[str, Any] = {"biased": variable.shape, "local_step": ()}
    with _graph.variable_scope(variable.op.name):
        biased, step = (
            _graph.get_variable(
                _unused_name(name),
                shape,
                variable.dtype,
                _graph.zeros_initializer(),
                trainable=False,
            )
            for name, shape in shapes.items()
        )
        return biased, step


def _unused_name(name: str) -> str:
    """Return `name`, or `name` with "_1", "_2", ... if the variable scope has such a variable.

    In a scope that reuses variables, return `name` unchanged.
    """
    scope, suffix, candidate = _graph.get_variable_scope(), 0, name
    used_names = {variable.op.name for variable in _graph.global_variables()}
    while not scope.reuse and f"{scope.name}/{candidate}" in used_names:
        suffix += 1
        candidate = f"{name}_{suffix}"
    return candidate


def weighted_moving_average(
    value: Any,
    decay: object,
    weight: Tensor,
    truediv: bool = True,
    collections: Iterable[str] | None = None,
    name: str | None = None,
) -> Any:
    """Return a tensor with the moving average of `value` over runs, weighted per run.

    Args:
        value: A tensor of a graph.
        decay: Decay rate of the sums.
        weight: The weight of the run, a tensor that broadcasts with `value`.
        truediv: Ignored: values are floating-point.
        collections: Optional. Graph collections of the two new variables; GLOBAL_VARIABLES by
            default.
        name: Optional. The variable scope.

    Returns:
        A symbolic tensor; evaluating it updates both sums and returns their quotient.

    Reference: tensorflow.python.training.moving_averages.weighted_moving_average
    """
    keys = [_graph.GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
    with _graph.variable_scope(name, "WeightedMovingAvg", [value, weight]):
        sums = []
        for variable_name, term in (("value_x_weight", value * weight), ("weight", weight)):
            total = _graph.get_variable(
                variable_name,
                term.shape,
                term.dtype,
                _graph.zeros_initializer(),
                None,
                False,
                collections=keys,
            )
            sums.append(assign_moving_average(total, term, decay, zero_debias=False))
        return sums[0] / sums[1]
