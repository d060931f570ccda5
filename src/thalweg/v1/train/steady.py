"""A step of `apply_gradients` in one call; see `core/repeated_pairs.py`.

Hyperparameters and counters are read at each step, as always.
"""

from __future__ import annotations

from operator import is_
from typing import Any

import torch
from torch import Tensor

from thalweg.core.columns import derived
from thalweg.core.outcome import add_taken
from thalweg.core.plan_cache import PlanCache, Planned
from thalweg.core.repeated_pairs import RepeatedPairs
from thalweg.core.steady import is_repeatable, is_traced
from thalweg.ground.counters import Move, number_of
from thalweg.ground.running import executing_eagerly
from thalweg.ground.scalars import product, scalar_type
from thalweg.v1.train.hooks import RuleHooks
from thalweg.variable import Variable


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
        if not all(type(each) in (Variable, Tensor) for each in counters):
            return None
        found = RepeatedPairs.of(planned, given, counters, (), [vars(optimizer)])
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
        ):
            return False
        try:
            values = optimizer._read()
            moves = _moves(optimizer, values, global_step)
            counters = [counter for counter, _ in moves]
            if len(counters) != len(self._counters) or not all(map(is_, counters, self._counters)):
                return False
            following = [_following(*move) for move in moves]
            other = self._found.take(
                given,
                lambda dtype: derived(rule, optimizer._scalars(values, dtype, None), dtype, 1),
                following,
            )
        except Exception:  # the careful way says it
            return False
        if other:
            kept.quick = None
        return not other


def _moves(optimizer: Any, values: dict[str, Any], global_step: Any) -> list[Move]:
    moves = [*optimizer._counting_moves(values)]
    return moves if global_step is None else [*moves, (global_step, None)]


def _following(counter: Tensor, factor: Any) -> Any:
    """What a counter becomes; see `counting_calls` of the hooks."""
    if factor is None:
        return number_of(counter) + 1
    return product(scalar_type(counter)(number_of(counter)), factor).item()


def _is_plain(optimizer: Any) -> bool:
    """Whether a step is the update of a rule, and counts."""
    return (
        not optimizer._finishes_itself()
        and not optimizer._has_symbols
        and optimizer._slots.parts is None
    )
