"""Preparation of a step in which ranks have parts of an optimizer's variables."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from typing import Any

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
    place_on_mesh,
)
from thalweg.distribute.sharding.matrix_group import MatrixProcessGroup, describe_dtensors
from thalweg.distribute.sharding.shard_existing_slots import arrange_slots
from thalweg.distribute.sharding.sharded_step import SharedStep
from thalweg.distribute.sharding.shards import Shards
from thalweg.distribute.strategy import Strategy, get_strategy
from thalweg.errors import FailedPreconditionError
from thalweg.formula import Slot
from thalweg.variable import titles_of

Step = SharedStep | LocalStep


def shards_of(owner: Any, strategy: Strategy | None = None) -> Shards | None:
    """Return the shards of an optimizer's slots, if this library takes a sharded step.

    Args:
        owner: The optimizer.
        strategy: The strategy of the step; by default the one that this thread is in.

    Raises:
        FailedPreconditionError: The slots are sharded, and the step is not taken with those ranks.
    """
    if strategy is None and has_strategy():
        strategy = get_strategy()
    shards = None if strategy is None else strategy.reducer_of(owner).shards
    parts = owner._slots.parts
    if isinstance(parts, Shards) and parts is not shards:
        raise FailedPreconditionError(
            f"The slots of {owner._name} are shared out over the ranks of a strategy that was made"
            " with shard_slots=True. Take its steps in the function that this strategy's run calls."
        )
    return shards


def sum_for_shards(
    owner: object,
    strategy: Strategy,
    given: Pairs,
    said: StepFingerprint,
    hooks: StepAdapter,
    scatters: bool = True,
) -> tuple[Pairs, SharedStep]:
    """Return the pairs of a step over slots that are shared out, which they are from now on.

    Args:
        owner, strategy, given, said: As in `sum_gradients`; `shards_of` gives shards.
        hooks: What the optimizer has to say about such a step.
        scatters: Whether nothing wants to see whole sums: gradients are then those of this rank,
            and the step knows its parts of the sums.

    Raises:
        FailedPreconditionError: A graph is being built, or more than a rule updates the variables.
        ReplicaMismatchError, ReplicaLostError, TypeError, ValueError: As `sum_gradients`.
    """
    reducer = strategy.reducer_of(owner)
    kinds = _shared_slots(owner, given, hooks)
    variables = [var for _, var in given]
    found, step = reducer.share_step(partial(convert_pairs, given), variables, said, scatters)
    note_sums(owner, reducer)
    pairs = [(grad, var) for grad, var in found if grad is not None]
    with step.report_errors():
        arrange_slots(owner, step.shards, pairs, kinds)
    return pairs, step


def share_summed_step(
    owner: Any,
    given: Any,
    hooks: StepAdapter,
    how: GradientTransforms = NOTHING,
    said: StepFingerprint | None = None,
) -> tuple[Any, Step | None]:
    """Return the pairs of a step whose gradients are sums already, and the step if it is shared.

    Args:
        owner: The optimizer.
        given: Gradients and variables.
        hooks: What the optimizer has to say about the step.
        how: What happens to the gradients.
        said: Optional. What all ranks have alike.

    Raises:
        FailedPreconditionError: As `shards_of` and `sum_for_shards`.
    """
    shards = shards_of(owner)
    if shards is not None:
        pairs = as_pairs(given)
        kinds = _shared_slots(owner, pairs, hooks)
        step = get_strategy().reducer_of(owner).step_of_sums()
        with step.report_errors():
            found = [(grad, var) for grad, var in convert_pairs(pairs) if grad is not None]
            shards.cut_new([var for _, var in found])
            arrange_slots(owner, shards, found, kinds)
        return pairs, step
    if owner._slots.parts is None:
        if not is_imported():
            return given, None
        keep_local_slots(owner._slots, [var for _, var in as_pairs(given)])
    parts = owner._slots.parts
    if isinstance(parts, LocalShards):
        pairs = as_pairs(given)
        team = _team_of(pairs, hooks, how, said)
        return place_on_mesh(pairs, team), LocalStep(parts, team)
    return given, None


def _team_of(
    pairs: Pairs, hooks: StepAdapter, how: GradientTransforms, said: StepFingerprint | None
) -> MatrixProcessGroup | None:
    """Return the ranks that measure DTensors together in a step; None for none."""
    on_mesh = [(grad, var) for grad, var in pairs if is_on_mesh(var)]
    rule = hooks.step_rule()
    sends = how or hooks.selection.check_numerics or are_misplaced(on_mesh)
    if not on_mesh or not (sends or (rule is not None and rule.is_measured)):
        return None

    def describe() -> list[str]:
        variables = [var for _, var in on_mesh]
        words = [] if said is None else said.words()
        gradients = [grad for grad, _ in on_mesh]
        return [*words, *describe_dtensors(variables, titles_of(variables), gradients)]

    return MatrixProcessGroup([var for _, var in on_mesh], describe)


def _shared_slots(owner: Any, given: Pairs, hooks: StepAdapter) -> Sequence[Slot]:
    """The kinds of slot that are shared out: those of the variables' shapes.

    Raises:
        FailedPreconditionError: A graph is being built, or more than a rule updates the variables.
        NotImplementedError: Its steps are measured.
    """
    if owner._recorder is not None:
        owner._recorder.refuse_ranks()
    if is_deferred(*chain.from_iterable(given)) or current_session() is not None:
        raise FailedPreconditionError(
            "Slots are shared out in eager mode alone: make the strategy without shard_slots."
        )
    rule = hooks.step_rule()
    if rule is None or hooks.one_by_one(given):
        raise FailedPreconditionError(
            f"The slots of {owner._name} cannot be shared out over the ranks: its variables are not"
            " updated by a rule alone. Make the strategy without shard_slots."
        )
    return rule.element_slots


def enter_shared_step(step: Step | None) -> AbstractContextManager[None]:
    """Return the context manager of the block in which a step is taken."""
    return contextlib.nullcontext() if step is None else step.report_errors()
