"""A step in a strategy of `thalweg.distribute`: its gradients are summed over the replicas."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

from thalweg import distribute
from thalweg._base.execution_context import current_session, executing_eagerly, replicas
from thalweg._core.grads_and_vars import Pair, as_pairs
from thalweg.keras.optimizers.step_adapter import KerasStepAdapter, with_gradients
from thalweg.variable import titles_of

_BEFORE = {"_transform_unaggregated_gradients", "_aggregate_gradients"}


def step_in_replicas(optimizer: Any, given: Any, name: str | None, aggregates: bool) -> Any:
    """`Optimizer.apply_gradients` in the scope of a strategy, or in one of its replicas."""
    waits = aggregates and _is_summed(optimizer)
    told = distribute.report_errors(optimizer) if waits else contextlib.nullcontext()
    with optimizer._lock, optimizer._plans.one_step(optimizer._name), optimizer._hyper, told:
        given = given if type(given) is list else as_pairs(given)
        if not given:
            if waits and executing_eagerly():
                strategy = distribute.get_strategy()
                distribute.sum_gradients(optimizer, strategy, [], fingerprint_of(optimizer))
            return optimizer._step_over_nothing()
        if distribute.in_cross_replica_context() and current_session() is None:
            raise RuntimeError(
                "`apply_gradients()` cannot be called in a cross-replica context. Call it in"
                " the function that thalweg.distribute.Strategy.run calls."
            )
        sums_first = aggregates and _sums_first(optimizer)
        hooks = optimizer._make_hooks(aggregates and not sums_first)
        if not sums_first:
            if waits and executing_eagerly():
                given = distribute.fill_missing_gradients(as_pairs(given))
            said = fingerprint_of(optimizer)
            given, hooks.sharing = distribute.share_summed_step(
                optimizer, given, hooks, optimizer._clipping, said
            )
        elif distribute.shards_of(optimizer) is not None:
            given, hooks.sharing = _summed_in_parts(optimizer, as_pairs(given), hooks)
        else:
            given = sum_over_replicas(optimizer, as_pairs(given))
        with distribute.enter_shared_step(hooks.sharing):
            outcome = optimizer._take_step(hooks, given)
        return optimizer._end_step(outcome, given, name, aggregates and not sums_first)


def waited_for(optimizer: object) -> AbstractContextManager[None]:
    """Return the context manager of the block in which gradients are computed, for which other
    replicas wait.
    """
    if _sums_first(optimizer):
        return distribute.guard_backward(optimizer)
    return (
        distribute.report_errors(optimizer) if _is_summed(optimizer) else contextlib.nullcontext()
    )


def sum_over_replicas(optimizer: Any, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return the pairs with the sums over all replicas."""
    strategy = distribute.get_strategy()
    return _all_of(
        pairs, distribute.sum_gradients(optimizer, strategy, pairs, fingerprint_of(optimizer))
    )


def _sums_first(optimizer: Any) -> bool:
    """Return whether the sum over replicas is all that comes before `_transform_gradients`."""
    if optimizer._aggregator is not None or replicas() == 1:
        return False
    return _BEFORE.isdisjoint(optimizer._overridden_hooks())


def _is_summed(optimizer: Any) -> bool:
    """Return whether its class sums gradients over replicas, of which there are several."""
    if optimizer._aggregator is not None or replicas() == 1:
        return False
    return "_aggregate_gradients" not in optimizer._overridden_hooks()


def _summed_in_parts(
    optimizer: Any, pairs: list[tuple[Any, Any]], hooks: KerasStepAdapter
) -> tuple[list[tuple[Any, Any]], distribute.SharedStep]:
    sees = optimizer._transformers or "_transform_gradients" in optimizer._overridden_hooks()
    rule = hooks.step_rule()
    whole = sees or rule is None or (rule.whole and bool(optimizer._clipping))
    strategy, said = distribute.get_strategy(), fingerprint_of(optimizer)
    found, step = distribute.sum_for_shards(
        optimizer, strategy, pairs, said, hooks, scatters=not whole
    )
    return _all_of(pairs, found), step


def fingerprint_of(optimizer: Any) -> distribute.StepFingerprint:
    """Return what must be the same on all replicas."""

    def words_of_step() -> list[str]:
        arguments = distribute.in_words(optimizer._arguments())
        step = [f"step: {int(optimizer.iterations)}"] if executing_eagerly() else []
        return [f"optimizer: {type(optimizer).__name__}", *arguments, *step]

    def numbers_of_step() -> tuple[int, list[float]]:
        return int(optimizer.iterations), list(optimizer._hyper.numbers().values())

    return distribute.StepFingerprint(words_of_step, numbers_of_step)


def _all_of(pairs: list[Pair], sums: list[Pair]) -> list[Pair]:
    """The sums; says, as without ranks, which variables have none since no rank has a gradient."""
    if len(sums) < len(pairs):
        there = {id(var) for _, var in sums}
        marked = [(var if id(var) in there else None, var) for _, var in pairs]
        with_gradients(marked, titles_of([var for _, var in pairs]))
    return sums
