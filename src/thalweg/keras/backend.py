"""Values of variables in either mode, and the session that has those of a graph.

Functions of `tf.keras.backend`; optimizers set and read their hyperparameters by them.
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
    """Return the session of graph mode.

    It is the one whose operation runs; or the default one; or what `set_session` was given; or a
    new one for the default graph, which is returned from then on. `iterations` and hyperparameters
    of optimizers that have no value in it get their initial one.

    Args:
        op_input_list: Optional. What the session is for: tensors and variables of its graph.

    Raises:
        FailedPreconditionError: Nothing that makes graphs was imported.
    """
    return graph_mode().session(op_input_list)


def set_session(session: object) -> None:
    """Let this thread use a session wherever none is the default; None forgets it."""
    if session is not None or has_graphs():
        graph_mode().use_session(session)


def get_value(x: object) -> Any:
    """Return the value of a variable or tensor as a NumPy array or scalar; anything else as it is.

    Raises:
        FailedPreconditionError: It is of a graph, and no session is known.
    """
    return batch_get_value([x])[0]


def batch_get_value(tensors: Iterable[object]) -> list[Any]:
    """Return the values of variables and tensors; see `get_value`. Those of a graph are of one
    moment.
    """
    found = [tensor_of(each) for each in tensors]
    symbols = [each for each in found if is_symbolic(each)]
    values = iter(graph_mode().values(symbols) if symbols else ())
    return [next(values) if is_symbolic(each) else exported(each) for each in found]


def set_value(x: object, value: object) -> None:
    """Give a variable a value: at once in eager mode, and in graph mode in the session.

    Args:
        x: A variable.
        value: A number, array or tensor; it is converted to the variable's dtype.

    Raises:
        FailedPreconditionError: The variable is of a graph, and no session is known.
        InvalidArgumentError: The shapes differ.
    """
    batch_set_value([(x, value)])


def batch_set_value(tuples: Iterable[tuple[object, object]]) -> None:
    """Give variables values; see `set_value`. Those of a graph are set together, or none is."""
    given = [(tensor_of(x), value) for x, value in tuples]
    pairs = [(x, to_tensor(value, x.dtype).detach()) for x, value in given]
    for x, value in pairs:
        if x.shape is not UNKNOWN and tuple(value.shape) != tuple(x.shape):
            raise InvalidArgumentError(
                f"Cannot give '{name_of(x)}' of shape {tuple(x.shape)} a value of shape"
                f" {tuple(value.shape)}."
            )
    own = {x: value for x, value in pairs if is_symbolic(x)}
    if own:
        graph_mode().assign(own)
    with eagerly(), no_grad():  # in eager mode, and what is of it while a graph is built
        for x, value in pairs:
            if not is_symbolic(x):
                x.copy_(value)
