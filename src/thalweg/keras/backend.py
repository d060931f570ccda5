"""Functions of `tf.keras.backend`: values of variables, and the session of graph mode.

Optimizers read and set their hyperparameters through these functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from thalweg._base.context_managers import no_grad
from thalweg._base.execution_context import eagerly, is_symbolic
from thalweg._base.static_shape import UNKNOWN
from thalweg._core.graph_mode import graph_mode, has_graphs
from thalweg.errors import InvalidArgumentError
from thalweg.indexed_slices import exported
from thalweg.variable import name_of, tensor_of, to_tensor


def get_session(op_input_list: Sequence[object] = ()) -> Any:
    """Return the session of graph mode; initialize new variables of Keras optimizers in it.

    The result is the first that exists: the running session, the default session, the session
    passed to `set_session`. If none exists, create a session, and return it in later calls, too.

    Args:
        op_input_list: Optional. Tensors and variables of a graph; the session must run this graph.

    Raises:
        FailedPreconditionError: No module that builds graphs was imported.
    """
    return graph_mode().session(op_input_list)


def set_session(session: object) -> None:
    """Set the session that this thread uses without a default session; None removes it."""
    if session is not None or has_graphs():
        graph_mode().use_session(session)


def get_value(x: object) -> Any:
    """Return the value of a variable or tensor as a NumPy array or scalar; other objects unchanged.

    Raises:
        FailedPreconditionError: The tensor belongs to a graph, and no session exists.
    """
    return batch_get_value([x])[0]


def batch_get_value(tensors: Iterable[object]) -> list[Any]:
    """Return the values of variables and tensors, in one session run for those of a graph."""
    loaded = [tensor_of(tensor) for tensor in tensors]
    symbols = [tensor for tensor in loaded if is_symbolic(tensor)]
    values = iter(graph_mode().values(symbols) if symbols else ())
    return [next(values) if is_symbolic(tensor) else exported(tensor) for tensor in loaded]


def set_value(x: object, value: object) -> None:
    """Assign a value to a variable: in eager mode to its memory, in graph mode in the session.

    Args:
        x: A variable.
        value: A number, array or tensor; it is converted to the variable's dtype.

    Raises:
        FailedPreconditionError: The variable belongs to a graph, and no session exists.
        InvalidArgumentError: The shapes differ.
    """
    batch_set_value([(x, value)])


def batch_set_value(tuples: Iterable[tuple[object, object]]) -> None:
    """Assign a value to each variable of (variable, value) pairs; see `set_value`.

    If a shape differs, no variable changes. If the session fails, no graph variable changes.
    """
    requests = [(tensor_of(x), value) for x, value in tuples]
    pairs = [(x, to_tensor(value, x.dtype).detach()) for x, value in requests]
    # All shapes are checked before the first write.
    for x, value in pairs:
        if x.shape is not UNKNOWN and tuple(value.shape) != tuple(x.shape):
            raise InvalidArgumentError(
                f"Cannot give '{name_of(x)}' of shape {tuple(x.shape)} a value of shape"
                f" {tuple(value.shape)}."
            )
    symbolic_values = {x: value for x, value in pairs if is_symbolic(x)}
    if symbolic_values:
        graph_mode().assign(symbolic_values)
    # Eager variables may be set while a graph is being built, too.
    with eagerly(), no_grad():
        for x, value in pairs:
            if not is_symbolic(x):
                x.copy_(value)
