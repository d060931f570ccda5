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
from thalweg._engines.matrix_batches import Batch, alike, run_stage
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
_EMPTY_MEASURE = torch.empty(0, dtype=torch.float32, device="cpu")


@cache
def _sum_measure(formula: Any) -> Measure:
    """The same one each time, by which engines know a kernel."""
    return Measure(formula, makes="sum")


class SlotUpdates(dict[int, tuple[Tensor, Tensor]]):
    """By `id` of a slot the slot, and what it is to become.

    Attributes:
        beside: What else matrices keep from a stage to later ones of the step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gathered_tensors: dict[Any, Any] = {}


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

    def write_slots(self, slots: Sequence[Sequence[Tensor]], slot_updates: SlotUpdates) -> None:
        """Tell what slots of rows and columns are to become; see `run_stage`."""
        ...

    def give(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Have formulas and stages see a measure, of each variable."""
        ...

    def numbers(self) -> dict[str, Any]:
        """What measures have made of variables, and stages of that: a vector over them each."""
        ...

    def run_stage(
        self,
        stage: Stage,
        columns: Columns,
        slots: Sequence[Sequence[Tensor]],
        slot_updates: SlotUpdates,
    ) -> None:
        """Run a stage over all matrices at which it is due; nothing that is kept is written.

        Args:
            stage: The stage.
            columns: The scalars of the step.
            slots: For each variable its slots with a shape of their own.
            slot_updates: Values from earlier stages; the outputs of this one are added.
        """
        ...


class WholeMatrices:
    """Those of variables that lie here as a whole, but of `short` ones; see `Matrices`."""

    def __init__(self, request: StepRequest) -> None:
        self._rule = rule = request.rule
        kinds = enumerate(rule.shaped_slots)
        self._line_slots = [(position, slot) for position, slot in kinds if slot.per]
        member_lists = alike(rule, request.variables)
        if request.short:
            member_lists = [
                [k for k in members if not request.short[k]] for members in member_lists
            ]
            member_lists = list(filter(None, member_lists))
        self._batches = [Batch(rule, request.variables, members) for members in member_lists]
        self.made: list[dict[str, Tensor]] = [{} for _ in request.variables]
        self.slot_shapes = [
            [tuple(shaped_like(var, slot).shape) for slot in rule.shaped_slots]
            for var in request.variables
        ]
        for batch in self._batches:
            for name, tensors in batch.made.items():
                for index, tensor in zip(batch.members, tensors, strict=True):
                    self.made[index][name] = tensor
        self.vectors: list[dict[str, Tensor]] = [{} for _ in request.variables]
        for batch in self._batches:
            for row, index in enumerate(batch.members):
                shape = request.variables[index].shape
                for name, block in batch.vectors.items():
                    vector_slot = Slot(name, per=cast("Any", rule.vectors[name]))
                    self.vectors[index][name] = block[row].view(shape_beside(vector_slot, shape))

        # Where an engine of a GPU computes, numbers of variables stay there: their places.
        self._places: Tensor | None = None
        devices = list({batch.device for batch in self._batches})
        if len(devices) == 1 and takes_device(devices[0], request.selection.name):
            members = [member for batch in self._batches if all(batch.shape)
                       for member in batch.members]  # fmt: skip
            self._places = torch.tensor(members, dtype=torch.int64, device=devices[0])
            for batch in self._batches:
                batch.is_there = True

    def read_slots(self, slots: Sequence[Sequence[Tensor]]) -> None:
        """See `Matrices`."""
        for batch in self._batches:
            batch.kept.clear()
            for position, shaped_slot in self._line_slots:
                block = batch.vectors[shaped_slot.name]
                tensors = [slots[member][position] for member in batch.members]
                # Matrices of one shape may be those of variables of several.
                if len(set(map(Tensor.size, tensors))) > 1:
                    tensors = [tensor.reshape(block.shape[1:]) for tensor in tensors]
                stacked = stacked_or_viewed(list(map(Tensor.detach, tensors)))
                batch.slots[shaped_slot.name] = stacked.dtype
                block.copy_(stacked.view(block.shape))

    def write_slots(self, slots: Sequence[Sequence[Tensor]], slot_updates: SlotUpdates) -> None:
        """See `Matrices`."""
        for batch in self._batches:
            for position, shaped_slot in self._line_slots:
                block = batch.kept.get(shaped_slot.name)
                if block is None:
                    continue
                old_tensors = list(
                    map(Tensor.detach, [slots[member][position] for member in batch.members])
                )
                sizes = set(map(Tensor.size, old_tensors))
                if len(sizes) == 1:
                    new_tensors = block.view(len(old_tensors), *sizes.pop()).unbind(0)
                else:
                    new_tensors = [
                        new.view(old.shape) for new, old in zip(block, old_tensors, strict=True)
                    ]
                keys = [id(slots[member][position]) for member in batch.members]
                slot_updates.update(
                    zip(keys, zip(old_tensors, new_tensors, strict=True), strict=True)
                )

    def give(self, name: str, tensors: Sequence[Tensor]) -> None:
        """See `Matrices`."""
        for batch in self._batches:
            if all(batch.shape):
                batch.give(name, stacked_or_viewed([tensors[member] for member in batch.members]))

    def numbers(self) -> dict[str, Any]:
        """See `Matrices`."""
        return {name: self._numbers_of(name) for name in _measured_names(self._rule)}

    def _numbers_of(self, name: str) -> Any:
        # Rounded here, where what is beyond the type is infinite without a warning.
        batch_numbers = [(batch, batch.measured[name].reshape(-1).to(batch.kind))
               for batch in self._batches if name in batch.measured]  # fmt: skip
        if self._places is not None:
            device_vector = torch.zeros(
                len(self.made), dtype=torch.float64, device=self._places.device
            )
            if batch_numbers:
                values = torch.cat([numbers.double() for _, numbers in batch_numbers])
                device_vector.index_copy_(0, self._places, values)
            return device_vector
        vector = np.zeros(len(self.made))
        for batch, numbers in batch_numbers:
            vector[batch.members] = numbers.cpu().numpy()
        return vector

    def run_stage(
        self,
        stage: Stage,
        columns: Columns,
        slots: Sequence[Sequence[Tensor]],
        slot_updates: SlotUpdates,
    ) -> None:
        """See `Matrices`."""

        def slot_of(member: int, place: int) -> Tensor:
            return newest(slots[member][place], slot_updates)

        for batch in self._batches:
            if all(batch.shape):
                outputs = run_stage(self._rule, stage, batch, columns, slot_of)
                for place, shaped_slot in enumerate(self._rule.shaped_slots):
                    for member, value in outputs.get(shaped_slot.name, ()):
                        slot = slots[member][place]
                        value = value.reshape(slot.shape).to(slot.dtype, copy=True)
                        slot_updates[id(slot)] = (slot.detach(), value)


@cache
def _measured_names(rule: Rule) -> list[str]:
    """What measures make of variables and formulas of kernels ask for."""
    passes = [rule_pass for rule_pass in rule.passes if isinstance(rule_pass, Measure | Pass)]
    formulas = [rule.update, *rule.measures.values(), *(rule_pass.function for rule_pass in passes)]
    formulas += [formula for level in rule.levels for formula in level.measures.values()]
    scalar_names = {name for formula in formulas for name in transcribe(formula).scalars}
    return [
        rule_pass.makes
        for rule_pass in passes
        if isinstance(rule_pass, Measure)
        and rule_pass.over == "variable"
        and rule_pass.makes in scalar_names
    ]


def stacked_or_viewed(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape as one; a view of them where they lie one behind the other."""
    first = tensors[0]
    if len(tensors) == 1:
        return first.unsqueeze(0)
    size = first.numel() * first.element_size()
    addresses = range(
        first.data_ptr(), first.data_ptr() + max(size, 1) * len(tensors), max(size, 1)
    )
    storage = first.untyped_storage().data_ptr()
    if not all(
        tensor.is_contiguous()
        and tensor.data_ptr() == address
        and tensor.dtype == first.dtype
        and tensor.untyped_storage().data_ptr() == storage
        for tensor, address in zip(tensors, addresses, strict=True)
    ):
        return torch.stack(list(tensors))
    return first.as_strided((len(tensors), *first.shape), (first.numel(), *first.stride()))


def _groups_of(step_plan: Any) -> list[tuple[Sequence[int], Any]]:
    """The groups of a plan on the CPU, each with the positions of its plan's variables."""
    if isinstance(step_plan, CompositeStep):
        plans = [
            (members, part) for members, part in step_plan.parts if isinstance(part, DensePlan)
        ]
    else:
        plans = [(range(len(step_plan.variables)), step_plan)]
    return [
        (members, group)
        for members, plan in plans
        for group in plan.groups
        if hasattr(group, "table")
    ]


def _bytes_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def newest(slot: Tensor, slot_updates: SlotUpdates) -> Tensor:
    """A slot, or what stages before have made of it."""
    return slot_updates[id(slot)][1] if id(slot) in slot_updates else slot.detach()


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
        self._slot_layout: list[Any] | None = None
        for rule_pass in rule.passes:
            if isinstance(rule_pass, FusedStage):
                read_stage(rule, rule_pass)  # it may be refused, whatever computes it
        self._matrices: Matrices = (request.matrices or WholeMatrices)(request)
        self._are_short = bool(request.short) and all(request.short)
        pass_values = self._matrices.made
        self._numbers: dict[str, Any] | None = None  # once it is known after the last pass
        self._vectors = self._matrices.vectors if rule.is_of_lines else ()
        self._slots = [
            [*(values[name] for name in rule.made), *element_slots]
            for values, element_slots in zip(
                pass_values, request.slots or [()] * len(pass_values), strict=True
            )
        ]
        self._updates = updates_of(rule)
        *passes, update_call = zip(plans, self._updates, strict=False)
        self._pass_plans = [plan(self._request_for(request, update)) for plan, update in passes]
        self._update_plan = update_call[0](self._request_for(request, update_call[1]))
        self._mark_slots_written: Call = tuple  # of short matrices, once they are known
        groups = _groups_of(self._update_plan) if request.short else []
        self._short_groups = [
            (members, group) for members, group in groups if hasattr(group, "run_passes")
        ]
        self._readers = [group for _, group in groups]
        self._slot_bounds = layout.runs_of(())  # of their slots
        self._are_disjoint: bool | None = (
            None  # whether no gradient lies in these; None before it is known
        )

    @property
    def dtypes(self) -> tuple[Dtype, ...]:
        """See `StepPlan`."""
        return self._update_plan.dtypes

    def _request_for(self, request: StepRequest, update: Rule) -> StepRequest:
        """What is asked of the engines for a pass, or for the update."""
        request = request._replace(rule=update, slots=self._slots, vectors=self._vectors)
        # A pass writes no copies, and reads them where they count.
        is_update = update is self._updates[-1]
        return request if is_update or request.from_copies else request._replace(copies=None)

    def try_rebind(self, request: StepRequest) -> bool:
        """See `StepPlan`."""
        if request.rule is not self._rule or request.stages != self._stages:
            return False
        plans = zip((*self._pass_plans, self._update_plan), self._updates, strict=True)
        return all(plan.try_rebind(self._request_for(request, update)) for plan, update in plans)

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
        passes, slot_updates = iter(self._pass_plans), SlotUpdates()
        self._numbers, sweeps = None, sweeps_of(self._rule)
        with no_grad():
            for members, group in self._short_groups:
                group.run_passes(columns.of_members(members))
            if self._rule.is_of_lines:
                self._matrices.read_slots(slots)
            for rule_pass in self._rule.passes if not self._are_short else ():
                if isinstance(rule_pass, Pass):
                    self._run_pass(rule_pass, next(passes), self._with_numbers(columns))
                elif isinstance(rule_pass, Stage):
                    self._matrices.run_stage(rule_pass, columns, slots, slot_updates)
                elif rule_pass in sweeps:
                    self._measure(sweeps[rule_pass], self._with_numbers(columns))
                if not isinstance(rule_pass, FusedStage):  # which makes no number of a variable
                    self._numbers = None
            if self._rule.is_of_lines:
                self._matrices.write_slots(slots, slot_updates)
        calls = [self._mark_slots_written] if self._short_groups else list[Call]()
        calls += [call for _, group in self._short_groups for call in group.write_staged()]
        if not slot_updates:
            return calls
        old_tensors, new_tensors = zip(*slot_updates.values(), strict=True)
        if columns.taken is not None:
            pairs = zip(new_tensors, old_tensors, strict=True)
            new_tensors = [torch.where(columns.taken, new, old) for new, old in pairs]
        copy = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        return [*calls, partial(copy, list(old_tensors), list(new_tensors))]

    def _measure(self, measures: tuple[Measure, ...], columns: Columns) -> None:
        """Take measures, all in one sweep."""
        tensors_by_variable = self._update_plan.compute_lines(measures, self._stages, columns)
        for position, measure in enumerate(measures):
            self._matrices.give(
                measure.makes,
                [
                    tensors[position] if tensors else _EMPTY_MEASURE
                    for tensors in tensors_by_variable
                ],
            )

    def _with_numbers(self, columns: Columns) -> Columns:
        """The scalars of a step, and what measures have made of variables."""
        if not self._rule.is_of_lines:
            return columns
        if self._numbers is None:
            self._numbers = self._matrices.numbers()
        return columns._replace(separate={**columns.separate, **self._numbers})

    def _check_slots(self, slots: Sequence[Sequence[Tensor]]) -> None:
        """Look at slots that are not those of the step before, where they lay."""
        all_slots = [slot for element_slots in slots for slot in element_slots]
        if (
            not all_slots and not self._short_groups
        ):  # whose kernels are made when slots are bound, even none
            return
        slots = slots or [()] * len(self._variables)
        try:
            slot_layout: list[Any] | None = [
                list(map(getter, all_slots))
                for getter in (
                    id,
                    Tensor.data_ptr,
                    Tensor.size,
                    Tensor.stride,
                    _DTYPE_OF,
                    _bytes_of,
                )
            ]
        except RuntimeError:  # it has no memory
            slot_layout = None
        if slot_layout is None or slot_layout != self._slot_layout:
            element_slots = [tensors[len(self._rule.made) :] for tensors in self._slots]
            shapes = self._matrices.slot_shapes
            check_shaped_slots(
                self._rule, self._variables, element_slots, slots, shapes, self._titles
            )
            written_slots: list[Tensor] = []
            for members, group in self._short_groups:
                positions: list[int] = group.members
                written_slots += [slot for k in positions for slot in slots[members[k]]]
            self._mark_slots_written = partial(torch._C._increment_version, written_slots)  # pyright: ignore[reportPrivateUsage]
            self._slot_bounds, self._are_disjoint = layout.runs_of(written_slots), None
            self._slot_layout = slot_layout
        self._bind_short(slots)

    def _bind_short(self, slots: Sequence[Sequence[Tensor]]) -> None:
        """Have kernels of short matrices know slots, and whether gradients lie in them."""
        are_disjoint = all(
            layout.lie_apart(group.table.base[:, 1], group.bytes, self._slot_bounds)
            for group in self._readers
        )
        if are_disjoint == self._are_disjoint:
            return
        self._are_disjoint = None
        for members, group in self._short_groups:
            group.bind_slots([slots[members[k]] for k in group.members], are_disjoint)
        self._are_disjoint = are_disjoint

    def _run_pass(self, rule_pass: Pass, plan: StepPlan, columns: Columns) -> None:
        try:
            rounds = list(plan.make_rounds(columns._replace(taken=None)))
        except KeyError:
            scalars = {**columns.shared[plan.dtypes[0]], **columns.separate}
            check_given(
                place_of(rule_pass.function),
                transcribe(rule_pass.function).scalars,
                scalars,
                self._rule,
            )
            raise
        for write_round in rounds:
            for call in write_round.calls:
                call()

    def compute_sums(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """See `StepPlan`."""
        columns = self._with_numbers(columns)
        line_formulas = self._line_formulas(formulas)
        element_formulas = tuple(formula for formula in formulas if formula not in line_formulas)
        sums_by_formula: dict[Any, Float64] = {}
        if element_formulas:
            sums_by_formula |= zip(
                element_formulas,
                self._update_plan.compute_sums(element_formulas, stages, columns),
                strict=True,
            )
        if line_formulas:
            measures = tuple(map(_sum_measure, line_formulas))
            tensors_by_variable = self._update_plan.compute_lines(measures, stages, columns)
            for position, formula in enumerate(line_formulas):
                sums = [
                    float(tensors[position]) if tensors else 0.0 for tensors in tensors_by_variable
                ]
                sums_by_formula[formula] = np.array(sums, np.float64)
        return [sums_by_formula[formula] for formula in formulas]

    def _line_formulas(self, formulas: Formulas) -> tuple[Any, ...]:
        """Which measures of the rule may ask for numbers of rows and columns.

        They are added up as a `Measure` of variables is.
        """
        rule = self._rule
        if not rule.is_of_lines:
            return ()
        levels = (formula.measures for formula in rule.levels)
        line_formulas = {
            formula for measures in (rule.measures, *levels) for formula in measures.values()
        }
        return tuple(formula for formula in formulas if formula in line_formulas)

    def sums_on_device(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Tensor] | None:
        """See `StepPlan`."""
        if self._line_formulas(formulas):
            return None
        return self._update_plan.sums_on_device(formulas, stages, columns)

    def compute_leaves(self, formulas: Formulas, stages: Stages, columns: Columns) -> list[Float64]:
        """See `StepPlan`.

        Raises:
            RuleError: A measure may ask for numbers of rows, which no leaf has.
        """
        if self._line_formulas(formulas):
            raise RuleError(
                f"Rule {self._rule.name!r} measures steps that see rows and columns, and cannot do"
                " so over variables that several ranks have."
            )
        return self._update_plan.compute_leaves(formulas, stages, columns)

    def compute_lines(
        self, measures: tuple[Measure, ...], stages: Stages, columns: Columns
    ) -> list[list[Tensor]]:
        """See `StepPlan`."""
        return self._update_plan.compute_lines(measures, stages, self._with_numbers(columns))

    def max_abs(self) -> Float64:
        """See `StepPlan`."""
        return self._update_plan.max_abs()

    def max_abs_on_device(self, is_checked: Tensor) -> Tensor | None:
        """See `StepPlan`."""
        return self._update_plan.max_abs_on_device(is_checked)

    def make_rounds(self, columns: Columns) -> Iterator[WriteRound]:
        """See `StepPlan`."""
        return self._update_plan.make_rounds(self._with_numbers(columns))

    def release_gradients(self) -> None:
        """See `StepPlan`."""
        for plan in (*self._pass_plans, self._update_plan):
            plan.release_gradients()
