"""The gradients of an optimizer's step, summed over the replicas, now or when a session runs."""

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

_of_groups: WeakKeyDictionary[object, Strategy] = WeakKeyDictionary()


def strategy_of(given: object) -> Strategy:
    """Return a strategy: itself, or one over a process group.

    None stands for the default group, or for this process alone where there is none.
    """
    if isinstance(given, Strategy):
        return given
    if given is None and not has_group():
        return Strategy.alone()
    group = default_group() if given is None else given
    found = _of_groups.get(group)
    if found is None:
        found = _of_groups[group] = Strategy(group)
    return found


def current_strategy() -> Strategy:
    """Return the strategy that this thread is in, or one over the default group."""
    return get_strategy() if has_strategy() else strategy_of(None)


def sum_gradients(owner: object, strategy: Strategy, given: Pairs, said: StepFingerprint) -> Pairs:
    """Return the pairs that have a gradient on some rank, with the sums over all ranks.

    Args:
        owner: The optimizer.
        strategy: The strategy, of several replicas.
        given: Gradients, None among them, and variables; symbolic or not.
        said: What must be the same on all ranks.

    Raises:
        ReplicaMismatchError: The ranks differ.
        ReplicaLostError: A rank did not answer.
        TypeError, ValueError: A gradient or a variable is none, on its rank; the others raise
            ReplicaMismatchError.
    """
    if is_deferred(*chain.from_iterable(given)):
        return _sum_in_graph(strategy, given, said)
    variables = [var for _, var in given]
    found = sum_concrete_gradients(owner, strategy, partial(convert_pairs, given), variables, said)
    return [(grad, var) for grad, var in found if grad is not None]


def sum_concrete_gradients(
    owner: object,
    strategy: Strategy,
    given: Callable[[], Pairs],
    variables: Sequence[Any],
    said: StepFingerprint,
) -> Pairs:
    """Sum concrete pairs from a function, as `sum_gradients` does; gradients that are None anywhere
    stay.
    """
    reducer = strategy.reducer_of(owner)
    found = reducer.sum_gradients(given, variables, said)
    note_sums(owner, reducer)
    return found


def convert_pairs(given: Pairs) -> Pairs:
    """Return the pairs with gradients as tensors or `IndexedSlices`, of the shapes of their
    variables.

    Raises:
        TypeError, ValueError: There is something else.
        FailedPreconditionError: A variable is a DTensor.
        LayoutError: There is no memory that holds a gradient, or a variable.
    """
    variables = [var for _, var in given]
    check_variables(variables)
    found: Pairs = []
    for (grad, var), title in zip(given, titles_of(variables), strict=True):
        if is_on_mesh(var):
            raise FailedPreconditionError(
                f"'{title}' is a DTensor, whose gradients torch has summed. Take the step outside"
                " of strategies."
            )
        if grad is not None:
            grad = as_gradient(grad, var, title)
            check_shape(grad, var, title)
        found.append((grad, var))
    check_memories(variables)
    check_readable([grad for grad, _ in found], titles_of(variables))
    return found


def _sum_in_graph(strategy: Strategy, given: Pairs, said: StepFingerprint) -> Pairs:
    """The sums as nodes of the graph, of the same graph on all ranks."""
    variables = [var for _, var in given]
    Agreement(strategy.ranks, values=False).check(variables, StepFingerprint(said.words))
    pairs = [(grad, var) for grad, var in fill_missing(given, strategy.ranks) if grad is not None]
    sums = all_reduce(strategy, ReduceOp.SUM, [grad for grad, _ in pairs])
    return [(grad, var) for grad, (_, var) in zip(sums, pairs, strict=True)]


def report_errors(owner: object, strategy: Strategy | None = None) -> AbstractContextManager[None]:
    """Return a context manager for a block in which gradients of an optimizer are summed: errors
    before that are told.

    Args:
        owner: The optimizer.
        strategy: The strategy; by default that of this thread.
    """
    found = get_strategy() if strategy is None else strategy
    is_across = strategy is None and in_cross_replica_context()
    if found.ranks.is_alone or is_across or not executing_eagerly():
        return contextlib.nullcontext()
    return found.reducer_of(owner).report_errors()


def fill_missing_gradients(given: Pairs) -> Pairs:
    """Return the pairs, with zeros for None where another replica has a gradient."""
    return match_kinds(convert_pairs(given), get_strategy().ranks)


def guard_backward(owner: object) -> AbstractContextManager[None]:
    """Return a context manager for a block in which an optimizer computes the gradients that it
    then applies.

    What it raises is told to the other replicas, and they are sent as they come.
    """
    strategy = get_strategy()
    if strategy.ranks.is_alone or in_cross_replica_context() or not executing_eagerly():
        return contextlib.nullcontext()
    return strategy.reducer_of(owner).guard_backward()
