"""Replay of a torch-style step: one native call that checks guards, then updates all parameters.

A guard compares an object with the one that the last step found. A step
*without replay* checks all inputs and runs the optimizer's Python code. A *sub-step* is the part of
a step with the update of one rule. The *passes* of a rule are kernels that run before its update,
and the *judge* is the option that refuses steps with outlying gradients or losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

import torch
from torch import Tensor

from thalweg._base.execution_context import replicas, thread
from thalweg._core.atomic_section import Call
from thalweg._core.commit import TAKEN, add_note
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.param_groups import gradient_set_of
from thalweg._core.plan_cache import CachedPlan
from thalweg._core.reentrance import Stepping
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
    make_guard_table,
    replay_block,
)
from thalweg._core.replay_transforms import ReplayedTransforms, has_scalars_in_call
from thalweg._engines import current
from thalweg._engines.engine_selection import choices
from thalweg._engines.guards import is_recorded
from thalweg._engines.layout import merge_ranges
from thalweg.optim.grad_scaler import forget_scale
from thalweg.optim.group_options import Options, number
from thalweg.optim.replay_scalars import hold
from thalweg.optim.replay_substep import PARAM_CLASSES, ColumnUpdate, ReplayedSubStep
from thalweg.optim.scalars_in_call import ScalarsInCall
from thalweg.optim.step_adapter import ParamGroupAdapter
from thalweg.optim.step_options import GradientReport, gradient_transforms

if TYPE_CHECKING:
    from thalweg._core.replay_passes import ReplayedPasses
    from thalweg._core.replay_transforms import Scalars

_params_of = itemgetter("params")
# Reasons for which a step is not taken, although the next one may be.
_STEADY = (replay_block.ALL_GRADIENTS_ABSENT, replay_block.TRACING)


class ReplayedStep:
    """Step that one native call repeats with new gradients, while nothing else changes.

    Args:
        optimizer: The optimizer, which has just repeated a step.
        adapters: The adapter of each rule's update in that step.
        absent: {id(parameter): stand-in} of gradients that the last step lacked. Unless it is
            empty, further steps may lack any gradients.
    """

    def __init__(
        self,
        optimizer: Any,
        adapters: Sequence[ParamGroupAdapter],
        absent: Mapping[int, Tensor] = MappingProxyType({}),
    ) -> None:
        self._class: type[Any] = type(optimizer)
        self.groups = optimizer.param_groups
        self._group_count = len(self.groups)
        self.state = optimizer.state
        self.sub_steps = list(map(ReplayedSubStep, adapters))
        self.selection = self.sub_steps[0].adapter.selection
        self._choices = choices() if current(self.selection) == self.selection else None
        self._owners = [owner for sub_step in self.sub_steps for owner in sub_step.owners]
        self._absent: Mapping[int, Tensor] = absent  # {} after the step is planned
        self.may_lack = bool(absent)  # True if parameters may lack gradients
        # True if steps use accumulated gradients.
        self._has_sums = optimizer.step_options.accumulate > 1
        self._gradients: ReplayedTransforms | None = None  # if gradients are transformed
        # The transforms of the last step, with the factor that unscaled its gradients.
        self._scaled_transforms: tuple[float | None, GradientTransforms] | None = None
        self._idle_options: list[tuple[int, Options]] = []  # of groups that have no gradient
        self._reports: list[tuple[int, GradientReport]] = []  # by the number of their step
        self._passes: Sequence[ReplayedPasses] = ()  # of rules with passes
        self._rounds_as_tensor = False  # True if a number follows the default dtype
        self._in_call: ScalarsInCall | None = None  # if the native call computes scalars
        self._shared: Scalars | None = None  # scalars of transforms, as last written to kernels
        self.reported = 0  # replayed steps that the optimizer has counted

    @classmethod
    def of(
        cls,
        optimizer: Any,
        adapters: Sequence[ParamGroupAdapter],
        absent: Mapping[int, Tensor] = MappingProxyType({}),
    ) -> Self | None:
        """Return a replay of the last step, ready for `take`; None if the step cannot be replayed.

        Args:
            optimizer: The optimizer, which has just repeated a step; not changed.
            adapters: The adapter of each rule's update in that step.
            absent: {id(parameter): stand-in} of gradients that the last step lacked.
        """
        replay = cls(optimizer, adapters, absent)
        try:
            return replay if replay._plan(optimizer) else None
        # A step without replay raises for errors that concern it.
        except ERRORS:
            return None

    def _plan(self, optimizer: Any) -> bool:
        """Build the native call of the optimizer's last step; set the attributes of this replay.

        Return True on success. Return False if the step cannot be replayed.
        """
        transforms, sub_steps = self._transforms(optimizer), self.sub_steps
        options = optimizer.step_options
        if transforms is None or options.in_backward or options.kinds.device is not None:
            return False
        if not all(sub_step.is_repeatable(transforms.stages) for sub_step in sub_steps):
            return False
        plans = [sub_step.plan for sub_step in sub_steps]
        places = [place for sub_step in sub_steps for place in sub_step.places]
        if not self._are_in_groups(self._owners, places):
            return False
        gradients: list[Any] = [
            self._absent.get(id(param)) if grad is None else grad
            for grad, param in zip(optimizer._gradients(self._owners), self._owners, strict=True)
        ]
        if any(grad is None for grad in gradients) or not self._is_unchanged(optimizer, gradients):
            return False
        idle_params = self._find_idle_params()
        guards = make_guard_table()
        if guards is None or not self._add_guards(guards, places, idle_params):
            return False
        self._ids = set(map(id, self._owners))
        if not self._make_scalars_in_call(transforms, guards):
            return False
        if self._has_passes_between_calls and not self._can_run_passes(optimizer, transforms):
            return False
        self._make_launches(optimizer, transforms, plans)
        guards.releases_lock = not are_small(plans)
        self._write_guards(guards, gradients, idle_params)
        # True if finalizers may run between the native calls of a step.
        has_end_calls = bool(self._passes) or transforms.judge is not None
        self._is_divided = guards.releases_lock or has_end_calls
        self._absent = {}
        pairs = (sub_step.tensor_addresses() for sub_step in sub_steps)
        return guards.has_recorded(chain.from_iterable(pairs))

    def _make_scalars_in_call(self, transforms: GradientTransforms, guards: GuardTable) -> bool:
        """Prepare the scalars of steps, such as the rate; return True if a replay is possible.

        Set `self._in_call` to native programs for the scalars; add their guards to `guards`. If
        only Python can compute the scalars, prepare `self.sub_steps` for this instead. If
        gradients may be absent, a replay needs native programs and a single rule.
        """
        try:
            if not has_scalars_in_call(transforms):
                raise TypeError("Scalars depend on the gradient of each variable.")
            self._in_call = ScalarsInCall(self.sub_steps, self.groups)
        except ERRORS:
            for sub_step in self.sub_steps:
                sub_step.group_by_scalars()
            return not self.may_lack
        self._in_call.hold_groups(guards, dict(self._idle_options))
        specs = chain.from_iterable(sub_step.part.numbers.values() for sub_step in self.sub_steps)
        self._rounds_as_tensor = any(spec.rounds_as_tensor for spec in specs)
        return len(self.sub_steps) == 1 or not self.may_lack

    @property
    def _has_passes_between_calls(self) -> bool:
        """True if a rule has passes (stages before the update) that need native calls of theirs."""
        rules = [sub_step.part.rule for sub_step in self.sub_steps]
        return any(rule.leading_passes for rule in rules)

    def _can_run_passes(self, optimizer: Any, transforms: GradientTransforms) -> bool:
        """Return True if passes can run in native calls before the native call of the update.

        Return False if Python computes scalars, if gradients may be absent, or if `spikes` or
        `diagnostics` is on.
        """
        is_observed = optimizer.step_cache.diagnosing is not None
        is_simple = not (self.may_lack or transforms.judge)
        return self._in_call is not None and is_simple and not is_observed

    def _make_launches(
        self, optimizer: Any, transforms: GradientTransforms, plans: Sequence[CachedPlan]
    ) -> None:
        """Set `self.launches`: the kernels of the update, and memory for their scalars.

        If gradients are unscaled, clipped or judged by `spikes`, also set `self._gradients`.
        """
        in_call = self._in_call
        keys = [key for sub_step in self.sub_steps for key in sub_step.keys]
        self.launches = launches = Launches(plans, keys if in_call is None else in_call.keys)
        if in_call is not None:
            in_call.set_rows_per_param(launches)
        else:
            products = () if optimizer.has_torch_numbers else optimizer.product_hypers
            for sub_step, kernels in zip(self.sub_steps, launches.of, strict=True):
                sub_step.set_launches(kernels, products)
        if transforms.stages or transforms.judge is not None:
            self._gradients = ReplayedTransforms(plans, launches, transforms)

    def _write_guards(
        self, guards: GuardTable, gradients: Sequence[Tensor], idle_params: Sequence[Tensor]
    ) -> None:
        """Complete `guards`, the argument of the native call, and store it as `self.guards`.

        Args:
            guards: A table with guards of all tensors, lists and dicts of the step; changed.
            gradients: The gradient of each parameter in `self._owners`.
            idle_params: All other parameters of the groups. If one has a gradient, the native call
                takes no step. With gradient sums, `idle_params` is ignored.
        """
        sub_steps, launches, in_call = self.sub_steps, self.launches, self._in_call
        members, pass_members = self._place_programs()
        writers = self._find_writers() if self.may_lack else {}
        measures, clipping = ((), 0) if self._gradients is None else self._gradients.for_look()
        numbers = (
            [] if in_call else [number for sub_step in sub_steps for number in sub_step.numbers()]
        )
        step = GuardedStep(
            [
                *zip(self._owners, gradients, launches.cells, strict=True),
                *((param, None, 0) for param in idle_params if not self._has_sums),
            ],
            launches.records(),
            numbers,
            [tensor for sub_step in sub_steps for tensor in sub_step.written()],
            merge_ranges([bounds_of(sub_step.plan) for sub_step in sub_steps]),
            (),
            measures,
            clipping,
            launches.programs,
            launches.rule_measures(),
            () if in_call is None else launches.spreads(),
            members=members,
            pass_members=pass_members,
            may_be_absent=self.may_lack,
            writer_indices=writers,
        )
        guards.write_block(step)
        self._hold_memory(step, guards.releases_lock)
        if self.may_lack and self._gradients is not None:
            self._gradients.leave_out_absent(guards.gradient_switches)
        self.guards = guards
        # Without the GIL, `_hold_gradients` calls functions of torch before guards are checked.
        self._has_guards = guards.detects_tracing and not guards.releases_lock
        self._is_single_call = not (in_call is None or self._has_sums or self._gradients)
        self._has_threads = launches.may_have_threads

    def _place_programs(self) -> tuple[list[Member], list[Member]]:
        """Give each kernel native programs that compute its scalars; set `self._passes`.

        Return (records of the update, records of passes). A record tells the native call which
        program a parameter uses. Both lists are empty if Python computes the scalars.
        """
        if self._in_call is None:
            return [], []
        spans = [self._gradients.spans()] if self.may_lack and self._gradients else []
        members = self._in_call.place_programs(self.launches, spans)
        pass_members, self._passes = self._in_call.place_pass_programs(self.launches, members)
        return members, pass_members

    def _find_writers(self) -> dict[int, list[int]]:
        """Return {id(tensor): indices of the parameters whose updates write the tensor}.

        A slot has the indices of all parameters whose slots are in its storage.
        """
        # Tensors of one storage share a version counter, which each of these updates increases.
        writers: dict[int, list[int]] = {id(x): [k] for k, x in enumerate(self._owners)}
        requests = [sub_step.plan.request for sub_step in self.sub_steps]
        variables = [var for request in requests for var in request.variables]
        writers |= {id(x): [k] for k, x in enumerate(variables)}
        sharing: dict[int, list[int]] = {}
        slots = [var_slots for request in requests for var_slots in request.slots]
        for k, var_slots in enumerate(slots):
            for slot in var_slots:
                sharing.setdefault(slot.untyped_storage()._cdata, []).append(k)
        return writers | {
            id(slot): sharing[slot.untyped_storage()._cdata]
            for var_slots in slots
            for slot in var_slots
        }

    def _is_unchanged(self, optimizer: Any, gradients: Sequence[Any]) -> bool:
        """Return True if a step without replay would repeat the last one exactly.

        `gradients` has the gradient of each parameter in `self._owners`.
        """
        remaining = iter(gradients)
        return all(
            sub_step.stands(optimizer, [next(remaining) for _ in sub_step.owners])
            for sub_step in self.sub_steps
        )

    def _are_in_groups(self, owners: Sequence[Tensor], places: Sequence[int]) -> bool:
        """Return True if the groups of the parameters `owners` have the indices `places`."""
        indices = {id(p): place for place, group in enumerate(self.groups) for p in group["params"]}
        return [indices.get(id(param)) for param in owners] == [*places]

    def _find_idle_params(self) -> list[Tensor]:
        """Return the parameters of the groups that had no gradient in the last step."""
        owner_ids = set(map(id, self._owners))
        all_params = (param for group in self.groups for param in group["params"])
        return [param for param in all_params if id(param) not in owner_ids]

    def _add_guards(
        self, guards: GuardTable, places: Sequence[int], idle_params: Sequence[Tensor]
    ) -> bool:
        """Add guards of all lists, dicts and tensors on which a step without replay depends.

        Return False if an object cannot be guarded, or if an idle parameter has a gradient. Also
        append the options of groups that have no parameter in the step to `self._idle_options`.

        Args:
            places: The index of the group of each parameter in the step.
            idle_params: The parameters without a gradient in the step.
        """
        if not all(type(param) in PARAM_CLASSES for param in idle_params):
            return False
        if not all(type(x) is list for x in (self.groups, *map(_params_of, self.groups))):
            return False
        guards.guard_list(self.groups)
        for place, group in enumerate(self.groups):
            guards.guard_list(group["params"])
            if place not in places:
                self._idle_options.append((place, Options(group, self.sub_steps[0].part.rule, {})))
        guards.guard_dict(self.state)
        if not (self._has_sums or all(param.grad is None for param in idle_params)):
            return False
        if not all(sub_step.hold(guards) for sub_step in self.sub_steps):
            return False
        return hold_tensors(guards, idle_params)

    @property
    def taken(self) -> int:
        """Number of replayed steps."""
        return self.guards.replay_count

    @property
    def seen(self) -> GradientReport:
        """Norm and clip factor of the gradients of the last replayed step; None if not measured."""
        step_count = self.taken
        stats = None if self._gradients is None else self._gradients.last_norm(step_count)
        if stats is not None:
            return GradientReport(*stats)
        return next((report for k, report in self._reports if k == step_count), GradientReport())

    def take(self, optimizer: Any, has_sums: bool = False, unrecorded: bool = False) -> bool:
        """Take the step in a native call, unless something that it depends on has changed.

        Return True if the step was taken. Return False, with no tensor changed, if a step with all
        checks is needed.

        Args:
            optimizer: The optimizer. On an error, the replay is removed from its step cache.
            has_sums: True to read gradients from `step_cache.sums` instead of `param.grad`.
            unrecorded: True to return False while a profiler records operations.
        """
        if has_sums != self._has_sums:
            return False
        is_taken, cache = False, optimizer.step_cache
        try:
            with cache.lock:
                # With the lock: other threads may take steps before and after.
                former_count, stepping = self.guards.replay_counter.value, cache.stepping
                try:
                    flags = replay_block.UNRECORDED if unrecorded else 0
                    is_taken = self._take(optimizer, optimizer.__dict__, cache, flags)
                    cache.stepping = stepping
                except BaseException:
                    # An interrupted step may have left scalars of two steps in the kernels.
                    is_taken = self.guards.replay_count != former_count
                    cache.stepping = stepping
                    cache.forget_replay()
                    forget_scale(optimizer)
                    raise
            return is_taken
        except BaseException as error:
            add_note(error, [f"{TAKEN}."] if is_taken else ())
            raise

    def _take(self, optimizer: Any, fields: dict[str, Any], cache: Any, flags: int) -> bool:
        """Take the step unless a condition checked here or a guard of the native call fails.

        Return True if the step was taken. If a guard fails, also remove the replay from the step
        cache, unless later steps may use it.

        Args:
            fields: `vars(optimizer)`. A step sets its `_opt_called`, for torch's schedulers.
            flags: `UNRECORDED` or 0, an argument of `GuardTable.replay`.
        """
        if (
            type(optimizer) is not self._class
            # Another thread has taken a step without replay.
            or cache.replay is not self
            or fields.get("param_groups") is not self.groups
            or len(self.groups) != self._group_count
            or fields.get("state") is not self.state
            or not (self._has_guards or not (is_traced() or (flags and is_recorded())))
            or (thread.strategies and replicas() > 1)
            or cache.holds_averages
            or (cache.stepping is not None and not self._has_sums)
            or not (choices() is self._choices or current(self.selection) == self.selection)
            or (self._rounds_as_tensor and torch.get_default_dtype() != torch.float32)
        ):
            return False
        guards = self.guards
        if self._is_divided:
            # A step by a finalizer raises an error; `take` restores the attribute.
            stepping = Stepping()
            cache.stepping = ref(stepping)
        if self._is_single_call and "found_inf" not in fields and "grad_scale" not in fields:
            if self._has_threads:
                self.launches.set_threads(guards)
            pairs = self._hold_gradients() if guards.releases_lock else None
            if self._passes:
                status = self._replay((guards.replay_count, pairs, (), flags))
            else:
                status = guards.replay(pairs, flags=flags)
            if status:
                self._drop(optimizer, status)
                return False
            fields["_opt_called"] = True
            return True
        return self._take_with_scalars(optimizer, fields, flags)

    def _replay(self, call_args: tuple[int, Any, Sequence[Call], int]) -> int:
        """Run the native calls of passes (stages before the update) and of the update.

        Return 0 if the step was taken, else the constant of the guard that failed.

        Args:
            call_args: Arguments of `GuardTable.replay`: the number of replayed steps, (gradient,
                parameter) pairs or None for `param.grad`, callables that end the step, and flags.
        """
        guards, (step_count, pairs, end_calls, flags) = self.guards, call_args
        part = replay_block.FULL_STEP if self._gradients is None else self._gradients.part
        writes: list[Call] = []
        for passes in self._passes:
            part = replay_block.UPDATE
            status, slot_writes = passes.run(guards, step_count, flags, pairs)
            if status:
                return status
            writes += slot_writes
        return guards.replay(pairs, step_count, part, [*writes, *end_calls], flags)

    def _take_with_scalars(self, optimizer: Any, fields: dict[str, Any], flags: int) -> bool:
        """Take a step that needs Python code for gradient sums, transforms or scalars.

        Return True if the step was taken; its new step counts are recorded in columns. Return False
        if no step was taken; no tensor has changed then. For `fields` and `flags`, see `_take`.
        """
        pairs, end_calls = None, ()
        if self._has_sums:
            if optimizer.step_cache.sums.keys() != self._ids:
                return False
            pairs = list(zip(optimizer._gradients(self._owners), self._owners, strict=True))
            end_calls = optimizer.clearing_sums()
        elif self.guards.releases_lock:
            pairs = self._hold_gradients()
        call_args = self.guards.replay_count, pairs, end_calls, flags
        if self._in_call is None and not all(sub_step.read() for sub_step in self.sub_steps):
            return False
        # Passes need the norms of gradients before the native call of the update.
        column_updates = self._set_and_replay(optimizer, call_args, bool(self._passes))
        if column_updates is None:
            return False
        for column, values in column_updates:
            column.wrote(values)
        fields["_opt_called"] = True
        return True

    @staticmethod
    def _drop(optimizer: Any, status: int) -> None:
        """Remove the replay from the step cache, unless later steps may use it.

        `status` is the constant of the guard that failed. The replay stays if only the set of
        parameters with a gradient differs, and each set has a replay.
        """
        cache = optimizer.step_cache
        is_of_set = status == replay_block.OTHER_GRADIENT and cache.sets is not None
        if is_of_set and cache.gradient_set != gradient_set_of(optimizer.param_groups):
            return
        if status not in _STEADY:
            cache.forget_replay()

    def _hold_memory(self, step: GuardedStep, releases_lock: bool) -> None:
        """Keep references to the parameters with gradients, and to memory that kernels write.

        References to memory are needed only if the call releases the GIL: other threads may then
        replace the memory of a tensor.
        """
        self._gradient_owners = [param for param, *_ in step.gradients]
        written_tensors = step.written_tensors if releases_lock else ()
        self._storages = [tensor.untyped_storage() for tensor in written_tensors]

    def _hold_gradients(self) -> list[tuple[Tensor | None, Tensor]]:
        """Return (gradient or None, parameter) pairs that keep the memory of gradients alive.

        Other threads may replace the gradients meanwhile. A gradient of a subclass of Tensor, for
        which a guard fails, is returned unchanged.
        """
        pairs = [(param.grad, param) for param in self._gradient_owners]
        return [(x.detach() if type(x) is Tensor else x, param) for x, param in pairs]

    def _set_and_replay(
        self, optimizer: Any, call_args: tuple[int, Any, Any, int], beyond_range: bool = False
    ) -> list[ColumnUpdate] | None:
        """Set the scalars of the step and run its native calls.

        Return (column, numbers after the step) pairs, which the caller records. Return None if the
        step was not taken.

        Args:
            call_args: The argument of `_replay`.
            beyond_range: True after a native call returned `OUT_OF_RANGE`: measure norms
                separately.
        """
        guards, (step_count, pairs, end_calls, flags) = self.guards, call_args
        try:
            prepared_step = self._prepare(optimizer, step_count, pairs, beyond_range)
            if prepared_step is None:
                return None
            column_updates, judge_calls = prepared_step
            numbers = chain.from_iterable(map(_pair_with_present, column_updates))
            for k, (value, current) in enumerate(numbers):
                guards.set_column(k, value, current)
        # The step without replay raises the error with its message.
        except ERRORS:
            return None
        self.launches.set_threads(guards)
        native_args = step_count, pairs, [*end_calls, *judge_calls], flags
        status = self._replay(native_args)
        # Sums of gradients that are not there would be among those that are left to others.
        can_repeat = not (beyond_range or self._gradients is None or self.may_lack)
        if can_repeat and status == replay_block.OUT_OF_RANGE:
            return self._set_and_replay(optimizer, call_args, beyond_range=True)
        if status:
            self._drop(optimizer, status)
        return None if status else column_updates

    def _prepare(
        self, optimizer: Any, step_count: int, pairs: list[Any] | None, beyond_range: bool
    ) -> tuple[list[ColumnUpdate], Sequence[Call]] | None:
        """Measure the gradients if needed, and set the scalars of the step in the kernels.

        Args:
            step_count: The number of replayed steps so far.
            pairs: (sum of gradients, parameter) pairs; None for gradients in `param.grad`.
            beyond_range: True after a native call returned `OUT_OF_RANGE`: measure norms
                separately.

        Returns:
            (updates, calls), or None if a step without replay is needed. `updates` has (column,
                numbers after the step) pairs; it is empty if native code computes the scalars.
                `calls` record the decision of `spikes`.
        """
        groups, fields = self.groups, optimizer.__dict__
        if self._in_call is None:
            for place, options in self._idle_options:
                if not hold(options, groups[place]):
                    return None
        of_gradients: Scalars | None = None
        judge_calls: Sequence[Call] = ()
        if self._gradients is not None or "found_inf" in fields or "grad_scale" in fields:
            transforms = self._transforms(optimizer)
            if transforms is None or (self._gradients is None and transforms.stages):
                return None
            if self._gradients is not None:
                arguments = self.guards, step_count, pairs, beyond_range
                if self._gradients.measure(transforms, *arguments):
                    return None
                if (judgement := self._judge(self._gradients, step_count)) is None:
                    return None
                of_gradients, judge_calls = judgement
        if self._in_call is not None:
            self._set_shared(of_gradients)
            return [], judge_calls
        column_updates: list[ColumnUpdate] = []
        for sub_step in self.sub_steps:
            column_pairs = sub_step.prepare(groups, of_gradients)
            if column_pairs is None:
                return None
            column_updates += column_pairs
        return column_updates, judge_calls

    def _judge(
        self, gradients: ReplayedTransforms, step_count: int
    ) -> tuple[Scalars, Sequence[Call]] | None:
        """Let the option `spikes` judge the step by the measured norms of its gradients.

        Return ({dtype: scalars of gradient transforms}, callables that record the decision).
        Return None if the norm exceeds the limit of `spikes`; the caller then takes the step
        without replay. If norms were measured before the native call of the step, append (number of
        the replayed step, `GradientReport` of the norms) to `self._reports`.
        """
        report = None
        if gradients.part == replay_block.UPDATE:
            report = GradientReport()
            former_reports = [pair for pair in self._reports if pair[0] == step_count]
            self._reports = [*former_reports, (step_count + 1, report)]
        scalars, _ = gradients.scalars(report)
        judge_calls = gradients.judge()
        return None if judge_calls is None else (scalars, judge_calls)

    def _set_shared(self, scalars: Scalars | None) -> None:
        """Write scalars of gradient transforms into all kernels, unless None or already written."""
        if scalars is not None and scalars is not self._shared:
            for launch in (*self.launches.all, *self.launches.of_passes()):
                launch.set_shared(scalars[launch.dtype])
            self._shared = scalars

    def _transforms(self, optimizer: Any) -> GradientTransforms | None:
        """Return the gradient transforms of the step; cached until the unscaling factor changes.

        Return None if `torch.amp.GradScaler` found an overflow, or if its flag stays on a GPU.
        """
        # Reading the flag would wait for the device.
        if optimizer.step_cache.apply_flag is not None:
            return None
        found_inf = optimizer.__dict__.get("found_inf")
        if found_inf is not None and number(found_inf):
            return None
        unscaling = optimizer.unscaling()
        if self._scaled_transforms is None or self._scaled_transforms[0] != unscaling:
            arguments = optimizer.step_options, unscaling, len(self._owners), GradientReport()
            transforms = gradient_transforms(*arguments, optimizer.has_torch_numbers)
            self._scaled_transforms = unscaling, transforms
        return self._scaled_transforms[1]


def _pair_with_present(update: ColumnUpdate) -> Iterable[tuple[Any, Any]]:
    """Return (next, present) pairs of the numbers of a column."""
    column, values = update
    current = column.values if column.common is None else [column.common] * len(values)
    return zip(values, current, strict=True)
