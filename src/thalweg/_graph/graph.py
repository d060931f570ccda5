"""`Graph`: a set of operations that records calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from thalweg._base.execution_context import resolve, thread
from thalweg._base.exports import exported_from
from thalweg._base.tensor_patching import lend_for_good
from thalweg._core.nest import mapped
from thalweg._graph.device_names import device
from thalweg._graph.modules import intercept_modules
from thalweg._graph.node_names import node_name_from
from thalweg._graph.nodes import Nodes, SymbolicTensor
from thalweg._graph.recording import record, write


@exported_from("thalweg.v1")
class Graph(Nodes):
    """Set of operations, executed by sessions.

    Example:
        >>> from thalweg.v1 import Session, constant
        >>> graph = Graph()
        >>> with graph.as_default():
        ...     total = constant(2.0) + constant(3.0)
        >>> Session(graph=graph).run(total)
        np.float32(5.0)
    """

    device = staticmethod(device)
    write = staticmethod(write)
    # TensorFlow's name; set by `tf.train`'s optimizers.
    _is_loss_scaled_by_optimizer = False

    @contextlib.contextmanager
    def as_default(self) -> Iterator[Graph]:
        """Return a context manager in which this thread's calls add operations to this graph.

        The block is in graph mode, even inside of `eagerly`, the context manager of eager mode.
        """
        lend_for_good()
        # An enclosing `eagerly` has no effect inside of the block.
        previous_graph, thread.eager_blocks = thread.eager_blocks, 0
        thread.graphs.append(self)
        try:
            with intercept_modules():
                yield self
        finally:
            thread.graphs.pop()
            thread.eager_blocks = previous_graph

    def get_name_scope(self) -> str:
        """Return the current name scope, without a final "/"."""
        return self.scope[:-1]

    def call(
        self,
        function: Callable[..., object],
        args: Sequence[object],
        kwargs: Mapping[str, object] | None = None,
        name: str | None = None,
        sparse_flows: frozenset[SymbolicTensor] = frozenset(),
    ) -> Any:
        """Add an operation that calls `function`; return the outputs; see `recording.record`.

        Inside of a function that a session runs, add nothing. Instead call `function` with the
        values of symbolic arguments in the run, and return the result.
        """
        if thread.frames:
            parameters = mapped(resolve, (tuple(args), dict(kwargs or {})))
            return function(*parameters[0], **parameters[1])
        node_name = name or node_name_from(function.__name__)
        return record(self, function, args, kwargs or {}, node_name, sparse_flows)


# Python's errors about arguments of `Graph` show this name.
Nodes.__init__.__qualname__ = "Graph.__init__"
