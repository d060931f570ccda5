"""Run one optimizer step, for all front ends.

Planned step: check, create state, read hyperparameters, transform gradients, plan.
Rebind: reuse the last plan with new gradients.
Both then: reduce, decide, run pre-update passes, write, apply constraints, count the step.

A front end passes a `StepAdapter` to `run_step`. Everything that can fail runs before the first
write. The writes are one commit that no interruption can split. All user callbacks follow, even if
a callback fails or is interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from thalweg._base.context_managers import writable
from thalweg._base.locks import importing
from thalweg._core.commit import StepResult, add_note, note_not_applied, write_step
from thalweg._core.gradient_transforms import NOTHING, GradientTransforms, all_dense
from thalweg._core.grads_and_vars import Pair, distinct, has_rows
from thalweg._core.memory_guard import MemoryGuard
from thalweg._core.plan_cache import CachedPlan, PlanCache
from thalweg._core.step_adapter import StepAdapter
from thalweg._core.step_reductions import (
    check_gradients_finite,
    raises_if_not_finite,
    reduce_gradients,
    run_passes,
)
from thalweg._core.step_writes import (
    commit_rounds,
    commit_single_round,
    process_gradients,
    run_user_updates,
    skip_step,
)
from thalweg._engines import check_scalars
from thalweg._engines.protocol import Copies, StepRequest
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices


def run_step(
    adapter: StepAdapter,
    cache: PlanCache,
    grads_and_vars: Sequence[tuple[Any, Any]],
    transforms: GradientTransforms = NOTHING,
    copies: Copies = None,
    *,
    is_final: bool = True,
    may_rebind: bool = True,
) -> StepResult:
    """Run a step with the cached plan if it still fits, or with a new plan.

    Return whether the step was taken, and the exceptions raised after its writes.

    Args:
        adapter: The front end's adapter for this step.
        cache: Plans of earlier steps; updated.
        grads_and_vars: Pairs of gradient and variable, as accepted by `adapter.convert_pairs`.
        transforms: Unscaling, clipping and overflow checks of gradients before the rule.
        copies: Optional. For each variable None, or a 16-bit tensor to copy the new value to.
        is_final: Run user callbacks and counters. False if more variables of the step follow.
        may_rebind: Try the cached plan first.

    Raises:
        Exception: Any error of a check or user function, with a note that nothing has changed.
    """
    if may_rebind:
        rebound = try_rebind(adapter, cache, grads_and_vars, transforms, copies, is_final=is_final)
        if rebound is not None:
            return rebound
    cache.begun = adapter.begun
    # `writable` ends inference mode: slots created in it could not be updated outside.
    with note_not_applied(adapter.begun), writable():
        return _plan_step(adapter, cache, grads_and_vars, transforms, copies, is_final)


def try_rebind(
    adapter: StepAdapter,
    cache: PlanCache,
    grads_and_vars: Sequence[tuple[object, object]],
    transforms: GradientTransforms = NOTHING,
    copies: Copies = None,
    *,
    is_final: bool = True,
) -> StepResult | None:
    """Run a step with the last plan in `cache`, if only gradients and scalars have changed.

    Return the result of the step. If the plan cannot be reused, return None and change nothing.

    Args:
        adapter, cache, transforms, copies, is_final: As for `run_step`.
        grads_and_vars: Pairs of gradient and variable, not validated.
    """
    cache.begun = adapter.begun
    if cache.last is None:
        return None
    try:
        cached_plan = rebind_plan(adapter, cache, grads_and_vars, transforms, copies)
        if cached_plan is None:
            return None
        return execute_plan(adapter, cached_plan, transforms, is_new=False, is_final=is_final)
    except BaseException as error:
        add_note(error, adapter.begun)
        raise


def finish(adapter: StepAdapter) -> list[BaseException]:
    """Finish a step whose parts ran with `is_final=False`: run callbacks and counters.

    Return the exceptions of the callbacks.
    """
    return write_step([], adapter.finishing_calls(), [*adapter.counting_calls({}), *adapter.ending])


def rebind_plan(
    adapter: StepAdapter,
    cache: PlanCache,
    pairs: Sequence[tuple[Any, Any]],
    transforms: GradientTransforms,
    copies: Copies,
) -> CachedPlan | None:
    """Bind the last plan in `cache` to new gradients and read the hyperparameters.

    Return the bound plan for `execute_plan`; nothing is run. Return None, with no gradient bound,
    if the plan cannot be reused: variables, options, memory or rule differ, or `adapter.repeats` is
    False.
    """
    rule = adapter.step_rule()
    if cache.last is None or rule is None or not adapter.repeats:
        return None
    last, plan, scalar_slots, narrow, shaped_slots = cache.last
    try:
        gradients, variables = [grad for grad, _ in pairs], [var for _, var in pairs]
    # These are not pairs: the planned step raises the error.
    except (TypeError, ValueError):
        return None
    step_args = last.slots, last.titles, adapter.selection, copies, adapter.from_copies
    request = StepRequest(rule, transforms.stages, variables, gradients, *step_args)
    request = request._replace(
        places=adapter.places_of(variables), numbers=adapter.numbers_for(rule, variables)
    )
    if transforms.narrow != narrow or not plan.try_rebind(_local_request(adapter, request)):
        return None
    try:
        _read_hypers(adapter, variables)
    except BaseException:
        plan.release_gradients()
        raise
    # User functions called by `read_hypers` may have reallocated variables or slots.
    if adapter.calls and not plan.try_rebind(_local_request(adapter, request)):
        plan.release_gradients()
        return None
    return CachedPlan(request, plan, scalar_slots, narrow, shaped_slots)


def _check_pairs(adapter: StepAdapter, pairs: Sequence[Pair], narrow: bool) -> None:
    sharing = adapter.sharing
    adapter.check_pairs(pairs if sharing is None else sharing.local_parts(pairs), narrow)


def _check_matrices(adapter: StepAdapter, rule: Rule, pairs: Sequence[Pair]) -> None:
    """Raise an error unless a rule with passes supports these variables and gradients.

    Passes compute on rows, columns or matrices before the variables are updated.

    Raises:
        NotImplementedError: Variables are sharded, and no process holds a full matrix.
        InvalidArgumentError, InvalidTypeError: A variable or a gradient has an unsupported shape or
            type.
    """
    with importing:
        from thalweg._engines.matrix_shapes import check_step
    variables = [var for _, var in pairs]
    names = adapter.names_of(variables)
    if adapter.sharing is not None:
        adapter.sharing.check_matrices(rule, variables, names)
    check_step(rule, variables, [grad for grad, _ in pairs], names)


def _local_request(adapter: StepAdapter, request: StepRequest) -> StepRequest:
    """Return the request over this process's shards; the request itself without sharding."""
    return request if adapter.sharing is None else adapter.sharing.share_out(request)


def _read_hypers(adapter: StepAdapter, variables: Sequence[Tensor]) -> None:
    if not adapter.is_prepared:
        adapter.read_hypers(variables)
        adapter.is_prepared = True


def _plan_step(
    adapter: StepAdapter,
    cache: PlanCache,
    grads_and_vars: Sequence[tuple[object, object]],
    transforms: GradientTransforms,
    copies: Copies,
    is_final: bool,
) -> StepResult:
    """Run a step with a new plan: validate, create state, build the plan, execute and cache it.

    If user functions update the variables, run `run_user_updates` without a plan.
    """
    # Validation precedes the creation of state, so invalid calls leave no slots behind.
    pairs = _create_state(adapter, _validate_pairs(adapter, cache, grads_and_vars, transforms))
    rule, is_checked = adapter.step_rule(), raises_if_not_finite(adapter, transforms)
    if rule is None or adapter.one_by_one(pairs):
        if is_checked:
            check_gradients_finite(adapter, pairs)
        if is_final:
            cache.forget_others([var for _, var in pairs])
        return run_user_updates(adapter, pairs, transforms, copies, is_final)
    has_sparse = any(isinstance(grad, IndexedSlices) for grad, _ in pairs)
    if rule.whole and transforms and transforms.trust is None and has_sparse:
        # Clipping applies to the rows as passed, before the rule sums duplicate indices.
        if is_checked:
            check_gradients_finite(adapter, pairs)
            is_checked = False
        is_flushing = adapter.selection.denormals == "flush"
        pairs, decision = process_gradients(pairs, transforms, is_flushing)
        if not decision.apply_flag:
            return StepResult(False, skip_step(decision.calls, adapter.begun))
        transforms = GradientTransforms(calls=decision.calls)
    if rule.is_whole or transforms.trust is not None:
        pairs = all_dense(pairs)
    cached_plan = _build_plan(adapter, cache, pairs, transforms, copies)
    step_result = execute_plan(
        adapter, cached_plan, transforms, is_new=True, is_final=is_final, is_checked=is_checked
    )
    keep_plan(cache, cached_plan)
    return step_result


def _validate_pairs(
    adapter: StepAdapter,
    cache: PlanCache,
    grads_and_vars: Sequence[tuple[object, object]],
    transforms: GradientTransforms,
) -> list[Pair]:
    """Set `cache.last` to None; return the converted and validated pairs of a step."""
    # After an error, no later step may rebind a plan from before it.
    cache.last = None
    pairs = adapter.convert_pairs(grads_and_vars)
    _check_pairs(adapter, pairs, transforms.narrow)
    rule = adapter.step_rule()
    adapter.check_flat_buffers(rule, transforms, [var for _, var in pairs])
    if rule is not None and rule.passes:
        _check_matrices(adapter, rule, pairs)
    return pairs


def keep_plan(cache: PlanCache, cached_plan: CachedPlan) -> None:
    """Cache a plan for the next step, without gradients, if it has one engine and one round."""
    if cached_plan.ready.is_single:
        cache.last = cached_plan._replace(request=cached_plan.request._replace(gradients=()))


def plan_step(
    adapter: StepAdapter,
    cache: PlanCache,
    grads_and_vars: Sequence[tuple[object, object]],
    transforms: GradientTransforms,
    copies: Copies,
) -> CachedPlan | None:
    """Return a new plan of a step, bound to the gradients, for `execute_plan`.

    Missing state is created, but no variable is written. `cache.last` becomes None; the new plan is
    not cached. Return None, and create no state, if user functions update the variables, or if the
    rule makes sparse gradients dense. Only `run_step` can take these steps.

    Args:
        copies: For each variable its 16-bit copy or None; None without copies.

    Raises:
        Exception: Any error of a check.
    """
    rule = adapter.step_rule()
    if rule is None:
        return None
    makes_dense = rule.is_whole or transforms.trust is not None
    if makes_dense and any(has_rows(grad) for grad, _ in grads_and_vars):
        return None
    pairs = _validate_pairs(adapter, cache, grads_and_vars, transforms)
    if adapter.one_by_one(pairs):
        return None
    pairs = _create_state(adapter, pairs)
    return _build_plan(adapter, cache, pairs, transforms, copies)


def _create_state(adapter: StepAdapter, pairs: list[Pair]) -> list[Pair]:
    """Create missing state and read hyperparameters; return the adapter's transformed pairs."""
    adapter.create_state(distinct([var for _, var in pairs]))
    _read_hypers(adapter, [var for _, var in pairs])
    return adapter.transform_pairs(pairs)


def _build_plan(
    adapter: StepAdapter,
    cache: PlanCache,
    pairs: list[Pair],
    transforms: GradientTransforms,
    copies: Copies,
) -> CachedPlan:
    """Return a new plan of the engines, bound to gradients. All variables must have state."""
    rule: Any = adapter.step_rule()
    variables = [var for _, var in pairs]
    slots = [adapter.slots_of(var) for var in variables]
    element_slots, scalar_slots, shaped_slots = _split_slots(rule, slots)
    names = adapter.names_of(variables)
    step_args = element_slots, names, adapter.selection, copies, adapter.from_copies
    gradients = [grad for grad, _ in pairs]
    request = StepRequest(rule, transforms.stages, variables, gradients, *step_args)
    request = request._replace(
        places=adapter.places_of(variables), numbers=adapter.numbers_for(rule, variables)
    )
    # User functions called by `read_hypers` may have reallocated what was validated.
    if adapter.calls:
        _check_pairs(adapter, pairs, transforms.narrow)
    plan = cache.gate.plan_step(_local_request(adapter, request))
    return CachedPlan(request, plan, scalar_slots, transforms.narrow, shaped_slots)


def execute_plan(
    adapter: StepAdapter,
    cached_plan: CachedPlan,
    transforms: GradientTransforms,
    *,
    is_new: bool,
    is_final: bool = True,
    is_checked: bool | None = None,
) -> StepResult:
    """Run a plan that is bound to gradients: update variables and state, or skip the step.

    Return whether the step was taken, and the exceptions raised after its writes. If
    `adapter.gathered` is a `WriteBatch`, the writes and the plan are only added to this batch. If
    not, the plan releases its gradients at the end.

    Args:
        cached_plan: The plan that `plan_step` or `rebind_plan` returned.
        is_new: True at the first run of the plan, which validates the scalars.
        is_final: Run user callbacks and counters. False if more variables of the step follow.
        is_checked: Raise an error if a gradient is not finite. None follows the engine's setting.
    """
    if is_checked is None:
        is_checked = raises_if_not_finite(adapter, transforms)
    request, plan, scalar_slots, _, shaped_slots = cached_plan
    guard = None
    if request.rule.calls_users:
        guard = MemoryGuard(_local_request(adapter, request), scalar_slots, shaped_slots)
    try:
        columns, decision, stats = reduce_gradients(
            adapter, request, plan, transforms, is_final, is_checked
        )
        if not isinstance(decision.apply_flag, Tensor) and not decision.apply_flag:
            return StepResult(False, skip_step(decision.calls, adapter.begun))
        columns, state_writes = run_passes(adapter, cached_plan, columns, stats)
        for values in columns.shared.values() if is_new else ():
            check_scalars(request.rule, {**values, **columns.by_variable})
        counters = [*state_writes, *decision.calls, *adapter.ending]
        counters += adapter.counting_calls(columns.shared) if is_final else ()
        callbacks = adapter.finishing_calls() if is_final else []
        if guard is not None:
            guard.check_in_place()
        rounds = plan.make_rounds(columns)
        if adapter.watch is not None:
            rounds = adapter.watch.begin(adapter, request, plan, columns, transforms, stats, rounds)
        write = commit_single_round if plan.is_single else commit_rounds
        errors = write(adapter, request, rounds, callbacks, counters)
        return StepResult(decision.apply_flag, errors)
    finally:
        if adapter.gathered is None:
            plan.release_gradients()
        else:
            adapter.gathered.hold(plan)


def _split_slots(rule: Rule, slots: Sequence[Sequence[Tensor]]) -> list[Sequence[Sequence[Tensor]]]:
    """Split each variable's slots by shape.

    Returns:
        Three sequences with a list per variable: slots with the variable's shape, slots of shape
            (), other slots. A sequence may be () if the rule has no such slots.
    """
    if not (rule.scalar_slots or rule.shaped_slots):
        return [slots, (), ()]
    scalars = rule.measured_slots if rule.all_levels else rule.scalar_slots
    scalars = [slot for slot in scalars if slot.per is None]
    kinds = rule.element_slots, scalars, rule.shaped_slots
    orders = [[rule.slots.index(slot) for slot in kind] for kind in kinds]
    return [[[var_slots[index] for index in order] for var_slots in slots] for order in orders]
