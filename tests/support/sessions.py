"""Sessions of the graph that a test builds."""

from __future__ import annotations

from thalweg import _graph


def initialized() -> _graph.Session:
    """Return a session in which all variables made so far have their initial values."""
    session = _graph.Session()
    session.run([_graph.global_variables_initializer(), _graph.local_variables_initializer()])
    return session
