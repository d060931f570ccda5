"""Counters that a run raises before other operations read them, as TensorFlow's executor does.

`step.assign(step + 1)`, for a reference variable and without control dependencies, is not ordered
with other readers of the variable. TensorFlow's executor takes the newest operation that is ready
in its own thread, so that the assignment of an int64 almost always comes first. It has operations
of smaller integers with constants run at once, so that such counters are always read before. BERT's
`create_optimizer` counts in this way: its learning rate is that of the step after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from thalweg._graph.nodes import Operation
from thalweg._graph.variables import GraphVariable

_COMPUTED = ("pure", "variable")


def find_early_operations(
    operations: set[Operation], predecessors: Callable[[Operation], Sequence[Operation]]
) -> set[Operation]:
    """Return assignments that count steps, with the operations that compute their values.

    Args:
        operations: The operations of a run.
        predecessors: Returns the operations that must have run before one.
    """
    early: set[Operation] = set()
    for op in operations:
        if op.type == "Assign" and len(op.written) == 1 and _is_counter(op.written[0]):
            inputs = _pure_inputs_of(op, predecessors)
            if op.written[0].op in inputs:
                early |= inputs
    return early


def _is_counter(variable: object) -> bool:
    """Return True if a variable is a scalar int64 reference variable that is not trained.

    TensorFlow's executor reads counters of int32 before it assigns to them.
    """
    return (
        isinstance(variable, GraphVariable)
        and not (variable.is_resource or variable.trainable)
        and variable.shape == ()
        and variable.dtype == torch.int64
    )


def _pure_inputs_of(
    op: Operation, predecessors: Callable[[Operation], Sequence[Operation]]
) -> set[Operation]:
    """Return an operation and all operations that compute its inputs.

    Return an empty set if one of them has control dependencies, updates a variable or is part of
    the update of an optimizer.
    """
    closure: set[Operation] = set()
    stack = [op]
    while stack:
        current = stack.pop()
        is_pure = current is op or current.kind in _COMPUTED
        if not is_pure or current.control_inputs or current.unit or current.block:
            return set()
        closure.add(current)
        stack += [source for source in predecessors(current) if source not in closure]
    return closure
