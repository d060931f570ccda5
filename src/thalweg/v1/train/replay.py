"""A step of `apply_gradients` in one call; see `_core/replay_apply.py`.

Hyperparameters that lie in tensors are read at each step. What it counts is known from the step
before, which the look confirms, or is read again.
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
from thalweg._core.replay import ERRORS, is_repeatable, replay_kernel
from thalweg._core.replay_apply import FAILED, ReplayedApply, has_own_methods
from thalweg._core.replay_pairs import ComingStep, ReplayedPairs, can_read
from thalweg._core.step_adapter import Dtype
from thalweg.v1.train.callable_rate import follows_count
from thalweg.v1.train.step_adapter import V1RuleStepAdapter

_FIXED = (float, int, np.generic, type(None))
_MOVING = (Tensor, np.ndarray)
_NUMBERS = (float, int, np.generic)  # which functions return
_UNKNOWN = float("0")  # in place of what a function would return


class V1Replay(ReplayedApply):
    """A step that may be taken again.

    Args:
        optimizer, planned, found: As those of `ReplayedApply`.
        step: Gradients and variables, what is raised by 1, in a session what was read for the step,
            and what happened to the gradients.

    Attributes:
        read: Results of users' functions for a step that was not taken after they were called, or
            None.
    """

    read: dict[str, Any] | None = None

    def __init__(
        self,
        optimizer: Any,
        planned: CachedPlan,
        found: ReplayedPairs,
        step: tuple[Any, Any, Any, Any],
    ) -> None:
        super().__init__(optimizer, planned, found, True)
        _, self._global_step, values, how = step
        self._stages = how.stages
        self._variables = planned.request.variables
        self._has_own_rule = not is_ours(type(optimizer)._rule_of_step) or not is_ours(
            type(optimizer)._choose_rule
        )
        functions = [] if values is not None else optimizer._functions()
        # Those that may do anything, or something else if they are called twice.
        self._functions = [each for each in functions if not follows_count(each)]
        self._reads = values is None and (
            bool(functions)
            or any(map(optimizer._has_own_hook, ("_read_values", "_evaluate_hypers")))
        )
        self._decays = self._counted_decays(optimizer, functions)
        self._values = values = _values_without_calls(optimizer) if values is None else values
        self._moving = [name for name, each in values.items() if _is_moving(each)]
        self._fixed = [name for name in values if name not in self._moving]
        moves = _moves(optimizer, values, self._global_step)
        self._counters = [counter for counter, _ in moves]
        self._factors = [factor for _, factor in moves]
        self._kinds = [
            scalar_type(each) if each.is_floating_point() else int for each in self._counters
        ]
        self._counts_anew = not (
            is_ours(type(optimizer)._counting_moves)
            and set(self._moving).isdisjoint(optimizer.POWERS.values())
        )
        self._read_counters()
        self._is_simple = not optimizer._has_own_hook("_hyper_scalars")
        self._scalars: dict[Dtype, dict[str, Any]] = {}
        reads_alone = self._is_simple or is_ours(type(optimizer)._hyper_scalars)
        self._powers = tuple(optimizer.POWERS)
        if reads_alone and not optimizer._has_own_hook("_scalars_of"):
            for each in planned.ready.dtypes:
                own = optimizer._hyper_scalars(values, each, None)
                self._scalars[each] = {**own, **dict.fromkeys(optimizer.POWERS, each(0))}
        # The scalars of all steps follow from the counts that those before have left.
        self._is_foreseen = (
            bool(self._scalars)
            and not self._counts_anew
            and set(self._moving) == {*self._decays, *found.read}
            and (self._is_simple or not self._moving)
            and (bool(self._decays) or not self._reads)
        )

    is_due = False

    def _counted_decays(self, optimizer: Any, functions: Sequence[object]) -> dict[str, Any]:
        """Return the decays over the step that is counted, by name; {} if anything else is read."""
        hooks = map(optimizer._has_own_hook, ("_read_values", "_evaluate_hypers"))
        if self._functions or any(hooks):
            return {}
        given = {name: getattr(optimizer, each) for name, each in optimizer.HYPERS.items()}
        decays = {name: each for name, each in given.items() if follows_count(each)}
        is_counted = all(each.is_over(self._global_step) for each in decays.values())
        return decays if functions and is_counted else {}

    def _read_counters(self, are_others: bool = True) -> list[Any]:
        """Return the values of the counters, which the look then expects, and keep them.

        Args:
            are_others: Whether others may have written to them since they were read.
        """
        steps, numbers = -1, []
        # Again if a signal's function took a step meanwhile: numbers and count belong together.
        while steps != self.taken:
            steps, numbers = self.taken, list(map(number_of, self._counters))
        self._known = steps, numbers  # an interruption may come before the next ones are kept
        if are_others:
            self._forget_coming()
        # Last: a step that a signal's function takes before finds the numbers unexpected.
        self._found.expect(numbers)
        return numbers

    @staticmethod
    def of(optimizer: Any, kept: PlanCache, step: Any) -> V1Replay | None:
        """Return the step that was repeated last, if everything stands and it could be taken so."""
        planned, (given, global_step, values, how) = kept.last, step
        values = _values_without_calls(optimizer) if values is None else values
        hooks = optimizer._make_hooks(global_step, "", values)
        hooks.calls = hooks.calls and optimizer._is_begun_by_users()
        if (
            planned is None
            or not (is_repeatable(planned, hooks, how.stages) and hooks.repeats)
            or type(hooks) is not V1RuleStepAdapter
            or not all(isinstance(each, _FIXED + _MOVING) for each in hooks.values.values())
            or hooks.group_variables(planned.request.variables, []) is not None
            or not _is_plain(optimizer)
        ):
            return None
        counters = [counter for counter, _ in _moves(optimizer, hooks.values, global_step)]
        session = current_session()
        kept_in = [optimizer._non_slots, *(() if session is None else session.kept_in())]
        # The plans hold this step, and have to go with the optimizer.
        looked_at = [(vars(optimizer), "_plans"), *((own, None) for own in kept_in)]
        read = hooks.values if current_session() is None else {}
        read = {name: each for name, each in read.items() if can_read(each)}
        found = ReplayedPairs.of(planned, given, counters, counters, looked_at, how, read)
        return None if found is None else V1Replay(optimizer, planned, found, step)

    def is_over(self, pairs: list[Any]) -> bool:
        """Return whether the number of pairs is that of this step."""
        return len(pairs) == len(self._variables)

    def _is_over_pairs(self, pairs: list[Any]) -> bool:
        """Return whether these are pairs of something and the variables of this step."""
        if not self.is_over(pairs) or set(map(type, pairs)) != {tuple}:
            return False
        return min(map(len, pairs)) == 2 and all(
            map(is_, map(itemgetter(1), pairs), self._variables)
        )

    def _take(self, optimizer: Any, kept: PlanCache, given: Any) -> bool:
        pairs, global_step, values, how = given
        self.read = None
        if (
            type(pairs) is not list
            or global_step is not self._global_step
            or how.stages != self._stages
            or (self._has_own_rule and optimizer._rule_of_step() is not self._rule)
        ):
            return False
        is_as_read = values is None or not (self._found.read or not self._are_alike(values))
        if self._is_foreseen and is_as_read:
            other = self._take_coming(optimizer, pairs, how)
            if other == replay_kernel.WRITTEN_BY_OTHERS:
                self._read_counters()
                other = self._take_coming(optimizer, pairs, how)
            if other not in (replay_kernel.NOT_TABLED, replay_kernel.DENORMAL):
                return self._is_done(kept, pairs, other)
        if values is None:
            values = self._values
            if self._reads:
                if self._functions and (other := self._compare(pairs)):
                    return self._is_done(kept, pairs, other)
                values = self._read_values(optimizer)
        other = FAILED
        if values is not None and self._are_alike(values):
            other = self._take_as_known(optimizer, pairs, values, how)
            if other == replay_kernel.WRITTEN_BY_OTHERS:
                self._read_counters()
                other = self._take_as_known(optimizer, pairs, values, how)
        if other and self._functions:  # the careful step takes what was read
            self.read = values
        return self._is_done(kept, pairs, other)

    def _is_done(self, kept: PlanCache, pairs: list[Any], other: int) -> bool:
        """Return whether the step was taken; forget it if it is to be planned anew."""
        is_other = other not in (0, FAILED, replay_kernel.WRITTEN_BY_OTHERS, replay_kernel.TRACED)
        if self.read is not None or (is_other and self._is_over_pairs(pairs)):
            kept.replay = None
        return not other

    def _coming_steps(self, optimizer: Any, first: int) -> Iterator[ComingStep]:
        if self._known[0] != first:
            self._read_counters(are_others=False)
        known_at, known = self._known
        if known_at != first:  # a signal's function took this step meanwhile
            return
        while True:
            scalars = {dtype: self._scalars_at(dtype, known) for dtype in self._scalars}
            known = list(map(_following, self._kinds, known, self._factors))
            first += 1
            self._known = first, known
            yield ComingStep(scalars, 1, known)

    def _scalars_at(self, dtype: Dtype, known: Sequence[Any]) -> dict[str, Any]:
        """Return the scalars of a step that begins with these counts."""
        rates = {name: as_hyper(each.at(known[-1]), dtype) for name, each in self._decays.items()}
        powers = {name: dtype(each) for name, each in zip(self._powers, known, strict=False)}
        return {**self._scalars[dtype], **rates, **powers}

    def _compare(self, pairs: list[object]) -> int:
        """Return what is not as it was, before users' functions are called; 0 if nothing is."""
        other = self._found.compare(pairs, self.taken)
        if other == replay_kernel.WRITTEN_BY_OTHERS:
            self._read_counters()
            other = self._found.compare(pairs, self.taken)
        return other

    def _read_values(self, optimizer: Any) -> dict[str, Any] | None:
        """Return what a step reads; None where the careful way has to raise an error.

        Raises:
            Whatever users' functions raise; they are not called a second time.
        """
        if self._functions:
            with note_not_applied([]):
                return optimizer._read_values()
        try:
            return optimizer._read_values()
        except ERRORS:
            return None

    def _are_alike(self, values: dict[str, Any]) -> bool:
        """Return whether values differ from those of before in elements of tensors alone."""
        for name in self._moving:
            each = values.get(name)
            if isinstance(each, _NUMBERS):
                continue
            if not isinstance(each, _MOVING) or each.ndim:
                return False
            if isinstance(each, np.ndarray) and np.isnan(each):  # which the careful way refuses
                return False
        if values is self._values:
            return True
        own, fixed = self._values, self._fixed
        return len(values) == len(own) and all(
            map(is_, map(values.get, fixed), map(own.get, fixed))
        )

    def _take_as_known(
        self,
        optimizer: object,
        pairs: list[object],
        values: dict[str, object],
        how: GradientTransforms,
    ) -> int:
        """0 if the step was taken with counts that are known; else what is not as it was."""
        begun, factors = self.taken, self._factors
        begun_at, known = self._known
        try:
            if begun_at != begun:
                known = self._read_counters()
            if self._counts_anew:
                factors = [each for _, each in _moves(optimizer, values, self._global_step)]
            following = list(map(_following, self._kinds, known, factors))
            values_of = self._values_of(optimizer, values, known)
            other = self._found.take(pairs, begun, values_of, 1, following, how)
        except ERRORS:
            if self.taken != begun:  # a signal's function raised it after the step
                raise
            return FAILED  # the careful way says it
        if not other:
            self._known = begun + 1, following
        return other

    def _values_of(
        self, optimizer: Any, values: dict[str, Any], known: list[Any]
    ) -> Callable[[Dtype], dict[str, Any]]:
        """Return what gives, for a compute dtype, that of which its scalars are made."""
        if not self._scalars:
            return lambda dtype: optimizer._scalars_of(values, dtype, None)
        powers = list(zip(optimizer.POWERS, known, strict=False))
        if self._moving and not self._is_simple:

            def found_of(dtype: Dtype) -> dict[str, Any]:
                own = {name: dtype(number) for name, number in powers}
                return {**optimizer._hyper_scalars(values, dtype, None), **own}

            return found_of
        change = self._found.change
        for dtype, own in self._scalars.items():
            for name in self._moving:
                change(dtype, own, name, as_hyper(values[name], dtype))
            for name, number in powers:
                change(dtype, own, name, dtype(number))
        return self._scalars.__getitem__


def _values_without_calls(optimizer: Any) -> dict[str, Any]:
    """Return what a step reads, with `_UNKNOWN` for what functions would return."""
    functions = set(map(id, optimizer._functions()))
    if not functions:
        return optimizer._read_values()
    twin = object.__new__(type(optimizer))
    for name, each in vars(optimizer).items():
        vars(twin)[name] = _UNKNOWN if id(each) in functions else each
    return twin._read_values()


def _is_moving(value: object) -> bool:
    return value is _UNKNOWN or isinstance(value, _MOVING)


def _moves(optimizer: Any, values: dict[str, Any], global_step: Any) -> list[Move]:
    moves = [*optimizer._counting_moves(values)]
    return moves if global_step is None else [*moves, (global_step, None)]


def _following(kind: Any, known: Any, factor: Any) -> Any:
    """What a counter becomes; see `counting_calls` of the hooks."""
    if factor is not None:
        return product(kind(known), factor).item()
    # Of a float as it is stored: float32 counts no further than 2**24.
    return known + 1 if kind is int else (kind(known) + kind(1)).item()


def _is_plain(optimizer: Any) -> bool:
    """Return whether a step is the update of a rule, and counts."""
    return (
        not optimizer._finishes_itself()
        and not optimizer._has_symbols
        and optimizer._slots.parts is None
        and not has_own_methods(optimizer)
        and set(optimizer.HYPERS.values()) <= vars(optimizer).keys()
    )
