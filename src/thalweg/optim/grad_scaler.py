"""Support of `torch.amp.GradScaler`, with overflow handled on the host or on a device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from thalweg._core.atomic_section import run
from thalweg._core.options.loss_scale import Unscaling
from thalweg._core.param_groups import Group
from thalweg.optim.group_options import number
from thalweg.optim.native_support import device_of, is_host
from thalweg.optim.param_scalars import CPU
from thalweg.optim.step_options import FOUND_INF, LastStep, StepOptions
from thalweg.variable import variable_constraint

Homes = tuple[torch.device | None, torch.device]
_ON_THE_HOST: Homes = (None, CPU)


class GradScalerMixin:
    """Support of `torch.amp.GradScaler`, which sets attributes of the optimizer."""

    param_groups: list[Group]
    step_options: StepOptions
    step_cache: Any

    def scalar_devices(self, params: Sequence[Tensor]) -> Homes:
        """Return (GPU of numbers that the host does not read or None, device of other numbers)."""
        if is_host(params) or not self._counts_on_device():
            return _ON_THE_HOST
        return device_of(params), CPU

    def _counts_on_device(self) -> bool:
        """Return True if per-parameter numbers are on the GPU only."""
        return self.step_options.of(Unscaling).fused_unscale

    def _found_finite(self) -> Tensor | None:
        """Return a bool tensor on the GPU that is True if GradScaler found no overflow.

        Return None if the host must decide on the step: there is no scaler, step counts are on the
        host, a parameter has a constraint or no state, or `accumulate` or `in_backward` is on.
        """
        found_inf: Any = vars(self).get("found_inf")
        options = self.step_options
        is_on_device = isinstance(found_inf, Tensor) and not is_host([found_inf])
        if not is_on_device or not self._counts_on_device():
            return None
        groups = self.param_groups
        param_lists = [[p for p in group["params"] if p.grad is not None] for group in groups]
        params = list(chain.from_iterable(param_lists))
        if options.accumulate > 1 or options.in_backward or found_inf.device != device_of(params):
            return None
        if any(variable_constraint(param) is not None for param in params):
            return None
        has_state = all(map(self._have_state, self.param_groups, param_lists))
        return found_inf.detach().reshape(()) == 0 if has_state else None

    def _have_state(self, group: Group, params: Sequence[Tensor]) -> bool:
        """Return True if parameters of a group have all entries of their state."""
        raise NotImplementedError

    def _skip_overflowed_step(self) -> bool:
        """Return True, and record a skipped step, if GradScaler found an overflow; else False."""
        found_inf = vars(self).get("found_inf")
        # `GradScaler` sums flags over devices: without any gradient, the sum is the int 0.
        if found_inf is None or not number(found_inf):
            return False
        count = self.step_cache.count
        if (counter := self.step_cache.counter) is not None:
            count += int(counter.item())
        self.step_cache.last_step = LastStep(False, FOUND_INF, count)
        judge = self.step_options.judge
        run([] if judge is None else judge.skip_calls())
        return True

    def unscaling(self) -> float | Tensor | None:
        """Return the factor that unscales gradients for `torch.amp.GradScaler`.

        Return a tensor if a GPU decides on the step, else a float. Return None without a scaler,
        and for a step with accumulated sums, which are unscaled already.
        """
        scale = vars(self).get("grad_scale")
        if scale is None or self.step_cache.sums is not None:
            return None
        if self.step_cache.apply_flag is not None:
            # `GradScaler.unscale_` inverts in float64, too: an inverse of float32 could differ.
            return scale.detach().reshape(()).double().reciprocal().float()
        return 1 / number(scale)


def forget_scale(optimizer: object) -> None:
    """Remove the attributes that a scaler set for a failed step."""
    for name in ("grad_scale", "found_inf"):
        vars(optimizer).pop(name, None)
