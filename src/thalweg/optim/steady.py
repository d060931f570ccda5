"""A step of an optimizer of torch's kind in one call; see `core/steady.py`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from thalweg.core.groups import Group
from thalweg.core.outcome import TAKEN, say
from thalweg.core.steady import (
    ERRORS,
    Launches,
    Snapshot,
    hold_tensors,
    is_repeatable,
    is_traced,
    snapshot,
    stands,
)
from thalweg.engines import current
from thalweg.ground.running import replicas
from thalweg.optim.columns import STEP, Column
from thalweg.optim.groups import Options
from thalweg.optim.hooks import TorchHooks

_PLAIN = (Tensor, torch.nn.Parameter)
_params_of = itemgetter("params")


class _Scalars:
    """The scalars of a group from one step to the next, as `TorchHooks.scalars_of` makes them."""

    def __init__(self, hooks: TorchHooks, place: int) -> None:
        self.place = place
        self._hooks = hooks
        self._rule = hooks.step_rule()
        self._is_wrapped = bool(hooks._optimizer._around.wrapping)
        self._read()

    def _read(self) -> None:
        hooks = self._hooks
        self._options = options = hooks._part.options(self.place, hooks._optimizer)
        _, numbers = hooks._apart(self.place)
        self._known = {**options.numbers(hooks._stays), **numbers}
        self._given = options.given_to_prepare({**numbers, "t": 1})

    def hold(self, group: Group) -> bool:
        """Whether a group has the options that it had, or another rate, which is read."""
        known = self._options
        if known.hold(group):
            return True
        if not _hold(known, group):
            return False
        self._read()
        return True

    def made(self, columns: Sequence[Column]) -> dict[str, Any]:
        """The scalars of the step that follows."""
        if self._is_wrapped:
            return self._hooks._prepared(self.place)
        given, known = self._given, self._known
        for column in columns:
            name, value = column.name, column.common
            if name == STEP:
                known["t"] = value = value + 1
                if "t" in given:
                    given["t"] = value
            known[name] = value
            if name in given:
                given[name] = value
        known.update(self._rule.prepare(**given))
        return known


def _hold(known: Options | None, group: Group) -> bool:
    """Whether a group has the options that it had, or another number for its rate."""
    if known is None or known.moves:
        return False
    return known.hold(group) or (
        known.hold_beside_rate(group) and type(group["lr"]) in (float, int)
    )


def _is_common(column: Any) -> bool:
    """Whether a number is the same for all parameters, which lie in a block in their order."""
    return type(column) is Column and column._places is None and column.common is not None


class SteadyStep:
    """A step that may be taken again.

    Args:
        optimizer: The optimizer, which has just repeated a step.
        part: What is kept of its parameters.
        hooks: What it said about that step.
    """

    def __init__(self, optimizer: Any, part: Any, hooks: Any) -> None:
        self._class = type(optimizer)
        self.groups = optimizer.param_groups
        self.state = optimizer.state
        self.part, self.hooks = part, hooks
        self.selection = hooks.selection
        self.columns: list[Column] = part.columns
        self._beside: list[tuple[int, Options]] = []  # of groups that have no gradient
        self.told = 0  # of the steps it has taken, those that the optimizer has counted

    @staticmethod
    def of(optimizer: Any, part: Any, hooks: Any, places: Sequence[int]) -> SteadyStep | None:
        """The step that was repeated last, if everything stands and it could be taken so."""
        made = SteadyStep(optimizer, part, hooks)
        return made if made._plan(optimizer, places) else None

    def _plan(self, optimizer: Any, places: Sequence[int]) -> bool:
        part, planned = self.part, self.part.kept.last
        params = list[Tensor](part._params)
        if not (is_repeatable(planned, self.hooks) and self._is_plain(optimizer, planned, params)):
            return False
        gradients = [param.grad for param in params]
        if any(grad is None for grad in gradients) or not self._stands(planned, gradients, places):
            return False
        found = snapshot()
        if found is None or not self._hold(found, places):
            return False
        written = [*planned.ready.written, *(column._views[0] for column in self.columns)]
        if not hold_tensors(found, written):
            return False
        self._scalars = [_Scalars(self.hooks, place) for place in dict.fromkeys(places)]
        self.launches = launches = Launches(planned, places)
        without = [(param, None, 0) for param in self._others()]
        found.finish(
            [*zip(params, gradients, launches.cells, strict=True), *without],
            launches.records(),
            [
                (column._block.data_ptr(), len(column._views), column._block.element_size())
                for column in self.columns
            ],
            written,
            planned.ready.bounds,
        )
        self.snapshot = found
        return True

    def _stands(self, planned: Any, gradients: Sequence[Any], places: Sequence[int]) -> bool:
        """Whether the careful look finds the step to be the one before."""
        part = self.part
        return (
            part.stands(self.state, part._params)
            and all(_hold(part._options.get(place), self.groups[place]) for place in {*places})
            and stands(planned, gradients)
        )

    def _others(self) -> list[Tensor]:
        """Parameters that take no part in the step: they have no gradient."""
        own = set(map(id, self.part._params))
        everyone = (param for group in self.groups for param in group["params"])
        return [param for param in everyone if id(param) not in own]

    def _hold(self, found: Snapshot, places: Sequence[int]) -> bool:
        """Have the look compare all that the careful one does."""
        params, others = self.part._params, self._others()
        if not all(type(each) in _PLAIN for each in (*params, *others)):
            return False
        if not all(type(each) is list for each in (self.groups, *map(_params_of, self.groups))):
            return False
        found.hold_list(self.groups)
        for place, group in enumerate(self.groups):
            found.hold_list(group["params"])
            if place not in places:
                self._beside.append((place, Options(group, self.part.rule, {})))
        found.hold_dict(self.state)
        tensors: list[Tensor] = [*params, *others]
        for own in self.part._owners:
            found.hold_dict(own)
            tensors += [each for each in own.values() if isinstance(each, Tensor)]
        for param in params:
            found.hold_dict(vars(param))  # where it may be given a constraint
        return hold_tensors(found, tensors) and all(each.grad is None for each in others)

    def _is_plain(self, optimizer: Any, planned: Any, params: Sequence[Tensor]) -> bool:
        """Whether neither options nor parameters ask for more than the update of the rule."""
        around, variables = optimizer._around, planned.ready.variables
        return (
            type(self.hooks) is TorchHooks
            and len(variables) == len(params)
            and all(var is param for var, param in zip(variables, params, strict=True))
            and all(map(_is_common, self.columns))
            and all(getattr(param, "constraint", None) is None for param in params)
            and not around.clips
            and not around.in_backward
            and around.accumulate == 1
            and not around.kinds.stand_in
        )

    @property
    def taken(self) -> int:
        """How many steps it has taken."""
        return self.snapshot.taken

    def take(self, optimizer: Any) -> bool:
        """Take it, if everything is as it was.

        Returns:
            Whether it was taken; if not, nothing has changed.
        """
        before = self.snapshot.taken
        try:
            with optimizer._own._lock:
                return self._take(optimizer, vars(optimizer))
        except BaseException as error:
            say(error, [f"{TAKEN}."] if self.snapshot.taken != before else ())
            raise

    def _take(self, optimizer: Any, own: dict[str, Any]) -> bool:
        if (
            type(optimizer) is not self._class
            or own["param_groups"] is not self.groups
            or own["state"] is not self.state
            or "found_inf" in own
            or "grad_scale" in own
            or is_traced()
            or replicas() > 1
            or optimizer._own.is_swapped
            or current(self.selection) != self.selection
        ):
            return False
        hooks, snapshot = self.hooks, self.snapshot
        begun = snapshot.taken
        for column in self.columns:
            column.read()
            if column.common is None:
                return False
        try:
            for each in self._scalars:
                if not each.hold(self.groups[each.place]):
                    return False
            if not all(_hold(known, self.groups[place]) for place, known in self._beside):
                return False
            made = {each.place: each.made(self.columns) for each in self._scalars}
            for launch in self.launches.all:
                launch.set_scalars(made)
        except ERRORS:  # the careful way says it
            return False
        hooks._made = made
        following = [hooks._next(column, self._scalars[0].place) for column in self.columns]
        for k, value in enumerate(following):
            snapshot.numbers[k] = value
        self.launches.set_threads(snapshot.launches)
        if snapshot.take(taken=begun):
            optimizer._own.forget_quick()
            return False
        for column, value in zip(self.columns, following, strict=True):
            column.wrote([value])
        own["_opt_called"] = True
        return True
