"""A step of `apply_gradients` in one call; see `core/steady_apply.py`."""

from __future__ import annotations

from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.core.hooks import Dtype
from thalweg.core.plan_cache import PlanCache, Planned
from thalweg.core.repeated_pairs import RepeatedPairs
from thalweg.core.steady import ERRORS, is_repeatable, look
from thalweg.core.steady_apply import SteadyApply, has_own_methods
from thalweg.ground.running import is_ours
from thalweg.keras.optimizers.hooks import RuleHooks
from thalweg.schedules.base import LearningRateSchedule
from thalweg.variable import Variable

FAILED = -1  # to make the numbers of a step
_EXACT = (int, float, np.number)
# What decides on a step beside hyperparameters.
_ASKED = (
    "_clipping", "_aggregator", "_initial_decay", "_slots", "_slots.parts", "_hyper", "iterations",
)  # fmt: skip


class SteadyKerasApply(SteadyApply):
    """A step that may be taken again."""

    def __init__(self, optimizer: Any, planned: Planned, found: RepeatedPairs) -> None:
        super().__init__(optimizer, planned, found)
        self._asked_for = attrgetter(*_ASKED, *optimizer._exact_names())
        self._asked = self._asked_for(optimizer)
        self._is_usual = is_ours(optimizer._rule_scalars) and is_ours(optimizer._hyper_scalars)
        self._read(optimizer)

    def _read(self, optimizer: Any) -> None:
        """Read what others may have written to: first the numbers that are watched."""
        known = [Tensor.item(each) for each in _numbers(optimizer)]
        hypers: dict[Dtype, dict[str, Any]] = {}
        if optimizer._are_scalars_known():
            dtypes = self._planned.ready.dtypes
            hypers = {each: optimizer._hyper_scalars(each) for each in dtypes}
        # An interruption may come between a step and what is kept of it here.
        self._begun, self._hypers = int(known[0]) - self.taken, hypers
        self._found.expect(known)

    @staticmethod
    def of(optimizer: Any, kept: PlanCache, given: Any) -> SteadyKerasApply | None:
        """The step that was repeated last, if everything stands and it could be taken so."""
        planned, hooks = kept.last, optimizer._make_hooks(True)
        hooks.calls = hooks.calls and _may_call_users(optimizer)
        if (
            planned is None
            or not is_repeatable(planned, hooks, optimizer._clipping.stages)
            or not (hooks.repeats and type(hooks) is RuleHooks)
            or not _is_plain(optimizer)
        ):
            return None
        numbers = _numbers(optimizer)
        own = (planned, given, numbers[:1], numbers, [optimizer._hyper._values])
        found = RepeatedPairs.of(*own, optimizer._clipping)
        return None if found is None else SteadyKerasApply(optimizer, planned, found)

    def _take(self, optimizer: Any, kept: PlanCache, given: object) -> bool:
        if (
            type(given) is not list
            or optimizer._choose_rule() is not self._rule
            or not all(map(is_, self._asked_for(optimizer), self._asked))
            or optimizer._transformers
        ):
            return False
        other = self._take_as_known(optimizer, given)
        if other == look.WRITTEN_BY_OTHERS:  # to a rate, say
            self._read(optimizer)
            other = self._take_as_known(optimizer, given)
        if other:
            kept.quick = None
        return not other

    def _take_as_known(self, optimizer: Any, given: Any) -> int:
        """0 if the step was taken with numbers that are known; else what is not as it was."""
        begun = self._count.value
        step = self._begun + begun + 1
        values_of: Any = optimizer._hyper_scalars if self._is_usual else optimizer._rule_scalars
        if self._hypers:
            values_of = self._hypers.__getitem__
        number = step if self._is_usual else None
        try:
            how = optimizer._clipping
            return self._found.take(given, begun, values_of, number, (step,), how)
        except ERRORS:
            if self.taken != begun:  # a signal's function raised it after the step
                raise
            return FAILED  # the careful way says it


def _numbers(optimizer: Any) -> list[Tensor]:
    """What counts steps, and hyperparameters that lie in tensors."""
    hypers = [each for each in optimizer._hyper.values() if isinstance(each, Tensor)]
    return [optimizer.iterations, *hypers]


def _may_call_users(optimizer: Any) -> bool:
    """Whether hyperparameters are made by others than our schedules.

    A step that is left to the careful way after they were asked asks them again: ours do not tell.
    """
    functions = [each for each in optimizer._hyper.values() if callable(each)]
    are_ours = all(isinstance(each, LearningRateSchedule) and is_ours(each) for each in functions)
    kept = [value for each in functions for value in vars(each).values()]
    return optimizer._is_begun_by_users() or not are_ours or any(map(callable, kept))


def _is_plain(optimizer: Any) -> bool:
    """Whether a step is the update of a rule, and a count, and all that it reads stays."""
    count = optimizer.iterations
    return (
        not optimizer._counts_more()
        and "_transform_gradients" not in optimizer._overridden_hooks()
        and optimizer._slots.parts is None
        and type(count) is Variable
        and count.dtype == torch.int64
        and all(isinstance(getattr(optimizer, each), _EXACT) for each in optimizer._exact_names())
        and not has_own_methods(optimizer)
    )
