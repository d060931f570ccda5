"""Sums of an optimizer's gradients over the replicas, eager or in graph mode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

from thalweg._base.execution_context import executing_eagerly, is_deferred
from thalweg._core.dtensor import is_on_mesh
from thalweg._core.grads_and_vars import as_gradient, check_variables
from thalweg._core.validation import check_memories, check_readable
from thalweg._engines.layout import check_shape
from thalweg.distribute.all_reduce_gradients import fill_missing, match_kinds
from thalweg.distribute.consistency_check import Agreement, StepFingerprint
from thalweg.distribute.context import has_strategy, in_cross_replica_context
from thalweg.distribute.nested_all_reduce import all_reduce
from thalweg.distribute.process_group import default_group, has_group
from thalweg.distribute.reduce_op import ReduceOp
from thalweg.distribute.reduction_tracking import note_sums
from thalweg.distribute.strategy import Strategy, get_strategy
from thalweg.errors import FailedPreconditionError
from thalweg.variable import titles_of

Pairs = list[tuple[Any, Any]]

_strategies_by_group: WeakKeyDictionary[object, Strategy] = WeakKeyDictionary()


def strategy_of(strategy_or_group: object) -> Strategy:
    """Return a `Strategy` unchanged. For a process group, return its strategy, created once.

    None selects the default group. Without a default group, return a strategy with one replica.
    """
    if isinstance(strategy_or_group, Strategy):
        return strategy_or_group
    if strategy_or_group is None and not has_group():
        return Strategy.alone()
    group = default_group() if strategy_or_group is None else strategy_or_group
    strategy = _strategies_by_group.get(group)
    if strategy is None:
        strategy = _strategies_by_group[group] = Strategy(group)
    return strategy


def current_strategy() -> Strategy:
    """Return the strategy of this thread; outside of all scopes, that of the default group."""
    return get_strategy() if has_strategy() else strategy_of(None)


def sum_gradients(
    owner: object, strategy: Strategy, pairs: Pairs, fingerprint: StepFingerprint
) -> Pairs:
    """Return new (gradient sum, variable) pairs, without gradients that are None on all ranks.

    Args:
        owner: The optimizer. In eager mode, call `commit_sums(owner)` after the step.
        strategy: The strategy, with several replicas.
        pairs: (gradient or None, variable) pairs of this rank, concrete or symbolic.
        fingerprint: Description of the step. It must be equal on all ranks.

    Raises:
        ReplicaMismatchError: The ranks differ, or another rank has an invalid gradient or variable.
        ReplicaLostError: A rank did not answer.
        TypeError, ValueError: A gradient or a variable of this rank is invalid.
    """
    if is_deferred(*chain.from_iterable(pairs)):
        return _sum_in_graph(strategy, pairs, fingerprint)
    variables = [var for _, var in pairs]
    # The reducer calls this, and reports an error to the other ranks, which wait for a message.
    make_pairs = partial(convert_pairs, pairs)
    sums = sum_concrete_gradients(owner, strategy, make_pairs, variables, fingerprint)
    return [(grad, var) for grad, var in sums if grad is not None]


def sum_concrete_gradients(
    owner: object,
    strategy: Strategy,
    make_pairs: Callable[[], Pairs],
    variables: Sequence[Any],
    fingerprint: StepFingerprint,
) -> Pairs:
    """Return the pairs of `make_pairs()`, in order, with gradients summed over all ranks.

    A gradient that is None on all ranks stays None. All ranks must call this function. Call
    `commit_sums(owner)` after the sums were applied.

    Args:
        owner: The optimizer, which selects the buffers of earlier steps.
        strategy: The strategy, with several replicas.
        make_pairs: `make_pairs()` returns (gradient, variable) pairs. Its error is raised.
        variables: The variables of the pairs, which the ranks compare.
        fingerprint: Description of the step. It must be equal on all ranks.

    Raises:
        ReplicaMismatchError: The ranks differ, or `make_pairs` failed on another rank.
        ReplicaLostError: A rank did not answer.
    """
    reducer = strategy.reducer_of(owner)
    sums = reducer.sum_gradients(make_pairs, variables, fingerprint)
    note_sums(owner, reducer)
    return sums


def convert_pairs(pairs: Pairs) -> Pairs:
    """Return new (gradient, variable) pairs; each gradient is a tensor, `IndexedSlices` or None.

    Raises:
        TypeError, ValueError: A gradient or variable has an unsupported type, or the shapes of
            gradient and variable differ.
        FailedPreconditionError: A variable is a DTensor.
        LayoutError: The memory of a gradient or variable was freed.
    """
    variables = [var for _, var in pairs]
    check_variables(variables)
    grad_pairs: Pairs = []
    for (grad, var), name in zip(pairs, titles_of(variables), strict=True):
        if is_on_mesh(var):
            raise FailedPreconditionError(
                f"'{name}' is a DTensor, whose gradients torch has summed. Take the step outside"
                " of strategies."
            )
        if grad is not None:
            grad = as_gradient(grad, var, name)
            check_shape(grad, var, name)
        grad_pairs.append((grad, var))
    check_memories(variables)
    check_readable([grad for grad, _ in grad_pairs], titles_of(variables))
    return grad_pairs


def _sum_in_graph(strategy: Strategy, grads_and_vars: Pairs, fingerprint: StepFingerprint) -> Pairs:
    """Add all-reduce operations to the graph; return (symbolic sum, variable) pairs in order.

    A gradient that is None on some ranks counts as zeros there. A pair whose gradient is None on
    all ranks is left out. All ranks must call this function with equal variables.

    Args:
        fingerprint: Description of the optimizer. `fingerprint.words()` must be equal on all ranks;
            `fingerprint.numbers` is ignored.

    Raises:
        ReplicaMismatchError: Variables, fingerprints, or kinds or dtypes of gradients differ.
    """
    variables = [var for _, var in grads_and_vars]
    Agreement(strategy.ranks, values=False).check(variables, StepFingerprint(fingerprint.words))
    filled_pairs = fill_missing(grads_and_vars, strategy.ranks)
    pairs = [(grad, var) for grad, var in filled_pairs if grad is not None]
    sums = all_reduce(strategy, ReduceOp.SUM, [grad for grad, _ in pairs])
    return [(grad, var) for grad, (_, var) in zip(sums, pairs, strict=True)]


def report_errors(owner: object, strategy: Strategy | None = None) -> AbstractContextManager[None]:
    """Return a context manager that reports an error in its `with` block to all ranks.

    A rank that waits in `sum_gradients` then raises ReplicaMismatchError. The context manager does
    nothing in graph mode or with one rank.

    Args:
        owner: The optimizer whose gradients are summed.
        strategy: The strategy. None means the strategy of this thread; the context manager then
            does nothing in the cross-replica context.
    """
    active_strategy = get_strategy() if strategy is None else strategy
    is_cross_replica = strategy is None and in_cross_replica_context()
    if active_strategy.ranks.is_alone or is_cross_replica or not executing_eagerly():
        return contextlib.nullcontext()
    return active_strategy.reducer_of(owner).report_errors()


def fill_missing_gradients(pairs: Pairs) -> Pairs:
    """Return (gradient, variable) pairs; a None becomes zeros if another rank has a gradient.

    A gradient that is None on all ranks stays None. All ranks of this thread's strategy must call
    this function.

    Raises:
        ReplicaMismatchError: Number, shapes, sparsity or dtypes of gradients differ between ranks.
        TypeError, ValueError: A gradient or variable of this rank is invalid.
    """
    return match_kinds(convert_pairs(pairs), get_strategy().ranks)


def guard_backward(owner: object) -> AbstractContextManager[None]:
    """Return a context manager for a backward pass, which sends gradients once they are complete.

    `owner` is the optimizer. An error in the `with` block is reported to all ranks. The context
    manager does nothing in graph mode, with one rank, or in the cross-replica context.
    """
    strategy = get_strategy()
    if strategy.ranks.is_alone or in_cross_replica_context() or not executing_eagerly():
        return contextlib.nullcontext()
    return strategy.reducer_of(owner).guard_backward()
