"""Steps of Keras optimizers in graph mode: each eager step becomes an operation.

The operation calls the eager optimizer with tensors of the running session. `iterations`,
hyperparameters and slots are variables of the graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.execution_context import is_symbolic
from thalweg._core.grads_and_vars import as_pairs, distinct
from thalweg._engines import compute_dtype
from thalweg._graph.arguments import by_reference
from thalweg._graph.control import no_op
from thalweg._graph.default_graph import get_default_graph, graph_variable_of
from thalweg._graph.gradients import gradients as gradients_of
from thalweg._graph.keras.captured_hypers import capture_hypers
from thalweg._graph.keras.traced_hooks import add_step
from thalweg._graph.keras.variables import find_graph_state
from thalweg._graph.nodes import Operation, SymbolicTensor
from thalweg._graph.operation import operation
from thalweg._graph.shapes import Output
from thalweg._graph.variables import check_updates
from thalweg.distribute.context import enter_replica
from thalweg.distribute.strategy import current_replica
from thalweg.errors import InvalidTypeError
from thalweg.keras.optimizers.optimizer import Optimizer
from thalweg.keras.optimizers.step_adapter import with_gradients
from thalweg.variable import is_frozen, titles_of

GradsAndVars = list[tuple[Any, Any]]


def gradients(loss: object, variables: Sequence[object], grad_loss: object) -> GradsAndVars:
    """Return (symbolic gradient, graph variable) pairs.

    The gradient is None for frozen variables, and for variables on which `loss` does not depend.
    `grad_loss` is None or the output gradient of `loss`.
    """
    symbols = [graph_variable_of(var) for var in variables]
    for var in symbols:
        if not isinstance(var, SymbolicTensor):
            raise InvalidTypeError(f"{var!r} is no variable of the graph.")
    grads = gradients_of(loss, symbols, grad_loss)
    frozen = map(is_frozen, variables)
    return [
        (None if is_constant else grad, var)
        for grad, var, is_constant in zip(grads, symbols, frozen, strict=True)
    ]


def apply_gradients(
    optimizer: Optimizer,
    grads_and_vars: Sequence[tuple[object, object]],
    name: str | None,
    aggregates: bool,
) -> Operation | list[SymbolicTensor] | SymbolicTensor:
    """Add the `Operation` that takes one optimizer step in each run; return the operation.

    A run calls the eager optimizer. If the optimizer overrides hooks, the hooks are called once,
    now, and the operations that they add are the step. `aggregates` is True to sum gradients over
    replicas. If there are no pairs, the operation does nothing.
    """
    if not grads_and_vars:
        return _add_empty_step(optimizer)
    pairs = as_pairs(grads_and_vars)
    pairs = with_gradients(pairs, titles_of([var for _, var in pairs]))
    add = add_step if optimizer._is_recorded() else _add_eager_step
    return add(optimizer, pairs, name or optimizer._name, aggregates)


def _add_eager_step(
    optimizer: Optimizer, grads_and_vars: GradsAndVars, name: str, aggregates: bool
) -> Operation:
    """Add the operation that calls the eager optimizer; return the operation.

    The graph gets variables for hyperparameters, `iterations` and slots. `name` is the operation's
    name scope. `aggregates` is True to sum gradients over replicas.
    """
    replica = current_replica()
    graph = next((var.graph for _, var in grads_and_vars if is_symbolic(var)), None)
    inside = contextlib.nullcontext() if graph is None else graph.as_default()
    with inside, get_default_graph().name_scope(optimizer._name):
        pairs = [(grad, graph_variable_of(var)) for grad, var in grads_and_vars]
        check_updates(pairs)
        called = optimizer._hyper.called()
        variables = distinct([var for _, var in pairs])
        optimizer._create_all_weights(variables)
        read = capture_hypers(optimizer, called, [var.dtype for var in variables])

        def run_step(grads: list[object], leaves: list[Tensor], *values: Any) -> None:
            """Take the step with the hyperparameter values of a run."""
            run_pairs = list(zip(grads, leaves, strict=True))
            hypers = read.values_in_run(*values)
            with optimizer._lock, optimizer._hyper.knowing(hypers), enter_replica(replica):
                # Not a subclass's method, which was called when the graph was built.
                Optimizer.apply_gradients(optimizer, run_pairs, None, aggregates)

        grads, leaves = [grad for grad, _ in pairs], [by_reference(var) for _, var in pairs]
        with get_default_graph().name_scope(name):
            op = operation(run_step, [grads, leaves, *read.inputs], "AssignAddVariableOp")
        op.written += tuple(find_graph_state(optimizer, variables))
        return op


def _add_empty_step(optimizer: Optimizer) -> Operation:
    """Return the operation of a step without variables, which does not increase `iterations`."""
    with get_default_graph().name_scope(optimizer._name):
        _ = optimizer.iterations
        optimizer._create_hypers()
        return no_op()


def learning_rate(optimizer: Optimizer, dtype: torch.dtype) -> Any:
    """Return a scalar tensor of the graph: the learning rate at the present `iterations`."""
    optimizer._create_hypers()
    step = optimizer.iterations
    read = capture_hypers(optimizer, optimizer._hyper.called(), [dtype])

    def compute_rate(_: object, *values: Any) -> Tensor:
        with optimizer._lock, optimizer._hyper.knowing(read.values_in_run(*values)):
            rate = optimizer._learning_rate(compute_dtype(dtype))
            return torch.tensor(rate, dtype=dtype, device="cpu")

    output = Output(dtype, (), ())
    return operation(compute_rate, [step, *read.inputs], "decayed_lr", kind="pure", outputs=output)
