"""Hooks of optimizers that are called once, while a graph is built, as in TensorFlow.

The hooks add ordinary operations. A session runs the operations as one update, a `Unit`.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thalweg._base.execution_context import is_symbolic
from thalweg._graph.control import group, updates_since
from thalweg._graph.ops import constant
from thalweg._graph.symbolic_slices import SymbolicSlices
from thalweg._graph.variables import GraphVariable
from thalweg.errors import InvalidTypeError
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import to_tensor

_LIBRARIES = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))


def gradient_symbol(grad: object) -> Any:
    """Return a gradient as a symbolic tensor or slices; an eager gradient becomes a constant."""
    if is_symbolic(grad):
        # A variable is read before the hooks change it.
        return grad.read_value() if isinstance(grad, GraphVariable) else grad
    if isinstance(grad, Tensor) and grad.is_sparse:
        grad = IndexedSlices.from_sparse(grad)
    if isinstance(grad, IndexedSlices):
        return SymbolicSlices(constant(grad.values), constant(grad.indices), grad.dense_shape)
    return constant(to_tensor(grad))


def update_of(owner: object, var: GraphVariable, hook: Callable[[], object]) -> Any:
    """Call `hook()`, which updates `var`; return the operation of the update.

    If `hook()` returns None, return a group of the updates that the hook added. If `var` has a
    constraint, return the operation that applies the constraint. `owner` is the optimizer.
    """
    graph = var.graph
    count = len(graph.operations)
    with graph.name_scope(f"update_{var.op.name}"):
        with explain_errors(owner, f"the update of '{var.op.name}'"):
            update = hook()
        updates = updates_since(graph, count) if update is None else []
        update = group(*updates) if updates else update
        if var.constraint is None:
            return update
        with explain_errors(owner, f"the constraint of '{var.op.name}'"):
            return apply_constraint(var, update)


def apply_constraint(var: GraphVariable, update: object) -> Any:
    """Return the operation that applies the constraint of a variable after `update`."""
    constraint: Any = var.constraint
    with var.graph.control_dependencies([] if update is None else [update]):
        return var.assign(constraint(var.read_value()))


@contextlib.contextmanager
def explain_errors(owner: object, hook: str) -> Iterator[None]:
    """Return a context manager that adds the user's source line and advice to errors.

    TypeError and AttributeError become InvalidTypeError. `hook` is the hook's name in messages.
    """
    try:
        yield
    except Exception as error:
        cls = type(owner).__name__
        advice = (
            f"At {_line_of(error)}, in {hook} of {cls}. Hooks are called once, as the graph is"
            " built, with tensors that have no value yet, as in TensorFlow. Set"
            f" `HOOKS_AT_EACH_RUN = True` in {cls} to have them called at each run, with the"
            " session's tensors."
        )
        if isinstance(error, TypeError | AttributeError):
            raise InvalidTypeError(f"{_message_of(error)}. {advice}") from error
        error.add_note(advice)
        raise


def _message_of(error: BaseException) -> str:
    """Return an error's message; a better one if a method of the class torch.Tensor was called."""
    unbound = re.match(r"descriptor '(\w+)' for 'torch\._C\.\w+' objects doesn't apply", str(error))
    if unbound is None:
        return str(error).rstrip(".")
    name = unbound[1]
    return f"torch.Tensor.{name} takes no tensor of a graph: call {name} as the tensor's own method"


def _line_of(error: BaseException) -> str:
    """Return "file:line" of the innermost frame outside of the library and torch."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    frame = (user_frames or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"
