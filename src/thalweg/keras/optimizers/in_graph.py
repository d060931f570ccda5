"""Keras optimizers in graph mode: what they do at once in eager mode becomes an operation.

The operation calls the optimizer as it is, with the running session's tensors. `iterations` and
slots are variables of the graph; hyperparameters are the optimizer's own, the same in all sessions.
Callables among these are called when the operation is made, as in TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from thalweg.core.hyperparameters import Hyperparameters
from thalweg.core.pairs import distinct
from thalweg.errors import InvalidTypeError
from thalweg.graph import (
    GraphVariable,
    by_reference,
    check_updates,
    current_session,
    executing_eagerly,
    gradients,
    graph_variable_of,
    is_symbolic,
    operation,
)
from thalweg.variable import is_frozen

GradsAndVars = list[tuple[Any, Any]]


def is_deferred(*parts: Any) -> bool:
    """Whether a call with these arguments belongs in a graph."""
    if current_session() is not None:
        return False
    return not executing_eagerly() or any(map(is_symbolic, parts))


def computed(loss: Any, variables: Sequence[Any], grad_loss: Any) -> GradsAndVars:
    """Symbolic gradients of a loss, paired with the variables."""
    own = [graph_variable_of(var) for var in variables]
    for var in own:
        if not isinstance(var, GraphVariable):
            raise InvalidTypeError(f"{var!r} is no variable of the graph.")
    found = gradients(loss, own, grad_loss)
    frozen = map(is_frozen, variables)
    return [
        (None if still else grad, var) for grad, var, still in zip(found, own, frozen, strict=True)
    ]


def applied(
    step: Callable[[list[Any], list[Tensor], dict[str, Any]], None],
    given: GradsAndVars,
    create: Callable[[list[Any]], None],
    hyper: Hyperparameters,
    name: str,
) -> Any:
    """The operation that takes a step.

    Args:
        step: Takes it, with the gradients and the variables of a session, and with what callable
            hyperparameters gave.
        given: Gradients and variables.
        create: Makes the state that the variables need, in the graph.
        hyper: The hyperparameters. Callables are called now, as TensorFlow does.
        name: Name of the operation.
    """
    pairs = [(grad, graph_variable_of(var)) for grad, var in given]
    check_updates(pairs)
    called = hyper.called()
    create(distinct([var for _, var in pairs]))

    def run(
        grads: list[Any], leaves: list[Tensor], called: dict[str, Any], symbolic: list[Any]
    ) -> None:
        step(grads, leaves, called)

    grads, variables = [grad for grad, _ in pairs], [by_reference(var) for _, var in pairs]
    inputs = [grads, variables, called, hyper.symbolic()]
    return operation(run, inputs, name)
