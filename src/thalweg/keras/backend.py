"""Values of variables in either mode, and the session that has those of a graph.

Functions of `tf.keras.backend`; optimizers set and read their hyperparameters by them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.graph import (
    GraphVariable,
    Session,
    current_session,
    get_default_graph,
    get_default_session,
    is_symbolic,
)
from thalweg.graph.exchange import exported
from thalweg.running import eagerly
from thalweg.switches import no_grad
from thalweg.variable import name_of, tensor_of, to_tensor

_OWN = "keras_variables"  # a collection: what a session initializes by itself


class _Thread(threading.local):
    """The session of one thread that none is the default of."""

    def __init__(self) -> None:
        self.session: Any = None


_thread = _Thread()


def track(variable: Any) -> Any:
    """Let sessions that `get_session` returns initialize a variable of a graph."""
    if isinstance(variable, GraphVariable):
        variable.graph.add_to_collection(_OWN, variable)
    return variable


def get_session(op_input_list: Sequence[Any] = ()) -> Session:
    """The session of graph mode.

    It is the one whose operation runs; or the default one; or what `set_session` was given; or a
    new one for the default graph, which is returned from then on. `iterations` and hyperparameters
    of optimizers that have no value in it get their initial one.

    Args:
        op_input_list: Optional. What the session is for: tensors and variables of its graph.
    """
    graph = next((each.graph for each in op_input_list if is_symbolic(each)), get_default_graph())
    session = _known(graph)
    if session is None:
        session = _thread.session = Session(graph=graph)
    return _initialized(session)


def set_session(session: Any) -> None:
    """Let this thread use a session wherever none is the default; None forgets it."""
    _thread.session = session


def get_value(x: Any) -> Any:
    """The value of a variable or tensor as a NumPy array or scalar; anything else as it is.

    Raises:
        FailedPreconditionError: It is of a graph, and no session is known.
    """
    return batch_get_value([x])[0]


def batch_get_value(tensors: Iterable[Any]) -> list[Any]:
    """The values of variables and tensors; see `get_value`. Those of a graph are of one moment."""
    found = [tensor_of(each) for each in tensors]
    symbols = [each for each in found if is_symbolic(each)]
    values = iter(session_of(symbols[0], "read").run(symbols) if symbols else ())
    return [next(values) if is_symbolic(each) else exported(each) for each in found]


def set_value(x: Any, value: Any) -> None:
    """Give a variable a value: at once in eager mode, and in graph mode in the session.

    Args:
        x: A variable.
        value: A number, array or tensor; it is converted to the variable's dtype.

    Raises:
        FailedPreconditionError: The variable is of a graph, and no session is known.
        InvalidArgumentError: The shapes differ.
    """
    batch_set_value([(x, value)])


def batch_set_value(tuples: Iterable[tuple[Any, Any]]) -> None:
    """Give variables values; see `set_value`. Those of a graph are set together, or none is."""
    given = [(tensor_of(x), value) for x, value in tuples]
    pairs = [(x, to_tensor(value, x.dtype).detach()) for x, value in given]
    for x, value in pairs:
        if x.shape is not None and tuple(value.shape) != tuple(x.shape):
            raise InvalidArgumentError(
                f"Cannot give '{name_of(x)}' of shape {tuple(x.shape)} a value of shape"
                f" {tuple(value.shape)}."
            )
    own = {x: value for x, value in pairs if is_symbolic(x)}
    if own:
        session_of(next(iter(own)), "set").load_all(own)
    with eagerly(), no_grad():  # in eager mode, and what is of it while a graph is built
        for x, value in pairs:
            if not is_symbolic(x):
                x.copy_(value)


def session_of(x: Any, purpose: str) -> Session:
    """The session that has the value of a graph's variable.

    Raises:
        FailedPreconditionError: None is known.
    """
    session = _known(x.graph)
    if session is None:
        raise FailedPreconditionError(
            f"Cannot {purpose} '{x.name}', of which each session has a value: no session is the"
            " default. Do it inside `with session:`, or give the session to"
            " tf.compat.v1.keras.backend.set_session."
        )
    return _initialized(session)


def has_session(graph: Any) -> bool:
    """Whether a session of the graph is known."""
    return _known(graph) is not None


def _known(graph: Any) -> Any:
    known = (current_session(), get_default_session(), _thread.session)
    return next((s for s in known if s is not None and s.graph is graph and not s.closed), None)


def _initialized(session: Session) -> Session:
    if current_session() is not session:
        own = session.graph.get_collection(_OWN)
        new = [each.initializer for each in own if not session.is_initialized(each)]
        if new:
            session.run(new)
    return session
