"""Plans for steps in which a changing set of parameters has no gradient.

Mixtures of experts, LayerDrop and GANs with one optimizer give gradients to different parameters in
each step. An elementwise rule has one plan for all parameters with state; the native call skips
parameters without a gradient. Any other rule has a plan for each recent set of parameters with a
gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad, writable
from thalweg._core.atomic_section import run
from thalweg._core.param_groups import gradient_set_of
from thalweg._core.replay import ERRORS
from thalweg._core.step import keep_plan, plan_step
from thalweg.optim.scalars_in_call import are_numbers_in_call
from thalweg.optim.step_adapter import TorchStepAdapter
from thalweg.optim.step_options import GradientReport, gradient_transforms

if TYPE_CHECKING:
    from thalweg.optim.replay import ReplayedStep

_PARAM_CLASSES = (Tensor, torch.nn.Parameter)
# Recurring sets of gradients whose plans are kept; each plan has memory of its own.
_MOST_SETS = 4


def plan_with_absent(optimizer: Any, kind: type[ReplayedStep]) -> ReplayedStep | None:
    """Return a replayable step in which parameters with state may lack a gradient.

    Return None if no gradient is absent, or if planning fails. `select_set` then keeps separate
    plans for each set of parameters with a gradient.

    Args:
        optimizer: The optimizer. Its cached plans change; its step counts may get new tensors.
        kind: The class of the result: `ReplayedStep` or a subclass.
    """
    absent, adapters = _make_stand_ins(optimizer), ()
    # An error here means no replay. The step without replay raises the error to the user.
    with suppress(*ERRORS), writable():
        adapters = _plan_rules(optimizer, absent) if absent else ()
    replay = kind.of(optimizer, adapters, absent) if adapters else None
    cache = optimizer.step_cache
    if replay is not None:
        cache.sets = None
        return replay
    # A plan is bound to the tensor that holds its step counts. One common tensor serves all sets.
    cache.blocks.gather(optimizer.state, optimizer._single, are_in_blocks=True)
    if cache.sets is None:
        cache.sets, cache.gradient_set = {}, gradient_set_of(optimizer.param_groups)
    return None


def select_set(optimizer: Any) -> None:
    """Switch the step cache to the plans for the parameters that have a gradient now.

    Do nothing if the last step had gradients of exactly these parameters. Store the last step's
    plans in `step_cache.sets`, which must not be None. If `sets` is full, drop its oldest plans.
    """
    cache, gradient_set = optimizer.step_cache, gradient_set_of(optimizer.param_groups)
    if gradient_set == cache.gradient_set:
        return
    # The replay is exchanged below, and with it the steps that only the replay has counted.
    cache.settle()
    plans = cache.parts, cache.replay, cache.due_adapters, cache.rebind_target
    cache.sets[cache.gradient_set], cache.gradient_set = plans, gradient_set
    plans = cache.sets.pop(gradient_set, ({}, None, (), None))
    cache.parts, cache.replay, cache.due_adapters, cache.rebind_target = plans
    # Dicts keep the order of insertion, and `pop` removes a set in use: the first key is oldest.
    if len(cache.sets) >= _MOST_SETS:
        del cache.sets[next(iter(cache.sets))]


def _make_stand_ins(optimizer: Any) -> dict[int, Tensor]:
    """Return {id(parameter): uninitialized gradient} of parameters with state but no gradient.

    Return {} if no gradient is absent. Also return {} if a parameter with a gradient lacks state,
    or a parameter is not a plain CPU tensor.
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
    if not all(type(param) in _PARAM_CLASSES and param.is_cpu for param in params):
        return {}
    # Nothing reads the values: they only give the plan a tensor of the right form.
    return {
        id(param): torch.empty_like(param, dtype=param.dtype, device=param.device)
        for param in lacking
    }


def _plan_rules(optimizer: Any, absent: dict[int, Tensor]) -> Sequence[TorchStepAdapter]:
    """Plan a step in which `absent[id(param)]` replaces each missing gradient; cache the plans.

    Return the `TorchStepAdapter` of each rule. Return () if a rule does not support absent
    gradients, or if a parameter lacks slots.
    """
    members_by_rule = optimizer._members_by_rule(absent)
    parts = optimizer.step_cache.parts
    steps = [optimizer._sub_step(rule, members, parts) for rule, members in members_by_rule.items()]
    if not all(are_numbers_in_call(adapter.part) for adapter, _ in steps):
        return ()
    if any(
        rule.passes or rule.is_whole or rule.all_levels for rule in members_by_rule
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
        # A cached plan must not keep the stand-ins alive; each step binds its own gradients.
        plan.ready.release_gradients()
        keep_plan(part.plans, plan)
        if not plan.ready.is_single or not part.publishes_numbers_only:
            return ()
        run(part.publishing())
        adapter.settle()
        adapter.detach()
    return [adapter for adapter, _ in steps]
