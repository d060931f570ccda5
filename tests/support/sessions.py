"""Sessions of the graph that a test builds."""

from __future__ import annotations

from thalweg import _graph as graph


def initialized() -> graph.Session:
    """A session in which all variables made so far have their initial values."""
    session = graph.Session()
    session.run([graph.global_variables_initializer(), graph.local_variables_initializer()])
    return session
