"""Replays: one native call repeats the last step of a v1 optimizer, if its *guards* (checks) hold.

A replay has new gradients; see `_core/replay_apply.py`. A guard is a condition that the call checks
before it writes, such as unmoved memory. *Counters* are variables that each step raises by 1
or multiplies: `global_step` and variables such as `beta1_power`. The counters' values are
computed from the previous step. A guard checks that no other code wrote to the counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import is_, itemgetter
from typing import Any

import numpy as np
from torch import Tensor

from thalweg._base.device_counters import Move, number_of
from thalweg._base.execution_context import current_session, is_ours
from thalweg._base.scalars import product, scalar_type
from thalweg._core.commit import note_not_applied
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.hyperparameters import as_hyper
from thalweg._core.plan_cache import CachedPlan, PlanCache
from thalweg._core.replay import ERRORS, is_repeatable, replay_block
from thalweg._core.replay_apply import FAILED, ReplayedApply, has_own_methods
from thalweg._core.replay_pairs import ComingStep, ReplayedPairs, can_read
from thalweg._core.step_adapter import Dtype
from thalweg.v1.train.callable_rate import follows_count
from thalweg.v1.train.step_adapter import V1RuleStepAdapter

# Types of hyperparameters whose object must be the last step's, and of those read at each step.
_FIXED = (float, int, np.generic, type(None))
_MOVING = (Tensor, np.ndarray)
# Types of results of functions.
_SCALARS = (float, int, np.generic)
# Stands for the result of a function that is not called. Compared by identity: unlike a literal,
# `float()` returns an object that no other code has.
_UNKNOWN = float("0")


class V1Replay(ReplayedApply):
    """Replay of the last step of a v1 optimizer.

    Args:
        optimizer: The optimizer.
        plan: The plan of the last step.
        replayed: The recorded step of the engine.
        step_args: (pairs, global step, hyperparameters read by a session or None, transforms).

    Attributes:
        read: Results of users' functions for a step that was then not taken; otherwise None.
    """

    read: dict[str, Any] | None = None

    def __init__(
        self,
        optimizer: Any,
        plan: CachedPlan,
        replayed: ReplayedPairs,
        step_args: tuple[Any, Any, Any, Any],
    ) -> None:
        super().__init__(optimizer, plan, replayed, True)
        _, self._global_step, values, transforms = step_args
        self._stages = transforms.stages
        self._variables = plan.request.variables
        self._overrides_rule = not is_ours(type(optimizer)._rule_of_step) or not is_ours(
            type(optimizer)._choose_rule
        )
        functions = [] if values is not None else optimizer._functions()
        # Users' functions may have side effects, so each step calls them exactly once.
        self._functions = [hyper for hyper in functions if not follows_count(hyper)]
        overrides_hooks = any(map(optimizer._has_own_hook, ("_read_values", "_evaluate_hypers")))
        self._reads = values is None and (bool(functions) or overrides_hooks)
        self._decays = self._select_decays(optimizer, functions)
        self._values = values = _values_without_calls(optimizer) if values is None else values
        self._moving = [name for name, hyper in values.items() if _is_moving(hyper)]
        self._fixed = [name for name in values if name not in self._moving]
        self._set_counters(_list_moves(optimizer, values, self._global_step))
        self._recomputes_factors = not (
            is_ours(type(optimizer)._counting_moves)
            and set(self._moving).isdisjoint(optimizer.POWERS.values())
        )
        self._read_counters()
        self._is_simple = not optimizer._has_own_hook("_hyper_scalars")
        self._scalars = self._read_scalars(optimizer, plan)
        self._powers = tuple(optimizer.POWERS)
        # True if the scalars of coming steps follow from the counters alone.
        self._is_foreseen = (
            bool(self._scalars)
            and not self._recomputes_factors
            and set(self._moving) == {*self._decays, *replayed.read}
            and (self._is_simple or not self._moving)
            and (bool(self._decays) or not self._reads)
        )

    is_due = False

    def _set_counters(self, moves: Sequence[tuple[Tensor, Any]]) -> None:
        """Set the counters, the factors and the types of counts from (counter, factor) pairs."""
        self._counters = [counter for counter, _ in moves]
        self._factors = [factor for _, factor in moves]
        self._kinds = [
            scalar_type(counter) if counter.is_floating_point() else int
            for counter in self._counters
        ]

    def _read_scalars(self, optimizer: Any, plan: CachedPlan) -> dict[Dtype, dict[str, Any]]:
        """Return the scalars of a step by compute dtype; {} if a subclass computes others."""
        all_scalars: dict[Dtype, dict[str, Any]] = {}
        is_standard = self._is_simple or is_ours(type(optimizer)._hyper_scalars)
        if is_standard and not optimizer._has_own_hook("_scalars_of"):
            for dtype in plan.ready.dtypes:
                scalars = optimizer._hyper_scalars(self._values, dtype, None)
                all_scalars[dtype] = {**scalars, **dict.fromkeys(optimizer.POWERS, dtype(0))}
        return all_scalars

    def _select_decays(self, optimizer: Any, functions: Sequence[object]) -> dict[str, Any]:
        """Return {name: rate} of `CallableRate`s that depend on `global_step` alone.

        `functions` are all callable hyperparameters. Return {} if a function is not such a rate,
        or if a subclass's hook computes hyperparameters.
        """
        hooks = map(optimizer._has_own_hook, ("_read_values", "_evaluate_hypers"))
        if self._functions or any(hooks):
            return {}
        hypers = {
            name: getattr(optimizer, attribute) for name, attribute in optimizer.HYPERS.items()
        }
        decays = {name: hyper for name, hyper in hypers.items() if follows_count(hyper)}
        follow_global_step = all(hyper.is_over(self._global_step) for hyper in decays.values())
        return decays if functions and follow_global_step else {}

    def _read_counters(self, may_have_changed: bool = True) -> list[Any]:
        """Read, cache and return the values of all counters, in the order of `self._counters`.

        The guards then expect these values. With `may_have_changed`, drop precomputed scalars of
        later steps, because other code may have written the counters.
        """
        steps, counts = -1, []
        # Repeat if a signal handler took a step meanwhile: numbers and count belong together.
        while steps != self.taken:
            steps, counts = self.taken, list(map(number_of, self._counters))
        # Stored at once, because an interruption may follow.
        self._counted_values = steps, counts
        if may_have_changed:
            self._forget_coming()
        # Last: a step that a signal handler takes before this fails the guard.
        self._native_step.expect(counts)
        return counts

    @staticmethod
    def of(optimizer: Any, cache: PlanCache, step_args: Any) -> V1Replay | None:
        """Return a new replay of the cached last step, or None if it cannot be replayed."""
        plan, (pairs, global_step, values, transforms) = cache.last, step_args
        values = _values_without_calls(optimizer) if values is None else values
        hooks = optimizer._make_hooks(global_step, "", values)
        hooks.calls = hooks.calls and optimizer._is_begun_by_users()
        if (
            plan is None
            or not (is_repeatable(plan, hooks, transforms.stages) and hooks.repeats)
            or type(hooks) is not V1RuleStepAdapter
            or not all(isinstance(hyper, _FIXED + _MOVING) for hyper in hooks.values.values())
            or hooks.group_variables(plan.request.variables, []) is not None
            or not _is_plain(optimizer)
        ):
            return None
        counters = [counter for counter, _ in _list_moves(optimizer, hooks.values, global_step)]
        session = current_session()
        tables = [optimizer._non_slots, *(() if session is None else session.kept_in())]
        # The plans hold this step, and have to go with the optimizer.
        guards = [(vars(optimizer), "_plans"), *((table, None) for table in tables)]
        read = hooks.values if current_session() is None else {}
        read = {name: hyper for name, hyper in read.items() if can_read(hyper)}
        replayed = ReplayedPairs.of(plan, pairs, counters, counters, guards, transforms, read)
        return None if replayed is None else V1Replay(optimizer, plan, replayed, step_args)

    def is_over(self, pairs: list[Any]) -> bool:
        """Return True if there are as many pairs as this step has variables."""
        return len(pairs) == len(self._variables)

    def _is_over_pairs(self, pairs: list[Any]) -> bool:
        """Return True if `pairs` are (any object, variable) tuples of this step's variables."""
        if not self.is_over(pairs) or set(map(type, pairs)) != {tuple}:
            return False
        return min(map(len, pairs)) == 2 and all(
            map(is_, map(itemgetter(1), pairs), self._variables)
        )

    def _take(self, optimizer: Any, cache: PlanCache, step_args: Any) -> bool:
        """Take the step if all guards hold; return True if the step was taken.

        If the step is not taken, but users' functions were called, set `self.read` to the results.

        Args:
            cache: The plan cache; `cache.replay` is set to None if the replay is not usable again.
            step_args: (pairs, global step, hyperparameter values, or None if unread, transforms).
        """
        pairs, global_step, values, transforms = step_args
        self.read = None
        if (
            type(pairs) is not list
            or global_step is not self._global_step
            or transforms.stages != self._stages
            or (self._overrides_rule and optimizer._rule_of_step() is not self._rule)
        ):
            return False
        is_as_read = values is None or not (self._native_step.read or not self._are_alike(values))
        if self._is_foreseen and is_as_read:
            status = self._retry(self._take_coming, optimizer, pairs, transforms)
            # These two mean that this step's scalars must be computed now, as below.
            if status not in (replay_block.NOT_TABLED, replay_block.DENORMAL):
                return self._is_done(cache, pairs, status)
        if values is None:
            values = self._values
            if self._reads:
                # The guards are checked before users' functions are called, too.
                if self._functions and (status := self._retry(self._compare, pairs)):
                    return self._is_done(cache, pairs, status)
                values = self._read_values(optimizer)
        status = FAILED
        if values is not None and self._are_alike(values):
            status = self._retry(self._take_as_known, optimizer, pairs, values, transforms)
        # The full step uses these values, since functions are called once per step.
        if status and self._functions:
            self.read = values
        return self._is_done(cache, pairs, status)

    def _is_done(self, cache: PlanCache, pairs: list[Any], status: int) -> bool:
        """Return True if `status` is 0: the step was taken.

        Removes the replay from `cache` if the next step has to be planned.
        """
        is_stale = status not in (0, FAILED, replay_block.FOREIGN_WRITE, replay_block.TRACING)
        if self.read is not None or (is_stale and self._is_over_pairs(pairs)):
            cache.replay = None
        return not status

    def _coming_steps(self, optimizer: Any, first: int) -> Iterator[ComingStep]:
        """Yield, without end, a `ComingStep` for each step after `first` replayed steps.

        A `ComingStep` has a step's scalars, and the counters after the step. Yield nothing if a
        signal handler has just taken the first of these steps.
        """
        if self._counted_values[0] != first:
            self._read_counters(may_have_changed=False)
        counted_step, counts = self._counted_values
        # A signal handler took this step meanwhile.
        if counted_step != first:
            return
        while True:
            scalars = {dtype: self._scalars_at(dtype, counts) for dtype in self._scalars}
            counts = list(map(_compute_next_count, self._kinds, counts, self._factors))
            first += 1
            self._counted_values = first, counts
            yield ComingStep(scalars, 1, counts)

    def _scalars_at(self, dtype: Dtype, counts: Sequence[Any]) -> dict[str, Any]:
        """Return the scalars of the step that begins with these values of the counters."""
        rates = {name: as_hyper(rate.at(counts[-1]), dtype) for name, rate in self._decays.items()}
        powers = {name: dtype(count) for name, count in zip(self._powers, counts, strict=False)}
        return {**self._scalars[dtype], **rates, **powers}

    def _compare(self, pairs: list[object]) -> int:
        """Return the status of the guards for these pairs; 0 if all hold. Take no step."""
        return self._native_step.compare(pairs, self.taken)

    def _retry(self, attempt: Callable[..., int], *args: Any) -> int:
        """Return `attempt(*args)`: 0 for success, or the code of the failed guard.

        If the guard of the counters fails, read the counters and call `attempt` once more.
        """
        status = attempt(*args)
        if status == replay_block.FOREIGN_WRITE:
            self._read_counters()
            status = attempt(*args)
        return status

    def _read_values(self, optimizer: Any) -> dict[str, Any] | None:
        """Return {name: value} of the hyperparameters of this step.

        If a hyperparameter is a function, raise errors, because a step calls a function only once.
        Without functions, return None on an error; the full step then raises the error.
        """
        if self._functions:
            with note_not_applied([]):
                return optimizer._read_values()
        try:
            return optimizer._read_values()
        except ERRORS:
            return None

    def _are_alike(self, values: dict[str, Any]) -> bool:
        """Return True if the replay can take a step with these hyperparameters.

        A tensor, an array or a function's result may have a new value. The shape must be (), and an
        array must not be NaN. All other values must be the objects of the last step.
        """
        for name in self._moving:
            hyper = values.get(name)
            if isinstance(hyper, _SCALARS):
                continue
            if not isinstance(hyper, _MOVING) or hyper.ndim:
                return False
            # The full step raises an error for NaN.
            if isinstance(hyper, np.ndarray) and np.isnan(hyper):
                return False
        if values is self._values:
            return True
        previous_values, fixed = self._values, self._fixed
        return len(values) == len(previous_values) and all(
            map(is_, map(values.get, fixed), map(previous_values.get, fixed))
        )

    def _take_as_known(
        self,
        optimizer: object,
        pairs: list[object],
        values: dict[str, object],
        transforms: GradientTransforms,
    ) -> int:
        """Take the step with the cached values of the counters; return 0 for success.

        Return the code of a failed guard, or FAILED after an error.
        """
        first, factors = self.taken, self._factors
        counted_step, counts = self._counted_values
        try:
            if counted_step != first:
                counts = self._read_counters()
            if self._recomputes_factors:
                factors = [
                    factor for _, factor in _list_moves(optimizer, values, self._global_step)
                ]
            new_counts = list(map(_compute_next_count, self._kinds, counts, factors))
            values_of = self._values_of(optimizer, values, counts)
            status = self._native_step.take(pairs, first, values_of, 1, new_counts, transforms)
        except ERRORS:
            # A signal handler raised it after the step.
            if self.taken != first:
                raise
            # The full step raises the error again.
            return FAILED
        if not status:
            self._counted_values = first + 1, new_counts
        return status

    def _values_of(
        self, optimizer: Any, values: dict[str, Any], counts: list[Any]
    ) -> Callable[[Dtype], dict[str, Any]]:
        """Return a function: `scalars_of(dtype)` returns {name: scalar} of this step.

        `counts` are the values of the counters before the step.
        """
        if not self._scalars:
            return lambda dtype: optimizer._scalars_of(values, dtype, None)
        powers = list(zip(optimizer.POWERS, counts, strict=False))
        if self._moving and not self._is_simple:

            def scalars_of(dtype: Dtype) -> dict[str, Any]:
                power_scalars = {name: dtype(counter_value) for name, counter_value in powers}
                return {**optimizer._hyper_scalars(values, dtype, None), **power_scalars}

            return scalars_of
        change = self._native_step.change
        for dtype, scalars in self._scalars.items():
            for name in self._moving:
                change(dtype, scalars, name, as_hyper(values[name], dtype))
            for name, counter_value in powers:
                change(dtype, scalars, name, dtype(counter_value))
        return self._scalars.__getitem__


def _values_without_calls(optimizer: Any) -> dict[str, Any]:
    """Return {name: value} of the hyperparameters; `_UNKNOWN` replaces results of callables."""
    functions = set(map(id, optimizer._functions()))
    if not functions:
        return optimizer._read_values()
    # On a twin, whose attributes hold no functions: each step calls users' functions only once.
    twin = object.__new__(type(optimizer))
    for name, attribute in vars(optimizer).items():
        vars(twin)[name] = _UNKNOWN if id(attribute) in functions else attribute
    return twin._read_values()


def _is_moving(hyper: object) -> bool:
    return hyper is _UNKNOWN or isinstance(hyper, _MOVING)


def _list_moves(optimizer: Any, values: dict[str, Any], global_step: Any) -> list[Move]:
    moves = [*optimizer._counting_moves(values)]
    return moves if global_step is None else [*moves, (global_step, None)]


def _compute_next_count(kind: Any, count: Any, factor: Any) -> Any:
    """Return `count` times `factor`, or `count` plus 1 if `factor` is None, as a Python number.

    Args:
        kind: int, or the counter's NumPy type; the result is rounded to this type.
    """
    if factor is not None:
        return product(kind(count), factor).item()
    # In the counter's own dtype: float32 cannot count beyond 2**24.
    return count + 1 if kind is int else (kind(count) + kind(1)).item()


def _is_plain(optimizer: Any) -> bool:
    """Return True if a step only runs the rule and counts, without overridden methods."""
    return (
        not optimizer._finishes_itself()
        and not optimizer._has_symbols
        and optimizer._slots.parts is None
        and not has_own_methods(optimizer)
        and set(optimizer.HYPERS.values()) <= vars(optimizer).keys()
    )
