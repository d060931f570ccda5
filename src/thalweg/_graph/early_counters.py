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
    """Return the operations that assign `step = step + 1`, with all operations they depend on.

    Args:
        operations: The operations of a run.
        predecessors: `predecessors(op)` returns the operations that must run before `op`.
    """
    early: set[Operation] = set()
    for op in operations:
        if op.type == "Assign" and len(op.written) == 1 and _is_counter(op.written[0]):
            inputs = _pure_inputs_of(op, predecessors)
            # A counter is assigned a value computed from itself.
            if op.written[0].op in inputs:
                early |= inputs
    return early


def _is_counter(variable: object) -> bool:
    """Return True if a variable is an untrained scalar reference variable of dtype int64.

    int32 is excluded, since TensorFlow's executor reads such counters before the assignment.
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
    """Return `op` and all operations on which the inputs of `op` depend.

    Return an empty set if one of them has control dependencies, or is in a unit, branch or loop, or
    if one other than `op` is not pure.
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
