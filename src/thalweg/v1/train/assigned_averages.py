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
from thalweg.variable import dtype_name, name_of, to_tensor


def assign_moving_average(
    variable: Any, value: Any, decay: Any, zero_debias: bool = True, name: str | None = None
) -> Any:
    """Update a variable in place as the moving average of a value.

        variable <- variable - (variable - value)(1 - decay)

    Args:
        variable: The variable.
        value: A tensor of the variable's shape, or an array or number.
        decay: Decay rate of the average.
        zero_debias: True to correct the bias of an average that began at 0. In graph mode, each
            call creates two variables: `biased` (the biased average) and `local_step` (the number
            of updates). In eager mode nothing is stored: each call counts as the first update.
        name: Optional. The name of the operation.

    Returns:
        `variable`. In graph mode, a symbolic tensor; a run of it updates the variable and returns
        the new value.

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
        raise InvalidTypeError(
            f"The value for '{name_of(variable, 'Tensor')}' is {kinds}. Cast it."
        )
    return source


def _make_debiasing_variables(variable: _graph.GraphVariable) -> tuple[Any, Any]:
    """Create graph variables "<variable>/biased" and "<variable>/local_step"; return both.

    `biased` has the shape of `variable`, `local_step` has shape (). Both begin with zeros.
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
    """Return `name`, or the first of name_1, name_2, ... that no variable of the scope has.

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
    """Return a symbolic tensor: average(value weight) / average(weight).

    Two new variables hold the moving averages of `value * weight` and `weight`. Each run of the
    tensor updates both averages and returns the quotient.

    Args:
        value: A symbolic tensor.
        decay: Decay rate of both averages.
        weight: The weight of the value in a run; a tensor that broadcasts with `value`.
        truediv: Ignored: values are floating-point.
        collections: Optional. Graph collections of both variables; by default GLOBAL_VARIABLES.
        name: Optional. The variable scope.

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
