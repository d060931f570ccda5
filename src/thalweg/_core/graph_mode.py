"""What a graph does for those who know no graph: the optimizers of Keras, and strategies.

`thalweg._graph` registers itself when it is imported. Where nobody has, nothing is symbolic, and
calls compute at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from thalweg._core.gradient_transforms import GradientTransforms
from thalweg.errors import FailedPreconditionError


class GraphMode(Protocol):
    """Calls become operations of a graph, which sessions run.

    Operations, symbolic tensors and variables of a graph are Any here, as is an `optimizer`, which
    is one of Keras.
    """

    def variable(self, initial_value: object, name: str, trainable: bool = False) -> Any:
        """A variable of the default graph, named below its scope, for an optimizer's own use."""
        ...

    def slot(self, var: Any, value: object, name: str) -> Any:
        """A variable beside one of a graph, of its shape and dtype; `name` is its whole name."""
        ...

    def variable_of(self, parameter: object) -> Any:
        """What stands for a parameter in the default graph; anything else as it is."""
        ...

    def check_graph(self, variables: Iterable[object], name: str) -> None:
        """Refuse variables of the optimizer `name` that are of another graph than that in use.

        Raises:
            FailedPreconditionError: One is.
        """
        ...

    def slices(self, values: object, indices: object) -> Any:
        """Rows of a tensor, of which a part is symbolic."""
        ...

    def deduplicated(self, values: object, indices: object) -> tuple[Any, Any]:
        """The sums of rows that are named more than once, and the indices, each once."""
        ...

    def gradients(
        self, loss: object, variables: Sequence[object], grad_loss: object
    ) -> list[tuple[Any, Any]]:
        """Symbolic gradients of a loss, paired with the variables."""
        ...

    def apply_gradients(
        self,
        optimizer: Any,
        grads_and_vars: Sequence[tuple[Any, Any]],
        name: str | None,
        aggregates: bool,
    ) -> Any:
        """The operation that takes a step when a session runs it.

        Args:
            optimizer: The optimizer.
            grads_and_vars: Gradients and variables.
            name: Name of the step; that of the optimizer if None.
            aggregates: Whether gradients are aggregated first.
        """
        ...

    def update(self, optimizer: Any, grad: object, var: Any, state: object) -> Any:
        """The operation that updates one variable by the rule of an optimizer.

        Args:
            optimizer: The optimizer.
            grad, var: The gradient and the variable.
            state: The coefficients of the step that a hook was given; None if it has none.
        """
        ...

    def clip(
        self, pairs: Sequence[tuple[Any, Any]], transforms: GradientTransforms, flush: bool
    ) -> list[tuple[Any, Any]]:
        """The pairs with gradients that are clipped when a session runs."""
        ...

    def learning_rate(self, optimizer: Any, dtype: torch.dtype) -> Any:
        """The learning rate that a step would have, as a tensor of the graph."""
        ...

    def as_one_update(self, call: Callable[[], object]) -> Any:
        """What a call returns; what it adds to the graph is one update."""
        ...

    def session(self, op_input_list: Sequence[object] = ()) -> Any:
        """See `thalweg.keras.backend.get_session`."""
        ...

    def use_session(self, session: object) -> None:
        """See `thalweg.keras.backend.set_session`."""
        ...

    def values(self, symbols: Sequence[object]) -> list[Any]:
        """The values of tensors in the session of graph mode, of one moment, as arrays."""
        ...

    def assign(self, values: Mapping[object, Tensor]) -> None:
        """Give variables values in the session of graph mode: all of them, or none."""
        ...

    def config_value(self, symbol: object) -> Any:
        """The value of a hyperparameter for a configuration; its first if no session is known."""
        ...

    def group(self, *inputs: object, name: str | None = None) -> Any:
        """An operation that is done when all of these are."""
        ...

    def all_reduce(self, strategy: Any, op: Any, leaves: Sequence[object], axis: int | None) -> Any:
        """Sums or means over replicas, as an operation that each rank runs at the same place."""
        ...

    def aggregate(self, variable: Any, aggregation: Any) -> None:
        """Have what replicas assign to a variable from now on be aggregated when a session runs."""
        ...


_modes: list[GraphMode] = []


def register(mode: GraphMode) -> None:
    """Say that there can be graphs from now on."""
    _modes[:] = [mode]


def has_graphs() -> bool:
    """Whether there can be graphs: `register` was called."""
    return bool(_modes)


def graph_mode() -> GraphMode:
    """What graphs do.

    Raises:
        FailedPreconditionError: There are none.
    """
    if not _modes:
        raise FailedPreconditionError(
            "There are no graphs in this process. Import what makes them first: thalweg.tf,"
            " thalweg.v1 or thalweg._graph."
        )
    return _modes[0]
