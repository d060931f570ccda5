"""Overridden hooks of optimizers in graph mode, called once while the graph is built.

The operations that the hooks record form a `Unit` of the graph, which sessions run as one update.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from thalweg import _graph
from thalweg._base.execution_context import is_ours
from thalweg._base.static_shape import UNKNOWN
from thalweg._core.atomic_section import run
from thalweg._core.grads_and_vars import distinct
from thalweg._graph import GraphKeys, GraphVariable, Operation, SymbolicTensor, operation
from thalweg.v1.train.step_adapter import check_global_step, counting_calls

HOOKS = (
    "_prepare", "_finish", "_apply_dense", "_apply_sparse", "_apply_sparse_duplicate_indices",
    "_apply_sparse_shared", "_resource_apply_dense", "_resource_apply_sparse",
    "_resource_apply_sparse_duplicate_indices",
)  # fmt: skip


def has_hooks(optimizer: object) -> bool:
    """Return True if a subclass, or the object itself, overrides a hook of the optimizer."""
    return any(not is_ours(getattr(optimizer, hook, None)) for hook in HOOKS)


def check_counter(global_step: Any) -> Any:
    """Return the variable of the graph that counts steps, another scalar tensor, or None.

    Raises:
        InvalidTypeError: `global_step` cannot be raised by 1, such as a constant of the graph.
    """
    step = None if global_step is None else _graph.graph_variable_of(global_step)
    if not (isinstance(step, GraphVariable) and step.shape in ((), UNKNOWN)):
        check_global_step(step)
    return step


def recorded(optimizer: Any, pairs: Sequence[tuple[Any, Any]], global_step: Any, name: str) -> Any:
    """Call the hooks of an optimizer once to build the operation of a step, and return it.

    The operation is added to the collection TRAIN_OP.

    Args:
        optimizer: The optimizer.
        pairs: Gradients, none of them None, and variables of the graph.
        global_step: A variable that is raised by 1 after the updates, or None.
        name: The name scope, made unique.

    Returns:
        The operation that raises `global_step`; without `global_step` the operation that `_finish`
        returned, or a group of all updates.

    Raises:
        InvalidTypeError: A hook needs values that only a run has, or `global_step` cannot count.
    """
    if optimizer._recorder is not None:
        optimizer._recorder.refuse_graph()
    variables = distinct([var for _, var in pairs])
    graph: Any = variables[0].graph  # pyright: ignore
    step = check_counter(global_step)
    hooks = optimizer._make_hooks(global_step, name, None)
    hooks.builds = True
    with (
        graph.as_default(),
        optimizer._turn_lock(),
        optimizer._locked(),
        optimizer._while_taking(hooks),
    ):
        symbolic_pairs = [(_graph.gradient_symbol(grad), var) for grad, var in pairs]
        with graph.control_dependencies(None), _graph.explain_errors(optimizer, "_create_slots"):
            optimizer._create_slots(variables)
        with graph.as_one(), graph.name_scope(name) as scope:
            with _graph.explain_errors(optimizer, "_prepare"):
                hooks.read_hypers(variables)
            updates = [
                _graph.update_of(optimizer, var, partial(optimizer._apply_one, grad, var))
                for grad, var in symbolic_pairs
            ]
            finished = _finish_updates(
                optimizer, graph, updates, scope if step is None else "update"
            )
            if step is not None:
                with graph.control_dependencies([finished]):
                    finished = _count_operation(step, scope)
        step_op = finished.op if isinstance(finished, SymbolicTensor) else finished
        collection = graph.get_collection_ref(GraphKeys.TRAIN_OP)
        if not any(step_op is operation for operation in collection):
            collection.append(step_op)
    return step_op


def add_update_names(step_op: Any, variables: Sequence[Any], kind: str) -> None:
    """Add an empty operation for each updated variable, with TensorFlow's name, after the step.

    A session takes a step as one operation; running one of the added operations, such as
    "Adam/update_w/ResourceApplyAdam", takes the whole step.

    Args:
        step_op: The operation that takes the step.
        variables: The variables of the graph that it updates.
        kind: The name of the kernel, "ApplyAdam".
    """
    graph = step_op.graph
    with (
        graph.as_default(),
        graph.control_dependencies([step_op]),
        graph.name_scope(f"{step_op.name}/"),
    ):
        for var in variables:
            with graph.name_scope(f"update_{var.op.name}"):
                _graph.no_op(f"Resource{kind}" if var.is_resource else kind)


def _finish_updates(optimizer: Any, graph: Any, updates: list[Any], scope: str) -> Any:
    """Call `_finish` and return its operation; if None, a group of all updates."""
    operation_count = len(graph.operations)
    with _graph.explain_errors(optimizer, "_finish"):
        finish_op = optimizer._finish(updates, scope)
    if finish_op is None:
        return _graph.group(*updates, *_graph.updates_since(graph, operation_count), name=scope)
    return _graph.after_writes(graph, finish_op)


def _count_operation(step: Any, name: str) -> Operation:
    """Return an operation that adds 1 to a step."""
    if isinstance(step, GraphVariable):
        return step.assign_add(1, name=name).op
    return operation(lambda: run(counting_calls([(step, None)])), [], name)
