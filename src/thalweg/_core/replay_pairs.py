"""A step over pairs of gradients and variables, as the look of `_core/replay.py` compares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

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
    GuardTable,
    Launches,
    are_small,
    bounds_of,
    hold_tensors,
    plan_of,
    replay_kernel,
    snapshot,
    stands,
    written_of,
)
from thalweg._core.scalar_programs import RuleScalars
from thalweg._core.step_adapter import Dtype
from thalweg._engines.memory_protection import check_numbers_writable
from thalweg.errors import LayoutError
from thalweg.variable import Variable, variable_constraint

if TYPE_CHECKING:
    from thalweg._core.replay_transforms import ReplayedTransforms

MOST_COMING = 32  # steps whose numbers are computed at a time
_PLAIN = (Tensor, torch.nn.Parameter, Variable, SessionVariable)


class ComingStep(NamedTuple):
    """Numbers of a step that is to come.

    Attributes:
        scalars: Hyperparameters by compute dtype and name, as scalars of that dtype.
        number: The number of the step, from 1.
        following: What the counters become.
    """

    scalars: Mapping[Dtype, Mapping[str, Any]]
    number: int
    following: Sequence[Any]


class ReplayedPairs:
    """The step, as it was found.

    Args:
        planned: The step; `is_repeatable` has been asked.
        found: What the look compares, empty.
        counters: What it counts, of float32, float64 or int64, and of shape ().
        numbers: What is watched; first the counters.
        how: What happened to its gradients.
        read: Tensors from which `take_coming` reads hyperparameters, by name.
    """

    def __init__(
        self,
        planned: CachedPlan,
        found: GuardTable,
        counters: Sequence[Tensor],
        numbers: Sequence[Tensor],
        how: GradientTransforms,
        read: Mapping[str, Tensor],
    ) -> None:
        self.read = read
        self.planned, self.snapshot, self._counters = planned, found, counters
        self._kinds = [KINDS[each.dtype] for each in numbers]
        own = self._kinds[: len(counters)]
        formats = ("q" if kind == replay_kernel.INT64 else "d" for kind in own)
        self._following = Struct("=" + "".join(formats))
        self._has_table = False
        places = [0] * len(planned.request.variables)
        self._launches = Launches([planned], places)
        rule = planned.request.rule
        self._may_have_threads = self._launches.may_have_threads
        self._scalars = [(each, RuleScalars(rule, each)) for each in self._launches.all]
        self._gradients: ReplayedTransforms | None = None
        if how.stages:
            with importing:
                from thalweg._core.replay_transforms import ReplayedTransforms
            self._gradients = ReplayedTransforms([planned], self._launches, how)

    @staticmethod
    def of(
        planned: CachedPlan,
        given: Any,
        counters: Sequence[Tensor],
        numbers: Sequence[Tensor] = (),
        attributes: Sequence[tuple[dict[str, object], str | None]] = (),
        how: GradientTransforms = NOTHING,
        read: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> ReplayedPairs | None:
        """The step, if the careful look finds it to be the one before; else None.

        Args:
            planned, counters: As those of the class.
            given: A list of tuples of a gradient and a variable.
            numbers: Tensors of one number each, of the same types, that nobody may write between
                `expect` and `take`; those of counters begin with them.
            attributes: Dictionaries that are to stay as they are, each with the key whose value
                may change; None if none may.
            how: What happened to the gradients.
            read: As that of the class; `can_read` has been asked.
        """
        found = snapshot()
        if (
            found is None
            or how.decide is not None  # who would be asked about gradients
            or how.calls
            or not are_small([planned])
            or not _are_pairs(given, planned)
            or any(copy is not None for copy in plan_of(planned).copies)
            or not all(map(_is_number, numbers))
            or not _are_apart(counters, planned)
            or not stands(planned, [grad for grad, _ in given])
        ):
            return None
        try:
            made = ReplayedPairs(planned, found, counters, numbers, how, read)
        except ERRORS:  # of what cannot be done in one call
            return None
        try:
            return made if made._hold(given, numbers, attributes) else None
        except LayoutError:  # of a counter, which the careful step names
            return None

    def _hold(
        self,
        given: Any,
        numbers: Sequence[Tensor],
        attributes: Sequence[tuple[dict[str, object], str | None]],
    ) -> bool:
        found, request = self.snapshot, self.planned.request
        slots = [slot for each in request.slots for slot in each]
        written = [*written_of(self.planned), *self._counters]
        if not hold_tensors(
            found, [*request.variables, *slots, *written, *numbers, *self.read.values()]
        ):
            return False
        # Counters may be others than those of the step before, which was checked.
        check_numbers_writable(self._counters, lambda index: f"counter {index}")
        for own, varying in attributes:
            found.hold_dict(own, varying)
        # A variable may be given a constraint, which is among its attributes.
        if not all(map(found.hold_attributes, request.variables)):
            return False
        cells = self._launches.cells
        measures, clipping = ((), 0) if self._gradients is None else self._gradients.for_look()
        found.finish(
            [(var, grad, cell) for (grad, var), cell in zip(given, cells, strict=True)],
            self._launches.records(),
            [(each.data_ptr(), 1, KINDS[each.dtype]) for each in self._counters],
            written,
            bounds_of(self.planned),
            numbers,
            measures,
            clipping,
            self._launches.programs,
            *self._launches.rule_measures(),
        )
        self._let_go(attributes)
        return True

    def _let_go(self, attributes: Sequence[tuple[dict[str, object], str | None]]) -> None:
        """Hold no dictionary whose varying value may hold this step; `take` says who holds it."""
        let_go = {id(own) for own, varying in attributes if varying is not None}
        self.snapshot.let_go(let_go)

    def expect(self, known: Sequence[object], first: int = 0) -> None:
        """Set what numbers that are watched have to be; a step sets those of counters itself.

        Args:
            known: The values.
            first: The position of the first of these numbers.
        """
        for place, value in enumerate(known, first):
            self.snapshot.expect(place, self._kinds[place], value)

    def change(self, dtype: Dtype, values: dict[str, Any], name: str, value: object) -> None:
        """Change one of the scalars that `values_of` of `take` gives for a compute dtype.

        Args:
            dtype: The compute dtype.
            values: The dictionary that it gives.
            name: The name of a scalar that is there.
            value: What it becomes.
        """
        values[name] = value
        for launch, scalars in self._scalars:
            if launch.dtype is dtype:
                scalars.change(values, name)

    def set_coming(self, first: int, steps: Sequence[ComingStep]) -> bool:
        """Set the numbers of coming steps for `take_coming`, which reads no others.

        Args:
            first: How many steps were taken before these.
            steps: The steps, `MOST_COMING` at most; none if numbers are to be forgotten.

        Returns:
            False if scalars are not made in the call; nothing was set then.
        """
        rows: list[bytes] = []
        for scalars, number, following in steps:
            row: list[bytes] = []
            for launch, own in self._scalars:
                packed = own.pack(scalars[launch.dtype], number)
                if packed is None:
                    return False
                row.append(packed)
            rows.append(b"".join((*row, self._following.pack(*following))))
        if rows and not self._has_table:
            self._make_table()
        if self._has_table:
            self.snapshot.set_step_table(first, rows)
        return bool(rows)

    def _make_table(self) -> None:
        scalars = [(launch.dtype is np.float32, each) for launch, each in self._scalars]
        spans = np.array([each.span for _, each in scalars], np.int64)
        self.snapshot.set_reads(
            [
                (tensor, each.register(name), is_narrow)
                for is_narrow, each in scalars
                for name, tensor in self.read.items()
            ]
        )
        self.snapshot.make_step_table(spans.reshape(-1, 2), MOST_COMING)
        self._has_table = True

    def take_coming(self, given: list[object], how: GradientTransforms = NOTHING) -> int:
        """Take the next of the coming steps, if all is as it was.

        Args:
            given, how: As those of `take`.

        Returns:
            0 if it was taken; else what is not as it was, or `replay_kernel.NOT_TABLED`.

        Raises:
            What one of `ERRORS` is, of gradients beyond the usual.
        """
        if self._gradients is not None:
            begun = self.snapshot.taken
            if not (self._has_table and self.snapshot.has_row(begun)):
                return replay_kernel.NOT_TABLED
            return self._take_measured(self._gradients, given, begun, how, replay_kernel.TABLED)
        if self._may_have_threads:
            self._launches.set_threads(self.snapshot)
        return self.snapshot.take(
            given, replay_kernel.ANY_STEP, replay_kernel.WHOLE, (), replay_kernel.TABLED
        )

    def compare(self, given: list[object], begun: int) -> int:
        """Return what is not as it was; 0 if `take` could be called.

        Args:
            given, begun: As those of `take`.
        """
        return self.snapshot.take(given, begun, replay_kernel.MEASURE)

    def take(
        self,
        given: list[object],
        begun: int,
        values_of: Callable[[Dtype], Mapping[str, object]],
        step: int | None,
        following: Sequence[object],
        how: GradientTransforms = NOTHING,
    ) -> int:
        """Take the step, if all is as it was.

        Args:
            given: Gradients and variables. Whoever calls holds the dictionaries of `of` that have
                a key whose value may change.
            begun: How many were taken when it was begun.
            values_of: Gives, for a compute dtype, what the scalars are made of; the dictionary is
                changed by `change` alone.
            step: The number of the step; None if those are the scalars themselves.
            following: What the counters become.
            how: What happens to the gradients, if anything did before.

        Returns:
            0 if it was taken; else what is not as it was.

        Raises:
            Whatever `values_of` does; and what one of `ERRORS` is, of numbers beyond the usual.
        """
        found, gradients = self.snapshot, self._gradients
        for place, value in enumerate(following):
            found.set_number(place, value)
        if gradients is None:
            for launch, scalars in self._scalars:
                values = values_of(launch.dtype)
                if values is scalars.values and step is not None:  # as in most steps
                    scalars.set(0, launch.dtype(step))
                    continue
                made = scalars.made(values, step)
                if made is not None:
                    launch.set_scalars({0: made})
            if self._may_have_threads:
                self._launches.set_threads(found)
            return found.take(given, begun)
        return self._take_measured(gradients, given, begun, how, 0, values_of, step)

    def _take_measured(
        self,
        gradients: ReplayedTransforms,
        given: list[Any],
        begun: int,
        how: GradientTransforms,
        flags: int,
        values_of: Callable[[Dtype], Mapping[str, object]] | None = None,
        step: int | None = None,
    ) -> int:
        """Take a step whose gradients are measured, as `take` and `take_coming`.

        Args:
            gradients: What measures them.
            given, begun, how, values_of, step: As those of `take`; without `values_of` other
                scalars than those of gradients are set in the call.
            flags: `replay_kernel.TABLED` or 0.
        """
        for is_beyond in (False, True):
            other = gradients.measure(how, self.snapshot, begun, given, is_beyond)
            if other:
                return other
            shared, separate = gradients.scalars()
            for launch, scalars in self._scalars:
                made = values_of and scalars.made(values_of(launch.dtype), step)
                launch.set_scalars({0: {**launch.unset, **(made or {}), **shared[launch.dtype]}})
            gradients.set_separate(separate)
            self._launches.set_threads(self.snapshot)
            other = self.snapshot.take(given, begun, gradients.part, (), flags)
            if other != replay_kernel.BEYOND:
                break
        return other


def _are_pairs(given: object, planned: CachedPlan) -> bool:
    """Whether these are plain gradients of the variables of a step, in their order."""
    variables = planned.request.variables
    return (
        type(given) is list
        and len(variables) == len(cast("list[Any]", given))
        and all(map(_is_pair_of, cast("list[Any]", given), variables))
    )


def _is_number(tensor: Tensor) -> bool:
    return type(tensor) in _PLAIN and tensor.dtype in KINDS and not tensor.dim()


def can_read(value: object) -> bool:
    """Return whether `take_coming` can read a number from a value: a plain float tensor."""
    return (
        isinstance(value, Tensor)
        and _is_number(value)
        and value.is_floating_point()
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and not value.is_neg()
        and value.data_ptr() != 0
    )


def _are_apart(counters: Sequence[Tensor], planned: CachedPlan) -> bool:
    """Whether none lies in what the step updates, or where another one does."""
    begins, ends = plan_of(planned).bounds.reshape(-1, 2).T
    places = [each.data_ptr() for each in counters]
    is_alone = len({place // 8 for place in places}) == len(places)
    return is_alone and not any(((begins <= place) & (place < ends)).any() for place in places)


def _is_pair_of(pair: object, var: Tensor) -> bool:
    if type(pair) is not tuple or len(cast("tuple[Any, ...]", pair)) != 2:
        return False
    grad, own = cast("tuple[Any, Any]", pair)
    return (
        type(grad) is Tensor
        and own is var
        and type(var) in _PLAIN
        and variable_constraint(var) is None
    )
