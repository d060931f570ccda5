"""Run one optimizer step, for all front ends.

Planned step: check, create state, read hyperparameters, transform gradients, plan.
Rebind: reuse the last plan with new gradients.
Both then: reduce, decide, run pre-update passes, write, apply constraints, count the step.

A front end passes a `StepAdapter` to `run_step`. Everything that can fail runs before the first
write. The writes are one commit that no interruption can split. The user's callbacks follow; all of
them run, even if one fails or is interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from thalweg import _engines
from thalweg._base.context_managers import writable
from thalweg._base.locks import importing
from thalweg._core.atomic_section import Call, calls, drain, unless_resized
from thalweg._core.commit import (
    LEFT,
    SKIPPED,
    PostUpdateCall,
    StepResult,
    add_note,
    constrained,
    constraint_of,
    copy_writes,
    note_not_applied,
    putting_back,
    write_step,
)
from thalweg._core.device_scalars import device_columns
from thalweg._core.gradient_transforms import NOTHING, Decision, GradientTransforms, all_dense
from thalweg._core.grads_and_vars import Pair, distinct, has_rows
from thalweg._core.memory_guard import MemoryGuard
from thalweg._core.plan_cache import CachedPlan, PlanCache
from thalweg._core.step_adapter import StepAdapter
from thalweg._core.step_scalars import columns_of, processed
from thalweg._core.validation import check_memories, check_numerics, sparse_and_constrained
from thalweg._core.vectors import is_host
from thalweg._engines import check_scalars
from thalweg._engines.protocol import (
    NO_COLUMNS,
    PEAKS,
    Columns,
    Copies,
    Reductions,
    StepPlan,
    StepRequest,
    WriteRound,
    as_array,
)
from thalweg.errors import FailedPreconditionError
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices, values_of

if TYPE_CHECKING:
    from thalweg._core.gradient_stats import GradientStats
    from thalweg._engines.staged_step import StagedStep


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
    """Run a step, or one variable's share of a step that is applied variable by variable.

    Args:
        adapter: The front end's adapter for this step.
        cache: Plans of earlier steps.
        grads_and_vars: Pairs of gradient and variable, as accepted by `adapter.convert_pairs`.
        transforms: Unscaling, clipping and overflow checks of gradients before the rule.
        copies: For each variable a 16-bit tensor that receives a copy of it, or None.
        is_final: Run `finishing_calls` and the counters after this call.
        may_rebind: Try `try_rebind` first.

    Returns:
        Whether the step was taken, and the exceptions raised after its writes.

    Raises:
        Exception: Any error of a check or of a user callback, with a note that nothing has changed.
    """
    if may_rebind:
        rebound = try_rebind(adapter, cache, grads_and_vars, transforms, copies, is_final=is_final)
        if rebound is not None:
            return rebound
    # Slots created in inference mode could not be updated outside it.
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
    """Run a step with the last plan if only gradients and scalars changed.

    Args:
        adapter, cache, grads_and_vars, transforms, copies, is_final: See `run_step`;
            `grads_and_vars` has not been validated.

    Returns:
        The result, or None if the last plan does not fit; nothing has changed then.
    """
    if cache.last is None:
        return None
    try:
        cached_plan = rebind_plan(adapter, cache, grads_and_vars, transforms, copies)
        if cached_plan is None:
            return None
        return execute_plan(adapter, cache, cached_plan, transforms, is_final)
    except BaseException as error:
        add_note(error, adapter.begun)
        raise


def finish(adapter: StepAdapter) -> list[BaseException]:
    """Finish a step applied one by one with `is_final=False`; return the callbacks' exceptions."""
    return write_step([], adapter.finishing_calls(), [*adapter.counting_calls({}), *adapter.ending])


def rebind_plan(
    adapter: StepAdapter,
    cache: PlanCache,
    pairs: Sequence[tuple[Any, Any]],
    transforms: GradientTransforms,
    copies: Copies,
) -> CachedPlan | None:
    """Return the last plan, bound to new gradients; None if it does not fit."""
    rule = adapter.step_rule()
    if cache.last is None or rule is None or not adapter.repeats:
        return None
    last, plan, scalar_slots, narrow, shaped_slots = cache.last
    try:
        gradients, variables = [grad for grad, _ in pairs], [var for _, var in pairs]
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
    if adapter.calls and not plan.try_rebind(_local_request(adapter, request)):
        plan.release_gradients()
        return None
    return CachedPlan(request, plan, scalar_slots, narrow, shaped_slots)


def _check_pairs(adapter: StepAdapter, pairs: Sequence[Pair], narrow: bool) -> None:
    sharing = adapter.sharing
    adapter.check_pairs(pairs if sharing is None else sharing.local_parts(pairs), narrow)


def _check_matrices(adapter: StepAdapter, rule: Rule, pairs: Sequence[Pair]) -> None:
    """Raise unless a rule with pre-update passes supports these variables.

    Raises:
        NotImplementedError: The matrices are sharded so that no process holds a full one.
        InvalidArgumentError, InvalidTypeError: As `check_step` of the engines.
    """
    with importing:
        from thalweg._engines.matrix_shapes import check_step
    variables = [var for _, var in pairs]
    names = adapter.names_of(variables)
    if adapter.sharing is not None:
        adapter.sharing.check_matrices(rule, variables, names)
    check_step(rule, variables, [grad for grad, _ in pairs], names)


def _local_request(adapter: StepAdapter, request: StepRequest) -> StepRequest:
    """Return this process's share of the request."""
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
    """Run a planned step: validate everything, build a new plan and cache it."""
    pairs = _prepare_pairs(adapter, cache, grads_and_vars, transforms)
    rule, is_checked = adapter.step_rule(), _is_checked(adapter, transforms)
    if rule is None or adapter.one_by_one(pairs):
        if is_checked:
            _check_numerics(adapter, pairs)
        if is_final:
            cache.forget_others([var for _, var in pairs])
        return _run_user_updates(adapter, pairs, transforms, copies, is_final)
    has_sparse = any(isinstance(grad, IndexedSlices) for grad, _ in pairs)
    if rule.whole and transforms and transforms.trust is None and has_sparse:
        # Clipping applies to the rows as passed, before the rule sums duplicate indices.
        if is_checked:
            _check_numerics(adapter, pairs)
            is_checked = False
        is_flushing = adapter.selection.denormals == "flush"
        pairs, decision = _process_gradients(pairs, transforms, is_flushing)
        if not decision.apply_flag:
            return _skip_step(adapter, decision)
        transforms = GradientTransforms(calls=decision.calls)
    if rule.is_whole or transforms.trust is not None:
        pairs = all_dense(pairs)
    cached_plan = _build_plan(adapter, cache, pairs, transforms, copies)
    return execute_plan(adapter, cache, cached_plan, transforms, is_final, is_checked)


def _prepare_pairs(
    adapter: StepAdapter,
    cache: PlanCache,
    grads_and_vars: Sequence[tuple[object, object]],
    transforms: GradientTransforms,
) -> list[Pair]:
    """Validate a step, create its state, read its hyperparameters; return its pairs."""
    cache.last = None
    pairs = adapter.convert_pairs(grads_and_vars)
    _check_pairs(adapter, pairs, transforms.narrow)
    rule = adapter.step_rule()
    adapter.check_flat_buffers(rule, transforms, [var for _, var in pairs])
    if rule is not None and rule.passes:
        _check_matrices(adapter, rule, pairs)
    return _create_state(adapter, pairs)


def keep_plan(cache: PlanCache, cached_plan: CachedPlan) -> None:
    """Store a plan of one engine without its gradients, for `try_rebind`."""
    if cached_plan.ready.is_single:
        cache.last = cached_plan._replace(request=cached_plan.request._replace(gradients=()))


def plan_step(
    adapter: StepAdapter,
    cache: PlanCache,
    grads_and_vars: Sequence[tuple[object, object]],
    transforms: GradientTransforms,
    copies: Copies,
) -> CachedPlan | None:
    """Plan a step without running it, in place of the last plan.

    Args:
        adapter, cache, grads_and_vars, transforms, copies: As in `run_step`.

    Returns:
        The plan, bound to the gradients, for `execute_plan`; None if user functions update
        variables, or the rule makes sparse gradients dense, which only `run_step` does.

    Raises:
        Exception: Any error of a check; state created by then is discarded.
    """
    rule = adapter.step_rule()
    needs_whole_gradients = rule is None or rule.is_whole or transforms.trust is not None
    if rule is None or (
        needs_whole_gradients and any(has_rows(grad) for grad, _ in grads_and_vars)
    ):
        return None
    pairs = _prepare_pairs(adapter, cache, grads_and_vars, transforms)
    has_one_plan = not adapter.one_by_one(pairs)
    return _build_plan(adapter, cache, pairs, transforms, copies) if has_one_plan else None


def _create_state(adapter: StepAdapter, pairs: list[Pair]) -> list[Pair]:
    """Create missing state, read hyperparameters and return the transformed pairs."""
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
    """Return the engines' plan for the update of variables that have state."""
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
    if adapter.calls:
        _check_pairs(adapter, pairs, transforms.narrow)
    plan = cache.gate.plan_step(_local_request(adapter, request))
    return CachedPlan(request, plan, scalar_slots, transforms.narrow, shaped_slots)


def execute_plan(
    adapter: StepAdapter,
    cache: PlanCache,
    cached_plan: CachedPlan,
    transforms: GradientTransforms,
    is_final: bool = True,
    is_checked: bool | None = None,
) -> StepResult:
    """Run a bound plan: reduce, decide, run passes, write, constrain, finish, count.

    Update the variables and their state, unless the decision is to skip the step.

    Args:
        adapter, transforms: As in `run_step`.
        cache: The cache of the plan, which keeps a new plan for `try_rebind`.
        cached_plan: The plan, with its gradients and variables.
        is_final: Run `finishing_calls` and count the step; False for one variable's share of it.
        is_checked: Raise on gradients that are not finite; by default as the engine is set to.

    Returns:
        Whether the step was taken, and the exceptions raised after its writes.
    """
    is_new = cache.last is None
    if is_checked is None:
        is_checked = _is_checked(adapter, transforms)
    step_result = _execute_step(adapter, cached_plan, transforms, is_final, is_checked, is_new)
    if is_new:
        keep_plan(cache, cached_plan)
    return step_result


def _execute_step(
    adapter: StepAdapter,
    cached_plan: CachedPlan,
    transforms: GradientTransforms,
    is_final: bool,
    is_checked: bool,
    is_new: bool,
) -> StepResult:
    """Run a bound plan as `execute_plan`; check the scalars if it is new."""
    request, plan, scalar_slots, _, shaped_slots = cached_plan
    guard = None
    if request.rule.calls_users:
        guard = MemoryGuard(_local_request(adapter, request), scalar_slots, shaped_slots)
    try:
        columns, decision, stats = _reduce(adapter, request, plan, transforms, is_final, is_checked)
        if not isinstance(decision.apply_flag, Tensor) and not decision.apply_flag:
            return _skip_step(adapter, decision)
        columns, state_writes = _run_passes(adapter, cached_plan, columns, stats)
        if is_new:
            for values in columns.shared.values():
                check_scalars(request.rule, {**values, **columns.by_variable})
        counters = [*state_writes, *decision.calls, *adapter.ending]
        callbacks: list[PostUpdateCall] = []
        if is_final:
            counters += adapter.counting_calls(columns.shared)
            callbacks += adapter.finishing_calls()
        if guard is not None:
            guard.check_in_place()
        rounds = plan.make_rounds(columns)
        if adapter.watch is not None:
            rounds = adapter.watch.begin(adapter, request, plan, columns, transforms, stats, rounds)
        write = _commit_single_round if plan.is_single else _commit_rounds
        errors = write(adapter, request, rounds, callbacks, counters)
        return StepResult(decision.apply_flag, errors)
    finally:
        if adapter.gathered is None:
            plan.release_gradients()
        else:
            adapter.gathered.hold(plan)


def _reduce(
    adapter: StepAdapter,
    request: StepRequest,
    plan: StepPlan,
    transforms: GradientTransforms,
    is_final: bool,
    is_checked: bool,
) -> tuple[Columns, Decision, GradientStats | None]:
    """Compute reductions of the gradients; decide whether to take the step.

    If a device decides, `adapter.apply_flag` becomes the decision.

    Returns:
        The scalars, the decision, and the reductions; None if the step has none.

    Raises:
        InvalidArgumentError: A gradient is not finite, with `is_checked`.
    """
    reductions: Reductions = plan
    if adapter.sharing is not None:
        pairs = list(zip(request.gradients, request.variables, strict=True))
        is_flushing = adapter.selection.denormals == "flush"
        reductions = adapter.sharing.make_reductions(plan, pairs, is_flushing)
    if is_checked:
        check_numerics(as_array(reductions.reduce(PEAKS, NO_COLUMNS)), request.titles)
    groups = adapter.group_variables(request.variables, request.gradients)
    column_args = groups, adapter.scalars_of, plan.dtypes, request.variables
    if adapter.there is None:
        columns = columns_of(*column_args)
    else:
        columns = device_columns(*column_args, adapter.there)
        columns = columns._replace(apply_flag=adapter.apply_flag)
    rule = request.rule
    if not (transforms or rule.measures or rule.levels or rule.per_optimizer is not None):
        return columns, Decision(True, []), None
    # User functions receive NumPy arrays, so reductions must be on the host.
    on_host = rule.calls_users or rule.per_optimizer is not None
    if transforms.decide is not None:
        on_host = on_host or not (is_final and _can_decide_on_device(adapter, request, plan))
    formulas = () if rule.passes else tuple(rule.measures.values())
    with importing:
        from thalweg._core.gradient_stats import GradientStats
    stats = GradientStats(transforms, reductions, request.variables, columns, formulas, on_host)
    columns = processed(columns, stats, plan.dtypes)
    decision = stats.decision()
    if isinstance(decision.apply_flag, Tensor):
        adapter.apply_flag = decision.apply_flag
        columns = columns._replace(apply_flag=decision.apply_flag)
    return columns, decision, stats


def _run_passes(
    adapter: StepAdapter, cached_plan: CachedPlan, columns: Columns, stats: GradientStats | None
) -> tuple[Columns, list[Call]]:
    """Run pre-update passes and the rule's functions of reductions.

    Returns:
        The scalars with the results of these functions, and the calls that write state.

    Raises:
        FailedPreconditionError: The rule adds up over all variables, which this step lacks.
    """
    request, plan, scalar_slots, _, shaped_slots = cached_plan
    rule, state_writes = request.rule, list[Call]()
    if rule.passes:
        state_writes += cast("StagedStep", plan).run_passes(columns, shaped_slots)
    if stats is None:
        return columns, state_writes
    if rule.passes:
        # Passes change the tensors that these reductions read.
        stats.request_sums(tuple(rule.measures.values()))
    if rule.per_optimizer is not None:
        with importing:
            from thalweg._core.optimizer_reductions import per_optimizer
        if not adapter.sees_all:
            raise FailedPreconditionError(
                f"Rule {rule.name!r} adds up over all variables of a step, and cannot update"
                " them one by one."
            )
        shared_scalars = adapter.in_common, adapter.common_slots
        columns, writes = per_optimizer(request, columns, stats, *shared_scalars)
        state_writes += writes
    if rule.all_levels:
        with importing:
            from thalweg._core.variable_reductions import per_variable
        columns, writes = per_variable(request, scalar_slots, columns, stats)
        state_writes += writes
    return columns, state_writes


def _can_decide_on_device(adapter: StepAdapter, request: StepRequest, plan: StepPlan) -> bool:
    """Return True if a device may decide, without the host, if the step is taken."""
    is_unsharded = adapter.sharing is None and adapter.gathered is None and plan.is_single
    if not (adapter.may_leave and is_unsharded) or all(map(is_host, request.variables)):
        return False
    if any(map(has_rows, request.gradients)):
        return False
    return not (adapter.constrains and _constrained_indices(request))


def _check_numerics(adapter: StepAdapter, pairs: Sequence[Pair]) -> None:
    """Raise on gradients that are not finite, in a step without a plan of all variables."""
    variables = [var for _, var in pairs]
    values = [values_of(grad) for grad, _ in pairs]
    peaks = _engines.Tensors(values, variables).reduce(PEAKS, NO_COLUMNS)
    check_numerics(peaks, adapter.names_of(variables))


def _is_checked(adapter: StepAdapter, transforms: GradientTransforms) -> bool:
    """Return True if gradients that are not finite raise; a loss scaler skips the step instead."""
    has_loss_scaler = transforms.decide is not None or adapter.apply_flag is not None
    return adapter.selection.check_numerics and not has_loss_scaler


def _commit_single_round(
    adapter: StepAdapter,
    request: StepRequest,
    rounds: Iterator[WriteRound],
    callbacks: list[PostUpdateCall],
    counters: list[Call],
) -> list[BaseException]:
    """Commit a step in which each variable occurs once; return errors of callbacks."""
    (write_round,) = rounds
    if adapter.constrains:
        indices = _constrained_indices(request)
        owners = _constraint_owners(request)
        constraints = [constraint_of(owners[index], request.titles[index]) for index in indices]
        callbacks = constraints + callbacks
    gather_call = None if adapter.sharing is None else adapter.sharing.joining_calls(request)
    if gather_call is not None:
        callbacks = [gather_call, *callbacks]
    if adapter.gathered is not None:
        adapter.gathered.add(write_round.calls, callbacks, counters)
        return []
    if adapter.sharing is not None:
        adapter.sharing.begin_writing()
    if adapter.apply_flag is not None:
        return write_step(write_round.calls, callbacks, counters, adapter.begun, LEFT)
    return write_step(write_round.calls, callbacks, counters, adapter.begun)


def _constraint_owners(request: StepRequest) -> Sequence[Tensor]:
    """Return for each variable the tensor that has the constraint: the variable or its copy."""
    if request.copies is None:
        return request.variables
    pairs = zip(request.variables, request.copies, strict=True)
    return [
        copy if copy is not None and getattr(var, "constraint", None) is None else var
        for var, copy in pairs
    ]


def _constrained_indices(request: StepRequest) -> list[int]:
    """Return the indices of variables with a constraint; raise if one has a sparse gradient."""
    constraints = [getattr(var, "constraint", None) for var in _constraint_owners(request)]
    if constraints.count(None) == len(constraints):
        return []
    indices = [index for index, constraint in enumerate(constraints) if constraint is not None]
    for index in indices:
        if has_rows(request.gradients[index]):
            raise sparse_and_constrained(request.titles[index])
    return indices


def _commit_rounds(
    adapter: StepAdapter,
    request: StepRequest,
    rounds: Iterator[WriteRound],
    callbacks: list[PostUpdateCall],
    counters: list[Call],
) -> list[BaseException]:
    """Write the rounds of a step in which variables repeat, then run callbacks and counters.

    The constraints of a round run after its writes. If anything raises before the callbacks begin,
    variables, slots and copies are restored.

    Returns:
        The errors of constraints and callbacks.
    """
    tensors = [*request.variables, *(slot for var_slots in request.slots for slot in var_slots)]
    tensors += [copy for copy in request.copies or () if copy is not None]
    errors: list[BaseException] = []
    owners = _constraint_owners(request)
    if adapter.sharing is not None:
        adapter.sharing.begin_writing()
    rollback = calls(putting_back(distinct(tensors)))
    guard = MemoryGuard(request) if adapter.constrains and _constrained_indices(request) else None
    try:
        for write_round in rounds:
            if guard is not None:
                guard.check_in_place()
            drain(calls(write_round.calls))
            for index in write_round.members if adapter.constrains else ():
                errors += constrained(owners[index], request.titles[index])
        counters = list(map(unless_resized, counters))
        return errors + write_step([], callbacks, counters, adapter.begun)
    except BaseException:
        if not adapter.begun:
            drain(rollback)
        raise


def _run_user_updates(
    adapter: StepAdapter,
    pairs: list[Pair],
    transforms: GradientTransforms,
    copies: Copies,
    is_final: bool,
) -> StepResult:
    """Run the user's updates, each followed by its constraint; restore all tensors on failure."""
    flush = adapter.selection.denormals == "flush"
    pairs, decision = _process_gradients(pairs, transforms, flush)
    if not decision.apply_flag:
        return _skip_step(adapter, decision)
    variables = [var for _, var in pairs]
    names = adapter.names_of(variables)
    errors: list[BaseException] = []
    copy_tensors = [copy for copy in copies or () if copy is not None]
    targets = [*adapter.written_tensors(distinct(variables)), *copy_tensors]
    check_memories(targets)
    if adapter.sharing is not None:
        adapter.sharing.begin_writing()
    rollback = calls(putting_back(targets))
    try:
        for (grad, var), title in zip(pairs, names, strict=True):
            adapter.apply_one(grad, var)
            if not isinstance(grad, IndexedSlices):
                errors += constrained(var, title)
        check_memories(targets)
        writes = copy_writes(copies, variables) if copies else []
        counters = [*decision.calls, *adapter.ending]
        counters += adapter.counting_calls({}) if is_final else ()
        callbacks = adapter.finishing_calls() if is_final else []
        counters = list(map(unless_resized, counters))
        return StepResult(True, errors + write_step(writes, callbacks, counters, adapter.begun))
    except BaseException:
        if not adapter.begun:
            drain(rollback)
        raise


def _process_gradients(
    pairs: list[Pair], transforms: GradientTransforms, flush: bool
) -> tuple[list[Pair], Decision]:
    """Return pairs with transformed gradients, and the decision whether to take the step."""
    if not transforms:
        return pairs, Decision(True, [])
    with importing:
        from thalweg._core.gradient_stats import transform_gradients
    return transform_gradients(pairs, transforms, flush)


def _skip_step(adapter: StepAdapter, decision: Decision) -> StepResult:
    return StepResult(False, skip_step(decision.calls, adapter.begun))


def skip_step(calls: Sequence[Call], notes: list[str]) -> list[BaseException]:
    """Record a step that is left out in one commit; return the exceptions raised after it."""
    return write_step(calls, notes=notes, message=f"{SKIPPED}.")


def _split_slots(rule: Rule, slots: Sequence[Sequence[Tensor]]) -> list[Sequence[Sequence[Tensor]]]:
    """Split each variable's slots into those of elements, of shape (), and of another shape."""
    if not (rule.scalar_slots or rule.shaped_slots):
        return [slots, (), ()]
    scalars = rule.measured_slots if rule.all_levels else rule.scalar_slots
    scalars = [slot for slot in scalars if slot.per is None]
    kinds = rule.element_slots, scalars, rule.shaped_slots
    orders = [[rule.slots.index(slot) for slot in kind] for kind in kinds]
    return [[[var_slots[index] for index in order] for var_slots in slots] for order in orders]
