"""The variables of Keras optimizers that are of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from thalweg._base.execution_context import current_session, graph_of, is_symbolic
from thalweg._graph.default_graph import get_default_graph
from thalweg._graph.variable_creation import make_variable
from thalweg._graph.variables import GraphVariable
from thalweg.errors import FailedPreconditionError

OWN = "keras_variables"  # a collection: what a session initializes by itself


def variable(initial_value: object, name: str, trainable: bool = False) -> GraphVariable:
    """See `GraphMode`."""
    title = f"{get_default_graph().scope}{name}"
    return track(make_variable(initial_value, title, trainable=trainable))


def track(variable: object) -> Any:
    """Let sessions that `get_session` returns initialize a variable of a graph."""
    if isinstance(variable, GraphVariable):
        variable.graph.add_to_collection(OWN, variable)
    return variable


def slot(var: GraphVariable, value: object, name: str) -> GraphVariable:
    """See `GraphMode`."""
    return make_variable(value, name, like=var)


def check_graph(variables: Iterable[Any], name: str) -> None:
    """See `GraphMode`."""
    session = current_session()
    own = graph_of() if session is None else session.graph
    for var in variables:
        if is_symbolic(var) and var.graph is not own:
            raise FailedPreconditionError(
                f"'{var.name}' of the optimizer {name!r} is a variable of another graph. Make an"
                " optimizer for each graph, and for eager mode."
            )


def kept_in_graph(optimizer: Any, variables: Sequence[object]) -> list[GraphVariable]:
    """Return the variables of the graph that a step of these variables writes to beside them."""
    found: list[Any] = []
    for each in optimizer._with_inner():
        found += [slot for var in variables for slot in each._slots.all_of(var).values()]
        found += [*each._own_children().values(), *each._added_weights]
    return [var for var in found if isinstance(var, GraphVariable)]
