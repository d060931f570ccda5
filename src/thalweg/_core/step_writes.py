"""Writes of a step: one commit of a plan, or the updates of user functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from thalweg._base.locks import importing
from thalweg._core.atomic_section import Call, calls, drain, unless_resized
from thalweg._core.commit import (
    LEFT,
    SKIPPED,
    TAKEN,
    PostUpdateCall,
    StepResult,
    constrained,
    constraint_of,
    copy_writes,
    restored,
    write_step,
)
from thalweg._core.gradient_transforms import Decision, GradientTransforms
from thalweg._core.grads_and_vars import Pair, distinct, has_rows
from thalweg._core.memory_guard import MemoryGuard
from thalweg._core.step_adapter import StepAdapter
from thalweg._core.validation import check_memories, sparse_and_constrained
from thalweg._engines.protocol import Copies, StepRequest, WriteRound
from thalweg.indexed_slices import IndexedSlices


def commit_single_round(
    adapter: StepAdapter,
    request: StepRequest,
    rounds: Iterator[WriteRound],
    callbacks: list[PostUpdateCall],
    counters: list[Call],
) -> list[BaseException]:
    """Write a step in one commit, then run constraints and callbacks.

    No variable may occur twice. If `adapter.gathered` is a `WriteBatch`, only add all calls to this
    batch, and return [].

    Args:
        rounds: Iterator with a single `WriteRound`, the functions that write all new values.
        callbacks: User callbacks after the constraints.
        counters: Functions in C that update counts and state after the callbacks.

    Returns:
        The exceptions of constraints and callbacks.
    """
    # Builds the calls of the only round; whatever fails here fails before the commit.
    (write_round,) = rounds
    if adapter.constrains:
        indices = constrained_indices(request)
        targets = _list_constraint_owners(request)
        constraints = [constraint_of(targets[index], request.titles[index]) for index in indices]
        callbacks = constraints + callbacks
    gather_call = None if adapter.sharing is None else adapter.sharing.joining_calls(request)
    if gather_call is not None:
        callbacks = [gather_call, *callbacks]
    if adapter.gathered is not None:
        adapter.gathered.add(write_round, callbacks, counters)
        return []
    if adapter.sharing is not None:
        adapter.sharing.begin_writing()
    message = f"{TAKEN}." if adapter.apply_flag is None else LEFT
    return write_step(write_round.all_calls, callbacks, counters, adapter.begun, message)


def commit_rounds(
    adapter: StepAdapter,
    request: StepRequest,
    rounds: Iterator[WriteRound],
    callbacks: list[PostUpdateCall],
    counters: list[Call],
) -> list[BaseException]:
    """Write a step with repeated variables: first occurrences, then second occurrences, etc.

    Constraints follow each round of writes; callbacks and counters follow the last round. If
    anything raises before the callbacks, variables, slots and copies are restored. Return the
    exceptions of constraints and callbacks.

    Args:
        adapter, request, callbacks, counters: As for `commit_single_round`.
        rounds: Iterator of the rounds; each is built after the previous round was written.
    """
    tensors = [*request.variables, *(slot for var_slots in request.slots for slot in var_slots)]
    tensors += [copy for copy in request.copies or () if copy is not None]
    errors: list[BaseException] = []
    targets = _list_constraint_owners(request)
    if adapter.sharing is not None:
        adapter.sharing.begin_writing()
    guard = MemoryGuard(request) if adapter.constrains and constrained_indices(request) else None
    # A second occurrence reads what the first has written, so the step cannot be one commit. The
    # rollback stands in for that.
    with restored(distinct(tensors), adapter.begun):
        for write_round in rounds:
            if guard is not None:
                guard.check_in_place()
            drain(calls(write_round.all_calls))
            for index in write_round.members if adapter.constrains else ():
                errors += constrained(targets[index], request.titles[index])
        # Constraints have run, which may resize a counter.
        counters = list(map(unless_resized, counters))
        return errors + write_step([], callbacks, counters, adapter.begun)


def _list_constraint_owners(request: StepRequest) -> Sequence[Tensor]:
    """Return for each variable the tensor that has the constraint: the variable or its copy."""
    if request.copies is None:
        return request.variables
    pairs = zip(request.variables, request.copies, strict=True)
    return [
        copy if copy is not None and getattr(var, "constraint", None) is None else var
        for var, copy in pairs
    ]


def constrained_indices(request: StepRequest) -> list[int]:
    """Return the indices of variables with a constraint on the variable or its 16-bit copy.

    Raises:
        RuntimeError: A variable with a constraint has a sparse gradient.
    """
    constraints = [getattr(var, "constraint", None) for var in _list_constraint_owners(request)]
    if constraints.count(None) == len(constraints):
        return []
    indices = [index for index, constraint in enumerate(constraints) if constraint is not None]
    for index in indices:
        if has_rows(request.gradients[index]):
            raise sparse_and_constrained(request.titles[index])
    return indices


def skip_step(calls: Sequence[Call], notes: list[str]) -> list[BaseException]:
    """Commit the calls of a skipped step, and add a sentence to `notes` that it was skipped.

    Return the exceptions that were raised after the commit.
    """
    return write_step(calls, notes=notes, message=f"{SKIPPED}.")


def run_user_updates(
    adapter: StepAdapter,
    pairs: list[Pair],
    transforms: GradientTransforms,
    copies: Copies,
    is_final: bool,
) -> StepResult:
    """Run a step in which a user function updates each variable, then apply its constraint.

    If anything raises before the final commit, all variables, slots and copies are restored. If the
    transforms skip the step, no variable changes. Return whether the step was taken, and the
    exceptions of constraints and callbacks.

    Args:
        adapter: The step, whose `apply_one` calls the user function.
        pairs: Validated pairs.
        copies: For each variable its 16-bit copy or None; None without copies.
        is_final: Run user callbacks and counters. False if more variables of the step follow.
    """
    flush = adapter.selection.denormals == "flush"
    pairs, decision = process_gradients(pairs, transforms, flush)
    if not decision.apply_flag:
        return StepResult(False, skip_step(decision.calls, adapter.begun))
    variables = [var for _, var in pairs]
    names = adapter.names_of(variables)
    errors: list[BaseException] = []
    copy_tensors = [copy for copy in copies or () if copy is not None]
    targets = [*adapter.written_tensors(distinct(variables)), *copy_tensors]
    check_memories(targets)
    if adapter.sharing is not None:
        adapter.sharing.begin_writing()
    with restored(targets, adapter.begun):
        for (grad, var), label in zip(pairs, names, strict=True):
            adapter.apply_one(grad, var)
            if not isinstance(grad, IndexedSlices):
                errors += constrained(var, label)
        # The user's functions may have resized what the copies read.
        check_memories(targets)
        writes = copy_writes(copies, variables) if copies else []
        counters = [*decision.calls, *adapter.ending]
        counters += adapter.counting_calls({}) if is_final else ()
        callbacks = adapter.finishing_calls() if is_final else []
        counters = list(map(unless_resized, counters))
        return StepResult(True, errors + write_step(writes, callbacks, counters, adapter.begun))


def process_gradients(
    pairs: list[Pair], transforms: GradientTransforms, flush: bool
) -> tuple[list[Pair], Decision]:
    """Return (pairs with transformed gradients, decision whether to take the step).

    With `flush`, denormals are treated as 0. Without transforms, return `pairs`, and a decision to
    take the step.
    """
    if not transforms:
        return pairs, Decision(True, [])
    with importing:
        from thalweg._core.gradient_stats import transform_gradients
    return transform_gradients(pairs, transforms, flush)
