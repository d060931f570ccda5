"""A step of an optimizer of torch's kind in one call; see `core/steady.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from thalweg.core.gradient_transforms import GradientTransforms
from thalweg.core.outcome import TAKEN, say
from thalweg.core.steady import (
    ERRORS,
    Launches,
    Snapshot,
    are_small,
    bounds_of,
    hold_tensors,
    is_traced,
    look,
    snapshot,
)
from thalweg.engines import current
from thalweg.engines.layout import joined
from thalweg.ground.locks import importing
from thalweg.ground.running import replicas
from thalweg.optim.groups import Options, number
from thalweg.optim.hooks import Repeated
from thalweg.optim.scaled import forget_scale
from thalweg.optim.steady_plain import PlainStep
from thalweg.optim.steady_scalars import hold
from thalweg.optim.steady_share import PLAIN, Following, SteadyShare
from thalweg.optim.step_options import GradientReport, gradient_transforms

if TYPE_CHECKING:
    from thalweg.core.steady_gradients import Scalars, SteadyGradients

_params_of = itemgetter("params")


class SteadyStep:
    """A step that may be taken again.

    Args:
        optimizer: The optimizer, which has just repeated a step.
        repeated: What each rule has updated in it.
    """

    def __init__(self, optimizer: Any, repeated: Sequence[Repeated]) -> None:
        self._class = type(optimizer)
        self.groups = optimizer.param_groups
        self._group_count = len(self.groups)
        self.state = optimizer.state
        self.shares = list(map(SteadyShare, repeated))
        self.selection = self.shares[0].hooks.selection
        self._owners = [owner for each in self.shares for owner in each.owners]
        self._has_sums = optimizer._around.accumulate > 1  # of gradients, in place of gradients
        self._gradients: SteadyGradients | None = None  # if something happens to them
        self._how: tuple[float | None, GradientTransforms] | None = None  # with what unscales them
        self._beside: list[tuple[int, Options]] = []  # of groups that have no gradient
        self._reports: list[tuple[int, GradientReport]] = []  # by the number of their step
        self._plain: PlainStep | None = None  # if that is all there is to it
        self.told = 0  # of the steps it has taken, those that the optimizer has counted

    @classmethod
    def of(cls, optimizer: Any, repeated: Sequence[Repeated]) -> Self | None:
        """The step that was repeated last, if everything stands and it could be taken so."""
        made = cls(optimizer, repeated)
        try:
            return made if made._plan(optimizer) else None
        except ERRORS:  # such as of the options of a group that has no gradient
            return None

    def _plan(self, optimizer: Any) -> bool:
        how, shares, around = self._transforms(optimizer), self.shares, optimizer._around
        if how is None or around.in_backward or around.kinds.device is not None:
            return False
        if not all(each.is_repeatable(how.stages) for each in shares):
            return False
        plans = [each.planned for each in shares]
        if not are_small(plans):
            return False
        places = [place for each in shares for place in each.places]
        if not self._are_in_groups(self._owners, places):
            return False
        gradients = optimizer._gradients(self._owners)
        if any(grad is None for grad in gradients) or not self._stands(gradients):
            return False
        without = self._others()
        found = snapshot()
        if found is None or not self._hold(found, places, without):
            return False
        self._ids = set(map(id, self._owners))
        for each in shares:
            each.find_alike()
        keys = [key for each in shares for key in each.keys]
        self.launches = launches = Launches(plans, keys)
        for share, own in zip(shares, launches.of, strict=True):
            share.set_launches(own, optimizer._products if not optimizer._is_torchs else ())
        if how.stages:
            with importing:
                from thalweg.core.steady_gradients import SteadyGradients
            self._gradients = SteadyGradients(plans, launches, how)
        measures, clipping = ((), 0) if self._gradients is None else self._gradients.for_look()
        found.finish(
            [
                *zip(self._owners, gradients, launches.cells, strict=True),
                *((param, None, 0) for param in without if not self._has_sums),
            ],
            launches.records(),
            [number for each in shares for number in each.numbers()],
            [tensor for each in shares for tensor in each.written()],
            joined([bounds_of(each) for each in plans]),
            (),
            measures,
            clipping,
            launches.programs,
            *launches.rule_measures(),
        )
        self.snapshot = found
        if len(shares) == 1 and not (self._has_sums or self._beside or self._gradients):
            self._plain = PlainStep.of(shares[0], launches, found)
        return True

    def _stands(self, gradients: Sequence[Any]) -> bool:
        """Whether the careful look finds the step to be the one before."""
        left = iter(gradients)
        return all(
            each.stands(self.state, self.groups, [next(left) for _ in each.owners])
            for each in self.shares
        )

    def _are_in_groups(self, owners: Sequence[Tensor], places: Sequence[int]) -> bool:
        """Whether parameters are in the groups in which the last step found them."""
        found = {id(p): place for place, group in enumerate(self.groups) for p in group["params"]}
        return [found.get(id(param)) for param in owners] == [*places]

    def _others(self) -> list[Tensor]:
        """Parameters that take no part in the step: they have no gradient."""
        own = set(map(id, self._owners))
        everyone = (param for group in self.groups for param in group["params"])
        return [param for param in everyone if id(param) not in own]

    def _hold(self, found: Snapshot, places: Sequence[int], others: Sequence[Tensor]) -> bool:
        """Have the look compare all that the careful one does."""
        if not all(type(each) in PLAIN for each in others):
            return False
        if not all(type(each) is list for each in (self.groups, *map(_params_of, self.groups))):
            return False
        found.hold_list(self.groups)
        for place, group in enumerate(self.groups):
            found.hold_list(group["params"])
            if place not in places:
                self._beside.append((place, Options(group, self.shares[0].part.rule, {})))
        found.hold_dict(self.state)
        if not (self._has_sums or all(each.grad is None for each in others)):
            return False
        return all(each.hold(found) for each in self.shares) and hold_tensors(found, others)

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
        before, cache = self.snapshot.count.value, optimizer._own
        try:
            with cache._lock:
                try:
                    return self._take(optimizer, vars(optimizer), cache)
                except BaseException:  # what is kept may be half of one step, half of another
                    cache.forget_quick()
                    forget_scale(optimizer)
                    raise
        except BaseException as error:
            say(error, [f"{TAKEN}."] if self.snapshot.taken != before else ())
            raise

    def _take(self, optimizer: Any, own: dict[str, Any], cache: Any) -> bool:
        if (
            type(optimizer) is not self._class
            or cache.quick is not self  # another thread took a careful step
            or own.get("param_groups") is not self.groups
            or len(self.groups) != self._group_count
            or own.get("state") is not self.state
            or is_traced()
            or replicas() > 1
            or cache.is_swapped
            or (cache.stepping is not None and not self._has_sums)
            or current(self.selection) != self.selection
        ):
            return False
        if self._plain is not None:
            has_scaler = "found_inf" in own or "grad_scale" in own
            other = None if has_scaler else self._plain.take(self.groups)
            if other is not None:
                if other:
                    cache.forget_quick()
                else:
                    own["_opt_called"] = True
                return not other
            self._plain.leave_scalars()
        pairs, then = None, ()
        if self._has_sums:
            if optimizer._own.sums.keys() != self._ids:
                return False
            pairs = list(zip(optimizer._gradients(self._owners), self._owners, strict=True))
            then = optimizer._clearing_sums()
        given = self.snapshot.taken, pairs, then
        for share in self.shares:
            if not share.read():
                return False
        following = self._take_by(optimizer, given)
        if following is None:
            return False
        for column, values in following:
            column.wrote(values)
        own["_opt_called"] = True
        return True

    def _take_by(
        self, optimizer: Any, given: tuple[int, Any, Any], is_beyond: bool = False
    ) -> list[Following] | None:
        """Take the step; the numbers that followed, or None if it was not taken.

        Args:
            optimizer: The optimizer.
            given: How many steps were taken, pairs, and what is done with this one.
            is_beyond: Whether the step was found to be `look.BEYOND`.
        """
        snapshot, (begun, pairs, then) = self.snapshot, given
        try:
            following = self._prepare(optimizer, begun, pairs, is_beyond)
            if following is None:
                return None
            for k, (value, now) in enumerate(chain.from_iterable(map(_with_present, following))):
                snapshot.set_number(k, value, now)
        except ERRORS:  # the careful way says it
            return None
        self.launches.set_threads(snapshot)
        part = look.WHOLE if self._gradients is None else self._gradients.part
        other = snapshot.take(pairs, begun, part, then)
        if other == look.BEYOND:
            return self._take_by(optimizer, given, is_beyond=True)
        if other:
            optimizer._own.forget_quick()
        return None if other else following

    def _prepare(
        self, optimizer: Any, begun: int, pairs: list[Any] | None, is_beyond: bool
    ) -> list[Following] | None:
        """Set the scalars of the step; the numbers that follow, or None if it is another one."""
        groups, own = self.groups, vars(optimizer)
        for place, known in self._beside:
            if not hold(known, groups[place]):
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
        found: list[Following] = []
        for share in self.shares:
            following = share.prepare(groups, of_gradients)
            if following is None:
                return None
            found += following
        return found

    def _transforms(self, optimizer: Any) -> GradientTransforms | None:
        """What happens to gradients; None if a scaler leaves the step out or a device decides."""
        if optimizer._own.taken is not None:  # whoever asked what it is would wait for the device
            return None
        found = vars(optimizer).get("found_inf")
        if found is not None and number(found):
            return None
        unscaling = optimizer._unscaling()
        if self._how is None or self._how[0] != unscaling:
            given = optimizer._around, unscaling, len(self._owners), GradientReport()
            self._how = unscaling, gradient_transforms(*given, optimizer._is_torchs)
        return self._how[1]


def _with_present(following: Following) -> Iterable[tuple[Any, Any]]:
    """What numbers become, each with what it is now."""
    column, values = following
    now = column.values if column.common is None else [column.common] * len(values)
    return zip(values, now, strict=True)
