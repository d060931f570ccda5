"""Global gradient norm over several rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from thalweg import _engines
from thalweg._core.clip_factor import Factor
from thalweg._core.gradient_stats import GradientStats
from thalweg._core.gradient_transforms import Decision, GradientTransforms
from thalweg._engines import Dispatcher, layout
from thalweg._engines.protocol import Reductions, StepPlan, StepRequest
from thalweg.indexed_slices import values_of
from thalweg.optim.step_adapter import ParamGroupAdapter
from thalweg.rules import torch as rules

Share = tuple[
    ParamGroupAdapter, list[tuple[Any, Tensor]]
]  # what a rule updates, by which gradients


class CommonNorm:
    """Norm of all gradients of a step, measured before the first rule's update."""

    def __init__(self) -> None:
        self._gate = Dispatcher()
        self._ready: StepPlan | None = None

    def try_rebind(self, shares: Sequence[Share]) -> bool:
        """Return True if the step's gradients fit the measurement of the step before.

        If so, that measurement is bound to them and `clip_factor` uses it; otherwise it is dropped.
        """
        pairs = [pair for _, grads_and_vars in shares for pair in grads_and_vars]
        request = _asked(shares, [grad for grad, _ in pairs], [var for _, var in pairs])
        if self._ready is not None and not self._ready.try_rebind(_norm_request(shares, request)):
            self._ready = None
        return self._ready is not None

    def clip_factor(
        self, shares: Sequence[Share], transforms: GradientTransforms
    ) -> tuple[Factor, Decision]:
        """Return the factor that clips all gradients of a step by their common norm, and whether
        the step is taken.

        Args:
            shares: The shares that `try_rebind` was given.
            transforms: The transforms of all gradients; `watch` receives the statistics.

        Raises:
            Exception: Any error of a step that cannot be taken as a whole.
        """
        variables = [var for _, grads_and_vars in shares for _, var in grads_and_vars]
        measures: Any = self._ready
        if measures is None:
            measures, variables = self._measure_anew(shares, transforms)
        sharing = _sharing(shares)
        if sharing is not None:
            measures = sharing.make_reductions(measures, _asked(shares, (), variables))
        try:
            stats = GradientStats(transforms, measures, variables)
            return stats.clip_factor, stats.decision()
        finally:
            if self._ready is not None:
                self._ready.release_gradients()

    def _measure_anew(
        self, shares: Sequence[Share], transforms: GradientTransforms
    ) -> tuple[Reductions, list[Tensor]]:
        """Return new measures of gradients that were not checked before, and their variables."""
        gradients: list[Any] = []
        variables: list[Tensor] = []
        for hooks, grads_and_vars in shares:
            pairs = hooks.convert_pairs(grads_and_vars)
            sharing = hooks.sharing
            local_pairs = pairs if sharing is None else sharing.local_parts(pairs)
            hooks.check_pairs(local_pairs, transforms.narrow)
            gradients += [grad for grad, _ in pairs]
            variables += [var for _, var in pairs]
        request = _asked(shares, gradients, variables)
        pairs = zip(gradients, variables, strict=True)
        if any(layout.is_far(values_of(grad), var.device) for grad, var in pairs):
            flush = request.selection.denormals == "flush"
            values = list(map(values_of, gradients))
            return _engines.Tensors(values, variables, flush), variables
        self._ready = self._gate.plan_step(_norm_request(shares, request))
        return self._ready, variables


def _asked(shares: Sequence[Share], gradients: Sequence[object], variables: Any) -> StepRequest:
    """Return a request that only measures gradients; its rule has no slots."""
    slots, titles = [()] * len(variables), [""] * len(variables)
    arguments = gradients, slots, titles, shares[0][0].selection
    return StepRequest(rules.TORCH_SGD, (), variables, *arguments)


def _norm_request(shares: Sequence[Share], request: StepRequest) -> StepRequest:
    sharing = _sharing(shares)
    return request if sharing is None else sharing.share_out(request)


def _sharing(shares: Sequence[Share]) -> Any:
    return next((hooks.sharing for hooks, _ in shares if hooks.sharing is not None), None)
