"""One step of an optimizer, for all front ends.

    try_rebind, or check > state > prepare > transform > plan; then
    measure > decide > passes of the rule > write > constrain > finish > count

A front end passes a `StepAdapter` to `run_step`. All errors come before the first write. The writes
are one section that no interruption can split. The user's callbacks follow; one that fails or is
interrupted does not keep the others from running.
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
from thalweg._engines.protocol import Copies, StepPlan, StepRequest, WriteRound
from thalweg.errors import FailedPreconditionError
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices, values_of

if TYPE_CHECKING:
    from thalweg._engines.staged_step import StagedStep


def run_step(
    hooks: StepAdapter,
    kept: PlanCache,
    given: Sequence[tuple[Any, Any]],
    how: GradientTransforms = NOTHING,
    copies: Copies = None,
    *,
    is_last: bool = True,
    tries: bool = True,
) -> StepResult:
    """Take a step, or what comes of one variable in it.

    Args:
        hooks: The face.
        kept: From the steps before.
        given: Gradients and variables, as `hooks.convert_pairs` takes them.
        how: What happens to the gradients before the rule.
        copies: For each variable a tensor of a 16-bit type that is set to it, or None.
        is_last: Whether the step ends here, with `finishing_calls` and counters.
        tries: Whether to try `repeat` first.

    Returns:
        Whether it was taken, and what was raised after that.

    Raises:
        Whatever a check or a function of the user's raises, with a note that nothing has changed.
    """
    again = try_rebind(hooks, kept, given, how, copies, is_last=is_last) if tries else None
    if again is not None:
        return again
    # Slots made in inference mode could not be updated outside it.
    with note_not_applied(hooks.begun), writable():
        return _plan_step(hooks, kept, given, how, copies, is_last)


def try_rebind(
    hooks: StepAdapter,
    kept: PlanCache,
    given: Sequence[tuple[object, object]],
    how: GradientTransforms = NOTHING,
    copies: Copies = None,
    *,
    is_last: bool = True,
) -> StepResult | None:
    """Take a step if it is the one before with other gradients.

    Args:
        hooks, kept, given, how, copies, is_last: As in `take`; `given` may hold anything.

    Returns:
        The outcome, or None if the step is left to `take`.
    """
    if kept.last is None:
        return None
    try:
        planned = _try_rebind_plan(hooks, kept, given, how, copies)
        if planned is None:
            return None
        return _execute_step(hooks, planned, how, is_last, _is_checked(hooks, how))
    except BaseException as error:
        add_note(error, hooks.begun)
        raise


def finish(hooks: StepAdapter) -> list[BaseException]:
    """End a step whose variables were updated one after the other, each with `is_last=False`.

    Returns:
        What was raised.
    """
    return write_step([], hooks.finishing_calls(), [*hooks.counting_calls({}), *hooks.ending])


def _try_rebind_plan(
    hooks: StepAdapter,
    kept: PlanCache,
    given: Sequence[tuple[Any, Any]],
    how: GradientTransforms,
    copies: Copies,
) -> CachedPlan | None:
    """The step, if it is the one before with other gradients."""
    rule = hooks.step_rule()
    if kept.last is None or rule is None or not hooks.repeats:
        return None
    last, ready, scalar_slots, narrow, shaped_slots = kept.last
    try:
        gradients, variables = [grad for grad, _ in given], [var for _, var in given]
    except (TypeError, ValueError):
        return None
    beside = last.slots, last.titles, hooks.selection, copies, hooks.from_copies
    asked = StepRequest(rule, how.stages, variables, gradients, *beside)
    asked = asked._replace(places=hooks.places_of(variables))
    if how.narrow != narrow or not ready.try_rebind(_local_request(hooks, asked)):
        return None
    try:
        _prepare(hooks, variables)
    except BaseException:
        ready.release_gradients()
        raise
    if hooks.calls and not ready.try_rebind(_local_request(hooks, asked)):
        ready.release_gradients()
        return None
    return CachedPlan(asked, ready, scalar_slots, narrow, shaped_slots)


def _check(hooks: StepAdapter, pairs: Sequence[Pair], how: GradientTransforms) -> None:
    sharing = hooks.sharing
    hooks.check_pairs(pairs if sharing is None else sharing.local_parts(pairs), how.narrow)


def _check_matrices(hooks: StepAdapter, rule: Rule, pairs: Sequence[Pair]) -> None:
    """Refuse what a rule with passes does not take.

    Raises:
        NotImplementedError: Processes share the step in a way that leaves no whole matrix to any.
        InvalidArgumentError, InvalidTypeError: As `check_step` of the engines.
    """
    with importing:
        from thalweg._engines.matrix_shapes import check_step
    variables = [var for _, var in pairs]
    titles = hooks.names_of(variables)
    if hooks.sharing is not None:
        hooks.sharing.check_matrices(rule, variables, titles)
    check_step(rule, variables, [grad for grad, _ in pairs], titles)


def _local_request(hooks: StepAdapter, asked: StepRequest) -> StepRequest:
    """What this process does of the step."""
    return asked if hooks.sharing is None else hooks.sharing.share_out(asked)


def _prepare(hooks: StepAdapter, variables: Sequence[Tensor]) -> None:
    if not hooks.is_prepared:
        hooks.read_hypers(variables)
        hooks.is_prepared = True


def _plan_step(
    hooks: StepAdapter,
    kept: PlanCache,
    given: Sequence[tuple[object, object]],
    how: GradientTransforms,
    copies: Copies,
    is_last: bool,
) -> StepResult:
    """The careful way: everything is looked at, and planned anew where that is needed."""
    kept.last = None
    pairs = hooks.convert_pairs(given)
    _check(hooks, pairs, how)
    rule = hooks.step_rule()
    hooks.check_flat_buffers(rule, how, [var for _, var in pairs])
    if rule is not None and rule.passes:
        _check_matrices(hooks, rule, pairs)
    pairs = _with_state(hooks, pairs)
    rule, is_checked = hooks.step_rule(), _is_checked(hooks, how)
    if rule is None or hooks.one_by_one(pairs):
        if is_checked:
            _check_numerics(hooks, pairs)
        if is_last:
            kept.forget_others([var for _, var in pairs])
        return _run_user_updates(hooks, pairs, how, copies, is_last)
    if rule.whole and how and how.trust is None and _has_rows(pairs):
        # Rows are processed as they come, before the rule has them added up.
        if is_checked:
            _check_numerics(hooks, pairs)
            is_checked = False
        pairs, decision = _materialise(pairs, how, hooks.selection.denormals == "flush")
        if not decision.taken:
            return _skipped(hooks, decision)
        how = GradientTransforms(calls=decision.calls)
    if rule.is_whole or how.trust is not None:
        pairs = all_dense(pairs)
    planned = _planned(hooks, kept, pairs, how, copies)
    outcome = _execute_step(hooks, planned, how, is_last, is_checked, is_new=True)
    if planned.ready.is_single:
        kept.last = planned._replace(request=planned.request._replace(gradients=()))
    return outcome


def plan(
    hooks: StepAdapter,
    kept: PlanCache,
    given: Sequence[tuple[object, object]],
    how: GradientTransforms,
    copies: Copies,
) -> bool:
    """Plan a step as the one that `repeat` takes next, and take none.

    Args:
        hooks, given, how, copies: As in `take`; given gradients are dense.
        kept: From the steps before; its plan becomes this one.

    Returns:
        Whether it was planned; False if functions of the user's update variables, or the rule has
        passes.

    Raises:
        Whatever a check raises; state that was made is not published.
    """
    kept.last = None
    pairs = hooks.convert_pairs(given)
    _check(hooks, pairs, how)
    rule = hooks.step_rule()
    if rule is None or rule.passes or rule.is_whole or hooks.one_by_one(pairs):
        return False
    planned = _planned(hooks, kept, _with_state(hooks, pairs), how, copies)
    planned.ready.release_gradients()
    if planned.ready.is_single:
        kept.last = planned._replace(request=planned.request._replace(gradients=()))
    return planned.ready.is_single


def _with_state(hooks: StepAdapter, pairs: list[Pair]) -> list[Pair]:
    """Make the state of variables and read hyperparameters; return the pairs transformed."""
    hooks.create_state(distinct([var for _, var in pairs]))
    _prepare(hooks, [var for _, var in pairs])
    return hooks.transform_pairs(pairs)


def _planned(
    hooks: StepAdapter, kept: PlanCache, pairs: list[Pair], how: GradientTransforms, copies: Copies
) -> CachedPlan:
    """Have the engines plan the update of variables whose state is there."""
    rule: Any = hooks.step_rule()
    variables = [var for _, var in pairs]
    slots = [hooks.slots_of(var) for var in variables]
    own, scalar_slots, shaped_slots = _split_slots(rule, slots)
    beside = own, hooks.names_of(variables), hooks.selection, copies, hooks.from_copies
    gradients = [grad for grad, _ in pairs]
    asked = StepRequest(rule, how.stages, variables, gradients, *beside)
    asked = asked._replace(places=hooks.places_of(variables))
    if hooks.calls:
        _check(hooks, pairs, how)
    ready = kept.gate.plan_step(_local_request(hooks, asked))
    return CachedPlan(asked, ready, scalar_slots, how.narrow, shaped_slots)


def _execute_step(
    hooks: StepAdapter,
    planned: CachedPlan,
    how: GradientTransforms,
    is_last: bool,
    is_checked: bool,
    is_new: bool = False,
) -> StepResult:
    """Measure, decide, run passes, write, constrain, finish, count.

    Args:
        is_checked: Whether gradients that are not finite are refused.
        is_new: Whether the scalars are looked at, as in a step that is not repeated.
    """
    asked, ready, scalar_slots, _, shaped_slots = planned
    rule = asked.rule
    memory = None
    if rule.calls_users:
        memory = MemoryGuard(_local_request(hooks, asked), scalar_slots, shaped_slots)
    measures = ready if hooks.sharing is None else hooks.sharing.measure_whole(ready, asked)
    try:
        if is_checked:
            check_numerics(measures.max_abs(), asked.titles)
        groups = hooks.group_variables(asked.variables, asked.gradients)
        each = groups, hooks.scalars_of, ready.dtypes, asked.variables
        if hooks.there is None:
            columns = columns_of(*each)
        else:
            columns = device_columns(*each, hooks.there)._replace(taken=hooks.taken)
        decision, moved, known = Decision(True, []), list[Call](), None
        formulas = tuple(rule.measures.values())
        if how or formulas or rule.levels or rule.per_optimizer is not None:
            # A user's own function is promised arrays.
            numbers = rule.calls_users or rule.per_optimizer is not None
            if how.decide is not None:
                numbers = numbers or not (is_last and _can_decide_on_device(hooks, asked, ready))
            now = () if rule.passes else formulas
            with importing:
                from thalweg._core.gradient_stats import known_of
            known = known_of(how, measures, asked.variables, columns, now, numbers)
            columns = processed(columns, known, ready.dtypes)
            decision = known.decision()
            if isinstance(decision.taken, Tensor):
                hooks.taken = decision.taken
                columns = columns._replace(taken=decision.taken)
            elif not decision.taken:
                return StepResult(
                    False, write_step(decision.calls, begun=hooks.begun, said=f"{SKIPPED}.")
                )
        if rule.passes:
            moved += cast("StagedStep", ready).run_passes(columns, shaped_slots)
        if known is not None and rule.passes:
            known.want(formulas)  # of what they made, too
        if known is not None and rule.per_optimizer is not None:
            with importing:
                from thalweg._core.optimizer_reductions import per_optimizer
            if not hooks.sees_all:
                raise FailedPreconditionError(
                    f"Rule {rule.name!r} adds up over all variables of a step, and cannot update"
                    " them one by one."
                )
            own = hooks.in_common, hooks.common_slots
            columns, written = per_optimizer(asked, columns, known, *own)
            moved += written
        if known is not None and rule.all_levels:
            with importing:
                from thalweg._core.variable_reductions import per_variable
            columns, written = per_variable(asked, scalar_slots, columns, known)
            moved += written
        if is_new:
            for values in columns.shared.values():
                check_scalars(rule, {**values, **columns.separate})
        counts = [*moved, *decision.calls, *hooks.ending]
        then: list[PostUpdateCall] = []
        if is_last:
            counts += hooks.counting_calls(columns.shared)
            then += hooks.finishing_calls()
        if memory is not None:
            memory.check_in_place()
        rounds = ready.make_rounds(columns)
        if hooks.watch is not None:
            rounds = hooks.watch.begin(hooks, asked, ready, columns, how, known, rounds)
        write = _commit_single_round if ready.is_single else _commit_rounds
        errors = write(hooks, asked, rounds, then, counts)
        return StepResult(decision.taken, errors)
    finally:
        if hooks.gathered is None:
            ready.release_gradients()
        else:
            hooks.gathered.hold(ready)


def _can_decide_on_device(hooks: StepAdapter, asked: StepRequest, ready: StepPlan) -> bool:
    """Whether a device may decide on the step: nothing that the host does follows from it."""
    is_alone = hooks.sharing is None and hooks.gathered is None and ready.is_single
    if not (hooks.may_leave and is_alone) or all(map(is_host, asked.variables)):
        return False
    if any(map(has_rows, asked.gradients)):
        return False
    return not (hooks.constrains and _constrained(asked))


def _check_numerics(hooks: StepAdapter, pairs: Sequence[Pair]) -> None:
    """Refuse gradients that are not finite, of a step that is not planned as a whole."""
    variables = [var for _, var in pairs]
    values = [values_of(grad) for grad, _ in pairs]
    max_abs = _engines.Tensors(values, variables).max_abs()
    check_numerics(max_abs, hooks.names_of(variables))


def _is_checked(hooks: StepAdapter, how: GradientTransforms) -> bool:
    """Whether gradients that are not finite are refused; a loss scaler has its own answer."""
    decides = how.decide is not None or hooks.taken is not None
    return hooks.selection.check_numerics and not decides


def _commit_single_round(
    hooks: StepAdapter,
    asked: StepRequest,
    rounds: Iterator[WriteRound],
    then: list[PostUpdateCall],
    counts: list[Call],
) -> list[BaseException]:
    """Write a step in which no variable comes twice."""
    (own,) = rounds
    if hooks.constrains:
        places = _constrained(asked)
        owners = _owners(asked)
        then = [constraint_of(owners[k], asked.titles[k]) for k in places] + then
    joining = None if hooks.sharing is None else hooks.sharing.joining_calls(asked)
    if joining is not None:
        then = [joining, *then]
    if hooks.gathered is not None:
        hooks.gathered.add(own.calls, then, counts)
        return []
    if hooks.sharing is not None:
        hooks.sharing.begin_writing()
    if hooks.taken is not None:
        return write_step(own.calls, then, counts, hooks.begun, LEFT)
    return write_step(own.calls, then, counts, hooks.begun)


def _owners(asked: StepRequest) -> Sequence[Tensor]:
    """What may have a constraint: a variable, or the copy that stands for it outside."""
    if asked.copies is None:
        return asked.variables
    pairs = zip(asked.variables, asked.copies, strict=True)
    return [
        copy if copy is not None and getattr(var, "constraint", None) is None else var
        for var, copy in pairs
    ]


def _constrained(asked: StepRequest) -> list[int]:
    """Positions of the variables that have a constraint, which may have been given just now."""
    found = [getattr(var, "constraint", None) for var in _owners(asked)]
    if found.count(None) == len(found):
        return []
    places = [place for place, constraint in enumerate(found) if constraint is not None]
    for place in places:
        if has_rows(asked.gradients[place]):
            raise sparse_and_constrained(asked.titles[place])
    return places


def _commit_rounds(
    hooks: StepAdapter,
    asked: StepRequest,
    rounds: Iterator[WriteRound],
    then: list[PostUpdateCall],
    counts: list[Call],
) -> list[BaseException]:
    """Write a step in which variables come twice; what interrupts it has it put back."""
    tensors = [*asked.variables, *(slot for each in asked.slots for slot in each)]
    tensors += [copy for copy in asked.copies or () if copy is not None]
    errors: list[BaseException] = []
    owners = _owners(asked)
    if hooks.sharing is not None:
        hooks.sharing.begin_writing()
    undo = calls(putting_back(distinct(tensors)))
    memory = MemoryGuard(asked) if hooks.constrains and _constrained(asked) else None
    try:
        for own in rounds:
            if memory is not None:
                memory.check_in_place()
            drain(calls(own.calls))
            for index in own.members if hooks.constrains else ():
                errors += constrained(owners[index], asked.titles[index])
        return errors + write_step([], then, list(map(unless_resized, counts)), hooks.begun)
    except BaseException:
        if not hooks.begun:
            drain(undo)
        raise


def _run_user_updates(
    hooks: StepAdapter, pairs: list[Pair], how: GradientTransforms, copies: Copies, is_last: bool
) -> StepResult:
    """Have the user's own functions update each variable; what they write is put back if one fails.

    A constraint follows its variable's update.
    """
    flush = hooks.selection.denormals == "flush"
    pairs, decision = _materialise(pairs, how, flush)
    if not decision.taken:
        return _skipped(hooks, decision)
    variables = [var for _, var in pairs]
    titles = hooks.names_of(variables)
    errors: list[BaseException] = []
    followers = [copy for copy in copies or () if copy is not None]
    undone = [*hooks.written_tensors(distinct(variables)), *followers]
    check_memories(undone)
    if hooks.sharing is not None:
        hooks.sharing.begin_writing()
    undo = calls(putting_back(undone))
    try:
        for (grad, var), title in zip(pairs, titles, strict=True):
            hooks.apply_one(grad, var)
            if not isinstance(grad, IndexedSlices):
                errors += constrained(var, title)
        check_memories(undone)
        writes = copy_writes(copies, variables) if copies else []
        counts = [*decision.calls, *hooks.ending, *(hooks.counting_calls({}) if is_last else ())]
        then = hooks.finishing_calls() if is_last else []
        counts = list(map(unless_resized, counts))
        return StepResult(True, errors + write_step(writes, then, counts, hooks.begun))
    except BaseException:
        if not hooks.begun:
            drain(undo)
        raise


def _materialise(
    pairs: list[Pair], how: GradientTransforms, flush: bool
) -> tuple[list[Pair], Decision]:
    if not how:
        return pairs, Decision(True, [])
    with importing:
        from thalweg._core.gradient_stats import materialised
    return materialised(pairs, how, flush)


def _skipped(hooks: StepAdapter, decision: Decision) -> StepResult:
    return StepResult(False, write_step(decision.calls, begun=hooks.begun, said=f"{SKIPPED}."))


def _has_rows(pairs: Sequence[Pair]) -> bool:
    return any(isinstance(grad, IndexedSlices) for grad, _ in pairs)


def _split_slots(rule: Rule, slots: Sequence[Sequence[Tensor]]) -> list[Sequence[Sequence[Tensor]]]:
    """Slots of elements, those of shape () beside `numbers`, and those with another shape."""
    if not (rule.scalar_slots or rule.shaped_slots):
        return [slots, (), ()]
    scalars = rule.measured_slots if rule.all_levels else rule.scalar_slots
    scalars = [slot for slot in scalars if slot.per is None]
    places = [
        [rule.slots.index(slot) for slot in kind]
        for kind in (rule.element_slots, scalars, rule.shaped_slots)
    ]
    return [[[each[place] for place in own] for each in slots] for own in places]
