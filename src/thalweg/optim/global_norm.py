"""Global gradient norm over the gradients of several rules, measured before the first update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._core.clip_factor import Factor
from thalweg._core.gradient_stats import GradientStats
from thalweg._core.gradient_transforms import Decision, GradientTransforms
from thalweg._core.plan_cache import CachedPlan
from thalweg._engines.composite import JoinedReductions
from thalweg._engines.protocol import Reductions
from thalweg._engines.tensor_reductions import Tensors
from thalweg.indexed_slices import values_of
from thalweg.optim.step_adapter import ParamGroupAdapter, UpdatePairs


@no_grad()
def clip_factor(
    adapters: Sequence[ParamGroupAdapter],
    targets: Sequence[UpdatePairs],
    bound: Sequence[tuple[CachedPlan | None, bool]],
    transforms: GradientTransforms,
) -> tuple[Factor, Decision]:
    """Measure the gradients of all rules; return (clip factor, decision whether to step).

    Args:
        adapters: The adapter of each rule.
        targets: The result of `adapter.aim` for each rule.
        bound: For each rule, (plan bound to its gradients or None, unused flag).
        transforms: Unscaling and clipping of all gradients. `transforms.watch`, unless None, is
            called with the statistics of the gradients.
    """
    flush = adapters[0].selection.denormals == "flush"
    reduction_parts: list[tuple[Reductions, int]] = []
    pairs: list[tuple[Any, Tensor]] = []
    for adapter, (rule_pairs, _), (plan, _) in zip(adapters, targets, bound, strict=True):
        if plan is not None:
            request = plan.request
            pairs += zip(request.gradients, request.variables, strict=True)
            reduction_parts.append((plan.ready, len(request.variables)))
            continue
        rule_pairs = adapter.convert_pairs(rule_pairs)
        pairs += rule_pairs
        if adapter.sharing is not None:
            rule_pairs = adapter.sharing.local_parts(rule_pairs)
        adapter.check_pairs(rule_pairs, transforms.narrow)
        values, variables = [values_of(grad) for grad, _ in rule_pairs], [x for _, x in rule_pairs]
        reduction_parts.append((Tensors(values, variables, flush), len(rule_pairs)))
    reductions: Reductions = JoinedReductions(reduction_parts)
    sharings = (adapter.sharing for adapter in adapters)
    if (sharing := next(filter(None, sharings), None)) is not None:
        reductions = sharing.make_reductions(reductions, pairs, flush)
    stats = GradientStats(transforms, reductions, [var for _, var in pairs])
    return stats.clip_factor, stats.decision()
