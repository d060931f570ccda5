"""A step of an optimizer of torch's kind in one call; see `_core/replay.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from thalweg._base.execution_context import replicas, thread
from thalweg._core.commit import TAKEN, add_note
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.plan_cache import CachedPlan
from thalweg._core.replay import (
    ERRORS,
    GuardedStep,
    GuardTable,
    Launches,
    Member,
    are_small,
    bounds_of,
    hold_tensors,
    is_traced,
    replay_kernel,
    snapshot,
)
from thalweg._core.replay_transforms import ReplayedTransforms, is_clipped_in_call
from thalweg._engines import current
from thalweg._engines.engine_selection import choices
from thalweg._engines.guards import is_recorded
from thalweg._engines.layout import joined
from thalweg.optim.grad_scaler import forget_scale
from thalweg.optim.group_options import Options, number
from thalweg.optim.replay_scalars import hold
from thalweg.optim.replay_substep import PLAIN, Following, ReplayedSubStep
from thalweg.optim.scalars_in_call import ScalarsInCall
from thalweg.optim.step_adapter import RepeatedSubStep
from thalweg.optim.step_options import GradientReport, gradient_transforms

if TYPE_CHECKING:
    from thalweg._core.replay_transforms import Scalars

_params_of = itemgetter("params")
# Reasons for which a step is not taken, although the next one may be.
_STEADY = (replay_kernel.NOTHING, replay_kernel.TRACED)


class ReplayedStep:
    """A step that may be taken again.

    Args:
        optimizer: The optimizer, which has just repeated a step.
        repeated: What each rule has updated in it.
        absent: Stand-ins for gradients that the last step lacked, by `id` of their parameters. With
            any of these, each further step may lack the gradients of other parameters.
    """

    def __init__(
        self,
        optimizer: Any,
        repeated: Sequence[RepeatedSubStep],
        absent: Mapping[int, Tensor] = MappingProxyType({}),
    ) -> None:
        self._class = type(optimizer)
        self.groups = optimizer.param_groups
        self._group_count = len(self.groups)
        self.state = optimizer.state
        self.shares = list(map(ReplayedSubStep, repeated))
        self.selection = self.shares[0].hooks.selection
        self._choices = choices() if current(self.selection) == self.selection else None
        self._owners = [owner for each in self.shares for owner in each.owners]
        self._absent = absent  # until the step is planned
        self.may_lack = bool(absent)  # gradients
        self._has_sums = optimizer._around.accumulate > 1  # of gradients, in place of gradients
        self._gradients: ReplayedTransforms | None = None  # if something happens to them
        self._how: tuple[float | None, GradientTransforms] | None = None  # with what unscales them
        self._beside: list[tuple[int, Options]] = []  # of groups that have no gradient
        self._reports: list[tuple[int, GradientReport]] = []  # by the number of their step
        self._in_call: ScalarsInCall | None = None  # what makes the scalars, if that is the call
        self._shared: Scalars | None = None  # those of gradients that kernels have
        self.told = 0  # of the steps it has taken, those that the optimizer has counted

    @classmethod
    def of(
        cls,
        optimizer: Any,
        repeated: Sequence[RepeatedSubStep],
        absent: Mapping[int, Tensor] = MappingProxyType({}),
    ) -> Self | None:
        """Return the step that was repeated last, if it could be taken so; arguments as above."""
        made = cls(optimizer, repeated, absent)
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
        if not are_small(plans, self.may_lack):
            return False
        places = [place for each in shares for place in each.places]
        if not self._are_in_groups(self._owners, places):
            return False
        gradients: list[Any] = [
            self._absent.get(id(param)) if grad is None else grad
            for grad, param in zip(optimizer._gradients(self._owners), self._owners, strict=True)
        ]
        if any(grad is None for grad in gradients) or not self._stands(optimizer, gradients):
            return False
        without = self._others()
        found = snapshot()
        if found is None or not self._hold(found, places, without):
            return False
        self._ids = set(map(id, self._owners))
        if not self._make_scalars_in_call(how, found):
            return False
        self._make_launches(optimizer, how, plans)
        self._finish(found, gradients, without)
        self._absent = {}
        return True

    def _make_scalars_in_call(self, how: GradientTransforms, found: GuardTable) -> bool:
        """Have the call make the scalars if it can; return False if it has to and cannot."""
        try:
            if not is_clipped_in_call(how):
                raise TypeError("Scalars depend on the gradient of each variable.")
            self._in_call = ScalarsInCall(self.shares, self.groups)
        except ERRORS:
            for each in self.shares:
                each.find_alike()
            return not self.may_lack
        self._in_call.hold_groups(found, dict(self._beside))
        return len(self.shares) == 1 or not self.may_lack

    def _make_launches(
        self, optimizer: Any, how: GradientTransforms, plans: Sequence[CachedPlan]
    ) -> None:
        """Make the kernels, and what happens to gradients before them."""
        in_call = self._in_call
        keys = [key for each in self.shares for key in each.keys]
        self.launches = launches = Launches(plans, keys if in_call is None else in_call.keys)
        if in_call is not None:
            in_call.give_members_rows(launches)
        else:
            for share, own in zip(self.shares, launches.of, strict=True):
                share.set_launches(own, optimizer._products if not optimizer._is_torchs else ())
        if how.stages:
            self._gradients = ReplayedTransforms(plans, launches, how)

    def _finish(
        self, found: GuardTable, gradients: Sequence[Tensor], without: Sequence[Tensor]
    ) -> None:
        """Write what the call compares, reads and does."""
        shares, launches, in_call = self.shares, self.launches, self._in_call
        members: list[Member] = []
        writers: dict[int, list[int]] = {}
        if in_call is not None:
            spans = [self._gradients.spans()] if self.may_lack and self._gradients else []
            members = in_call.place_programs(launches, spans)
        if self.may_lack:
            writers = self._find_writers()
        measures, clipping = ((), 0) if self._gradients is None else self._gradients.for_look()
        numbers = [] if in_call else [number for each in shares for number in each.numbers()]
        step = GuardedStep(
            [
                *zip(self._owners, gradients, launches.cells, strict=True),
                *((param, None, 0) for param in without if not self._has_sums),
            ],
            launches.records(),
            numbers,
            [tensor for each in shares for tensor in each.written()],
            joined([bounds_of(each.planned) for each in shares]),
            (),
            measures,
            clipping,
            launches.programs,
            *launches.rule_measures(),
            members=members,
            may_lack=self.may_lack,
            written_by=writers,
        )
        found.finish(step)
        if self.may_lack and self._gradients is not None:
            self._gradients.leave_out_absent(found.gradient_switches)
        self.snapshot = found
        self._has_guards = found.is_guarded
        self._is_plain = in_call is not None and self._gradients is None and not self._has_sums
        self._has_threads = launches.may_have_threads

    def _find_writers(self) -> dict[int, list[int]]:
        """Return the positions of the parameters whose update writes a tensor, by its `id`.

        Slots of several parameters may share a storage, and with it a version counter.
        """
        writers: dict[int, list[int]] = {id(x): [k] for k, x in enumerate(self._owners)}
        requests = [each.planned.request for each in self.shares]
        variables = [var for each in requests for var in each.variables]
        writers |= {id(x): [k] for k, x in enumerate(variables)}
        sharing: dict[int, list[int]] = {}
        slots = [own for each in requests for own in each.slots]
        for k, own in enumerate(slots):
            for slot in own:
                sharing.setdefault(slot.untyped_storage()._cdata, []).append(k)
        return writers | {
            id(slot): sharing[slot.untyped_storage()._cdata] for own in slots for slot in own
        }

    def _stands(self, optimizer: Any, gradients: Sequence[Any]) -> bool:
        """Return whether a careful step with these gradients would be the one before."""
        left = iter(gradients)
        return all(
            each.stands(optimizer, [next(left) for _ in each.owners]) for each in self.shares
        )

    def _are_in_groups(self, owners: Sequence[Tensor], places: Sequence[int]) -> bool:
        """Return whether parameters are in the groups in which the last step found them."""
        found = {id(p): place for place, group in enumerate(self.groups) for p in group["params"]}
        return [found.get(id(param)) for param in owners] == [*places]

    def _others(self) -> list[Tensor]:
        """Parameters that take no part in the step: they have no gradient."""
        own = set(map(id, self._owners))
        everyone = (param for group in self.groups for param in group["params"])
        return [param for param in everyone if id(param) not in own]

    def _hold(self, found: GuardTable, places: Sequence[int], others: Sequence[Tensor]) -> bool:
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
        """Number of steps that were taken in one call."""
        return self.snapshot.taken

    @property
    def seen(self) -> GradientReport:
        """Report of the gradients of the last step."""
        taken = self.taken
        if self._gradients is not None and (told := self._gradients.last_norm(taken)) is not None:
            return GradientReport(*told)
        return next((each for k, each in self._reports if k == taken), GradientReport())

    def take(self, optimizer: Any, has_sums: bool = False, unrecorded: bool = False) -> bool:
        """Take it, if everything is as it was.

        Args:
            optimizer: The optimizer.
            has_sums: Whether gradients were added up, and their sums are to be taken.
            unrecorded: Whether it is left to the caller while a profiler records operations.

        Returns:
            Whether it was taken; if not, nothing has changed.
        """
        if has_sums != self._has_sums:
            return False
        before, cache = self.snapshot.count.value, optimizer._own
        try:
            with cache._lock:
                try:
                    flags = replay_kernel.UNRECORDED if unrecorded else 0
                    return self._take(optimizer, vars(optimizer), cache, flags)
                except BaseException:  # what is kept may be half of one step, half of another
                    cache.forget_replay()
                    forget_scale(optimizer)
                    raise
        except BaseException as error:
            add_note(error, [f"{TAKEN}."] if self.snapshot.taken != before else ())
            raise

    def _take(self, optimizer: Any, own: dict[str, Any], cache: Any, flags: int) -> bool:
        if (
            type(optimizer) is not self._class
            or cache.replay is not self  # another thread took a careful step
            or own.get("param_groups") is not self.groups
            or len(self.groups) != self._group_count
            or own.get("state") is not self.state
            or not (self._has_guards or not (is_traced() or (flags and is_recorded())))
            or (thread.strategies and replicas() > 1)
            or cache.is_swapped
            or (cache.stepping is not None and not self._has_sums)
            or not (choices() is self._choices or current(self.selection) == self.selection)
        ):
            return False
        if self._is_plain and "found_inf" not in own and "grad_scale" not in own:
            if self._has_threads:
                self.launches.set_threads(self.snapshot)
            other = self.snapshot.take(None, replay_kernel.ANY_STEP, replay_kernel.WHOLE, (), flags)
            if other:
                if other not in _STEADY:
                    cache.forget_replay()
                return False
            own["_opt_called"] = True
            return True
        pairs, then = None, ()
        if self._has_sums:
            if optimizer._own.sums.keys() != self._ids:
                return False
            pairs = list(zip(optimizer._gradients(self._owners), self._owners, strict=True))
            then = optimizer._clearing_sums()
        given = self.snapshot.taken, pairs, then, flags
        if self._in_call is None and not all(share.read() for share in self.shares):
            return False
        following = self._take_by(optimizer, given)
        if following is None:
            return False
        for column, values in following:
            column.wrote(values)
        own["_opt_called"] = True
        return True

    def _take_by(
        self, optimizer: Any, given: tuple[int, Any, Any, int], is_beyond: bool = False
    ) -> list[Following] | None:
        """Take the step; the numbers that followed, or None if it was not taken.

        Args:
            optimizer: The optimizer.
            given: How many steps were taken, pairs, what is done with this one, and flags of
                `GuardTable.take`.
            is_beyond: Whether the step was found to be `replay_kernel.BEYOND`.
        """
        snapshot, (begun, pairs, then, flags) = self.snapshot, given
        try:
            following = self._prepare(optimizer, begun, pairs, is_beyond)
            if following is None:
                return None
            for k, (value, now) in enumerate(chain.from_iterable(map(_with_present, following))):
                snapshot.set_number(k, value, now)
        except ERRORS:  # the careful way says it
            return None
        self.launches.set_threads(snapshot)
        part = replay_kernel.WHOLE if self._gradients is None else self._gradients.part
        other = snapshot.take(pairs, begun, part, then, flags)
        # Sums of gradients that are not there would be among those that are left to others.
        can_repeat = not (is_beyond or self._gradients is None or self.may_lack)
        if can_repeat and other == replay_kernel.BEYOND:
            return self._take_by(optimizer, given, is_beyond=True)
        if other and other not in _STEADY:
            optimizer._own.forget_replay()
        return None if other else following

    def _prepare(
        self, optimizer: Any, begun: int, pairs: list[Any] | None, is_beyond: bool
    ) -> list[Following] | None:
        """Set the scalars of the step; the numbers that follow, or None if it is another one."""
        groups, own = self.groups, vars(optimizer)
        if self._in_call is None:
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
                if self._gradients.part == replay_kernel.UPDATE:
                    seen = GradientReport()
                    before = [each for each in self._reports if each[0] == begun]
                    self._reports = [*before, (begun + 1, seen)]
                of_gradients, _ = self._gradients.scalars(seen)
        if self._in_call is not None:
            self._set_shared(of_gradients)
            return []
        found: list[Following] = []
        for share in self.shares:
            following = share.prepare(groups, of_gradients)
            if following is None:
                return None
            found += following
        return found

    def _set_shared(self, scalars: Scalars | None) -> None:
        """Give all kernels the scalars of what happens to gradients, if they are others."""
        if scalars is not None and scalars is not self._shared:
            for launch in self.launches.all:
                launch.set_shared(scalars[launch.dtype])
            self._shared = scalars

    def _transforms(self, optimizer: Any) -> GradientTransforms | None:
        """Return the transforms of gradients; None if a scaler skips the step or a device
        decides.
        """
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
    """Return pairs of the next and the present value of numbers."""
    column, values = following
    now = column.values if column.common is None else [column.common] * len(values)
    return zip(values, now, strict=True)
