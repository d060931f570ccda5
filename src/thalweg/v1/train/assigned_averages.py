"""Moving averages in the user's own variables, as batch normalisation keeps them."""

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
    """Move a variable toward a value.

        variable <- variable - (variable - value)(1 - decay)

    Args:
        variable: The variable.
        value: A tensor of its shape, or what `to_tensor` takes.
        decay: Share of the variable that is kept.
        zero_debias: Whether the variable, which is taken to begin at 0, is divided by the weight
            that it has gathered. A graph keeps the sum and the number of steps in two variables
            beside it, `biased` and `local_step`; each call makes its own. In eager mode nothing
            is kept, so that each call is a first step.
        name: Optional.

    Returns:
        The variable; in a graph a tensor that updates it and is its new value.

    Raises:
        InvalidTypeError: The value is a tensor of another dtype.
        InvalidArgumentError: It has another shape; in graph mode when it runs.
        LayoutError: The storage of one of them was cut.

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
    """Return new variables (`biased`, `local_step`) below the name of `variable`, both zero."""
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
    """Return `name`, with "_1", "_2" and so on appended if the variable scope has such a variable.

    In a scope that reuses variables the name is returned unchanged.
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
    """Return the moving average of a tensor over runs, in which each run has a weight.

    Args:
        value: A tensor of a graph.
        decay: The fraction of the previous sums that a run keeps.
        weight: The weight of the run, a tensor that broadcasts with `value`.
        truediv: Ignored: values are floating-point.
        collections: Optional. The collections of the two new variables; GLOBAL_VARIABLES by
            default.
        name: Optional. The variable scope.

    Returns:
        A symbolic tensor; a run that evaluates it updates both sums and gets their quotient.

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
