"""Hooks of a subclass in graph mode: called once, as the graph is built, as TensorFlow calls them.

What they record are operations like any other, which sessions run as one update: a `Unit` of the
graph.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thalweg.core.pairs import distinct
from thalweg.core.section import run
from thalweg.errors import InvalidTypeError
from thalweg.graph import (
    GraphKeys,
    GraphVariable,
    Operation,
    SymbolicSlices,
    SymbolicTensor,
    after_writes,
    constant,
    graph_variable_of,
    group,
    is_symbolic,
    operation,
    updates_since,
)
from thalweg.indexed_slices import IndexedSlices
from thalweg.running import is_ours
from thalweg.v1.train.hooks import check_global_step, counted
from thalweg.v1.train.processors import processor_of
from thalweg.variable import to_tensor

HOOKS = (
    "_prepare",
    "_finish",
    "_apply_dense",
    "_apply_sparse",
    "_apply_sparse_duplicate_indices",
    "_apply_sparse_shared",
    "_resource_apply_dense",
    "_resource_apply_sparse",
    "_resource_apply_sparse_duplicate_indices",
)

_LIBRARIES = (str(Path(__file__).parents[2]), str(Path(torch.__file__).parent))


def has_hooks(optimizer: Any) -> bool:
    """Whether a hook of an optimizer is a user's own, of its class or of itself alone."""
    return any(not is_ours(getattr(optimizer, hook, None)) for hook in HOOKS)


def recorded(optimizer: Any, pairs: Sequence[tuple[Any, Any]], global_step: Any, name: str) -> Any:
    """Call an optimizer's hooks as TensorFlow's `apply_gradients` does while a graph is built.

    Args:
        optimizer: The optimizer.
        pairs: Gradients, none of them None, and variables of the graph.
        global_step: A variable that is raised by 1 after the updates, or None.
        name: The name scope, made unique.

    Returns:
        The operation that raises `global_step`; without one what `_finish` returns, of a tensor its
        operation.

    Raises:
        InvalidTypeError: A hook needs values that only a run has, or `global_step` cannot count.
    """
    variables = distinct([var for _, var in pairs])
    graph: Any = variables[0].graph  # pyright: ignore
    step = None if global_step is None else graph_variable_of(global_step)
    if not (isinstance(step, GraphVariable) and step.shape in ((), None)):
        check_global_step(step)
    recording = _Recording(optimizer, graph)
    hooks = optimizer._hooks(global_step, name, None)
    hooks.builds = True
    with graph.as_default(), optimizer._turn(), optimizer._locked(), optimizer._taking(hooks):
        given = [(_symbol(grad), var) for grad, var in pairs]
        with graph.control_dependencies(None), recording.explained("_create_slots"):
            optimizer._create_slots(variables)
        with graph.as_one(), graph.name_scope(name) as scope:
            with recording.explained("_prepare"):
                hooks.prepare(variables)
            updates = [recording.update(grad, var) for grad, var in given]
            finished = recording.finish(updates, scope if step is None else "update")
            if step is not None:
                with graph.control_dependencies([finished]):
                    finished = _count(step, scope)
        made = finished.op if isinstance(finished, SymbolicTensor) else finished
        collection = graph.get_collection_ref(GraphKeys.TRAIN_OP)
        if not any(made is each for each in collection):
            collection.append(made)
    return made


class _Recording:
    """One call of `recorded`."""

    def __init__(self, optimizer: Any, graph: Any) -> None:
        self._optimizer, self._graph = optimizer, graph

    def update(self, grad: Any, var: GraphVariable) -> Any:
        """What the hook for one pair returns, or the variable's constraint after it."""
        before = len(self._graph.operations)
        with self._graph.name_scope(f"update_{var.op.name}"):
            with self.explained(f"the update of '{var.op.name}'"):
                made = self._optimizer._apply_one(grad, var)
            if made is None:
                updates = updates_since(self._graph, before)
                made = group(*updates) if updates else None
            if var.constraint is None:
                return made
            with self.explained(f"the constraint of '{var.op.name}'"):
                return processor_of(var)._constrained(made)

    def finish(self, updates: list[Any], scope: str) -> Any:
        """What `_finish` returns; if that is nothing, what is done when all updates are."""
        before = len(self._graph.operations)
        with self.explained("_finish"):
            made = self._optimizer._finish(updates, scope)
        if made is None:
            return group(*updates, *updates_since(self._graph, before), name=scope)
        return after_writes(self._graph, made)

    @contextlib.contextmanager
    def explained(self, hook: str) -> Iterator[None]:
        """Tell of what a hook cannot do where it was called from, and how it can."""
        try:
            yield
        except Exception as error:
            cls = type(self._optimizer).__name__
            words = (
                f"At {_line_of(error)}, in {hook} of {cls}. Hooks are called once, as the graph is"
                " built, with tensors that have no value yet, as in TensorFlow. Set"
                f" `HOOKS_AT_EACH_RUN = True` in {cls} to have them called at each run, with the"
                " session's tensors."
            )
            if isinstance(error, TypeError | AttributeError):
                raise InvalidTypeError(f"{_plainly(error)}. {words}") from error
            error.add_note(words)
            raise


def _plainly(error: BaseException) -> str:
    """The message; Python's own, where torch's method was called as a function, in our words."""
    unbound = re.match(r"descriptor '(\w+)' for 'torch\._C\.\w+' objects doesn't apply", str(error))
    if unbound is None:
        return str(error).rstrip(".")
    name = unbound[1]
    return f"torch.Tensor.{name} takes no tensor of a graph: call {name} as the tensor's own method"


def _line_of(error: BaseException) -> str:
    """The last line of the user's own code that led to an error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    frame = (own or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _symbol(grad: Any) -> Any:
    """A gradient as a tensor or slices of the graph."""
    if is_symbolic(grad):
        return grad.read_value() if isinstance(grad, GraphVariable) else grad
    if isinstance(grad, Tensor) and grad.is_sparse:
        grad = IndexedSlices.from_sparse(grad)
    if isinstance(grad, IndexedSlices):
        return SymbolicSlices(constant(grad.values), constant(grad.indices), grad.dense_shape)
    return constant(to_tensor(grad))


def _count(step: Any, name: str) -> Operation:
    """The operation that raises a step by 1."""
    if isinstance(step, GraphVariable):
        return step.assign_add(1, name=name).op
    return operation(lambda: run(counted([(step, None)])), [], name)
