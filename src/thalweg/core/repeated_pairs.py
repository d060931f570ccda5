"""A step over pairs of gradients and variables once more, in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg.core.hooks import Dtype
from thalweg.core.plan_cache import Planned
from thalweg.core.steady import Launches, Snapshot, hold_tensors, look, plan_of, snapshot, stands
from thalweg.variable import Variable, variable_constraint

_PLAIN = (Tensor, torch.nn.Parameter, Variable)
_KINDS = {torch.float32: look.FLOAT32, torch.float64: look.FLOAT64, torch.int64: look.INT64}


class RepeatedPairs:
    """The step, as it was found.

    Args:
        planned: The step; `is_repeatable` has been asked.
        found: What the look compares, empty.
        counters: What it counts, of float32, float64 or int64, and of shape ().
    """

    def __init__(self, planned: Planned, found: Snapshot, counters: Sequence[Tensor]) -> None:
        self.planned, self.snapshot, self._counters = planned, found, counters
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
            numbers: Tensors of one number each that nobody else may write meanwhile.
            attributes: Dictionaries that are to stay as they are.
        """
        found = snapshot()
        if (
            found is None
            or not _are_pairs(given, planned)
            or not all(each.dtype in _KINDS and not each.dim() for each in counters)
            or not all(each.numel() == 1 and each.element_size() in (4, 8) for each in numbers)
            or not stands(planned, [grad for grad, _ in given])
        ):
            return None
        made = RepeatedPairs(planned, found, counters)
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

    @property
    def taken(self) -> int:
        """How many times it was taken."""
        return self.snapshot.taken

    def take(
        self,
        given: Any,
        scalars_of: Callable[[Dtype], Mapping[str, Any]],
        following: Sequence[Any],
    ) -> int:
        """Take it if everything is as it was: 0; else what is not.

        Args:
            given: Gradients and variables, a list.
            scalars_of: Gives the scalars of a compute dtype.
            following: What the counters become.
        """
        found = self.snapshot
        for launch in self._launches.all:
            launch.set_scalars({0: scalars_of(launch.dtype)})
        for place, (counter, value) in enumerate(zip(self._counters, following, strict=True)):
            if counter.dtype == torch.int64:
                found.columns[place, 3] = value
            else:
                found.numbers[place] = value
        self._launches.set_threads(found.launches)
        return found.take(given)


def _are_pairs(given: Any, planned: Planned) -> bool:
    """Whether these are plain gradients of the variables of a step, in their order."""
    variables = planned.request.variables
    return (
        type(given) is list
        and len(variables) == len(given)  # pyright: ignore[reportUnknownArgumentType]
        and all(map(_is_pair_of, given, variables))  # pyright: ignore[reportUnknownArgumentType]
    )


def _is_pair_of(pair: Any, var: Tensor) -> bool:
    return (
        type(pair) is tuple
        and len(pair) == 2  # pyright: ignore[reportUnknownArgumentType]
        and type(pair[0]) is Tensor
        and pair[1] is var
        and type(var) in _PLAIN
        and variable_constraint(var) is None
    )
