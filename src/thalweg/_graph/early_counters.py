"""Step counters that a run increments before other operations read the counters.

`step.assign(step + 1)`, for a reference variable and without control dependencies, is not ordered
with other readers of the variable. TensorFlow's executor takes the newest operation that is ready
in its own thread, so the assignment of an int64 almost always comes first. Operations of smaller
integers with constants run at once, so a counter of these dtypes is always read first. BERT's
`create_optimizer` counts in this way: its learning rate is the rate of the next step.
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
    """Return the increments of step counters, and all operations on which the increments depend.

    `predecessors(op)` returns the operations that must run before `op`.
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
    """Return True for a scalar int64 variable that is neither trained nor a resource variable.

    Return False for int32: TensorFlow's executor reads an int32 counter before the assignment.
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
    """Return `op` and all operations on which `op` depends.

    The result is empty if a dependency has side effects. It is also empty if any of the operations
    has control dependencies, or is part of a `Unit`, branch or loop.
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
