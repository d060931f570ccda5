"""`tf.test.TestCase`: sessions for a test, and the assertions."""

from __future__ import annotations

import atexit
import contextlib
import functools
import random
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from thalweg import _graph as graph
from thalweg._base.execution_context import executing_eagerly, get_default_session, thread
from thalweg._graph.session import Session
from thalweg.tf.random import set_seed
from thalweg.tf.test.assertions import Comparing, computed, is_symbolic

_SEED = 87654321


@functools.cache
def make_temporary_directory() -> str:
    """Return a folder for the files of tests, removed when the process ends."""
    directory = tempfile.mkdtemp(prefix="thalweg-test-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


class _Eager:
    """Session of eager mode: `run` returns the values of computed tensors."""

    def run(self, fetches: object, feed_dict: object = None) -> object:
        """Return the values of eager tensors; ValueError if something is fed."""
        if feed_dict:
            raise ValueError("Nothing can be fed in eager mode.")
        return computed(fetches)


class TestCase(Comparing):
    """`unittest.TestCase` with sessions and assertions about tensors.

    Each test begins with a new default graph and the same random numbers.
    """

    _cached: Session | None = None

    def setUp(self) -> None:
        super().setUp()
        random.seed(_SEED)
        np.random.seed(_SEED)
        if not thread.graphs:
            graph.reset_default_graph()
        set_seed(_SEED)

    def tearDown(self) -> None:
        cached, self._cached = self._cached, None
        if cached is not None:
            cached.close()
        super().tearDown()

    def get_temp_dir(self) -> str:
        """Return a folder for the test's own files."""
        return tempfile.mkdtemp(dir=make_temporary_directory())

    def evaluate(self, tensors: object) -> Any:
        """Return a nest of tensors as arrays; symbolic ones by the default or cached session."""
        if not is_symbolic(tensors):
            return computed(tensors)
        session = get_default_session()
        if session is not None:
            return session.run(tensors)
        with self.cached_session() as session:
            return session.run(tensors)

    @contextlib.contextmanager
    def session(
        self,
        graph: Any = None,
        config: object = None,
        use_gpu: bool = True,
        force_gpu: bool = False,
    ) -> Iterator[Any]:
        """Return a context manager that yields a new session and makes its graph the default.

        In eager mode without `graph`, `run` of the session returns values of eager tensors. All
        arguments but `graph` are ignored.
        """
        if graph is None and executing_eagerly():
            yield _Eager()
        else:
            with Session(graph=graph) as new_session:
                yield new_session

    @contextlib.contextmanager
    def cached_session(
        self,
        graph: Any = None,
        config: object = None,
        use_gpu: bool = True,
        force_gpu: bool = False,
    ) -> Iterator[Any]:
        """Return a context manager like `session`, but yield the same session throughout a test.

        Raise ValueError if `graph` is not None and not the graph of this session.
        """
        if graph is None and self._cached is None and executing_eagerly():
            yield _Eager()
            return
        if self._cached is None:
            self._cached = Session(graph=graph)
        if graph not in (None, self._cached.graph):
            raise ValueError("The graph is not the one that the cached session was made with.")
        with self._cached.graph.as_default(), self._cached.as_default():
            yield self._cached

    def test_session(
        self,
        graph: object = None,
        config: object = None,
        use_gpu: bool = True,
        force_gpu: bool = False,
    ) -> contextlib.AbstractContextManager[Any]:
        """Return `cached_session()`, or `session(graph)` if a graph is given."""
        # unittest runs each method whose name begins with "test".
        if self.id().endswith(".test_session"):
            self.skipTest("It is no test, but has the name of one.")
        return self.cached_session() if graph is None else self.session(graph)
