"""Steps in a strategy of `thalweg.distribute`, with gradients summed over the replicas."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

from thalweg import distribute
from thalweg._base.execution_context import current_session, executing_eagerly, replicas
from thalweg._core.grads_and_vars import Pair, as_pairs
from thalweg.keras.optimizers.step_adapter import KerasStepAdapter, with_gradients
from thalweg.variable import titles_of

_FIRST_HOOK = "_transform_unaggregated_gradients"


def step_in_replicas(optimizer: Any, pairs: Any, name: str | None, aggregates: bool) -> Any:
    """Apply gradients in a replica: within a function that `Strategy.run` calls.

    Return `iterations`, or None without pairs; in graph mode, return an operation. `aggregates` is
    True to sum gradients over replicas. Raise RuntimeError outside of a replica.
    """
    is_summed = aggregates and _is_summed(optimizer)
    reporting = distribute.report_errors(optimizer) if is_summed else contextlib.nullcontext()
    with optimizer._lock, optimizer._plans.one_step(optimizer._name), optimizer._hyper, reporting:
        pairs = pairs if type(pairs) is list else as_pairs(pairs)
        if not pairs:
            # Other ranks wait for this one, even if it has no gradients.
            if is_summed and executing_eagerly():
                strategy = distribute.get_strategy()
                distribute.sum_gradients(optimizer, strategy, [], fingerprint_of(optimizer))
            return optimizer._apply_nothing()
        if distribute.in_cross_replica_context() and current_session() is None:
            raise RuntimeError(
                "`apply_gradients()` cannot be called in a cross-replica context. Call it in"
                " the function that thalweg.distribute.Strategy.run calls."
            )
        sums_first = aggregates and _sums_first(optimizer)
        hooks = optimizer._make_hooks(aggregates and not sums_first)
        if not sums_first:
            # A rank without a gradient must sum zeros if another rank has one.
            if is_summed and executing_eagerly():
                pairs = distribute.fill_missing_gradients(as_pairs(pairs))
            fingerprint = fingerprint_of(optimizer)
            pairs, hooks.sharing = distribute.share_summed_step(
                optimizer, pairs, hooks, optimizer._clipping, fingerprint
            )
        elif distribute.shards_of(optimizer) is not None:
            pairs, hooks.sharing = _sum_for_shards_of(optimizer, as_pairs(pairs), hooks)
        else:
            pairs = sum_over_replicas(optimizer, as_pairs(pairs))
        with distribute.enter_shared_step(hooks.sharing):
            outcome = optimizer._take_step(hooks, pairs)
        return optimizer._end_step(outcome, pairs, name, aggregates and not sums_first)


def waited_for(optimizer: object) -> AbstractContextManager[None]:
    """Return a context manager for computing gradients that reports errors to waiting replicas."""
    if _sums_first(optimizer):
        return distribute.guard_backward(optimizer)
    return (
        distribute.report_errors(optimizer) if _is_summed(optimizer) else contextlib.nullcontext()
    )


def sum_over_replicas(optimizer: Any, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return pairs of the gradient sums over all replicas and their variables."""
    strategy = distribute.get_strategy()
    return _warn_about_missing(
        pairs, distribute.sum_gradients(optimizer, strategy, pairs, fingerprint_of(optimizer))
    )


def _sums_first(optimizer: Any) -> bool:
    """Return True if only the sum over replicas precedes `_transform_gradients`."""
    return _is_summed(optimizer) and _FIRST_HOOK not in optimizer._overridden_hooks()


def _is_summed(optimizer: Any) -> bool:
    """Return True if the optimizer sums gradients over several replicas."""
    if optimizer._aggregator is not None or replicas() == 1:
        return False
    return "_aggregate_gradients" not in optimizer._overridden_hooks()


def _sum_for_shards_of(
    optimizer: Any, pairs: list[tuple[Any, Any]], hooks: KerasStepAdapter
) -> tuple[list[tuple[Any, Any]], distribute.SharedStep]:
    """Sum gradients over the ranks for an optimizer with sharded slots.

    Return ((gradient sum, variable) pairs, `SharedStep` for the update). Variables without a
    gradient on any rank are left out, with a warning. A rank receives only its parts of the sums,
    but full sums for user functions, and for clipped gradients of a rule with `whole`.
    """
    sees = optimizer._transformers or "_transform_gradients" in optimizer._overridden_hooks()
    rule = hooks.step_rule()
    needs_full_sums = sees or rule is None or (rule.whole and bool(optimizer._clipping))
    strategy, fingerprint = distribute.get_strategy(), fingerprint_of(optimizer)
    summed_pairs, step = distribute.sum_for_shards(
        optimizer, strategy, pairs, fingerprint, hooks, scatters=not needs_full_sums
    )
    return _warn_about_missing(pairs, summed_pairs), step


def fingerprint_of(optimizer: Any) -> distribute.StepFingerprint:
    """Return a fingerprint of the next step, for the check that all replicas take equal steps."""

    def words_of_step() -> list[str]:
        """Return one line per fact about the optimizer that must be equal on all replicas."""
        arguments = distribute.in_words(optimizer._arguments())
        step = [f"step: {int(optimizer.iterations)}"] if executing_eagerly() else []
        return [f"optimizer: {type(optimizer).__name__}", *arguments, *step]

    def numbers_of_step() -> tuple[int, list[float]]:
        """Return the step count and the hyperparameters of the step."""
        return int(optimizer.iterations), list(optimizer._hyper.numbers().values())

    return distribute.StepFingerprint(words_of_step, numbers_of_step)


def _warn_about_missing(pairs: list[Pair], sums: list[Pair]) -> list[Pair]:
    """Return the sums; warn about variables without a gradient on any rank."""
    if len(sums) < len(pairs):
        summed_ids = {id(var) for _, var in sums}
        sums_and_vars = [(var if id(var) in summed_ids else None, var) for _, var in pairs]
        with_gradients(sums_and_vars, titles_of([var for _, var in pairs]))
    return sums
