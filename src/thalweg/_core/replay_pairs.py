"""Replay of a step over pairs of gradient and variable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._base.execution_context import SessionVariable
from thalweg._base.locks import importing
from thalweg._core.gradient_transforms import NOTHING, GradientTransforms
from thalweg._core.plan_cache import CachedPlan
from thalweg._core.replay import (
    ERRORS,
    KINDS,
    GuardedStep,
    GuardTable,
    Launches,
    are_small,
    bounds_of,
    hold_tensors,
    make_guard_table,
    plan_of,
    replay_block,
    stands,
    tensor_addresses_of,
    written_of,
)
from thalweg._core.scalar_programs import RuleScalars
from thalweg._core.step_adapter import Dtype
from thalweg._engines.memory_protection import check_numbers_writable
from thalweg.errors import LayoutError
from thalweg.variable import Variable, variable_constraint

if TYPE_CHECKING:
    from thalweg._core.replay_transforms import ReplayedTransforms

# The number of coming steps whose scalars are computed together.
MOST_COMING = 32
# Result of a step whose scalars could not be computed.
FAILED = -1
_PLAIN = (Tensor, torch.nn.Parameter, Variable, SessionVariable)


class ComingStep(NamedTuple):
    """Scalars of a future step.

    Attributes:
        scalars: Hyperparameters by compute dtype and name, as scalars of that dtype.
        number: The number of the step, from 1.
        following: The counters' values after the step.
    """

    scalars: Mapping[Dtype, Mapping[str, Any]]
    number: int
    following: Sequence[Any]


class ReplayedPairs:
    """Recorded step with its guards and kernels.

    Args:
        cached_plan: A step for which `is_repeatable` is true.
        guards: An empty guard table.
        counters: The step's counters, of float32, float64 or int64, and of shape ().
        numbers: Guarded tensors of one number, beginning with the counters.
        transforms: The transforms of the step's gradients.
        read: {hyperparameter: tensor from which `take_coming` reads it}.
        carried_scalars: Names of scalars that each step reads from tensors and stores there. The
            tensors are the last ones of `counters`, in the order of the names. They have the
            compute dtype of some of the variables.
    """

    def __init__(
        self,
        cached_plan: CachedPlan,
        guards: GuardTable,
        counters: Sequence[Tensor],
        numbers: Sequence[Tensor],
        transforms: GradientTransforms,
        read: Mapping[str, Tensor],
        carried_scalars: Sequence[str] = (),
    ) -> None:
        self.read = read
        self._carried_scalars, self._has_columns = carried_scalars, not carried_scalars
        self.cached_plan, self.guards, self._counters = cached_plan, guards, counters
        self._kinds = [KINDS[number.dtype] for number in numbers]
        counter_kinds = self._kinds[: len(counters)]
        formats = ("q" if kind == replay_block.INT64 else "d" for kind in counter_kinds)
        self._counter_format = Struct("=" + "".join(formats))
        self._has_table = False
        # All variables have equal scalars, so they are a single place.
        places = [0] * len(cached_plan.request.variables)
        self._launches = Launches([cached_plan], places)
        rule = cached_plan.request.rule
        self._may_have_threads = self._launches.may_have_threads
        loads = dict(
            zip(carried_scalars, counters[len(counters) - len(carried_scalars) :], strict=True)
        )
        self._scalars = [
            (launch, RuleScalars(rule, launch, loads=loads)) for launch in self._launches.all
        ]
        self._gradients: ReplayedTransforms | None = None
        if transforms.stages:
            with importing:
                from thalweg._core.replay_transforms import ReplayedTransforms
            self._gradients = ReplayedTransforms([cached_plan], self._launches, transforms)

    @staticmethod
    def of(
        cached_plan: CachedPlan,
        pairs: Any,
        counters: Sequence[Tensor],
        numbers: Sequence[Tensor] = (),
        attributes: Sequence[tuple[dict[str, object], str | None]] = (),
        transforms: GradientTransforms = NOTHING,
        read: Mapping[str, Tensor] = MappingProxyType({}),
        carried_scalars: Sequence[str] = (),
    ) -> ReplayedPairs | None:
        """Return a replay of a planned step over pairs; None if native code cannot replay it.

        Args:
            cached_plan: A step for which `is_repeatable` is true.
            pairs: A list of tuples (gradient, variable), in the order of the plan.
            counters: The step's counters, tensors of shape (), which each replay advances.
            numbers: The counters, then further tensors of one number each. They are guarded: a
                replay needs the values set by `expect` or by the last replayed step.
            attributes: Pairs (dict, key). The dict is guarded: it must not change, except for the
                value at the key. With None as key, no change is allowed.
            read: {hyperparameter: tensor from which `take_coming` reads it; see `can_read`}.
            carried_scalars: Names of scalars that each step reads from tensors and stores there.
                The tensors are the last ones of `counters`, in the order of the names.
        """
        guards = make_guard_table()
        if (
            guards is None
            # A loss scaler must see the gradients first.
            or transforms.decide is not None
            or transforms.calls
            or not _are_pairs(pairs, cached_plan)
            or any(copy is not None for copy in plan_of(cached_plan).copies)
            or not all(map(_is_number, numbers))
            or not _are_disjoint(counters, cached_plan)
            or not stands(cached_plan, [grad for grad, _ in pairs])
        ):
            return None
        try:
            arguments = counters, numbers, transforms, read, carried_scalars
            replay = ReplayedPairs(cached_plan, guards, *arguments)
        except ERRORS:
            return None
        try:
            return replay if replay._add_guards(pairs, numbers, attributes) else None
        # A planned step raises the error, with the counter's name.
        except LayoutError:
            return None

    def _add_guards(
        self,
        pairs: Any,
        numbers: Sequence[Tensor],
        attributes: Sequence[tuple[dict[str, object], str | None]],
    ) -> bool:
        """Guard all tensors and attributes of the step, and describe the step to native code.

        Return False if a tensor or the attributes of a variable cannot be guarded, or if the memory
        of a tensor was replaced after planning.

        Raises:
            LayoutError: A counter is in read-only memory.
        """
        guards, request = self.guards, self.cached_plan.request
        guards.releases_lock = not are_small([self.cached_plan])
        slots = [slot for var_slots in request.slots for slot in var_slots]
        written = [*written_of(self.cached_plan), *self._counters]
        if not hold_tensors(
            guards, [*request.variables, *slots, *written, *numbers, *self.read.values()]
        ):
            return False
        # The caller may have replaced counters since the last planned step.
        check_numbers_writable(self._counters, lambda index: f"counter {index}")
        for entries, varying in attributes:
            guards.guard_dict(entries, varying)
        # A variable may be given a constraint, which is among its attributes.
        if not all(map(guards.guard_attributes, request.variables)):
            return False
        cells = self._launches.cells
        measures, clipping = ((), 0) if self._gradients is None else self._gradients.for_look()
        guards.write_block(
            GuardedStep(
                [(var, grad, cell) for (grad, var), cell in zip(pairs, cells, strict=True)],
                self._launches.records(),
                [(counter.data_ptr(), 1, KINDS[counter.dtype]) for counter in self._counters],
                written,
                bounds_of(self.cached_plan),
                numbers,
                measures,
                clipping,
                self._launches.programs,
                self._launches.rule_measures(),
            )
        )
        self._hold_memory([*written, *numbers, *self.read.values()])
        self._drop_dicts(attributes)
        return guards.has_recorded(tensor_addresses_of(self.cached_plan))

    def _hold_memory(self, tensors: Sequence[Tensor]) -> None:
        """Keep references to the memory of tensors that native calls read or write.

        Needed only if the calls release the GIL: other threads may then replace a tensor's memory.
        """
        releases_lock = self.guards.releases_lock
        self._storages = [tensor.untyped_storage() for tensor in tensors if releases_lock]

    def _hold_gradients(self, pairs: list[Any]) -> list[Any]:
        """Return the pairs for a native call, in which other threads may change `pairs`.

        If the call releases the GIL, return a new list with an alias of each gradient. If not,
        return `pairs`. An entry that is not a pair with a plain tensor stays; its guard fails.
        """
        if not self.guards.releases_lock:
            return pairs
        return [
            (pair[0].detach(), pair[1]) if _is_pair(pair) and type(pair[0]) is Tensor else pair
            for pair in pairs
        ]

    def _drop_dicts(self, attributes: Sequence[tuple[dict[str, object], str | None]]) -> None:
        """Drop references to dicts with a key that may change.

        Callers of `take` keep these dicts alive. A dict may contain this replay, so a reference
        would make a cycle.
        """
        dict_ids = {id(entries) for entries, varying in attributes if varying is not None}
        self.guards.release_dicts(dict_ids)

    def expect(self, expected: Sequence[object], first: int = 0) -> None:
        """Set the values that guarded numbers must have for a replay of the next step.

        A replayed step sets the expected values of counters itself.

        Args:
            first: The index in `numbers` of the first value.
        """
        for index, value in enumerate(expected, first):
            self.guards.set_watched_number(index, self._kinds[index], value)

    def change(self, dtype: Dtype, values: dict[str, Any], name: str, value: object) -> None:
        """Set one hyperparameter in `values`, and in all programs that compute in `dtype`.

        Args:
            dtype: The compute dtype.
            values: The result of `values_of(dtype)` in `take`; changed in place.
        """
        values[name] = value
        for launch, scalars in self._scalars:
            if launch.dtype is dtype:
                scalars.change(values, name)

    def set_coming(self, first: int, steps: Sequence[ComingStep]) -> bool:
        """Replace the table of scalars that `take_coming` reads. Each coming step has a row.

        Args:
            first: The number of steps taken before the first row is used.
            steps: At most `MOST_COMING` steps; none to empty the table.

        Returns:
            True if the table has rows now. If no program can compute the scalars of a kernel, the
            result is False, and the table is unchanged.
        """
        rows: list[bytes] = []
        for scalars, number, next_counters in steps:
            row: list[bytes] = []
            for launch, rule_scalars in self._scalars:
                packed = rule_scalars.pack(scalars[launch.dtype], number)
                if packed is None:
                    return False
                row.append(packed)
            rows.append(b"".join((*row, self._counter_format.pack(*next_counters))))
        self._connect_columns()
        if rows and not self._has_table:
            self._make_table()
        if self._has_table:
            self.guards.set_step_table(first, rows)
        return bool(rows)

    def _connect_columns(self) -> None:
        """Make native steps store each carried scalar in the scalar's tensor of `counters`.

        Do nothing if native code does not yet compute all of these scalars; a later call tries
        again. Also do nothing after a successful call.
        """
        if self._has_columns:
            return
        first = len(self._counters) - len(self._carried_scalars)
        rows: list[tuple[int, int]] = []
        for column, name in enumerate(self._carried_scalars, first):
            dtype = np.float64 if self._counters[column].dtype == torch.float64 else np.float32
            makers = [scalars for launch, scalars in self._scalars if launch.dtype is dtype]
            if not makers or makers[0].span == (0, 0):
                return
            rows.append((makers[0].computed_register(name), column))
        self.guards.set_register_columns(rows)
        self._has_columns = True

    def _can_store(self, rule_scalars: object) -> bool:
        """Return True if a step has no carried scalars, or a program computes and stores them.

        Args:
            rule_scalars: The scalars of a kernel that Python has computed; None if a program does.
        """
        self._connect_columns()
        return not self._carried_scalars or (rule_scalars is None and self._has_columns)

    def _make_table(self) -> None:
        """Allocate the table of coming steps, and register the tensors of `self.read`."""
        scalars = [
            (launch.dtype is np.float32, rule_scalars) for launch, rule_scalars in self._scalars
        ]
        spans = np.array([rule_scalars.span for _, rule_scalars in scalars], np.int64)
        self.guards.set_reads(
            [
                (tensor, rule_scalars.register(name), is_narrow)
                for is_narrow, rule_scalars in scalars
                for name, tensor in self.read.items()
            ]
        )
        self.guards.make_step_table(spans.reshape(-1, 2), MOST_COMING)
        self._has_table = True

    def take_coming(self, pairs: list[object], transforms: GradientTransforms = NOTHING) -> int:
        """Take the next step with scalars from the table of `set_coming`, if all guards hold.

        Returns:
            0 if the step was taken. All other results mean that nothing was written:
                `replay_block.NOT_TABLED` if the table has no row for the step, the constant of the
                first guard that failed, or FAILED.

        Raises:
            One of `ERRORS`: A scalar of the gradients is out of range.
        """
        pairs = self._hold_gradients(pairs)
        if self._gradients is not None:
            count = self.guards.replay_count
            if not (self._has_table and self.guards.has_row(count)):
                return replay_block.NOT_TABLED
            return self._take_measured(
                self._gradients, pairs, count, transforms, replay_block.TABLED
            )
        if self._may_have_threads:
            self._launches.set_threads(self.guards)
        return self.guards.replay(
            pairs, replay_block.ANY_STEP, replay_block.FULL_STEP, (), replay_block.TABLED
        )

    def compare(self, pairs: list[object], count: int) -> int:
        """Check all guards without taking the step; return 0, or the constant of the first failure.

        Args:
            count: The number of replayed steps; another number is a failure, too.
        """
        return self.guards.replay(self._hold_gradients(pairs), count, replay_block.MEASURE)

    def take(
        self,
        pairs: list[object],
        count: int,
        values_of: Callable[[Dtype], Mapping[str, object]],
        step: int | None,
        next_counters: Sequence[object],
        transforms: GradientTransforms = NOTHING,
    ) -> int:
        """Take the step if all guards hold.

        The caller must keep alive the dicts of `attributes` that were passed to `of` with a key.

        Args:
            pairs: Pairs (gradient, variable).
            count: The number of steps that this replay has taken before.
            values_of: `values_of(dtype)` returns the dict of hyperparameters; only `change` may
                modify that dict.
            step: The number of the step; None if `values_of` returns the scalars themselves.
            next_counters: The counters' values after the step.
            transforms: The transforms of the gradients, if the step has any.

        Returns:
            0 if the step was taken, else the constant of the guard that failed, or FAILED.

        Raises:
            Exception: Any error of `values_of`, or one of `ERRORS` for scalars out of range.
        """
        guards, gradients = self.guards, self._gradients
        pairs = self._hold_gradients(pairs)
        for index, value in enumerate(next_counters):
            guards.set_column(index, value)
        if gradients is None:
            for launch, scalars in self._scalars:
                values = values_of(launch.dtype)
                # The numbers are in the registers already; only `change` modifies this dict.
                if values is scalars.values and step is not None:
                    scalars.set(0, launch.dtype(step))
                    continue
                rule_scalars = scalars.made(values, step)
                if not self._can_store(rule_scalars):
                    return FAILED
                if rule_scalars is not None:
                    launch.set_scalars({0: rule_scalars})
            if self._may_have_threads:
                self._launches.set_threads(guards)
            return guards.replay(pairs, count)
        return self._take_measured(gradients, pairs, count, transforms, 0, values_of, step)

    def _take_measured(
        self,
        gradients: ReplayedTransforms,
        pairs: list[Any],
        count: int,
        transforms: GradientTransforms,
        flags: int,
        values_of: Callable[[Dtype], Mapping[str, object]] | None = None,
        step: int | None = None,
    ) -> int:
        """Take a step whose scalars depend on norms of gradients; return the result of `take`.

        If native code cannot compute a norm or scalar exactly, Python computes the scalars, and the
        native call is repeated once.

        Args:
            gradients: Computes the norms, and scalars from the norms.
            pairs, count, transforms, step: As in `take`.
            flags: `replay_block.TABLED` to read the rule's scalars from the table, or 0.
            values_of: As in `take`; None if the rule's scalars come from the table.
        """
        for is_beyond in (False, True):
            failure = gradients.measure(transforms, self.guards, count, pairs, is_beyond)
            if failure:
                return failure
            shared, by_variable = gradients.scalars()
            for launch, scalars in self._scalars:
                inputs = values_of and scalars.made(values_of(launch.dtype), step)
                if not self._can_store(inputs):
                    return FAILED
                launch.set_scalars({0: {**launch.unset, **(inputs or {}), **shared[launch.dtype]}})
            gradients.set_by_variable(by_variable)
            self._launches.set_threads(self.guards)
            failure = self.guards.replay(pairs, count, gradients.part, (), flags)
            if failure != replay_block.OUT_OF_RANGE:
                break
        return failure


def _are_pairs(pairs: object, cached_plan: CachedPlan) -> bool:
    """Return True if `pairs` is a list of tuples (plain gradient, variable) in the plan's order."""
    variables = cached_plan.request.variables
    return (
        type(pairs) is list
        and len(variables) == len(cast("list[Any]", pairs))
        and all(map(_is_pair_of, cast("list[Any]", pairs), variables))
    )


def _is_number(tensor: Tensor) -> bool:
    return type(tensor) in _PLAIN and tensor.dtype in KINDS and not tensor.dim()


def can_read(value: object) -> bool:
    """Return True if native code can read a hyperparameter at the address of `value`.

    `value` must be a Tensor, Parameter or variable, on the CPU, of shape (), float32 or float64,
    with memory, and without a lazy negation.
    """
    return (
        isinstance(value, Tensor)
        and _is_number(value)
        and value.is_floating_point()
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and not value.is_neg()
        and value.data_ptr() != 0
    )


def _are_disjoint(counters: Sequence[Tensor], cached_plan: CachedPlan) -> bool:
    """Return True if no two counters share 8 bytes, and none is in memory that the step updates."""
    starts, ends = plan_of(cached_plan).bounds.reshape(-1, 2).T
    addresses = [counter.data_ptr() for counter in counters]
    are_disjoint = len({address // 8 for address in addresses}) == len(addresses)
    overlaps = (((starts <= address) & (address < ends)).any() for address in addresses)
    return are_disjoint and not any(overlaps)


def _is_pair(pair: Any) -> TypeGuard[tuple[Any, Any]]:
    return type(pair) is tuple and len(cast("tuple[Any, ...]", pair)) == 2


def _is_pair_of(pair: object, var: Tensor) -> bool:
    # Exact types, because native code bypasses the methods of subclasses.
    return (
        _is_pair(pair)
        and type(pair[0]) is Tensor
        and pair[1] is var
        and type(var) in _PLAIN
        and variable_constraint(var) is None
    )
