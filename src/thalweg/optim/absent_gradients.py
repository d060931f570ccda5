"""Plan of a step in which gradients may be absent, for sets of gradients that change between steps.

Mixtures of experts, LayerDrop and GANs with one optimizer give gradients to different parameters in
each step. A plan for one such set could rarely be reused. This plan has all parameters with state;
the native call that replays it skips those without a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad, writable
from thalweg._core.atomic_section import run
from thalweg._core.replay import ERRORS, may_hold_lock
from thalweg._core.step import keep_plan, plan_step
from thalweg.optim.scalars_in_call import are_numbers_in_call
from thalweg.optim.step_adapter import TorchStepAdapter
from thalweg.optim.step_options import GradientReport, gradient_transforms

if TYPE_CHECKING:
    from thalweg.optim.replay import ReplayedStep

_PARAM_CLASSES = (Tensor, torch.nn.Parameter)


def plan_with_absent(optimizer: Any, kind: type[ReplayedStep]) -> ReplayedStep | None:
    """Return a replayable step in which parameters with state may lack a gradient.

    Return None if no gradient is absent, or if the step cannot be planned.

    Args:
        optimizer: The optimizer. Its cached plans change, its parameters and state do not.
        kind: `ReplayedStep` or a subclass: the class of the result.
    """
    absent = _make_stand_ins(optimizer)
    if not absent:
        return None
    try:
        with writable():
            adapters = _plan_rules(optimizer, absent)
    except ERRORS:  # which a careful step reports, if it comes to that
        return None
    return kind.of(optimizer, adapters, absent) if adapters else None


def _make_stand_ins(optimizer: Any) -> dict[int, Tensor]:
    """Return {id(parameter): uninitialized gradient} of parameters with state but no gradient.

    Return {} if all gradients are present, or if the step cannot be replayed: a parameter with a
    gradient lacks state, a parameter is not a plain CPU tensor, or the step is too large.
    """
    params: list[Tensor] = []
    lacking: list[Tensor] = []
    for group in optimizer.param_groups:
        for param in group["params"]:
            has_state = optimizer._have_state(group, [param])
            if param.grad is not None and not has_state:
                return {}
            if has_state and param.requires_grad:
                params.append(param)
                if param.grad is None:
                    lacking.append(param)
    if not may_hold_lock(len(params), sum(map(Tensor.numel, params)), may_lack=True):
        return {}
    if not all(type(param) in _PARAM_CLASSES and param.is_cpu for param in params):
        return {}
    return {
        id(param): torch.empty_like(param, dtype=param.dtype, device=param.device)
        for param in lacking
    }


def _plan_rules(optimizer: Any, absent: dict[int, Tensor]) -> Sequence[TorchStepAdapter]:
    """Plan a step over parameters with a gradient or an entry in `absent`; cache the plans.

    Return the adapter of each rule. Return () if a rule does not support absent gradients, or if a
    plan needs new state.
    """
    members_by_rule = optimizer._members_by_rule(absent)
    parts = optimizer.step_cache.parts
    steps = [optimizer._sub_step(rule, members, parts) for rule, members in members_by_rule.items()]
    if not all(are_numbers_in_call(adapter.part) for adapter, _ in steps):
        return ()
    if any(
        rule.passes or rule.is_whole for rule in members_by_rule
    ) or not optimizer._supports_step(steps):
        return ()
    for adapter, given_pairs in steps:
        arguments = optimizer.unscaling(), len(given_pairs), GradientReport()
        transforms = gradient_transforms(optimizer.step_options, *arguments, is_torchs=True)
        with no_grad():
            pairs, copies = adapter.aim(given_pairs)
        part, plan = adapter.part, plan_step(adapter, adapter.part.plans, pairs, transforms, copies)
        if plan is None:
            return ()
        plan.ready.release_gradients()
        keep_plan(part.plans, plan)
        if not plan.ready.is_single or not part.publishes_numbers_only:
            return ()
        run(part.publishing())
        adapter.settle()
        adapter.detach()
    return [adapter for adapter, _ in steps]
