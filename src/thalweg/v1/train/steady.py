"""A step of `apply_gradients` in one call; see `core/repeated_pairs.py`.

Counters are read at each step, as always, and so are hyperparameters that are no plain numbers.
"""

from __future__ import annotations

from operator import is_
from typing import Any

from torch import Tensor

from thalweg.core.columns import derived
from thalweg.core.outcome import add_taken
from thalweg.core.plan_cache import PlanCache, Planned
from thalweg.core.repeated_pairs import ERRORS, RepeatedPairs, has_own_methods
from thalweg.core.steady import is_repeatable, is_traced, look
from thalweg.ground.counters import Move, number_of
from thalweg.ground.running import executing_eagerly, is_ours
from thalweg.ground.scalars import product, scalar_type
from thalweg.v1.train.hooks import RuleHooks


class SteadyApply:
    """A step that may be taken again.

    Args:
        optimizer: The optimizer.
        planned: Its last step.
        found: How that was found.
        counters: What it counts.
    """

    def __init__(
        self, optimizer: Any, planned: Planned, found: RepeatedPairs, counters: list[Tensor]
    ) -> None:
        self._planned, self._found, self._counters = planned, found, counters
        self._selection = optimizer._selection()
        self._class, self._names = type(optimizer), tuple(vars(optimizer))
        self._hypers = _hypers(optimizer)  # plain numbers need not be read again
        self._values = optimizer._read() if _has_numbers_alone(optimizer) else None

    @staticmethod
    def of(optimizer: Any, kept: PlanCache, step: Any) -> SteadyApply | None:
        """The step that was repeated last, if everything stands and it could be taken so."""
        planned, (given, global_step) = kept.last, step
        hooks = optimizer._hooks(global_step, "", None)
        if (
            planned is None
            or not (is_repeatable(planned, hooks) and hooks.repeats and type(hooks) is RuleHooks)
            or hooks.groups(planned.request.variables, []) is not None
            or not _is_plain(optimizer)
        ):
            return None
        counters = [counter for counter, _ in _moves(optimizer, hooks.values, global_step)]
        found = RepeatedPairs.of(planned, given, counters, counters)
        return None if found is None else SteadyApply(optimizer, planned, found, counters)

    @property
    def taken(self) -> int:
        """How many steps it has taken."""
        return self._found.taken

    def take(self, optimizer: Any, kept: PlanCache, step: Any) -> bool:
        """Take it, if everything is as it was.

        Returns:
            Whether it was taken; if not, nothing has changed.
        """
        before = self.taken
        try:
            return self._take(optimizer, kept, *step)
        except BaseException as error:
            if self.taken != before:
                add_taken(error)
            raise

    def _take(self, optimizer: Any, kept: PlanCache, given: Any, global_step: Any) -> bool:
        rule = self._planned.request.rule
        if (
            kept.last is not self._planned
            or is_traced()
            or not executing_eagerly()
            or optimizer._selection() != self._selection
            or optimizer._rule_of_step() is not rule
            or not all(map(is_, _hypers(optimizer), self._hypers))
            or tuple(vars(optimizer)) != self._names
            or type(optimizer) is not self._class
        ):
            return False
        begun = self.taken
        try:
            values = optimizer._read() if self._values is None else self._values
            moves = _moves(optimizer, values, global_step)
            counters = [counter for counter, _ in moves]
            if len(counters) != len(self._counters) or not all(map(is_, counters, self._counters)):
                return False
            known = list(map(number_of, counters))
            following = list(map(_following, moves, known))
            self._found.set(
                lambda dtype: derived(rule, optimizer._scalars(values, dtype, None), dtype, 1),
                known,
                following,
            )
        except ERRORS:  # the careful way says it
            return False
        other = self._found.snapshot.take(given, begun)
        if other and other != look.WRITTEN_BY_OTHERS:
            kept.quick = None
        return not other


def _moves(optimizer: Any, values: dict[str, Any], global_step: Any) -> list[Move]:
    moves = [*optimizer._counting_moves(values)]
    return moves if global_step is None else [*moves, (global_step, None)]


def _following(move: Move, known: Any) -> Any:
    """What a counter becomes; see `counting_calls` of the hooks."""
    counter, factor = move
    return known + 1 if factor is None else product(scalar_type(counter)(known), factor).item()


def _hypers(optimizer: Any) -> list[Any]:
    return [getattr(optimizer, attribute) for attribute in optimizer.HYPERS.values()]


def _has_numbers_alone(optimizer: Any) -> bool:
    """Whether hyperparameters are numbers of Python, which a subclass does not read by itself."""
    is_read_here = is_ours(optimizer._read) and is_ours(optimizer._evaluate_hypers)
    return is_read_here and all(type(each) in (float, int) for each in _hypers(optimizer))


def _is_plain(optimizer: Any) -> bool:
    """Whether a step is the update of a rule, and counts."""
    return (
        not optimizer._finishes_itself()
        and not optimizer._has_symbols
        and optimizer._slots.parts is None
        and not has_own_methods(optimizer)
    )
