"""A step over pairs of gradients and variables, as the look of `core/steady.py` compares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from thalweg.core.hooks import Dtype
from thalweg.core.plan_cache import Planned
from thalweg.core.steady import (
    Launches,
    Snapshot,
    hold_tensors,
    look,
    plan_of,
    snapshot,
    stands,
)
from thalweg.ground.running import SessionVariable
from thalweg.variable import Variable, variable_constraint

_PLAIN = (Tensor, torch.nn.Parameter, Variable, SessionVariable)
_KINDS = {torch.float32: look.FLOAT32, torch.float64: look.FLOAT64, torch.int64: look.INT64}


class RepeatedPairs:
    """The step, as it was found.

    Args:
        planned: The step; `is_repeatable` has been asked.
        found: What the look compares, empty.
        counters: What it counts, of float32, float64 or int64, and of shape ().
        numbers: What is watched; first the counters.
    """

    def __init__(
        self,
        planned: Planned,
        found: Snapshot,
        counters: Sequence[Tensor],
        numbers: Sequence[Tensor],
    ) -> None:
        self.planned, self.snapshot, self._counters = planned, found, counters
        self._kinds = [_KINDS[each.dtype] for each in numbers]
        self._launches = Launches(planned, [0] * len(planned.request.variables))

    @staticmethod
    def of(
        planned: Planned,
        given: Any,
        counters: Sequence[Tensor],
        numbers: Sequence[Tensor] = (),
        attributes: Sequence[dict[str, Any]] = (),
    ) -> RepeatedPairs | None:
        """The step, if the careful look finds it to be the one before; else None.

        Args:
            planned, counters: As those of the class.
            given: A list of tuples of a gradient and a variable.
            numbers: Tensors of one number each, of the same types, that nobody may write between
                `expect` and `take`; those of counters begin with them.
            attributes: Dictionaries that are to stay as they are.
        """
        found = snapshot()
        if (
            found is None
            or not _are_pairs(given, planned)
            or not all(map(_is_number, numbers))
            or not _are_apart(counters, planned)
            or not stands(planned, [grad for grad, _ in given])
        ):
            return None
        made = RepeatedPairs(planned, found, counters, numbers)
        return made if made._hold(given, numbers, attributes) else None

    def _hold(
        self, given: Any, numbers: Sequence[Tensor], attributes: Sequence[dict[str, Any]]
    ) -> bool:
        found, ready, request = self.snapshot, plan_of(self.planned), self.planned.request
        slots = [slot for each in request.slots for slot in each]
        written = [*ready.written, *self._counters]
        if not hold_tensors(found, [*request.variables, *slots, *written, *numbers]):
            return False
        for own in (*attributes, *map(vars, request.variables)):  # where there may be a constraint
            found.hold_dict(own)
        cells = self._launches.cells
        found.finish(
            [(var, grad, cell) for (grad, var), cell in zip(given, cells, strict=True)],
            self._launches.records(),
            [(each.data_ptr(), 1, _KINDS[each.dtype]) for each in self._counters],
            written,
            ready.bounds,
            numbers,
        )
        return True

    def set(
        self,
        scalars_of: Callable[[Dtype], Mapping[str, Any]],
        known: Sequence[Any],
        following: Sequence[Any],
    ) -> None:
        """Set the numbers of the step that is to be taken.

        Args:
            scalars_of: Gives the scalars of a compute dtype.
            known: What the numbers that are watched are, as far as the scalars were made of them.
            following: What the counters become.
        """
        found = self.snapshot
        for launch in self._launches.all:
            launch.set_scalars({0: scalars_of(launch.dtype)})
        for place, value in enumerate(known):
            found.expect(place, self._kinds[place], value)
        for place, value in enumerate(following):
            if self._kinds[place] == look.INT64:
                found.columns[place, 3] = value
            else:
                found.numbers[place] = value
        self._launches.set_threads(found.launches)


def _are_pairs(given: Any, planned: Planned) -> bool:
    """Whether these are plain gradients of the variables of a step, in their order."""
    variables = planned.request.variables
    return (
        type(given) is list
        and len(variables) == len(cast("list[Any]", given))
        and all(map(_is_pair_of, cast("list[Any]", given), variables))
    )


def _is_number(tensor: Tensor) -> bool:
    return type(tensor) in _PLAIN and tensor.dtype in _KINDS and not tensor.dim()


def _are_apart(counters: Sequence[Tensor], planned: Planned) -> bool:
    """Whether none lies in what the step updates, or where another one does."""
    begins, ends = plan_of(planned).bounds.reshape(-1, 2).T
    places = [each.data_ptr() for each in counters]
    is_alone = len({place // 8 for place in places}) == len(places)
    return is_alone and not any(((begins <= place) & (place < ends)).any() for place in places)


def _is_pair_of(pair: Any, var: Tensor) -> bool:
    if type(pair) is not tuple or len(cast("tuple[Any, ...]", pair)) != 2:
        return False
    grad, own = cast("tuple[Any, Any]", pair)
    return (
        type(grad) is Tensor
        and own is var
        and type(var) in _PLAIN
        and variable_constraint(var) is None
    )
