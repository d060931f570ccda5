"""Variables of Keras optimizers in a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from thalweg._base.execution_context import current_session, graph_of, is_symbolic
from thalweg._graph.default_graph import get_default_graph
from thalweg._graph.variable_creation import make_variable
from thalweg._graph.variables import GraphVariable
from thalweg.errors import FailedPreconditionError

# Collection of the variables that a Keras session initializes before a run.
OPTIMIZER_VARIABLES = "keras_variables"


def variable(initial_value: object, name: str, trainable: bool = False) -> GraphVariable:
    """Return a new optimizer variable of the default graph, named below its name scope."""
    full_name = f"{get_default_graph().scope}{name}"
    return track(make_variable(initial_value, full_name, trainable=trainable))


def track(variable: object) -> Any:
    """Return `variable`; register a graph variable for initialization by Keras sessions."""
    if isinstance(variable, GraphVariable):
        variable.graph.add_to_collection(OPTIMIZER_VARIABLES, variable)
    return variable


def slot(var: GraphVariable, value: object, name: str) -> GraphVariable:
    """Return a new variable with the shape and dtype of `var` for a slot; `name` is complete."""
    return make_variable(value, name, like=var)


def check_graph(variables: Iterable[Any], name: str) -> None:
    """Raise FailedPreconditionError if a symbolic variable is not of the current graph.

    The current graph is the graph of the running session, or else the graph under construction.
    `name` is the optimizer's name, for the message.
    """
    session = current_session()
    current_graph = graph_of() if session is None else session.graph
    for var in variables:
        if is_symbolic(var) and var.graph is not current_graph:
            raise FailedPreconditionError(
                f"'{var.name}' of the optimizer {name!r} is a variable of another graph. Make an"
                " optimizer for each graph, and for eager mode."
            )


def find_graph_state(optimizer: Any, variables: Sequence[object]) -> list[GraphVariable]:
    """Return the slots and other optimizer variables in the graph that a step writes to."""
    state_variables: list[Any] = []
    for member in optimizer._with_inner():
        state_variables += [
            slot for var in variables for slot in member._slots.all_of(var).values()
        ]
        state_variables += [*member._own_children().values(), *member._added_weights]
    return [var for var in state_variables if isinstance(var, GraphVariable)]
