"""Hooks of Keras optimizers in graph mode: called once, as the graph is built."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._base.execution_context import first_graph, is_ours, is_symbolic
from thalweg._core.atomic_section import run
from thalweg._core.gradient_stats import transform_gradients
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.grads_and_vars import Pair, as_pairs, distinct
from thalweg._core.validation import counting
from thalweg._engines import compute_dtype
from thalweg._graph.arguments import by_reference
from thalweg._graph.default_graph import graph_variable_of
from thalweg._graph.derived_gradients import made_of_gradients
from thalweg._graph.eager_or_graph import IndexedSlices
from thalweg._graph.keras.captured_hypers import Captured, capture_hypers
from thalweg._graph.keras.variables import find_graph_state
from thalweg._graph.operation import operation
from thalweg._graph.traced_hooks import explain_errors, gradient_symbol, update_of
from thalweg._graph.variables import GraphVariable, check_updates
from thalweg.distribute.context import enter_update
from thalweg.keras.optimizers.step_adapter import ApplyState, call


def add_step(
    optimizer: Any, grads_and_vars: Sequence[tuple[Any, Any]], name: str, aggregates: bool
) -> Any:
    """Call an optimizer's hooks once, like Keras' `apply_gradients`, to build a step.

    Args:
        grads_and_vars: (gradient, variable) pairs without None.
        aggregates: True to aggregate gradients over replicas first.

    Returns:
        The operation that increments `iterations` after all updates.

    Raises:
        InvalidTypeError: A hook needs values that only a run has.
    """
    if optimizer._recorder is not None:
        optimizer._recorder.refuse_graph()
    graph = first_graph(var for _, var in grads_and_vars)
    with graph.as_default(), graph.as_one(), graph.name_scope(optimizer._name):
        pairs = [(gradient_symbol(grad), graph_variable_of(var)) for grad, var in grads_and_vars]
        check_updates(pairs)
        called = optimizer._hyper.called()
        variables: Any = distinct([var for _, var in pairs])
        with graph.control_dependencies(None), explain_errors(optimizer, "_create_slots"):
            optimizer._create_all_weights(variables)
        read = capture_hypers(optimizer, called, [var.dtype for var in variables])
        optimizer._read = read
        try:
            with explain_errors(optimizer, "_prepare"):
                state = optimizer._prepare(variables)
            pairs = _transform_pairs(optimizer, pairs, aggregates)
            with graph.name_scope(name):
                updates = [
                    update_of(optimizer, var, partial(_call_hook, optimizer, grad, var, state))
                    for grad, var in pairs
                ]
                return _add_count(optimizer, variables, read, updates)
        finally:
            optimizer._read = None


def _transform_pairs(optimizer: Any, pairs: list[Any], aggregates: bool) -> list[Any]:
    """Call the gradient hooks; return the resulting pairs whose gradient is not None.

    `aggregates` is True to call the hooks that aggregate gradients, too. Create slots for variables
    that the hooks add. Raise ValueError if no gradient is left.
    """
    before = ("_transform_unaggregated_gradients", "_aggregate_gradients") if aggregates else ()
    # Variables with slots, by identity.
    ids = {id(var) for var in optimizer._slots.owners()}
    for hook in (*before, "_transform_gradients"):
        with explain_errors(optimizer, hook):
            pairs = as_pairs(getattr(optimizer, hook)(list(pairs)))
    new_pairs: list[Any] = [(gradient_symbol(grad), var) for grad, var in pairs if grad is not None]
    if not new_pairs:
        raise ValueError("The aggregator or transformer returned no gradients.")
    check_updates(new_pairs)
    slotless = [var for _, var in new_pairs if id(var) not in ids]
    if ids and slotless:
        optimizer._create_slots(distinct(slotless))
    return new_pairs


def _call_hook(optimizer: Any, grad: Any, var: GraphVariable, state: Any) -> Any:
    """Return the result of the update hook, dense or sparse, for one pair."""
    with enter_update():
        if isinstance(grad, IndexedSlices):
            hook, rows = optimizer._resource_apply_sparse_duplicate_indices, grad
            return call(hook, (rows.values, var, rows.indices), state)
        return call(optimizer._resource_apply_dense, (grad, var), state)


def _add_count(
    optimizer: Any, variables: Sequence[GraphVariable], read: Captured, updates: Sequence[object]
) -> object:
    """Add the operation that increments `iterations` after `updates`; return the operation.

    `variables` are the variables of the step; `read` has the captured hyperparameters.
    """

    def count_step(leaf: Tensor | None, leaves: list[Tensor], *values: Any) -> None:
        with optimizer._lock, optimizer._hyper.knowing(read.values_in_run(*values)):
            run([counting(step if leaf is None else leaf), *optimizer._counting_calls({}, leaves)])

    # An eager variable, if a step was taken before the graph was built.
    step = optimizer.iterations
    inputs = [
        by_reference(step) if is_symbolic(step) else None,
        [by_reference(var) for var in variables],
    ]
    control_inputs = [update for update in updates if update is not None]
    op = operation(
        count_step, [*inputs, *read.inputs], "AssignAddVariableOp", control_inputs=control_inputs
    )
    op.written += tuple(find_graph_state(optimizer, []))
    return op


def update(optimizer: Any, grad: Any, var: Any, state: Any) -> Any:
    """Add the operation that updates `var` by the optimizer's rule; return the operation.

    `state` is the result of the hook `_prepare`; if it is empty, the hook is called again. In a run
    whose gradient is None, the operation does nothing.
    """
    read, dtype = optimizer._read, cast("torch.dtype", var.dtype)
    # None if another optimizer, which wraps this one, calls its hooks.
    if read is None:
        with var.graph.control_dependencies(None):
            optimizer._create_all_weights([var])
        read = capture_hypers(optimizer, optimizer._hyper.called(), [dtype])
    constants = ApplyState(state or optimizer._prepare([var])).get((var.device, dtype), {})
    decayed_rates: Any = None
    if not is_ours(optimizer._decayed_lr):
        kind = torch.float64 if compute_dtype(dtype.to_real()) is np.float64 else torch.float32
        decayed_rates = [optimizer._decayed_lr(dtype), optimizer._decayed_lr(kind)]

    def run_rule(
        grad: Any, leaf: Tensor, rate: object, decayed_rates: object, *values: Any
    ) -> None:
        if grad is None:
            return
        with optimizer._lock, optimizer._hyper.knowing(read.values_in_run(*values)):
            rates = _changed_rates(optimizer, leaf.dtype, rate, decayed_rates)
            optimizer._update_one(grad, leaf, None, rates)

    inputs = [grad, by_reference(var), constants.get("lr_t"), decayed_rates, *read.inputs]
    op = operation(run_rule, inputs, f"ResourceApply{type(optimizer).__name__}")
    op.written += tuple(optimizer._slots.all_of(var).values())
    return op


def _changed_rates(
    optimizer: Any, dtype: torch.dtype, rate: Any, decayed_rates: Any
) -> dict[Any, float]:
    """Return {compute dtype: learning rate} if a user's hook changed the rate, else {}.

    Args:
        dtype: The dtype of the variable.
        rate: The learning rate stored by the hook `_prepare_local`, or None.
        decayed_rates: Two results of an overridden `_decayed_lr`: in the variable's dtype, and in
            the compute dtype. None without an override.
    """
    kind = compute_dtype(dtype.to_real())
    in_dtype, in_compute_dtype = decayed_rates or (None, None)
    if rate is not None:
        expected = optimizer._decayed_lr(dtype) if in_dtype is None else in_dtype
        if float(rate) != float(expected):
            return {kind: float(rate)}
    return {} if in_compute_dtype is None else {kind: float(in_compute_dtype)}


def clip(pairs: Sequence[Pair], transforms: GradientTransforms, flush: bool) -> list[Pair]:
    """Add one operation that clips all gradients; return (clipped gradient, variable) pairs.

    Without `transforms` return the pairs unchanged. `flush` sets denormal results to zero.
    """
    if not transforms:
        return list(pairs)
    variables: list[Any] = [var for _, var in pairs]

    def clip_now(gradients: list[Any], leaves: list[Tensor]) -> list[object]:
        values = [pair for pair in zip(gradients, leaves, strict=True) if pair[0] is not None]
        clipped = iter(transform_gradients(values, transforms, flush)[0])
        return [None if grad is None else next(clipped)[0] for grad in gradients]

    dtypes = [var.dtype for var in variables]
    gradients = [grad for grad, _ in pairs]
    clipped = made_of_gradients(clip_now, gradients, variables, name="clip", dtypes=dtypes)
    return list(zip(clipped, variables, strict=True))
