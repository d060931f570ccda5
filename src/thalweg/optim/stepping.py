"""`OneSweep`: an optimizer of torch's kind whose step is one pass over memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from thalweg.core.section import run
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.formula import Rule
from thalweg.locks import Guard
from thalweg.optim.around import FOUND_INF, NONE, Around, LastStep, Seen, apart
from thalweg.optim.averaging import EMA
from thalweg.optim.folding import fold, forget, put_back, taken_out
from thalweg.optim.groups import Group
from thalweg.optim.in_backward import listen
from thalweg.optim.part import Part
from thalweg.tracing import untraced


class Kept:
    """What an optimizer keeps that no state has; one that was copied or loaded begins anew."""

    def __init__(self) -> None:
        self._lock = Guard(self)
        self.parts: dict[Rule, Part] = {}
        self.last: LastStep | None = None
        self.count = 0
        self.is_swapped = False
        self.sums: dict[int, Tensor] | None = None  # of gradients, while a step takes them
        self.heard: dict[int, Any] = {}  # handles of hooks, by `id` of parameters
        self.places: dict[int, int] = {}  # indices of groups, likewise
        self.alone: dict[int, dict[Rule, Part]] = {}  # parts of one parameter each, likewise
        self.applied = False  # whether gradients were applied since the last step


class OneSweep:
    """What takes the steps of a subclass of `torch.optim.Optimizer`; all else is that one's.

    Args:
        *args: What that class takes.
        **keywords: The same, and what is done around an update; see `Around`.
    """

    state: Any
    param_groups: list[Group]
    _around: Around = NONE

    def __init__(self, *args: Any, **keywords: Any) -> None:
        around = apart(keywords)
        if around is not NONE:
            self._around = around
        super().__init__(*args, **keywords)
        if around.fused_unscale:
            self._step_supports_amp_scaling = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # pyright: ignore
        if self._around.in_backward:
            listen(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's."""
        super().add_param_group(param_group)  # pyright: ignore
        if self._around.in_backward:
            listen(self)

    def __getstate__(self) -> dict[str, Any]:
        own = {key: vars(self)[key] for key in _KEPT if key in vars(self)}
        return {**super().__getstate__(), **own}  # pyright: ignore

    @property
    def _own(self) -> Kept:
        # Not made by a constructor: torch restores what it copies and loads without one.
        return vars(self).get("_kept") or vars(self).setdefault("_kept", Kept())

    @untraced
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step with the gradients in `grad` of the parameters.

        Args:
            closure: Optional. Computes the loss again, and the gradients; called once.

        Returns:
            What the closure returned, or None.

        Raises:
            FailedPreconditionError: The call is in a strategy of several replicas, or in `swapped`.
        """
        _check_replica()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        own = self._own
        with own._lock:
            if own.is_swapped:
                raise FailedPreconditionError(
                    "A step inside of swapped() would move averages instead of parameters."
                )
            if not self._is_left_out() and self._is_due():
                with self._summed():
                    self._take_step(own.parts)
                if own.applied:
                    self._end_step()
        return loss

    def _apply_alone(self, param: Tensor) -> None:
        """Update a parameter in the course of the backward pass."""
        _check_replica()
        own = self._own
        with own._lock:
            self._take_step(own.alone.setdefault(id(param), {}), param)
            own.applied = True

    def _end_step(self) -> None:
        """Count a step whose gradients were applied as they came."""
        self._own.applied = False
        self._told(Seen())

    @property
    def last_step(self) -> LastStep | None:
        """What has become of the last step; None before the first."""
        return self._own.last

    @contextlib.contextmanager
    def swapped(self) -> Generator[None]:
        """Have parameters be their averages in a `with` block, to evaluate or to save a model.

        Raises:
            InvalidArgumentError: There are no averages: the constructor was given no `ema_decay`.
            FailedPreconditionError: A step is taken inside.
        """
        own = self._own
        if self._around.ema_decay is None:
            raise InvalidArgumentError("There are no averages without ema_decay.")
        pairs = [(param, each[EMA]) for param, each in self.state.items() if EMA in each]
        with own._lock:
            kept = [param.detach().clone() for param, _ in pairs]
            own.is_swapped = True
            with torch.no_grad():
                run([partial(param.detach().copy_, ema) for param, ema in pairs])
        try:
            yield
        finally:
            with own._lock, torch.no_grad():
                back = zip(pairs, kept, strict=True)
                run([partial(param.detach().copy_, value) for (param, _), value in back])
                own.is_swapped = False

    def _is_due(self) -> bool:
        """Whether a step is to be taken; else the gradients were folded into their sums."""
        own, wanted = self._own, self._around.accumulate
        if wanted == 1:
            return True
        with torch.no_grad():
            count = fold(
                self.param_groups,
                self.state,
                unscaling=self._unscaling(),
                wide=self._around.wide_sums or self._around.masters,
            )
        if count < wanted:
            own.last = LastStep(False, f"{count} of {wanted} gradients are summed up", own.count)
        return count >= wanted

    def _gradients(self, params: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradients of parameters; None for none."""
        sums = self._own.sums
        if sums is None:
            return [param.grad for param in params]
        found = [sums.get(id(param)) for param in params]
        if self._around.masters:
            return found
        pairs = zip(found, params, strict=True)
        return [grad if grad is None else grad.to(param.dtype) for grad, param in pairs]

    @contextlib.contextmanager
    def _summed(self) -> Generator[None]:
        """Have `_gradients` be the sums in a `with` block, which takes the step."""
        own = self._own
        if self._around.accumulate == 1:
            yield
            return
        own.sums = taken_out(self.state)
        try:
            yield
        except BaseException:
            put_back(own.sums, self.param_groups, self.state)
            raise
        finally:
            own.sums = None
        forget(self.param_groups)

    def _is_left_out(self) -> bool:
        """Whether `torch.amp.GradScaler` says that a gradient is not finite."""
        found = vars(self).get("found_inf")
        if found is None or not found.item():
            return False
        self._own.last = LastStep(False, FOUND_INF, self._own.count)
        return True

    def _unscaling(self) -> float | None:
        """What gradients are multiplied by before all else, for `torch.amp.GradScaler`."""
        scale = vars(self).get("grad_scale")
        if scale is None or self._own.sums is not None:  # the sums are unscaled
            return None
        return 1 / scale.item()

    def _told(self, seen: Seen) -> None:
        """A step was taken."""
        own = self._own
        own.count += 1
        own.last = LastStep(True, "", own.count, seen.grad_norm, seen.clip_factor)

    def _take_step(self, parts: dict[Rule, Part], only: Tensor | None = None) -> None:
        """Take a step with what is kept of the parameters, or with one of them alone."""
        raise NotImplementedError


_KEPT = ("_around", "_step_supports_amp_scaling")


def _check_replica() -> None:
    """Refuse a step whose gradients nobody would sum, so that replicas would drift apart."""
    context = sys.modules.get("thalweg.distribute.context")  # where nobody did, there is none
    here = None if context is None else context.innermost()
    if here is not None and not here.strategy.ranks.is_alone:
        raise FailedPreconditionError(
            "Optimizers of thalweg.optim do not sum gradients over the replicas of a strategy. Take"
            " the step outside of it, with torch's DistributedDataParallel, or take an optimizer of"
            " thalweg.keras or thalweg.v1."
        )
