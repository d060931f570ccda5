"""Replay: `apply_gradients` as one native call that repeats the last step with new gradients.

The base class is in `_core/replay_apply.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import count
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.execution_context import is_ours, resolve
from thalweg._core.commit import note_not_applied
from thalweg._core.hyperparameters import as_read, is_function, is_number
from thalweg._core.plan_cache import CachedPlan, PlanCache
from thalweg._core.replay import ERRORS, is_repeatable, replay_block
from thalweg._core.replay_apply import FAILED, ReplayedApply, has_own_methods
from thalweg._core.replay_pairs import ComingStep, ReplayedPairs
from thalweg._core.step_adapter import Dtype
from thalweg.keras.optimizers.step_adapter import KerasRuleStepAdapter
from thalweg.schedules.ahead import RatesAhead
from thalweg.schedules.base import FormulaSchedule
from thalweg.variable import Variable

_EXACT = (int, float, np.number)
# Stands for the learning rate while numbers are being read.
_UNREAD = object()
_RATE = "learning_rate"
# Attributes other than hyperparameters that affect a step.
_ATTRIBUTES = (
    "_clipping", "_aggregator", "_initial_decay", "_slots", "_slots.parts", "_hyper", "_iterations",
)  # fmt: skip


class KerasReplay(ReplayedApply):
    """Replay of the last step of a Keras optimizer.

    A hyperparameter is read again after a write to it. Learning rates that depend only on the step
    number are computed several steps ahead. Before users' functions are called, the step is
    compared with the last step. The comparison is repeated after the calls.
    """

    def __init__(
        self, optimizer: Any, plan: CachedPlan, pairs: ReplayedPairs, guards_attributes: bool
    ) -> None:
        super().__init__(optimizer, plan, pairs, guards_attributes)
        self._get_attributes = attrgetter(*_ATTRIBUTES, *optimizer._exact_names())
        self._attribute_values = self._get_attributes(optimizer)
        self._is_standard = is_ours(optimizer._rule_scalars) and is_ours(optimizer._hyper_scalars)
        self._has_cached_scalars = optimizer._has_usual_scalars()
        self._dtypes = plan.ready.dtypes
        self._extras: dict[str, Tensor] = _get_extras(optimizer)
        self._values = optimizer._hyper._values
        self._tensors = {
            name: tensor for name, tensor in self._values.items() if _is_tensor(tensor)
        }
        hypers = [hyper.name for hyper in self._rule.hypers]
        self._scalar_names = {optimizer.NAMES.get(key, key): key for key in hypers}
        self._rate_tensor = self._tensors.get(_RATE)
        self._selection = optimizer._selection()
        self._user_scalars: dict[Dtype, dict[str, Any]] = {}
        self._rates: dict[Dtype, RatesAhead] = {}
        # Apart from users' functions, all scalars depend only on the step number.
        self._is_foreseen = self._is_standard and self._has_cached_scalars and guards_attributes
        self._read(optimizer)

    def _read(self, optimizer: Any) -> None:
        """Read the step count and all hyperparameters into this object."""
        # A signal handler's step meanwhile finds `_UNREAD`, and so reads everything itself.
        self._last_rate, rate = _UNREAD, self._values.get(_RATE)
        self._versions = {name: tensor._version for name, tensor in self._tensors.items()}
        steps, values = -1, []
        # Repeat if a signal handler took a step, since `iterations` and `steps` then differ.
        while steps != self.taken:
            steps = self.taken
            tensors = (optimizer.iterations, *self._extras.values(), *self._tensors.values())
            values = list(map(Tensor.item, tensors))
        scalars: dict[Dtype, dict[str, Any]] = {}
        self._schedule = _Schedule(rate)
        self._functions = _list_user_functions(optimizer)
        self.calls = bool(self._functions)
        if self._has_cached_scalars:
            functions = [name for name, hyper in self._values.items() if is_function(hyper)]
            with optimizer._hyper.knowing(dict.fromkeys(functions, 0.0)):
                scalars = {dtype: optimizer._hyper_scalars(dtype) for dtype in self._dtypes}
        # An interruption may come between a step and this assignment.
        self._start_iteration, self._scalars = int(values[0]) - steps, scalars
        self._follow_rate(optimizer, rate)
        self._forget_coming()
        self._native_step.expect(values)
        self._last_rate = rate

    def _read_written(self, optimizer: Any) -> None:
        """Read hyperparameters again if their tensors were written since the last read."""
        if not self._has_cached_scalars or _RATE not in self._tensors:
            self._read(optimizer)
            return
        versions, change = self._versions, self._native_step.change
        for index, (name, tensor) in enumerate(self._tensors.items(), 1 + len(self._extras)):
            version = tensor._version
            if version == versions[name]:
                continue
            new_value = Tensor.item(tensor)
            if name in self._scalar_names:
                for dtype, scalars in self._scalars.items():
                    change(
                        dtype, scalars, self._scalar_names[name], as_read(tensor, new_value, dtype)
                    )
            if name == _RATE and self._rates:
                self._follow_rate(optimizer, self._last_rate)
            self._forget_coming()
            # Last: a signal handler's step before this line sees an unexpected number.
            self._native_step.expect((new_value,), index)
            versions[name] = version

    def _follow_rate(self, optimizer: Any, rate: object) -> None:
        """Set `_rates` to {compute dtype: `RatesAhead`}, which computes the rates of coming steps.

        Set `_rates` to {} if the rate is constant, or if a step calls users' functions.
        """
        self._rates = {}
        # Nadam's `decay` is that of its momentum.
        decays = optimizer._initial_decay > 0 and not self._extras
        if not self._has_cached_scalars or self._functions or rate is None:
            return
        if isinstance(rate, FormulaSchedule) or decays:
            self._rates = {
                dtype: RatesAhead(partial(optimizer._rate_at, dtype)) for dtype in self._dtypes
            }

    @staticmethod
    def of(optimizer: Any, cache: PlanCache, pairs: Any) -> KerasReplay | None:
        """Return a replay of the cached last step, or None if it cannot be replayed."""
        plan, hooks = cache.last, optimizer._make_hooks(True)
        hooks.calls = hooks.calls and _may_call_users(optimizer)
        if (
            plan is None
            or not is_repeatable(plan, hooks, optimizer._clipping.stages)
            or not (hooks.repeats and type(hooks) is KerasRuleStepAdapter)
            or not _is_plain(optimizer)
        ):
            return None
        values = optimizer._hyper._values
        extras = _get_extras(optimizer)
        if not all(_is_replaced_in_call(tensor, plan) for tensor in extras.values()):
            return None
        counters = [optimizer.iterations, *extras.values()]
        guarded = [*counters, *filter(_is_tensor, values.values())]
        # Inference tensors have no versions.
        if any(tensor.is_inference() for tensor in guarded):
            return None
        varying = None if _is_tensor(values.get(_RATE)) else _RATE
        checked_dicts: list[Any] = [(values, varying)]
        guards_attributes = cache.has_constant_attributes
        if guards_attributes:
            # `_plans` holds this replay, so it is exempt from the comparison.
            checked_dicts.append((vars(optimizer), "_plans"))
        pairs_args = (plan, pairs, counters, guarded, checked_dicts)
        replayed_pairs = ReplayedPairs.of(
            *pairs_args, optimizer._clipping, carried_scalars=list(extras)
        )
        if replayed_pairs is None:
            return None
        return KerasReplay(optimizer, plan, replayed_pairs, guards_attributes)

    def _has_equal_attributes(self, optimizer: Any) -> bool:
        """Return True if attributes that affect the step are the same objects as before."""
        return (
            optimizer._selection() == self._selection
            and tuple(vars(optimizer)) == self._names
            and all(map(is_, _get_extras(optimizer).values(), self._extras.values()))
            and all(map(is_, self._get_attributes(optimizer), self._attribute_values))
        )

    def _take(self, optimizer: Any, cache: PlanCache, pairs: object) -> bool:
        """Take the step by the replay; return True if it was taken.

        Return False if the replay does not fit the step; the caller then takes the step with all
        checks. Also remove the replay from `cache` if later steps cannot use it.
        """
        if type(pairs) is not list:
            return False
        if self._is_foreseen and not self._functions and self._has_unchanged_rate(optimizer):
            mismatch = self._take_coming(optimizer, pairs, optimizer._clipping)
            if not mismatch:
                return True
            if mismatch not in (replay_block.NOT_TABLED, replay_block.FOREIGN_WRITE):
                self._drop(optimizer, cache, mismatch)
                return False
        if (
            optimizer._choose_rule() is not self._rule
            or optimizer._slots.parts is not None
            or optimizer._transformers
        ):
            return False
        if not self._read_rate(optimizer):
            return False
        if self._functions:
            mismatch = self._retry_after_reading(optimizer, pairs, self._compare)
            if not mismatch:
                self._call_functions(optimizer)
                if not self._fits(optimizer, cache) or optimizer._choose_rule() is not self._rule:
                    return False
                mismatch = self._retry_after_reading(optimizer, pairs, self._take_as_known)
        else:
            mismatch = self._take_as_known(optimizer, pairs)
            if mismatch == replay_block.FOREIGN_WRITE:
                mismatch = self._retry_after_reading(optimizer, pairs, self._take_as_known)
        if mismatch:
            self._drop(optimizer, cache, mismatch)
        return not mismatch

    def _read_rate(self, optimizer: Any) -> bool:
        """Read the learning rate again if it has changed.

        Return False if only a step without replay can use the new rate, else True.
        """
        rate = self._rate_tensor
        if rate is None:
            other_rate = self._values.get(_RATE)
            if other_rate is not self._last_rate or not self._schedule.is_same():
                if not (is_number(other_rate) or isinstance(other_rate, FormulaSchedule)):
                    return False
                self._read(optimizer)
                # New fields of the schedule may make it a function to call.
                return not self._functions or optimizer._hyper.is_begun
        elif rate._version != self._versions[_RATE]:
            self._read_written(optimizer)
        return True

    def _has_unchanged_rate(self, optimizer: Any) -> bool:
        """Return True if the learning rate is unchanged since the last read.

        Return False for sharded slots, and for an optimizer with gradient transformers.
        """
        rate = self._values.get(_RATE)
        return (
            rate is self._last_rate
            and (self._rate_tensor is None or rate._version == self._versions[_RATE])
            and self._schedule.is_same()
            and optimizer._slots.parts is None
            and not optimizer._transformers
        )

    def _coming_steps(self, optimizer: Any, first: int) -> Iterator[ComingStep]:
        """Yield, without end, a `ComingStep` for each step after `first` replayed steps."""
        scalars = self._scalars
        for step in count(self._start_iteration + first + 1):
            if self._rates:
                scalars = {
                    dtype: {**dtype_scalars, _RATE: self._rates[dtype].alone(step - 1)}
                    for dtype, dtype_scalars in self._scalars.items()
                }
            yield ComingStep(scalars, step, self._following(step))

    def _following(self, step: int) -> tuple[float, ...]:
        """Return the counters after a step: its number, and 0.0 for each extra scalar weight.

        The native call computes the extra weights and ignores these zeros.
        """
        return (step, *(0.0 for _ in self._extras))

    def _retry_after_reading(
        self, optimizer: Any, pairs: Any, attempt: Callable[[Any, Any], int]
    ) -> int:
        """Call `attempt(optimizer, pairs)`; return the last result: 0, or the code of a mismatch.

        If other code wrote scalars, read the scalars and call `attempt` again, at most two times.
        """
        mismatch = attempt(optimizer, pairs)
        # First read only scalars with new versions, then all of them.
        for read in (self._read_written, self._read):
            if mismatch == replay_block.FOREIGN_WRITE:
                read(optimizer)
                mismatch = attempt(optimizer, pairs)
        return mismatch

    def _compare(self, optimizer: Any, pairs: Any) -> int:
        """Return 0 if the step would repeat the last step, else the code of a mismatch."""
        return self._native_step.compare(pairs, self._count.value)

    def _call_functions(self, optimizer: Any) -> None:
        """Call users' functions for this step, and store the results in `_user_scalars`."""
        with note_not_applied([]):
            if self._functions == [_RATE]:
                self._user_scalars = {
                    dtype: {_RATE: optimizer._rate(dtype)} for dtype in self._dtypes
                }
            else:
                self._user_scalars = {
                    dtype: optimizer._hyper_scalars(dtype) for dtype in self._dtypes
                }

    def _take_as_known(self, optimizer: Any, pairs: Any) -> int:
        """Take the step with the stored scalars; return 0, or the code of a mismatch."""
        count_before = self._count.value
        step = self._start_iteration + count_before + 1
        guarded_step = step if self._is_standard else None
        try:
            values_of = self._values_of(optimizer, step - 1)
            return self._native_step.take(
                pairs,
                count_before,
                values_of,
                guarded_step,
                self._following(step),
                optimizer._clipping,
            )
        except ERRORS:
            # A signal handler raised the error after the step.
            if self.taken != count_before:
                raise
            # The full step raises the error.
            return FAILED

    def _values_of(self, optimizer: Any, count: int) -> Callable[[Dtype], dict[str, Any]]:
        """Return a function: `function(compute dtype)` returns {hyperparameter: scalar} of a step.

        `count` is the number of steps before this step.
        """
        if not self._has_cached_scalars:
            return optimizer._hyper_scalars if self._is_standard else optimizer._rule_scalars
        if self._rates or self._functions:
            change = self._native_step.change
            for dtype, scalars in self._scalars.items():
                if self._rates:
                    change(dtype, scalars, _RATE, self._rates[dtype].at(count))
                else:
                    for name, value in self._user_scalars[dtype].items():
                        change(dtype, scalars, name, value)
        return self._scalars.__getitem__


def _is_tensor(value: object) -> bool:
    """Return True for tensors."""
    return isinstance(value, Tensor)


def _list_user_functions(optimizer: Any) -> list[str]:
    """Return the names of hyperparameters that are callables other than formula schedules."""
    return [
        name
        for name, hyper in optimizer._hyper.items()
        if is_function(hyper) and not _is_formula(hyper)
    ]


def _is_formula(function: Any) -> bool:
    """Return True for schedules that depend on the step number and their fields only."""
    return (
        isinstance(function, FormulaSchedule)
        and is_ours(function)
        # Schedules that draw random numbers have a state.
        and not hasattr(function, "load_state_dict")
        and _Schedule(function).is_plain()
    )


class _Schedule:
    """Snapshot of the fields of a schedule; empty for a learning rate that is not a schedule.

    Args:
        rate: The learning rate as the optimizer stores it.
    """

    def __init__(self, rate: object) -> None:
        self._current_fields = vars(rate) if isinstance(rate, FormulaSchedule) else {}
        self._fields = [*self._current_fields.values()]
        # Lists are copied, as other code may change them in place.
        self._lists = [
            (field, [*field]) for field in self._fields if isinstance(field, list | tuple)
        ]

    def is_plain(self) -> bool:
        """Return True if all fields are scalars, strings or lists of them, as `is_same` assumes."""
        items = [entry for _, sequence in self._lists for entry in sequence]
        fields = [field for field in self._fields if not isinstance(field, list | tuple)]
        return all(isinstance(field, _FIELDS) for field in (*items, *fields))

    def is_same(self) -> bool:
        """Return True if no field was set and no list changed since the snapshot."""
        fields = self._current_fields
        return (
            len(fields) == len(self._fields)
            and all(map(is_, fields.values(), self._fields))
            and (not self._lists or all(_are_same(entries, old) for entries, old in self._lists))
        )


def _are_same(new_items: Collection[object], old_items: Collection[object]) -> bool:
    """Return True if two collections contain the same objects in the same order."""
    return len(new_items) == len(old_items) and all(map(is_, new_items, old_items))


_FIELDS = (int, float, str, np.generic, type(None))


def _get_extras(optimizer: Any) -> dict[str, Tensor]:
    """Return the scalar weights beside `iterations` that a step writes, by name."""
    return {name: resolve(weight) for name, weight in optimizer._extra_weights().items()}


def _is_replaced_in_call(counter: Tensor, plan: CachedPlan) -> bool:
    """Return True if the call can replace a number: a step of its dtype's variables does.

    No program rounds what it loads, so those of float32 cannot read a float64.
    """
    dtypes = {var.dtype for var in plan.request.variables}
    is_exact = counter.dtype == torch.float32 or np.float32 not in plan.ready.dtypes
    return is_exact and counter.dtype in dtypes


def _may_call_users(optimizer: Any) -> bool:
    """Return True if a step calls users' functions outside of `_call_functions`."""
    return optimizer._is_begun_by_users() or (
        bool(_list_user_functions(optimizer)) and not optimizer._has_usual_scalars()
    )


def _is_plain(optimizer: Any) -> bool:
    """Return True if a step only applies a rule and counts, without hooks or sharded slots."""
    count = optimizer.iterations
    return (
        is_ours(optimizer._counting_calls)
        and "_transform_gradients" not in optimizer._overridden_hooks()
        and optimizer._slots.parts is None
        and type(count) is Variable
        and count.dtype == torch.int64
        and all(isinstance(getattr(optimizer, name), _EXACT) for name in optimizer._exact_names())
        and not has_own_methods(optimizer)
    )
