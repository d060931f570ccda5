"""Variables of Keras optimizers in a graph, and the session that has the values."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from thalweg._base.execution_context import (
    current_session,
    first_graph,
    get_default_session,
    graph_of,
    is_symbolic,
)
from thalweg._graph.default_graph import get_default_graph
from thalweg._graph.session import Session
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

    The current graph is the graph of the running session. Without a session it is the graph under
    construction. `name` is the optimizer's name, for the message.
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


class _ThreadSession(threading.local):
    """Session of one thread that Keras uses if there is no default session."""

    def __init__(self) -> None:
        self.session: Any = None


_thread = _ThreadSession()


def session(op_input_list: Sequence[object] = ()) -> Session:
    """Return the Keras session, with new variables initialized; see `backend.get_session`."""
    graph = first_graph(op_input_list)
    active = _find_session(graph)
    if active is None:
        active = _thread.session = Session(graph=graph)
    return _initialize_new(active)


def use_session(session: object) -> None:
    """Set the Keras session of this thread; see `keras.backend.set_session`."""
    _thread.session = session


def values(symbols: Sequence[object]) -> list[Any]:
    """Return the values of symbolic tensors as arrays, all from one run of the Keras session."""
    return _session_of(symbols[0], "read").run(list(symbols))


def assign(values: Mapping[Any, Tensor]) -> None:
    """Assign {variable: value} in the Keras session; change no variable on an error."""
    _session_of(next(iter(values)), "set").load_all(values)


def config_value(symbol: object) -> Any:
    """Return the value of a hyperparameter for a config; without session, the initial value."""
    if isinstance(symbol, GraphVariable) and _find_session(symbol.graph) is None:
        return Session(graph=symbol.graph).run(symbol.initial_value)
    return values([symbol])[0]


def _session_of(x: Any, purpose: str) -> Session:
    """Return the Keras session of a tensor's graph, after initializing new optimizer variables.

    Raise FailedPreconditionError if there is no session; `purpose` is a verb for the message.
    """
    sessions = _find_session(x.graph)
    if sessions is None:
        raise FailedPreconditionError(
            f"Cannot {purpose} '{x.name}', of which each session has a value: no session is the"
            " default. Do it inside `with session:`, or give the session to"
            " tf.compat.v1.keras.backend.set_session."
        )
    return _initialize_new(sessions)


def _find_session(graph: object) -> Any:
    """Return the open session of a graph: the running, default or Keras one; None if none."""
    sessions = (current_session(), get_default_session(), _thread.session)
    return next((s for s in sessions if s is not None and s.graph is graph and not s.closed), None)


def _initialize_new(session: Session) -> Session:
    """Initialize the optimizer variables that have no value in a session; return the session."""
    if current_session() is not session:
        variables = session.graph.get_collection(OPTIMIZER_VARIABLES)
        new = [var.initializer for var in variables if not session.is_initialized(var)]
        if new:
            session.run(new)
    return session
