"""A step of `apply_gradients` in one call; see `_core/replay_apply.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import count
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.execution_context import is_ours
from thalweg._core.commit import note_not_applied
from thalweg._core.hyperparameters import as_read, is_function, is_number
from thalweg._core.plan_cache import CachedPlan, PlanCache
from thalweg._core.replay import ERRORS, is_repeatable, replay_kernel
from thalweg._core.replay_apply import FAILED, ReplayedApply, has_own_methods
from thalweg._core.replay_pairs import ComingStep, ReplayedPairs
from thalweg._core.step_adapter import Dtype
from thalweg.keras.optimizers.step_adapter import KerasRuleStepAdapter
from thalweg.schedules.ahead import RatesAhead
from thalweg.schedules.base import FormulaSchedule
from thalweg.variable import Variable

_EXACT = (int, float, np.number)
_UNREAD = object()  # the learning rate while numbers are being read
_RATE = "learning_rate"
# What decides on a step beside hyperparameters.
_ASKED = (
    "_clipping", "_aggregator", "_initial_decay", "_slots", "_slots.parts", "_hyper", "_iterations",
)  # fmt: skip


class KerasReplay(ReplayedApply):
    """A step that may be taken again.

    Hyperparameters are read again when they were written to. A learning rate that follows from the
    number of the step is computed for several steps at a time. Users' functions are called once the
    step was found to be as it was, and it is compared once more after them.
    """

    def __init__(
        self, optimizer: Any, planned: CachedPlan, found: ReplayedPairs, holds_attributes: bool
    ) -> None:
        super().__init__(optimizer, planned, found, holds_attributes)
        self._asked_for = attrgetter(*_ASKED, *optimizer._exact_names())
        self._asked = self._asked_for(optimizer)
        self._is_usual = is_ours(optimizer._rule_scalars) and is_ours(optimizer._hyper_scalars)
        self._has_known_scalars = optimizer._has_usual_scalars()
        self._dtypes = planned.ready.dtypes
        self._values = optimizer._hyper._values
        self._tensors = {name: each for name, each in self._values.items() if _is_tensor(each)}
        hypers = [each.name for each in self._rule.hypers]
        self._scalar_names = {optimizer.NAMES.get(each, each): each for each in hypers}
        self._rate_tensor = self._tensors.get(_RATE)
        self._selection = optimizer._selection()
        self._called: dict[Dtype, dict[str, Any]] = {}
        self._rates: dict[Dtype, RatesAhead] = {}
        # Numbers follow from that of the step, but for those of users' functions.
        self._is_foreseen = self._is_usual and self._has_known_scalars and holds_attributes
        self._read(optimizer)

    def _read(self, optimizer: Any) -> None:
        """Read the count of steps and all hyperparameters, which others may have written to.

        A signal's function may take a step meanwhile: until the end it finds `_UNREAD`, or numbers
        that are not as expected, and reads for itself.
        """
        self._given_rate, rate = _UNREAD, self._values.get(_RATE)
        self._versions = {name: each._version for name, each in self._tensors.items()}
        steps, numbers = -1, []
        while steps != self.taken:  # else the count is not that of these steps
            steps = self.taken
            numbers = [
                Tensor.item(each) for each in (optimizer.iterations, *self._tensors.values())
            ]
        scalars: dict[Dtype, dict[str, Any]] = {}
        self._schedule = _Schedule(rate)
        self._functions = _user_functions(optimizer)
        self.calls = bool(self._functions)
        if self._has_known_scalars:
            functions = [name for name, each in self._values.items() if is_function(each)]
            with optimizer._hyper.knowing(dict.fromkeys(functions, 0.0)):
                scalars = {each: optimizer._hyper_scalars(each) for each in self._dtypes}
        # An interruption may come between a step and what is kept of it here.
        self._begun, self._scalars = int(numbers[0]) - steps, scalars
        self._follow_rate(optimizer, rate)
        self._forget_coming()
        self._found.expect(numbers)
        self._given_rate = rate

    def _read_written(self, optimizer: Any) -> None:
        """Read the hyperparameters that were set since they were read, as far as versions tell."""
        if not self._has_known_scalars or _RATE not in self._tensors:
            self._read(optimizer)
            return
        versions, change = self._versions, self._found.change
        for place, (name, tensor) in enumerate(self._tensors.items(), 1):
            version = tensor._version
            if version == versions[name]:
                continue
            number = Tensor.item(tensor)
            if name in self._scalar_names:
                for dtype, own in self._scalars.items():
                    change(dtype, own, self._scalar_names[name], as_read(tensor, number, dtype))
            if name == _RATE and self._rates:
                self._follow_rate(optimizer, self._given_rate)
            self._forget_coming()
            # Last: a step that a signal's function takes before finds the number unexpected.
            self._found.expect((number,), place)
            versions[name] = version

    def _follow_rate(self, optimizer: Any, rate: object) -> None:
        """Have the learning rate computed ahead, if it follows from the number of the step."""
        self._rates = {}
        decays = optimizer._initial_decay > 0
        if not self._has_known_scalars or self._functions or rate is None:
            return
        if isinstance(rate, FormulaSchedule) or decays:
            self._rates = {
                dtype: RatesAhead(partial(optimizer._rate_at, dtype)) for dtype in self._dtypes
            }

    @staticmethod
    def of(optimizer: Any, kept: PlanCache, given: Any) -> KerasReplay | None:
        """Return the step that was repeated last, if it can be taken so; else None."""
        planned, hooks = kept.last, optimizer._make_hooks(True)
        hooks.calls = hooks.calls and _may_call_users(optimizer)
        if (
            planned is None
            or not is_repeatable(planned, hooks, optimizer._clipping.stages)
            or not (hooks.repeats and type(hooks) is KerasRuleStepAdapter)
            or not _is_plain(optimizer)
        ):
            return None
        values = optimizer._hyper._values
        numbers = [optimizer.iterations, *filter(_is_tensor, values.values())]
        if any(each.is_inference() for each in numbers):  # which have no versions
            return None
        varying = None if _is_tensor(values.get(_RATE)) else _RATE
        looked_at: list[Any] = [(values, varying)]
        holds_attributes = kept.has_constant_attributes
        if holds_attributes:
            looked_at.append((vars(optimizer), "_plans"))  # which hold this step
        own = (planned, given, numbers[:1], numbers, looked_at)
        found = ReplayedPairs.of(*own, optimizer._clipping)
        if found is None:
            return None
        return KerasReplay(optimizer, planned, found, holds_attributes)

    def _has_equal_attributes(self, optimizer: Any) -> bool:
        return (
            optimizer._selection() == self._selection
            and tuple(vars(optimizer)) == self._names
            and all(map(is_, self._asked_for(optimizer), self._asked))
        )

    def _take(self, optimizer: Any, kept: PlanCache, given: object) -> bool:
        if type(given) is not list:
            return False
        if self._is_foreseen and not self._functions and self._is_as_read(optimizer):
            other = self._take_coming(optimizer, given, optimizer._clipping)
            if not other:
                return True
            if other not in (replay_kernel.NOT_TABLED, replay_kernel.WRITTEN_BY_OTHERS):
                self._drop(optimizer, kept, other)
                return False
        if (
            optimizer._choose_rule() is not self._rule
            or optimizer._slots.parts is not None
            or optimizer._transformers
        ):
            return False
        rate = self._rate_tensor
        if rate is None:
            other_rate = self._values.get(_RATE)
            if other_rate is not self._given_rate or not self._schedule.is_same():
                if not (is_number(other_rate) or isinstance(other_rate, FormulaSchedule)):
                    return False
                self._read(optimizer)
                if self._functions and not optimizer._hyper.is_begun:  # as its fields are others
                    return False
        elif rate._version != self._versions[_RATE]:
            self._read_written(optimizer)
        if self._functions:
            other = self._known(optimizer, given, self._compare)
            if not other:
                self._call_functions(optimizer)
                if not self._is_of(optimizer, kept) or optimizer._choose_rule() is not self._rule:
                    return False
                other = self._known(optimizer, given, self._take_as_known)
        else:
            other = self._take_as_known(optimizer, given)
            if other == replay_kernel.WRITTEN_BY_OTHERS:
                other = self._known(optimizer, given, self._take_as_known)
        if other:
            self._drop(optimizer, kept, other)
        return not other

    def _is_as_read(self, optimizer: Any) -> bool:
        """Return whether no number was set since all were read, as far as Python can tell."""
        rate = self._values.get(_RATE)
        return (
            rate is self._given_rate
            and (self._rate_tensor is None or rate._version == self._versions[_RATE])
            and self._schedule.is_same()
            and optimizer._slots.parts is None
            and not optimizer._transformers
        )

    def _coming_steps(self, optimizer: Any, first: int) -> Iterator[ComingStep]:
        scalars = self._scalars
        for step in count(self._begun + first + 1):
            if self._rates:
                scalars = {
                    dtype: {**own, _RATE: self._rates[dtype].alone(step - 1)}
                    for dtype, own in self._scalars.items()
                }
            yield ComingStep(scalars, step, (step,))

    def _known(self, optimizer: Any, given: Any, look_at: Callable[[Any, Any], int]) -> int:
        """Return what a look returns, once the numbers that others have written to are read."""
        other = look_at(optimizer, given)
        for read in (self._read_written, self._read):  # what versions tell; everything
            if other == replay_kernel.WRITTEN_BY_OTHERS:
                read(optimizer)
                other = look_at(optimizer, given)
        return other

    def _compare(self, optimizer: Any, given: Any) -> int:
        return self._found.compare(given, self._count.value)

    def _call_functions(self, optimizer: Any) -> None:
        """Call users' functions; what they return is kept for a careful step, too."""
        with note_not_applied([]):
            if self._functions == [_RATE]:
                self._called = {each: {_RATE: optimizer._rate(each)} for each in self._dtypes}
            else:
                self._called = {each: optimizer._hyper_scalars(each) for each in self._dtypes}

    def _take_as_known(self, optimizer: Any, given: Any) -> int:
        """Return 0 if the step was taken with numbers that are known; else what is different."""
        begun = self._count.value
        step = self._begun + begun + 1
        number = step if self._is_usual else None
        try:
            values_of = self._values_of(optimizer, step - 1)
            return self._found.take(given, begun, values_of, number, (step,), optimizer._clipping)
        except ERRORS:
            if self.taken != begun:  # a signal's function raised it after the step
                raise
            # The careful step raises the error.
            return FAILED

    def _values_of(self, optimizer: Any, count: int) -> Callable[[Dtype], dict[str, Any]]:
        """Return what gives the hyperparameters of a step for a compute dtype.

        Args:
            optimizer: The optimizer.
            count: How many steps were taken before it.
        """
        if not self._has_known_scalars:
            return optimizer._hyper_scalars if self._is_usual else optimizer._rule_scalars
        if self._rates or self._functions:
            change = self._found.change
            for dtype, own in self._scalars.items():
                if self._rates:
                    change(dtype, own, _RATE, self._rates[dtype].at(count))
                else:
                    for name, value in self._called[dtype].items():
                        change(dtype, own, name, value)
        return self._scalars.__getitem__


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _user_functions(optimizer: Any) -> list[str]:
    """Return the hyperparameters whose functions may do anything, or not the same each time.

    Those of the library's schedules follow from the number of the step and their fields.
    """
    return [
        name
        for name, each in optimizer._hyper.items()
        if is_function(each) and not _is_formula(each)
    ]


def _is_formula(function: Any) -> bool:
    return (
        isinstance(function, FormulaSchedule)
        and is_ours(function)
        and not hasattr(function, "load_state_dict")  # as those that draw
        and _Schedule(function).is_plain()
    )


class _Schedule:
    """The fields of a schedule as they were, if a learning rate is one.

    Args:
        rate: The learning rate as the optimizer keeps it.
    """

    def __init__(self, rate: object) -> None:
        self._own = vars(rate) if isinstance(rate, FormulaSchedule) else {}
        self._fields = [*self._own.values()]
        self._lists = [(each, [*each]) for each in self._fields if isinstance(each, list | tuple)]

    def is_plain(self) -> bool:
        """Return whether all fields are numbers or lists of them, which only `is_same` is about."""
        items = [item for _, own in self._lists for item in own]
        fields = [each for each in self._fields if not isinstance(each, list | tuple)]
        return all(isinstance(each, _FIELDS) for each in (*items, *fields))

    def is_same(self) -> bool:
        """Return whether no field was set since, and no list changed."""
        own = self._own
        return (
            len(own) == len(self._fields)
            and all(map(is_, own.values(), self._fields))
            and (not self._lists or all(_are_same(each, before) for each, before in self._lists))
        )


def _are_same(items: Collection[object], before: Collection[object]) -> bool:
    return len(items) == len(before) and all(map(is_, items, before))


_FIELDS = (int, float, str, np.generic, type(None))


def _may_call_users(optimizer: Any) -> bool:
    """Return whether a step calls users' functions elsewhere than where this file does."""
    return optimizer._is_begun_by_users() or (
        bool(_user_functions(optimizer)) and not optimizer._has_usual_scalars()
    )


def _is_plain(optimizer: Any) -> bool:
    """Return whether a step is the update of a rule, and a count, and all that it reads stays."""
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
