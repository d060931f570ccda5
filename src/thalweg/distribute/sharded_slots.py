"""Preparation of a step with sharded slots (state tensors of an optimizer) or DTensors."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from typing import Any

from thalweg._base.context_managers import writable
from thalweg._base.execution_context import current_session, is_deferred
from thalweg._core.dtensor import is_imported, is_on_mesh
from thalweg._core.gradient_transforms import NOTHING, GradientTransforms
from thalweg._core.grads_and_vars import as_pairs
from thalweg._core.step_adapter import StepAdapter
from thalweg.distribute.aggregation import Pairs, convert_pairs
from thalweg.distribute.consistency_check import StepFingerprint
from thalweg.distribute.context import has_strategy
from thalweg.distribute.reduction_tracking import note_sums
from thalweg.distribute.sharding.dtensor_step import (
    LocalShards,
    LocalStep,
    are_misplaced,
    keep_local_slots,
)
from thalweg.distribute.sharding.matrix_group import MatrixProcessGroup, describe_dtensors
from thalweg.distribute.sharding.sharded_step import SharedStep
from thalweg.distribute.sharding.shards import Shards
from thalweg.distribute.strategy import Strategy, get_strategy
from thalweg.errors import FailedPreconditionError
from thalweg.formula import Slot
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import titles_of

Step = SharedStep | LocalStep


def shards_of(owner: Any, strategy: Strategy | None = None) -> Shards | None:
    """Return the assignment of an optimizer's slots to ranks; None if its slots are not sharded.

    Args:
        owner: The optimizer.
        strategy: The strategy of the step; by default the strategy of this thread, if any.

    Raises:
        FailedPreconditionError: The slots are sharded over the ranks of another strategy.
    """
    if strategy is None and has_strategy():
        strategy = get_strategy()
    shards = None if strategy is None else strategy.reducer_of(owner).shards
    slot_shards = owner._slots.parts
    if isinstance(slot_shards, Shards) and slot_shards is not shards:
        raise FailedPreconditionError(
            f"The slots of {owner._name} are shared out over the ranks of a strategy that was made"
            " with shard_slots=True. Take its steps in the function that this strategy's run calls."
        )
    return shards


def sum_for_shards(
    owner: object,
    strategy: Strategy,
    grads_and_vars: Pairs,
    fingerprint: StepFingerprint,
    adapter: StepAdapter,
    scatters: bool = True,
) -> tuple[Pairs, SharedStep]:
    """Sum gradients over ranks for a step with sharded slots; shard the optimizer's new slots.

    Args:
        owner: The optimizer.
        strategy: The optimizer's strategy, made with `shard_slots=True`.
        grads_and_vars: The (gradient, variable) pairs of this rank.
        fingerprint: Description of the step that must be equal on all ranks.
        adapter: The adapter of the optimizer.
        scatters: True to reduce-scatter dense gradients: each rank receives parts of sums.

    Returns:
        (pairs, step). `pairs` has (gradient sum, variable), without pairs whose gradient is None on
        all ranks. With `scatters`, `step` has the sums of dense gradients, and `pairs` this rank's
        own dense gradients.

    Raises:
        FailedPreconditionError: In graph mode, or if functions of the user update variables.
        NotImplementedError: The steps are recorded by diagnostics.
        ReplicaMismatchError: The ranks differ, or another rank failed.
        ReplicaLostError: A rank did not answer.
        TypeError, ValueError: A gradient or a variable of this rank is invalid.
    """
    reducer = strategy.reducer_of(owner)
    slots = _shared_slots(owner, grads_and_vars, adapter)
    variables = [var for _, var in grads_and_vars]
    sums, step = reducer.share_step(
        partial(convert_pairs, grads_and_vars), variables, fingerprint, scatters
    )
    note_sums(owner, reducer)
    pairs = [(grad, var) for grad, var in sums if grad is not None]
    with step.report_errors():
        arrange_slots(owner, step.shards, pairs, slots)
    return pairs, step


def share_summed_step(
    owner: Any,
    grads_and_vars: Any,
    adapter: StepAdapter,
    transforms: GradientTransforms = NOTHING,
    fingerprint: StepFingerprint | None = None,
) -> tuple[Any, Step | None]:
    """Prepare a sharded step for gradients that are already summed over the ranks.

    New slots are sharded over the ranks of the strategy. Slots of a DTensor have the placements of
    the DTensor.

    Args:
        owner: The optimizer.
        grads_and_vars: The (gradient sum, variable) pairs.
        adapter: The adapter of the optimizer.
        transforms: The gradient transforms of the step.
        fingerprint: Optional. The description that must be equal on all ranks.

    Returns:
        (pairs, step). `pairs` is `grads_and_vars`, with gradients of DTensors placed like the
        variables. The step is None without sharded slots and DTensors.

    Raises:
        FailedPreconditionError: Slots cannot be sharded, or are sharded by another strategy.
    """
    shards = shards_of(owner)
    if shards is not None:
        pairs = as_pairs(grads_and_vars)
        slots = _shared_slots(owner, pairs, adapter)
        step = get_strategy().reducer_of(owner).step_of_sums()
        with step.report_errors():
            grad_pairs = [(grad, var) for grad, var in convert_pairs(pairs) if grad is not None]
            shards.cut_new([var for _, var in grad_pairs])
            arrange_slots(owner, shards, grad_pairs, slots)
        return pairs, step
    if owner._slots.parts is None:
        if not is_imported():
            return grads_and_vars, None
        keep_local_slots(owner._slots, [var for _, var in as_pairs(grads_and_vars)])
    slot_shards = owner._slots.parts
    if isinstance(slot_shards, LocalShards):
        pairs = as_pairs(grads_and_vars)
        group = _make_matrix_group(pairs, adapter, transforms, fingerprint)
        step = slot_shards.make_step(group)
        return step.place_on_mesh(pairs), step
    return grads_and_vars, None


def _make_matrix_group(
    pairs: Pairs,
    adapter: StepAdapter,
    transforms: GradientTransforms,
    fingerprint: StepFingerprint | None,
) -> MatrixProcessGroup | None:
    """Return the group of ranks that exchange messages about DTensors in a step.

    Return None if the step has no DTensors or needs no messages. Gradient transforms, reductions of
    the rule, `check_numerics` and gradients with other placements need messages.
    """
    on_mesh = [(grad, var) for grad, var in pairs if is_on_mesh(var)]
    rule = adapter.step_rule()
    sends = transforms or adapter.selection.check_numerics or are_misplaced(on_mesh)
    if not on_mesh or not (sends or (rule is not None and rule.is_measured)):
        return None

    def describe() -> list[str]:
        """Return the fingerprint lines and lines about DTensors, for comparison between ranks."""
        variables = [var for _, var in on_mesh]
        lines: Sequence[str] = [] if fingerprint is None else fingerprint.words()
        gradients = [grad for grad, _ in on_mesh]
        return [*lines, *describe_dtensors(variables, titles_of(variables), gradients)]

    return MatrixProcessGroup([var for _, var in on_mesh], describe)


def _shared_slots(owner: Any, pairs: Pairs, adapter: StepAdapter) -> Sequence[Slot]:
    """Return the slots of the optimizer's rule that have the shape of a variable.

    Raises:
        FailedPreconditionError: In graph mode, or if functions of the user update variables.
        NotImplementedError: The steps are recorded by diagnostics.
    """
    if owner._recorder is not None:
        owner._recorder.refuse_ranks()
    if is_deferred(*chain.from_iterable(pairs)) or current_session() is not None:
        raise FailedPreconditionError(
            "Slots are shared out in eager mode alone: make the strategy without shard_slots."
        )
    rule = adapter.step_rule()
    if rule is None or adapter.one_by_one(pairs):
        raise FailedPreconditionError(
            f"The slots of {owner._name} cannot be shared out over the ranks: its variables are not"
            " updated by a rule alone. Make the strategy without shard_slots."
        )
    return rule.element_slots


def enter_shared_step(step: Step | None) -> AbstractContextManager[None]:
    """Return a context manager that reports errors of a step to other ranks; None does nothing."""
    return contextlib.nullcontext() if step is None else step.report_errors()


def arrange_slots(
    owner: Any, shards: Shards, pairs: Sequence[tuple[Any, Any]], slots: Sequence[Slot]
) -> None:
    """Shard an optimizer's slots over the ranks; all ranks must call this function.

    A variable with a sparse gradient is assigned to one rank if a part would end within a row.

    Args:
        owner: The optimizer; its slots are replaced.
        shards: The assignment of elements to ranks; new variables are added.
        pairs: (gradient, variable) pairs of a step.
        slots: The optimizer's slots, without slots of shape ().
    """
    store = owner._slots
    cut = [
        var for grad, var in pairs if isinstance(grad, IndexedSlices) and not shards.has_rows(var)
    ]
    variables = store.owners() if store.parts is None else cut
    if store.parts is not None and not cut:
        return
    shards.cut_new(variables)

    # The old pieces are needed until `remake` has gathered the values.
    def keep_whole() -> None:
        """Assign each variable of `cut` to one rank."""
        for var in cut:
            shards.keep_whole(var)

    with writable():
        new_store = copy.copy(store)
        owner._take_store(new_store, new_store.remake(variables, slots, shards, keep_whole))
