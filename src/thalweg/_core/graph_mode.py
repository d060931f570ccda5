"""Interface of graph mode for packages that do not import `thalweg._graph`.

`thalweg._graph` registers itself when it is imported. Without it nothing is symbolic, and calls
compute at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from thalweg._core.gradient_transforms import GradientTransforms
from thalweg.errors import FailedPreconditionError


class GraphMode(Protocol):
    """Interface of graph mode: calls become operations of a graph, which sessions run.

    Operations, symbolic tensors and graph variables have the type Any, and so has `optimizer`, an
    optimizer of Keras.
    """

    def variable(self, initial_value: object, name: str, trainable: bool = False) -> Any:
        """Return a new variable of the default graph for an optimizer's state.

        Args:
            initial_value: The first value.
            name: The variable's name; the graph's current name scope is put before it.
            trainable: True to add it to the graph's trainable variables.
        """
        ...

    def slot(self, var: Any, value: object, name: str) -> Any:
        """Return a new variable with the shape and dtype of `var`; `name` is the full name."""
        ...

    def variable_of(self, parameter: object) -> Any:
        """Return the default graph's variable for a parameter; any other object unchanged."""
        ...

    def check_graph(self, variables: Iterable[object], name: str) -> None:
        """Raise FailedPreconditionError if a variable is of another graph than the current one.

        Args:
            name: The name of their optimizer, for the message.
        """
        ...

    def slices(self, values: object, indices: object) -> Any:
        """Return `IndexedSlices` whose values or indices are symbolic."""
        ...

    def deduplicated(self, values: object, indices: object) -> tuple[Any, Any]:
        """Return the sums of values of equal indices, and each index once."""
        ...

    def gradients(
        self, loss: object, variables: Sequence[object], grad_loss: object
    ) -> list[tuple[Any, Any]]:
        """Return symbolic gradients of a loss, each with its variable."""
        ...

    def apply_gradients(
        self,
        optimizer: Any,
        grads_and_vars: Sequence[tuple[Any, Any]],
        name: str | None,
        aggregates: bool,
    ) -> Any:
        """Add an operation to the graph that takes a step in each run; return the operation.

        Args:
            grads_and_vars: Pairs of a gradient and a variable.
            name: The name of the operation; None for the optimizer's name.
            aggregates: True to aggregate gradients over replicas first.
        """
        ...

    def update(self, optimizer: Any, grad: object, var: Any, state: object) -> Any:
        """Add an operation to the graph that updates one variable by a rule; return the operation.

        Args:
            optimizer: The optimizer, whose rule is used.
            state: The step's coefficients that a hook received, or None.
        """
        ...

    def clip(
        self, pairs: Sequence[tuple[Any, Any]], transforms: GradientTransforms, flush: bool
    ) -> list[tuple[Any, Any]]:
        """Return the pairs with gradients that are clipped when a session runs."""
        ...

    def learning_rate(self, optimizer: Any, dtype: torch.dtype) -> Any:
        """Return the learning rate of a step as a tensor of the graph."""
        ...

    def as_one_update(self, call: Callable[[], object]) -> Any:
        """Call a function whose operations become one update of the graph; return its result.

        Inside another such call, the operations join the outer update.
        """
        ...

    def session(self, op_input_list: Sequence[object] = ()) -> Any:
        """Return the running session, the default session, that of `use_session`, or a new session.

        Args:
            op_input_list: Tensors and variables of the graph that the session shall run.
        """
        ...

    def use_session(self, session: object) -> None:
        """Make later operations of graph mode run in `session`."""
        ...

    def values(self, symbols: Sequence[object]) -> list[Any]:
        """Return the values of tensors as arrays, all from one run of graph mode's session."""
        ...

    def assign(self, values: Mapping[object, Tensor]) -> None:
        """Assign values to variables in the session of graph mode: all of them, or none."""
        ...

    def config_value(self, symbol: object) -> Any:
        """Return the value of a hyperparameter for a config; the initial one without a session."""
        ...

    def group(self, *inputs: object, name: str | None = None) -> Any:
        """Return an operation that finishes when all inputs have finished."""
        ...

    def all_reduce(self, strategy: Any, op: Any, leaves: Sequence[object], axis: int | None) -> Any:
        """Return an operation that sums or averages the tensors `leaves` over replicas.

        All ranks must run their operations in one order.

        Args:
            strategy: The strategy of distribution.
            op: The reduction, a sum or a mean.
            axis: An axis of the tensors over which the operation reduces, too; or None.
        """
        ...

    def aggregate(self, variable: Any, aggregation: Any) -> None:
        """Aggregate later assignments of replicas to a variable when a session runs."""
        ...


_modes: list[GraphMode] = []


def register(mode: GraphMode) -> None:
    """Set the implementation of graph mode."""
    _modes[:] = [mode]


def has_graphs() -> bool:
    """Return True if graph mode is available: `register` was called."""
    return bool(_modes)


def graph_mode() -> GraphMode:
    """Return the registered implementation of graph mode.

    Raises:
        FailedPreconditionError: `register` was not called.
    """
    if not _modes:
        raise FailedPreconditionError(
            "There are no graphs in this process. Import what makes them first: thalweg.tf,"
            " thalweg.v1 or thalweg._graph."
        )
    return _modes[0]
