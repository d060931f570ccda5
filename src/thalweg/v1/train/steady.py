"""A step of `apply_gradients` in one call; see `core/steady_apply.py`.

Counters are read at each step, as always, and so are hyperparameters that are no plain numbers.
"""

from __future__ import annotations

from operator import is_
from typing import Any

from torch import Tensor

from thalweg.core.columns import derived
from thalweg.core.plan_cache import PlanCache, Planned
from thalweg.core.repeated_pairs import RepeatedPairs
from thalweg.core.steady import ERRORS, is_repeatable, look
from thalweg.core.steady_apply import SteadyApply, has_own_methods
from thalweg.ground.counters import Move, number_of
from thalweg.ground.running import is_ours
from thalweg.ground.scalars import product, scalar_type
from thalweg.v1.train.hooks import RuleHooks


class SteadyV1Apply(SteadyApply):
    """A step that may be taken again.

    Args:
        optimizer, planned, found: As those of `SteadyApply`.
        counters: What it counts.
    """

    def __init__(
        self, optimizer: Any, planned: Planned, found: RepeatedPairs, counters: list[Tensor]
    ) -> None:
        super().__init__(optimizer, planned, found)
        self._counters = counters
        self._hypers = _hypers(optimizer)  # plain numbers need not be read again
        self._values = optimizer._read_values() if _has_numbers_alone(optimizer) else None

    @staticmethod
    def of(optimizer: Any, kept: PlanCache, step: Any) -> SteadyV1Apply | None:
        """The step that was repeated last, if everything stands and it could be taken so."""
        planned, (given, global_step) = kept.last, step
        hooks = optimizer._make_hooks(global_step, "", None)
        if (
            planned is None
            or not (is_repeatable(planned, hooks) and hooks.repeats and type(hooks) is RuleHooks)
            or hooks.group_variables(planned.request.variables, []) is not None
            or not _is_plain(optimizer)
        ):
            return None
        counters = [counter for counter, _ in _moves(optimizer, hooks.values, global_step)]
        found = RepeatedPairs.of(planned, given, counters, counters)
        return None if found is None else SteadyV1Apply(optimizer, planned, found, counters)

    def _take(self, optimizer: Any, kept: PlanCache, given: Any) -> bool:
        pairs, global_step = given
        rule = self._rule
        if optimizer._rule_of_step() is not rule or not all(
            map(is_, _hypers(optimizer), self._hypers)
        ):
            return False
        begun = self.taken
        try:
            values = optimizer._read_values() if self._values is None else self._values
            moves = _moves(optimizer, values, global_step)
            counters = [counter for counter, _ in moves]
            if len(counters) != len(self._counters) or not all(map(is_, counters, self._counters)):
                return False
            known = list(map(number_of, counters))
            following = list(map(_following, moves, known))
            other = self._found.take(
                pairs,
                begun,
                lambda dtype: derived(rule, optimizer._scalars_of(values, dtype, None), dtype, 1),
                known,
                following,
            )
        except ERRORS:  # the careful way says it
            return False
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
    is_read_here = is_ours(optimizer._read_values) and is_ours(optimizer._evaluate_hypers)
    return is_read_here and all(type(each) in (float, int) for each in _hypers(optimizer))


def _is_plain(optimizer: Any) -> bool:
    """Whether a step is the update of a rule, and counts."""
    return (
        not optimizer._finishes_itself()
        and not optimizer._has_symbols
        and optimizer._slots.parts is None
        and not has_own_methods(optimizer)
    )
