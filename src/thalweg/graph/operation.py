"""`Operation`: one node of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from thalweg.errors import InvalidArgumentError
from thalweg.graph.running import get_default_session

if TYPE_CHECKING:
    from thalweg.graph.graph import Graph
    from thalweg.graph.tensor import SymbolicTensor


class Operation:
    """One node of a graph.

    Attributes:
        name: Unique in its graph.
        type: What it does, as "add" or "Placeholder".
        inputs: The symbolic tensors it takes.
        outputs: The symbolic tensors it gives.
        control_inputs: Operations that run before it.
        graph: The graph it belongs to.
    """

    def __init__(
        self,
        graph: Graph,
        name: str,
        kind: str,
        type: str,
        inputs: tuple[SymbolicTensor, ...],
        control_inputs: tuple[Operation, ...],
        device: torch.device,
    ) -> None:
        self.graph = graph
        self.name = name
        self.kind = kind
        self.type = type
        self.inputs = inputs
        self.control_inputs = control_inputs
        self.device = device
        self.outputs: tuple[SymbolicTensor, ...] = ()
        self.index = -1  # its place in the order of creation
        self.function: Callable[..., Any] | None = None  # None: it only orders others
        self.fill: Callable[[Any], Sequence[Any]] = lambda _: ()  # the arguments of a run
        self.picks: tuple[int, ...] | None = None  # which leaves of the result are the outputs
        self.stateful = False  # writes buffers while it computes
        self.flows: tuple[tuple[SymbolicTensor, ...], ...] | None = None
        self.sparse_flows: frozenset[SymbolicTensor] = frozenset()
        self.origin = ""

    def flows_to(self, output: SymbolicTensor) -> tuple[SymbolicTensor, ...]:
        """The inputs that a gradient of `output` reaches."""
        if self.kind != "pure":
            return ()
        if self.flows is not None:
            return self.flows[output.value_index]
        return tuple(tensor for tensor in self.inputs if tensor.is_differentiable())

    def run(self, feed_dict: Any = None, session: Any = None) -> None:
        """Run it and what it needs, in `session` or the default one.

        Raises:
            InvalidArgumentError: There is no session.
        """
        session_for(session, f"run operation '{self.name}'").run(self, feed_dict)

    def __repr__(self) -> str:
        return f"<tf.Operation '{self.name}' type={self.type}>"

    def __deepcopy__(self, memo: Any) -> Operation:
        return self


def session_for(session: Any, purpose: str) -> Any:
    """`session`, or the default one; InvalidArgumentError if there is none."""
    found = session or get_default_session()
    if found is None:
        raise InvalidArgumentError(
            f"Cannot {purpose}: no default session is registered. Use `with session.as_default()` "
            "or pass session=."
        )
    return found
