"""The session of Keras that has the values of a graph's variables."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from thalweg._base.execution_context import current_session, first_graph, get_default_session
from thalweg._graph.keras.variables import OWN
from thalweg._graph.session import Session
from thalweg._graph.variables import GraphVariable
from thalweg.errors import FailedPreconditionError


class _ThreadSession(threading.local):
    """The session of one thread that none is the default of."""

    def __init__(self) -> None:
        self.session: Any = None


_thread = _ThreadSession()


def session(op_input_list: Sequence[object] = ()) -> Session:
    """See `thalweg.keras.backend.get_session`."""
    graph = first_graph(op_input_list)
    active = _find_session(graph)
    if active is None:
        active = _thread.session = Session(graph=graph)
    return _initialize_new(active)


def use_session(session: object) -> None:
    """See `thalweg.keras.backend.set_session`."""
    _thread.session = session


def values(symbols: Sequence[object]) -> list[Any]:
    """See `GraphMode`."""
    return _session_of(symbols[0], "read").run(list(symbols))


def assign(values: Mapping[Any, Tensor]) -> None:
    """See `GraphMode`."""
    _session_of(next(iter(values)), "set").load_all(values)


def config_value(symbol: object) -> Any:
    """See `GraphMode`."""
    if isinstance(symbol, GraphVariable) and _find_session(symbol.graph) is None:
        return Session(graph=symbol.graph).run(symbol.initial_value)
    return values([symbol])[0]


def _session_of(x: Any, purpose: str) -> Session:
    """Return the session that has the value of a graph's variable.

    Raises:
        FailedPreconditionError: None is known.
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
    sessions = (current_session(), get_default_session(), _thread.session)
    return next((s for s in sessions if s is not None and s.graph is graph and not s.closed), None)


def _initialize_new(session: Session) -> Session:
    if current_session() is not session:
        variables = session.graph.get_collection(OWN)
        new = [var.initializer for var in variables if not session.is_initialized(var)]
        if new:
            session.run(new)
    return session
