"""A step of an optimizer of torch's kind in one call; see `core/steady.py`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from thalweg.core.derivation import RuleScalars
from thalweg.core.gradient_transforms import GradientTransforms
from thalweg.core.options.accumulation import SUM
from thalweg.core.outcome import TAKEN, say
from thalweg.core.steady import (
    ERRORS,
    KINDS,
    Launch,
    Launches,
    Snapshot,
    hold_tensors,
    is_repeatable,
    is_traced,
    look,
    snapshot,
    stands,
)
from thalweg.engines import current
from thalweg.ground.locks import importing
from thalweg.ground.running import is_ours, replicas
from thalweg.optim.columns import STEP, Column
from thalweg.optim.groups import Options, number
from thalweg.optim.hooks import TorchHooks
from thalweg.optim.scaled import forget_scale
from thalweg.optim.steady_scalars import TensorFlowScalars, TorchScalars, hold
from thalweg.optim.step_options import GradientReport, gradient_transforms

if TYPE_CHECKING:
    from thalweg.core.steady_gradients import Scalars, SteadyGradients

_PLAIN = (Tensor, torch.nn.Parameter)
_params_of = itemgetter("params")


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
        self._is_torchs = type(hooks) is TorchHooks  # else the numbers are TensorFlow's
        self.selection = hooks.selection
        self.columns: list[Column] = part.columns
        self._has_sums = optimizer._around.accumulate > 1  # of gradients, in place of gradients
        self._gradients: SteadyGradients | None = None  # if something happens to them
        self._how: tuple[float | None, GradientTransforms] | None = None  # with what unscales them
        self._beside: list[tuple[int, Options]] = []  # of groups that have no gradient
        # The scalars that the call makes, of each launch and place, if the hooks need none of them.
        self._in_call: list[list[tuple[TensorFlowScalars, RuleScalars]]] = []
        self._unlaunched: list[TensorFlowScalars] = []  # of groups that have no elements
        self._reports: list[tuple[int, GradientReport]] = []  # by the number of their step
        self.told = 0  # of the steps it has taken, those that the optimizer has counted

    @staticmethod
    def of(optimizer: Any, part: Any, hooks: Any, places: Sequence[int]) -> SteadyStep | None:
        """The step that was repeated last, if everything stands and it could be taken so."""
        made = SteadyStep(optimizer, part, hooks)
        try:
            return made if made._plan(optimizer, places) else None
        except ERRORS:  # such as of the options of a group that has no gradient
            return None

    def _plan(self, optimizer: Any, places: Sequence[int]) -> bool:
        planned = self.part.kept.last
        how = self._transforms(optimizer)
        if how is None:
            return False
        if not (is_repeatable(planned, self.hooks, how.stages) and self._is_plain(optimizer)):
            return False
        self._owners = owners = _owners_of(planned)
        if not self._are_in_groups(owners, places):
            return False
        gradients = optimizer._gradients(owners)
        if any(grad is None for grad in gradients) or not self._stands(planned, gradients, places):
            return False
        without = self._others(owners)
        found = snapshot()
        if found is None or not self._hold(found, places, without):
            return False
        written = [*planned.ready.written, *(column._views[0] for column in self.columns)]
        if not hold_tensors(found, written):
            return False
        self._places = list(dict.fromkeys(places))
        kind: Any = TorchScalars if self._is_torchs else TensorFlowScalars
        self._scalars = [kind(self.hooks, place) for place in self._places]
        self._ids = set(map(id, owners))
        self.launches = launches = Launches(planned, places)
        if not self._is_torchs:
            launched = {place for each in launches.all for place in each.places}
            self._unlaunched = [each for each in self._scalars if each.place not in launched]
            self._plan_in_call({STEP, *optimizer._products})
        if how.stages:
            with importing:
                from thalweg.core.steady_gradients import SteadyGradients
            self._gradients = SteadyGradients(planned, launches, how)
        measures, clipping = ((), 0) if self._gradients is None else self._gradients.for_look()
        found.finish(
            [
                *zip(owners, gradients, launches.cells, strict=True),
                *((param, None, 0) for param in without if not self._has_sums),
            ],
            launches.records(),
            [
                (column._block.data_ptr(), len(column._views), KINDS[column.dtype])
                for column in self.columns
            ],
            written,
            planned.ready.bounds,
            measures=measures,
            clipping=clipping,
            programs=launches.programs,
        )
        self.snapshot = found
        return True

    def _plan_in_call(self, counted: Collection[str]) -> None:
        """Have the call make scalars, if all numbers are counted, and none is one of them."""
        if all(column.name in counted for column in self.columns):
            own, rule = {each.place: each for each in self._scalars}, self.hooks.step_rule()
            self._in_call = [
                [(own[k], RuleScalars(rule, each, at)) for at, k in enumerate(each.places)]
                for each in self.launches.all
            ]

    def _stands(self, planned: Any, gradients: Sequence[Any], places: Sequence[int]) -> bool:
        """Whether the careful look finds the step to be the one before."""
        part = self.part
        return (
            part.stands(self.state, part._params)
            and all(hold(part._options.get(place), self.groups[place]) for place in {*places})
            and stands(planned, gradients)
        )

    def _are_in_groups(self, owners: Sequence[Tensor], places: Sequence[int]) -> bool:
        """Whether parameters are in the groups in which the last step found them."""
        found = {id(p): place for place, group in enumerate(self.groups) for p in group["params"]}
        return [found.get(id(param)) for param in owners] == [*places]

    def _others(self, owners: Sequence[Tensor]) -> list[Tensor]:
        """Parameters that take no part in the step: they have no gradient."""
        own = set(map(id, owners))
        everyone = (param for group in self.groups for param in group["params"])
        return [param for param in everyone if id(param) not in own]

    def _hold(self, found: Snapshot, places: Sequence[int], others: Sequence[Tensor]) -> bool:
        """Have the look compare all that the careful one does."""
        params = self.part._params
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
            found.hold_dict(own, SUM)  # which is looked at as a gradient
            tensors += [x for key, x in own.items() if key != SUM and isinstance(x, Tensor)]
        for param in params:
            found.hold_dict(vars(param))  # where it may be given a constraint
        if not (self._has_sums or all(each.grad is None for each in others)):
            return False
        return hold_tensors(found, tensors)

    def _is_plain(self, optimizer: Any) -> bool:
        """Whether neither options nor parameters ask for more than the update of the rule."""
        around, params = optimizer._around, self.part._params
        own = {id(param) for param in params}
        return (
            is_ours(type(self.hooks))
            and all(id(owner) in own for owner in _owners_of(self.part.kept.last))
            and all(map(_is_common, self.columns))
            and all(getattr(param, "constraint", None) is None for param in params)
            and not around.in_backward
            and around.kinds.device is None
        )

    @property
    def taken(self) -> int:
        """How many steps it has taken."""
        return self.snapshot.taken

    @property
    def seen(self) -> GradientReport:
        """What the last of them tells of its gradients."""
        taken = self.taken
        if self._gradients is not None and (told := self._gradients.told(taken)) is not None:
            return GradientReport(*told)
        return next((each for k, each in self._reports if k == taken), GradientReport())

    def take(self, optimizer: Any, has_sums: bool = False) -> bool:
        """Take it, if everything is as it was.

        Args:
            optimizer: The optimizer.
            has_sums: Whether gradients were added up, and their sums are to be taken.

        Returns:
            Whether it was taken; if not, nothing has changed.
        """
        if has_sums != self._has_sums:
            return False
        before = self.snapshot.taken
        try:
            with optimizer._own._lock:
                return self._take_or_forget(optimizer)
        except BaseException as error:
            say(error, [f"{TAKEN}."] if self.snapshot.taken != before else ())
            raise

    def _take_or_forget(self, optimizer: Any) -> bool:
        try:
            return self._take(optimizer, vars(optimizer))
        except BaseException:  # what is kept may be half of one step, half of another
            optimizer._own.forget_quick()
            forget_scale(optimizer)
            raise

    def _take(self, optimizer: Any, own: dict[str, Any]) -> bool:
        if (
            type(optimizer) is not self._class
            or optimizer._own.quick is not self  # another thread took a careful step
            or own.get("param_groups") is not self.groups
            or own.get("state") is not self.state
            or self.part.columns is not self.columns  # a careful step was planned anew
            or is_traced()
            or replicas() > 1
            or optimizer._own.is_swapped
            or current(self.selection) != self.selection
        ):
            return False
        pairs, then = None, ()
        if self._has_sums:
            if optimizer._own.sums.keys() != self._ids:
                return False
            pairs = list(zip(optimizer._gradients(self._owners), self._owners, strict=True))
            then = optimizer._clearing_sums()
        given = self.snapshot.taken, pairs, then
        for column in self.columns:
            column.read()
            if column.common is None:
                return False
        following = self._take_by(optimizer, given)
        if following is None:
            return False
        for column, value in zip(self.columns, following, strict=True):
            column.wrote([value])
        own["_opt_called"] = True
        return True

    def _take_by(
        self, optimizer: Any, given: tuple[int, Any, Any], is_beyond: bool = False
    ) -> list[Any] | None:
        """Take the step; the numbers that followed, or None if it was not taken.

        Args:
            optimizer: The optimizer.
            given: How many steps were taken, pairs, and what is done with this one.
            is_beyond: Whether the step was found to be `look.BEYOND`.
        """
        snapshot, (begun, pairs, then) = self.snapshot, given
        try:
            following = self._prepare(optimizer, begun, pairs, is_beyond)
        except ERRORS:  # the careful way says it
            return None
        if following is None:
            return None
        for k, value in enumerate(following):
            snapshot.set_number(k, value)
        self.launches.set_threads(snapshot.launches)
        part = look.WHOLE if self._gradients is None else self._gradients.part
        other = snapshot.take(pairs, begun, part, then)
        if other == look.BEYOND:
            return self._take_by(optimizer, given, is_beyond=True)
        if other:
            optimizer._own.forget_quick()
        return None if other else following

    def _prepare(
        self, optimizer: Any, begun: int, pairs: list[Any] | None, is_beyond: bool
    ) -> list[Any] | None:
        """Set the scalars of the step; the numbers that follow, or None if it is another one."""
        hooks, groups, own = self.hooks, self.groups, vars(optimizer)
        for place, known in self._beside:
            if not hold(known, groups[place]):
                return None
        if not all(each.hold(groups[each.place]) for each in self._scalars):
            return None
        of_gradients: Scalars | None = None
        if self._gradients is not None or "found_inf" in own or "grad_scale" in own:
            how = self._transforms(optimizer)
            if how is None or (self._gradients is None and how.stages):
                return None
            if self._gradients is not None:
                if self._gradients.measure(how, self.snapshot, begun, pairs, is_beyond):
                    return None
                seen = None
                if self._gradients.part == look.UPDATE:
                    seen = GradientReport()
                    before = [each for each in self._reports if each[0] == begun]
                    self._reports = [*before, (begun + 1, seen)]
                of_gradients, _ = self._gradients.scalars(seen)
        for each in self._unlaunched:  # they are read, and may be refused
            each.numbers(self.columns, np.float32)
        own_scalars = self._scalars if self._is_torchs else ()  # else each dtype has its own
        hooks._made = {each.place: each.made(self.columns) for each in own_scalars}
        for k, launch in enumerate(self.launches.all):
            found = self._scalars_of(k, launch)
            if of_gradients is not None:
                beside = of_gradients[launch.dtype]
                found = {place: {**own, **beside} for place, own in found.items()}
            if found:
                launch.set_scalars(found)
        return self._following()

    def _following(self) -> list[Any] | None:
        """What the numbers of parameters become; None if groups differ in one."""
        found: list[Any] = []
        for column in self.columns:
            value = self.hooks._next(column, self._places[0])
            if column.name != STEP:
                for place in self._places[1:]:
                    if self.hooks._next(column, place) != value:
                        return None
            found.append(value)
        return found

    def _scalars_of(self, k: int, launch: Launch) -> dict[int, Any]:
        """The scalars of each place, which the hooks have, too, for the numbers that follow."""
        made, dtype = self.hooks._made, launch.dtype
        if self._is_torchs:
            return made
        if self._in_call:
            pairs = self._in_call[k]
            found = {own.place: each.made(*own.numbers(self.columns, dtype)) for own, each in pairs}
            if self._gradients is None and not any(found.values()):
                return {}  # the call makes all
            return {place: each or launch.unset for place, each in found.items()}
        own = {each.place: each.made(self.columns, dtype) for each in self._scalars}
        made.update({(dtype, place): found for place, found in own.items()})
        return own

    def _transforms(self, optimizer: Any) -> GradientTransforms | None:
        """What happens to gradients; None if a scaler leaves the step out or a device decides."""
        if optimizer._own.taken is not None:  # whoever asked what it is would wait for the device
            return None
        found = vars(optimizer).get("found_inf")
        if found is not None and number(found):
            return None
        unscaling = optimizer._unscaling()
        if self._how is None or self._how[0] != unscaling:
            count = len(self.part.kept.last.request.variables)
            given = optimizer._around, unscaling, count, GradientReport(), optimizer._is_torchs
            self._how = unscaling, gradient_transforms(*given)
        return self._how[1]


def _owners_of(planned: Any) -> list[Tensor]:
    """The parameters that have the gradients of a step: what it updates, or what follows that."""
    request = planned.request
    copies = request.copies or [None] * len(request.variables)
    pairs = zip(request.variables, copies, strict=True)
    return [var if copy is None else copy for var, copy in pairs]


def _is_common(column: Any) -> bool:
    """Whether a number is the same for all parameters, which lie in a block in their order."""
    is_usual = type(column) is Column and column.dtype in KINDS
    return is_usual and column._places is None and column.common is not None
