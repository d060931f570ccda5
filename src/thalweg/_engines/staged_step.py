"""A step of a rule with passes: what is made of each element, stages over matrices, the update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._base.fused_stage import FusedStage
from thalweg._base.rule_passes import Measure, Pass, Stage
from thalweg._engines import layout
from thalweg._engines.array_types import Float64
from thalweg._engines.composite import CompositeStep
from thalweg._engines.cuda.availability import takes_device
from thalweg._engines.dense_plan import DensePlan
from thalweg._engines.formula_arguments import check_given
from thalweg._engines.formula_parser import place_of, transcribe
from thalweg._engines.fused_stage import read_stage
from thalweg._engines.matrix_batches import Batch, group_by_shape, run_stage
from thalweg._engines.matrix_shapes import check_shaped_slots, shape_beside, shaped_like
from thalweg._engines.pass_updates import sweeps_of, updates_of
from thalweg._engines.protocol import (
    Call,
    Columns,
    Dtype,
    Formulas,
    Stages,
    StepPlan,
    StepRequest,
    WriteRound,
)
from thalweg.errors import RuleError
from thalweg.formula import Rule, Slot

Plan = Callable[[StepRequest], StepPlan]
_DTYPE_OF = attrgetter("dtype")
# Stands for the measures of a variable without elements.
_NOTHING = torch.empty(0, dtype=torch.float32, device="cpu")


@cache
def _over_variable(formula: Any) -> Measure:
    """The same one each time, by which engines know a kernel."""
    return Measure(formula, makes="sum")


class Moved(dict[int, tuple[Tensor, Tensor]]):
    """By `id` of a slot the slot, and what it is to become.

    Attributes:
        beside: What else matrices keep from a stage to later ones of the step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.beside: dict[Any, Any] = {}


class Matrices(Protocol):
    """The matrices of a step.

    Attributes:
        made: For each variable what passes make of it, by name.
        slot_shapes: For each the shapes of its slots with shapes of their own, as they lie here.
        vectors: For each what formulas are given of its rows and columns, by name.
    """

    @property
    def made(self) -> Sequence[Mapping[str, Tensor]]: ...

    @property
    def slot_shapes(self) -> Sequence[Sequence[tuple[int, ...]]]: ...

    @property
    def vectors(self) -> Sequence[Mapping[str, Tensor]]: ...

    def read_slots(self, slots: Sequence[Sequence[Tensor]]) -> None:
        """Have formulas see what is kept of rows and columns.

        Args:
            slots: For each variable its slots with a shape of their own.
        """
        ...

    def write_slots(self, slots: Sequence[Sequence[Tensor]], moved: Moved) -> None:
        """Tell what slots of rows and columns are to become; see `run_stage`."""
        ...

    def give(self, name: str, found: Sequence[Tensor]) -> None:
        """Have formulas and stages see a measure, of each variable."""
        ...

    def numbers(self) -> dict[str, Any]:
        """What measures have made of variables, and stages of that: a vector over them each."""
        ...

    def run_stage(
        self, stage: Stage, columns: Columns, slots: Sequence[Sequence[Tensor]], moved: Moved
    ) -> None:
        """Run a stage over all matrices at which it is due; nothing that is kept is written.

        Args:
            stage: The stage.
            columns: The scalars of the step.
            slots: For each variable its slots with a shape of their own.
            moved: What stages before have made of some; is given what this one makes of them.
        """
        ...


class WholeMatrices:
    """Those of variables that lie here as a whole, but of `short` ones; see `Matrices`."""

    def __init__(self, request: StepRequest) -> None:
        self._rule = rule = request.rule
        kinds = enumerate(rule.shaped_slots)
        self._of_lines = [(place, each) for place, each in kinds if each.per]
        every = group_by_shape(rule, request.variables)
        if request.short:
            every = [[k for k in own if not request.short[k]] for own in every]
            every = list(filter(None, every))
        self._batches = [Batch(rule, request.variables, own) for own in every]
        self.made: list[dict[str, Tensor]] = [{} for _ in request.variables]
        self.slot_shapes = [
            [tuple(shaped_like(var, slot).shape) for slot in rule.shaped_slots]
            for var in request.variables
        ]
        for batch in self._batches:
            for name, several in batch.pass_values.items():
                for index, tensor in zip(batch.members, several, strict=True):
                    self.made[index][name] = tensor
        self.vectors: list[dict[str, Tensor]] = [{} for _ in request.variables]
        for batch in self._batches:
            for row, index in enumerate(batch.members):
                shape = request.variables[index].shape
                for name, own in batch.vectors.items():
                    beside = Slot(name, per=cast("Any", rule.vectors[name]))
                    self.vectors[index][name] = own[row].view(shape_beside(beside, shape))

        # Where an engine of a GPU computes, numbers of variables stay there: their places.
        self._places: Tensor | None = None
        homes = list({batch.device for batch in self._batches})
        if len(homes) == 1 and takes_device(homes[0], request.selection.name):
            members = [member for batch in self._batches if all(batch.shape)
                       for member in batch.members]  # fmt: skip
            self._places = torch.tensor(members, dtype=torch.int64, device=homes[0])
            for batch in self._batches:
                batch.stays_on_device = True

    def read_slots(self, slots: Sequence[Sequence[Tensor]]) -> None:
        """See `Matrices`."""
        for batch in self._batches:
            batch.new_slot_values.clear()
            for place, kind in self._of_lines:
                block = batch.vectors[kind.name]
                own = [slots[member][place] for member in batch.members]
                # Matrices of one shape may be those of variables of several.
                if len(set(map(Tensor.size, own))) > 1:
                    own = [each.reshape(block.shape[1:]) for each in own]
                stacked = stacked_or_viewed(list(map(Tensor.detach, own)))
                batch.slots[kind.name] = stacked.dtype
                block.copy_(stacked.view(block.shape))

    def write_slots(self, slots: Sequence[Sequence[Tensor]], moved: Moved) -> None:
        """See `Matrices`."""
        for batch in self._batches:
            for place, kind in self._of_lines:
                value = batch.new_slot_values.get(kind.name)
                if value is None:
                    continue
                own = list(map(Tensor.detach, [slots[member][place] for member in batch.members]))
                sizes = set(map(Tensor.size, own))
                if len(sizes) == 1:
                    news = value.view(len(own), *sizes.pop()).unbind(0)
                else:
                    news = [new.view(old.shape) for new, old in zip(value, own, strict=True)]
                keys = [id(slots[member][place]) for member in batch.members]
                moved.update(zip(keys, zip(own, news, strict=True), strict=True))

    def give(self, name: str, found: Sequence[Tensor]) -> None:
        """See `Matrices`."""
        for batch in self._batches:
            if all(batch.shape):
                batch.set_values(
                    name, stacked_or_viewed([found[member] for member in batch.members])
                )

    def numbers(self) -> dict[str, Any]:
        """See `Matrices`."""
        return {name: self._numbers_of(name) for name in _numbers_in(self._rule)}

    def _numbers_of(self, name: str) -> Any:
        # Rounded here, where what is beyond the type is infinite without a warning.
        own = [(batch, batch.measured_values[name].reshape(-1).to(batch.kind))
               for batch in self._batches if name in batch.measured_values]  # fmt: skip
        if self._places is not None:
            there = torch.zeros(len(self.made), dtype=torch.float64, device=self._places.device)
            if own:
                values = torch.cat([each.double() for _, each in own])
                there.index_copy_(0, self._places, values)
            return there
        found = np.zeros(len(self.made))
        for batch, each in own:
            found[batch.members] = each.cpu().numpy()
        return found

    def run_stage(
        self, stage: Stage, columns: Columns, slots: Sequence[Sequence[Tensor]], moved: Moved
    ) -> None:
        """See `Matrices`."""

        def slot_of(member: int, place: int) -> Tensor:
            return newest(slots[member][place], moved)

        for batch in self._batches:
            if all(batch.shape):
                found = run_stage(self._rule, stage, batch, columns, slot_of)
                for place, kind in enumerate(self._rule.shaped_slots):
                    for member, value in found.get(kind.name, ()):
                        slot = slots[member][place]
                        value = value.reshape(slot.shape).to(slot.dtype, copy=True)
                        moved[id(slot)] = (slot.detach(), value)


@cache
def _numbers_in(rule: Rule) -> list[str]:
    """What measures make of variables and formulas of kernels ask for."""
    passes = [each for each in rule.passes if isinstance(each, Measure | Pass)]
    formulas = [rule.update, *rule.measures.values(), *(each.function for each in passes)]
    formulas += [formula for level in rule.levels for formula in level.measures.values()]
    request = {name for formula in formulas for name in transcribe(formula).scalars}
    return [
        each.makes
        for each in passes
        if isinstance(each, Measure) and each.over == "variable" and each.makes in request
    ]


def stacked_or_viewed(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape as one; a view of them where they lie one behind the other."""
    first = tensors[0]
    if len(tensors) == 1:
        return first.unsqueeze(0)
    size = first.numel() * first.element_size()
    begins = range(first.data_ptr(), first.data_ptr() + max(size, 1) * len(tensors), max(size, 1))
    storage = first.untyped_storage().data_ptr()
    if not all(
        each.is_contiguous()
        and each.data_ptr() == begin
        and each.dtype == first.dtype
        and each.untyped_storage().data_ptr() == storage
        for each, begin in zip(tensors, begins, strict=True)
    ):
        return torch.stack(list(tensors))
    return first.as_strided((len(tensors), *first.shape), (first.numel(), *first.stride()))


def _groups_of(ready: Any) -> list[tuple[Sequence[int], Any]]:
    """The groups of a plan on the CPU, each with the positions of its plan's variables."""
    if isinstance(ready, CompositeStep):
        found = [(own, part) for own, part in ready.parts if isinstance(part, DensePlan)]
    else:
        found = [(range(len(ready.variables)), ready)]
    return [(own, each) for own, plan in found for each in plan.groups if hasattr(each, "table")]


def _bytes_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def newest(slot: Tensor, moved: Moved) -> Tensor:
    """A slot, or what stages before have made of it."""
    return moved[id(slot)][1] if id(slot) in moved else slot.detach()


class StagedStep:
    """A `StepPlan` of a rule with passes, over variables that `check_step` takes.

    What passes make lies in memory of its own, which is the plan's and no state: of each value a
    number for each element. Until the update is written nothing else has changed.

    Args:
        asked: The step.
        plans: For each pass, and for the update, what plans it.
    """

    is_single = True

    def __init__(self, request: StepRequest, plans: Sequence[Plan]) -> None:
        self._rule = rule = request.rule
        self._variables, self._titles = list(request.variables), request.titles
        self._stages = request.stages
        self._seen: list[Any] | None = None
        for each in rule.passes:
            if isinstance(each, FusedStage):
                read_stage(rule, each)  # it may be refused, whatever computes it
        self._matrices: Matrices = (request.matrices or WholeMatrices)(request)
        self._are_short = bool(request.short) and all(request.short)
        made = self._matrices.made
        self._numbers: dict[str, Any] | None = None  # once it is known after the last pass
        self._vectors = self._matrices.vectors if rule.is_of_lines else ()
        self._slots = [
            [*(own[name] for name in rule.made), *beside]
            for own, beside in zip(made, request.slots or [()] * len(made), strict=True)
        ]
        self._updates = updates_of(rule)
        *passes, last = zip(plans, self._updates, strict=False)
        self._passes = [plan(self._asked_of(request, each)) for plan, each in passes]
        self._last = last[0](self._asked_of(request, last[1]))
        self._mark_slots: Call = tuple  # of short matrices, once they are known
        groups = _groups_of(self._last) if request.short else []
        self._short = [(own, group) for own, group in groups if hasattr(group, "run_passes")]
        self._readers = [group for _, group in groups]
        self._bounds = layout.runs_of(())  # of their slots
        self._apart: bool | None = (
            None  # whether no gradient lies in these; None before it is known
        )

    @property
    def dtypes(self) -> tuple[Dtype, ...]:
        """See `StepPlan`."""
        return self._last.dtypes

    def _asked_of(self, request: StepRequest, update: Rule) -> StepRequest:
        """What is asked of the engines for a pass, or for the update."""
        request = request._replace(rule=update, slots=self._slots, vectors=self._vectors)
        # A pass writes no copies, and reads them where they count.
        is_last = update is self._updates[-1]
        return request if is_last or request.from_copies else request._replace(copies=None)

    def try_rebind(self, request: StepRequest) -> bool:
        """See `StepPlan`."""
        if request.rule is not self._rule or request.stages != self._stages:
            return False
        parts = zip((*self._passes, self._last), self._updates, strict=True)
        return all(part.try_rebind(self._asked_of(request, each)) for part, each in parts)

    def run_passes(self, columns: Columns, slots: Sequence[Sequence[Tensor]]) -> list[Call]:
        """Make what the update is given; nothing that is kept is written.

        Args:
            columns: The scalars of the step.
            slots: For each variable its slots with a shape of their own, in the rule's order.

        Returns:
            What writes these slots, as functions in C.

        Raises:
            RuleError: A stage returns what it may not.
            InvalidArgumentError, InvalidTypeError, LayoutError: As `check_shaped_slots`.
        """
        self._check_slots(slots)
        passes, moved = iter(self._passes), Moved()
        self._numbers, sweeps = None, sweeps_of(self._rule)
        with no_grad():
            for own, group in self._short:
                group.run_passes(columns.of_members(own))
            if self._rule.is_of_lines:
                self._matrices.read_slots(slots)
            for each in self._rule.passes if not self._are_short else ():
                if isinstance(each, Pass):
                    self._run_pass(each, next(passes), self._with_numbers(columns))
                elif isinstance(each, Stage):
                    self._matrices.run_stage(each, columns, slots, moved)
                elif each in sweeps:
                    self._measure(sweeps[each], self._with_numbers(columns))
                if not isinstance(each, FusedStage):  # which makes no number of a variable
                    self._numbers = None
            if self._rule.is_of_lines:
                self._matrices.write_slots(slots, moved)
        calls = [self._mark_slots] if self._short else list[Call]()
        calls += [call for _, group in self._short for call in group.write_staged()]
        if not moved:
            return calls
        olds, news = zip(*moved.values(), strict=True)
        if columns.taken is not None:
            pairs = zip(news, olds, strict=True)
            news = [torch.where(columns.taken, new, old) for new, old in pairs]
        copy = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        return [*calls, partial(copy, list(olds), list(news))]

    def _measure(self, measures: tuple[Measure, ...], columns: Columns) -> None:
        """Take measures, all in one sweep."""
        found = self._last.compute_lines(measures, self._stages, columns)
        for place, each in enumerate(measures):
            self._matrices.give(each.makes, [own[place] if own else _NOTHING for own in found])

    def _with_numbers(self, columns: Columns) -> Columns:
        """The scalars of a step, and what measures have made of variables."""
        if not self._rule.is_of_lines:
            return columns
        if self._numbers is None:
            self._numbers = self._matrices.numbers()
        return columns._replace(separate={**columns.separate, **self._numbers})

    def _check_slots(self, slots: Sequence[Sequence[Tensor]]) -> None:
        """Look at slots that are not those of the step before, where they lay."""
        every = [slot for own in slots for slot in own]
        if not every and not self._short:  # whose kernels are made when slots are bound, even none
            return
        slots = slots or [()] * len(self._variables)
        try:
            seen: list[Any] | None = [
                list(map(look, every))
                for look in (id, Tensor.data_ptr, Tensor.size, Tensor.stride, _DTYPE_OF, _bytes_of)
            ]
        except RuntimeError:  # it has no memory
            seen = None
        if seen is None or seen != self._seen:
            own = [each[len(self._rule.made) :] for each in self._slots]
            shapes = self._matrices.slot_shapes
            check_shaped_slots(self._rule, self._variables, own, slots, shapes, self._titles)
            written: list[Tensor] = []
            for members, group in self._short:
                places: list[int] = group.members
                written += [slot for k in places for slot in slots[members[k]]]
            self._mark_slots = partial(torch._C._increment_version, written)  # pyright: ignore[reportPrivateUsage]
            self._bounds, self._apart = layout.runs_of(written), None
            self._seen = seen
        self._bind_short(slots)

    def _bind_short(self, slots: Sequence[Sequence[Tensor]]) -> None:
        """Have kernels of short matrices know slots, and whether gradients lie in them."""
        apart = all(
            layout.lie_apart(each.table.base[:, 1], each.bytes, self._bounds)
            for each in self._readers
        )
        if apart == self._apart:
            return
        self._apart = None
        for members, group in self._short:
            group.bind_slots([slots[members[k]] for k in group.members], apart)
        self._apart = apart

    def _run_pass(self, each: Pass, ready: StepPlan, columns: Columns) -> None:
        try:
            rounds = list(ready.make_rounds(columns._replace(taken=None)))
        except KeyError:
            known = {**columns.shared[ready.dtypes[0]], **columns.separate}
            check_given(
                place_of(each.function), transcribe(each.function).scalars, known, self._rule
            )
            raise
        for own in rounds:
            for call in own.calls:
                call()

    def compute_sums(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """See `StepPlan`."""
        columns = self._with_numbers(columns)
        of_lines = self._of_lines(formulas)
        others = tuple(each for each in formulas if each not in of_lines)
        found: dict[Any, Float64] = {}
        if others:
            found |= zip(others, self._last.compute_sums(others, stages, columns), strict=True)
        if of_lines:
            measures = tuple(map(_over_variable, of_lines))
            several = self._last.compute_lines(measures, stages, columns)
            for place, each in enumerate(of_lines):
                sums = [float(own[place]) if own else 0.0 for own in several]
                found[each] = np.array(sums, np.float64)
        return [found[each] for each in formulas]

    def _of_lines(self, formulas: Formulas) -> tuple[Any, ...]:
        """Which measures of the rule may ask for numbers of rows and columns.

        They are added up as a `Measure` of variables is.
        """
        rule = self._rule
        if not rule.is_of_lines:
            return ()
        levels = (each.measures for each in rule.levels)
        own = {each for known in (rule.measures, *levels) for each in known.values()}
        return tuple(each for each in formulas if each in own)

    def sums_on_device(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Tensor] | None:
        """See `StepPlan`."""
        if self._of_lines(formulas):
            return None
        return self._last.sums_on_device(formulas, stages, columns)

    def compute_leaves(self, formulas: Formulas, stages: Stages, columns: Columns) -> list[Float64]:
        """See `StepPlan`.

        Raises:
            RuleError: A measure may ask for numbers of rows, which no leaf has.
        """
        if self._of_lines(formulas):
            raise RuleError(
                f"Rule {self._rule.name!r} measures steps that see rows and columns, and cannot do"
                " so over variables that several ranks have."
            )
        return self._last.compute_leaves(formulas, stages, columns)

    def compute_lines(
        self, measures: tuple[Measure, ...], stages: Stages, columns: Columns
    ) -> list[list[Tensor]]:
        """See `StepPlan`."""
        return self._last.compute_lines(measures, stages, self._with_numbers(columns))

    def max_abs(self) -> Float64:
        """See `StepPlan`."""
        return self._last.max_abs()

    def max_abs_on_device(self, is_checked: Tensor) -> Tensor | None:
        """See `StepPlan`."""
        return self._last.max_abs_on_device(is_checked)

    def make_rounds(self, columns: Columns) -> Iterator[WriteRound]:
        """See `StepPlan`."""
        return self._last.make_rounds(self._with_numbers(columns))

    def release_gradients(self) -> None:
        """See `StepPlan`."""
        for each in (*self._passes, self._last):
            each.release_gradients()
