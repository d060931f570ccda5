"""Reductions of a step before its writes, and the decision whether to take the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from torch import Tensor

from thalweg import _engines
from thalweg._base.locks import importing
from thalweg._core.atomic_section import Call
from thalweg._core.device_scalars import device_columns
from thalweg._core.gradient_transforms import Decision, GradientTransforms
from thalweg._core.grads_and_vars import Pair, has_rows
from thalweg._core.plan_cache import CachedPlan
from thalweg._core.step_adapter import StepAdapter
from thalweg._core.step_scalars import columns_of, processed
from thalweg._core.step_writes import constrained_indices
from thalweg._core.validation import check_numerics
from thalweg._core.vectors import is_host
from thalweg._engines.protocol import (
    NO_COLUMNS,
    PEAKS,
    Columns,
    Reductions,
    StepPlan,
    StepRequest,
    as_array,
)
from thalweg.errors import FailedPreconditionError
from thalweg.indexed_slices import values_of

if TYPE_CHECKING:
    from thalweg._core.gradient_stats import GradientStats
    from thalweg._engines.staged_step import StagedStep


def reduce_gradients(
    adapter: StepAdapter,
    request: StepRequest,
    plan: StepPlan,
    transforms: GradientTransforms,
    is_final: bool,
    is_checked: bool,
) -> tuple[Columns, Decision, GradientStats | None]:
    """Compute the scalars and gradient reductions of a step, and decide whether to take it.

    If a device decides, the decision is also stored as `adapter.apply_flag`.

    Args:
        request: The step over full variables.
        plan: The bound plan over this process's shards.
        is_final: False if more variables of the step follow.
        is_checked: True if gradients that are not finite raise an error.

    Returns:
        The scalars of the rule and of the transforms; the decision; and the statistics of the
        gradients, or None if statistics are not needed.

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


def run_passes(
    adapter: StepAdapter, cached_plan: CachedPlan, columns: Columns, stats: GradientStats | None
) -> tuple[Columns, list[Call]]:
    """Run a rule's passes, `per_optimizer` and `per_variable`; write no variables or slots.

    Passes compute values before the update, such as sums over rows. `per_optimizer` computes
    scalars from sums over all variables, `per_variable` from sums over each variable.

    Args:
        cached_plan: The plan, bound to gradients.
        columns, stats: The first and the last result of `reduce_gradients`.

    Returns:
        The scalars of the step, including the results of both functions; and C functions that write
        the rule's state.

    Raises:
        FailedPreconditionError: The rule sums over all variables, but this step lacks some.
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
    """Return True if a GPU can decide whether the step is taken, so that the host does not wait.

    The step must be unsharded and have its own commit, dense gradients, and a variable on a GPU. It
    must have no constraints and no user functions after the writes.
    """
    is_unsharded = adapter.sharing is None and adapter.gathered is None and plan.is_single
    if not (adapter.may_leave and is_unsharded) or all(map(is_host, request.variables)):
        return False
    if any(map(has_rows, request.gradients)):
        return False
    return not (adapter.constrains and constrained_indices(request))


def check_gradients_finite(adapter: StepAdapter, pairs: Sequence[Pair]) -> None:
    """Raise InvalidArgumentError for the first gradient that is not finite, without a plan."""
    variables = [var for _, var in pairs]
    values = [values_of(grad) for grad, _ in pairs]
    peaks = _engines.Tensors(values, variables).reduce(PEAKS, NO_COLUMNS)
    check_numerics(peaks, adapter.names_of(variables))


def raises_if_not_finite(adapter: StepAdapter, transforms: GradientTransforms) -> bool:
    """Return True if gradients that are not finite raise, as the engine's selection says.

    A loss scaler skips such a step instead.
    """
    has_loss_scaler = transforms.decide is not None or adapter.apply_flag is not None
    return adapter.selection.check_numerics and not has_loss_scaler
