"""Keras optimizers in graph mode: what they do at once in eager mode becomes an operation.

The operation calls the optimizer as it is, with the running session's tensors. `iterations` and
slots are variables of the graph; hyperparameters are the optimizer's own, the same in all sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg.core.pairs import distinct
from thalweg.errors import InvalidTypeError
from thalweg.graph import (
    GraphVariable,
    SymbolicSlices,
    by_reference,
    current_session,
    executing_eagerly,
    gradients,
    graph_variable_of,
    is_symbolic,
    operation,
)
from thalweg.variable import name_of

GradsAndVars = list[tuple[Any, Any]]


def is_deferred(*parts: Any) -> bool:
    """Whether a call with these arguments belongs in a graph."""
    if current_session() is not None:
        return False
    return not executing_eagerly() or any(map(is_symbolic, parts))


def variable(var: Any) -> Any:
    """The graph's variable for a torch parameter; what is symbolic is returned as it is."""
    return graph_variable_of(var) if isinstance(var, torch.nn.Parameter) else var


def computed(loss: Any, variables: Sequence[Any], grad_loss: Any) -> GradsAndVars:
    """Symbolic gradients of a loss, paired with the variables."""
    own = [variable(var) for var in variables]
    for var in own:
        if not isinstance(var, GraphVariable):
            raise InvalidTypeError(f"{var!r} is no variable of the graph.")
    return list(zip(gradients(loss, own, grad_loss), own, strict=True))


def applied(
    step: Callable[[list[Any], list[Tensor]], None],
    given: GradsAndVars,
    create: Callable[[list[Any]], None],
    captured: Callable[[], list[Any]],
    name: str,
) -> Any:
    """The operation that takes a step.

    Args:
        step: Takes it, with the gradients and the variables of a session.
        given: Gradients and variables.
        create: Makes the state that the variables need, in the graph.
        captured: Gives the other tensors of the graph that the step depends on.
        name: Name of the operation.
    """
    pairs = [(grad, variable(var)) for grad, var in given]
    for grad, var in pairs:
        if not isinstance(var, GraphVariable):
            raise NotImplementedError(
                f"Trying to update a Tensor {name_of(var, 'Tensor')!r}, which is no variable:"
                " it is computed or fed in each run of a session."
            )
        if isinstance(grad, SymbolicSlices) and var.constraint is not None:
            raise RuntimeError(
                f"Cannot use a constraint function on a sparse variable: '{var.name}'."
            )
    create(distinct([var for _, var in pairs]))

    def run(grads: list[Any], leaves: list[Tensor], hypers: list[Any]) -> None:
        step(grads, leaves)

    inputs = [[grad for grad, _ in pairs], [by_reference(var) for _, var in pairs], captured()]
    return operation(run, inputs, name)
