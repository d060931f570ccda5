"""Steps of rules with passes (values per element) and stages (functions of matrices)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain, count
from operator import attrgetter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._base.context_managers import calls, drain, no_grad
from thalweg._base.device_numbers import to_host
from thalweg._base.fused_stage import FusedStage
from thalweg._base.rule_passes import Measure, Pass, Stage
from thalweg._engines import layout
from thalweg._engines.array_types import Float64
from thalweg._engines.composite import CompositeStep
from thalweg._engines.cuda.availability import takes_device
from thalweg._engines.dense_plan import DensePlan
from thalweg._engines.formula_arguments import check_given
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.formula_source import place_of
from thalweg._engines.fused_stage import read_stage
from thalweg._engines.held_memory import check_call, raise_cut
from thalweg._engines.matrix_batches import (
    COUNT,
    NUMBER,
    Batch,
    group_by_shape,
    run_stage,
    stage_inputs,
)
from thalweg._engines.matrix_shapes import check_shaped_slots, shape_beside
from thalweg._engines.pass_updates import build_pass_updates, group_measures, group_passes
from thalweg._engines.protocol import (
    NO_COLUMNS,
    Call,
    Columns,
    Dtype,
    Formulas,
    Reduction,
    Results,
    StepPlan,
    StepRequest,
    WriteRound,
    as_array,
)
from thalweg.errors import RuleError
from thalweg.formula import Rule, Slot

Plan = Callable[[StepRequest], StepPlan]
# The measure of a variable without elements.
_EMPTY = torch.empty(0, dtype=torch.float32, device="cpu")


@cache
def _sum_measure(formula: Any) -> Measure:
    """Return the sum of a formula over a variable; cached, because it is a key of kernel caches."""
    return Measure(formula, makes="sum")


class SlotUpdates(dict[int, tuple[Tensor, Tensor]]):
    """New values of optimizer slots: {id(slot): (slot, new value)}.

    Attributes:
        gathered_tensors: Tensors that `GatheredMatrices` keeps between the stages of a step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gathered_tensors: dict[Any, Any] = {}

    def pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return a list of slots and a list of new values, in one order."""
        return [slot for slot, _ in self.values()], [value for _, value in self.values()]


class WholeMatrices:
    """Values that passes, measures and stages compute for the variables of a step.

    The variables are unsharded; `GatheredMatrices` of `distribute` replaces the class for shards,
    whose rules measure no rows or columns. Variables with True in `StepRequest.short` are left out.

    Attributes:
        made: For each variable {name: tensor that a pass computes}.
        slot_shapes: For each variable the shapes of its `shaped_slots`.
        vectors: For each variable {name: vector over rows or columns, an input of formulas}.
    """

    def __init__(self, request: StepRequest) -> None:
        self._rule = rule = request.rule
        kinds = enumerate(rule.shaped_slots)
        self._line_slots = [(position, slot) for position, slot in kinds if slot.per]
        short = request.short or [False] * len(request.variables)
        member_lists = [
            [member for member in members if not short[member]]
            for members in group_by_shape(rule, request.variables)
        ]
        self._batches = [
            Batch(rule, request.variables, members) for members in member_lists if members
        ]
        self.made: list[dict[str, Tensor]] = [{} for _ in request.variables]
        self.slot_shapes = [
            [shape_beside(slot, var.shape) for slot in rule.shaped_slots]
            for var in request.variables
        ]
        for batch in self._batches:
            for name, tensors in batch.pass_values.items():
                for index, tensor in zip(batch.members, tensors, strict=True):
                    self.made[index][name] = tensor
        self.vectors: list[dict[str, Tensor]] = [{} for _ in request.variables]
        for batch in self._batches:
            for row, index in enumerate(batch.members):
                shape = request.variables[index].shape
                for name, block in batch.vectors.items():
                    vector_slot = Slot(name, per=cast("Any", rule.vectors[name]))
                    self.vectors[index][name] = block[row].view(shape_beside(vector_slot, shape))

        # On a GPU, measures over variables stay there; these are their indices.
        self._places: Tensor | None = None
        devices = list({batch.device for batch in self._batches})
        if len(devices) == 1 and takes_device(devices[0], request.selection.name):
            members = [member for batch in self._batches if all(batch.shape)
                       for member in batch.members]  # fmt: skip
            self._places = torch.tensor(members, dtype=torch.int64, device=devices[0])
            for batch in self._batches:
                batch.stays_on_device = True

    def read_slots(self, slots: Sequence[Sequence[Tensor]]) -> None:
        """Copy row and column slots into `vectors`; clear the new values stored by stages.

        Args:
            slots: For each variable its `shaped_slots`.
        """
        for batch in self._batches:
            batch.new_slot_values.clear()
            for position, shaped_slot in self._line_slots:
                block = batch.vectors[shaped_slot.name]
                tensors = [slots[member][position] for member in batch.members]
                # Variables of several shapes can have the same matrix shape.
                if len(set(map(Tensor.size, tensors))) > 1:
                    tensors = [tensor.reshape(block.shape[1:]) for tensor in tensors]
                stacked = stacked_or_viewed(list(map(Tensor.detach, tensors)))
                batch.slots[shaped_slot.name] = stacked.dtype
                block.copy_(stacked.view(block.shape))

    def write_slots(self, slots: Sequence[Sequence[Tensor]], updates: SlotUpdates) -> None:
        """Extend `updates` by the new values of row and column slots.

        No slot is written. Slots without a new value are left out.

        Args:
            slots: For each variable its `shaped_slots`.
        """
        for batch in self._batches:
            for position, shaped_slot in self._line_slots:
                block = batch.new_slot_values.get(shaped_slot.name)
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
                updates.update(zip(keys, zip(old_tensors, new_tensors, strict=True), strict=True))

    def give(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Store a measure under `name` for formulas and stages: one tensor per variable."""
        for batch in self._batches:
            if all(batch.shape):
                batch.set_values(
                    name, stacked_or_viewed([tensors[member] for member in batch.members])
                )

    def numbers(self) -> dict[str, Any]:
        """Return {name of a measure over variables: float64 vector with an element per variable}.

        The vectors are tensors if all matrices are on one GPU, else arrays. Empty variables have 0.
        """
        return {name: self._gather_measures(name) for name in _measured_names(self._rule)}

    def _gather_measures(self, name: str) -> Any:
        """Return a measure of all variables as a float64 vector, on the GPU or as an array."""
        # torch rounds to the compute dtype without a warning for an overflow, unlike NumPy.
        batch_values = [(batch, batch.measured_values[name].reshape(-1).to(batch.kind))
               for batch in self._batches if name in batch.measured_values]  # fmt: skip
        if self._places is not None:
            device = self._places.device
            gpu_vector = torch.zeros(len(self.made), dtype=torch.float64, device=device)
            if batch_values:
                values = torch.cat([totals.double() for _, totals in batch_values])
                gpu_vector.index_copy_(0, self._places, values)
            return gpu_vector
        vector = np.zeros(len(self.made))
        for batch, totals in batch_values:
            vector[batch.members] = to_host(totals)
        return vector

    def run_stage(
        self,
        stage: Stage,
        columns: Columns,
        slots: Sequence[Sequence[Tensor]],
        updates: SlotUpdates,
    ) -> None:
        """Run a stage for each non-empty variable whose step number is due (see `is_due`).

        New values of `shaped_slots` are stored in `updates` by `id(slot)`. No slot is written.
        Other outputs overwrite the values of earlier passes.

        Args:
            columns: The scalars of the step.
            slots: For each variable its `shaped_slots`. If `updates` has a new value of a slot, the
                stage reads the new value.
        """

        def slot_of(member: int, index: int) -> Tensor:
            slot = slots[member][index]
            return updates[id(slot)][1] if id(slot) in updates else slot.detach()

        for batch in self._batches:
            if all(batch.shape):
                outputs = run_stage(self._rule, stage, batch, columns, slot_of)
                for index, shaped_slot in enumerate(self._rule.shaped_slots):
                    for member, value in outputs.get(shaped_slot.name, ()):
                        slot = slots[member][index]
                        value = value.reshape(slot.shape).to(slot.dtype, copy=True)
                        updates[id(slot)] = (slot.detach(), value)


@cache
def _measured_names(rule: Rule) -> list[str]:
    """Return the names of measures over whole variables that a formula reads."""
    passes = [rule_pass for rule_pass in rule.passes if isinstance(rule_pass, Measure | Pass)]
    formulas = [rule.update, *rule.measures.values(), *(rule_pass.function for rule_pass in passes)]
    formulas += [formula for level in rule.levels for formula in level.measures.values()]
    scalar_names = {name for formula in formulas for name in trace_formula(formula).scalars}
    return [
        rule_pass.makes
        for rule_pass in passes
        if isinstance(rule_pass, Measure)
        and rule_pass.over == "variable"
        and rule_pass.makes in scalar_names
    ]


def stacked_or_viewed(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors of one shape; return a view if the tensors are adjacent in one storage."""
    first = tensors[0]
    if len(tensors) == 1:
        return first.unsqueeze(0)
    size = first.numel() * first.element_size()
    # The step of a range must not be 0, as the size of empty tensors is.
    ptrs = range(first.data_ptr(), first.data_ptr() + max(size, 1) * len(tensors), max(size, 1))
    storage = first.untyped_storage().data_ptr()
    if not all(
        tensor.is_contiguous()
        and tensor.data_ptr() == ptr
        and tensor.dtype == first.dtype
        and tensor.untyped_storage().data_ptr() == storage
        for tensor, ptr in zip(tensors, ptrs, strict=True)
    ):
        return torch.stack(list(tensors))
    return first.as_strided((len(tensors), *first.shape), (first.numel(), *first.stride()))


def _groups_of(step: Any) -> list[tuple[Sequence[int], Any]]:
    """Return (indices of the plan's variables, kernel group) for each CPU group of a step."""
    if isinstance(step, CompositeStep):
        plans = [(members, part) for members, part in step.parts if isinstance(part, DensePlan)]
    else:
        plans = [(range(len(step.variables)), step)]
    groups = [(members, group) for members, plan in plans for group in plan.groups]
    return [(members, group) for members, group in groups if hasattr(group, "table")]


def _count_bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


_LAYOUT_GETTERS = (Tensor.data_ptr, Tensor.size, Tensor.stride, attrgetter("dtype"), _count_bytes)


class StagedStep:
    """A `StepPlan` of a rule with passes.

    The plan owns the memory of the values that passes compute. Variables and slots change only when
    the returned calls run.

    Args:
        request: The step; `check_step` has accepted its variables.
        plans: A planner for each pass, and a last planner for the update.

    Attributes:
        stages: The transforms of gradients.
        pass_plans, update_plan: The plans of the passes, in order, and of the update.
    """

    is_single = True

    def __init__(self, request: StepRequest, plans: Sequence[Plan]) -> None:
        self._rule = rule = request.rule
        self._variables, self._titles = list(request.variables), request.titles
        self.stages, self._variable_numbers = request.stages, request.numbers
        self._slot_layout: list[Any] | None = None
        self._held_slots: Sequence[Sequence[Tensor]] = ()
        for rule_pass in rule.passes:
            # Raises for an unsupported stage, even if torch would compute it.
            if isinstance(rule_pass, FusedStage):
                read_stage(rule, rule_pass)
        self._matrices: WholeMatrices = (request.matrices or WholeMatrices)(request)
        self._are_short = bool(request.short) and all(request.short)
        pass_values = self._matrices.made
        # Measures over variables; None before the first use after a pass or a stage.
        self._numbers: dict[str, Any] | None = None
        self._vectors = self._matrices.vectors if rule.is_of_lines else ()
        self._slots = [
            [*(values[name] for name in rule.made), *element_slots]
            for values, element_slots in zip(
                pass_values, request.slots or [()] * len(pass_values), strict=True
            )
        ]
        self._updates = build_pass_updates(rule)
        *pass_pairs, (plan_update, update_rule) = zip(plans, self._updates, strict=False)
        self.pass_plans = [
            plan(self._request_for(request, pass_rule)) for plan, pass_rule in pass_pairs
        ]
        self.update_plan = plan_update(self._request_for(request, update_rule))
        # Replaced when the slots of small matrices are bound.
        self._mark_slots_written: Call = tuple
        groups = _groups_of(self.update_plan) if request.short else []
        self._short_groups = [
            (members, group) for members, group in groups if hasattr(group, "run_passes")
        ]
        self._readers = [group for _, group in groups]
        self._slot_bounds = layout.merge_byte_spans(())
        # True if gradients are outside `_slot_bounds`; None before `_bind_short`.
        self._are_disjoint: bool | None = None

    @property
    def dtypes(self) -> tuple[Dtype, ...]:
        """See `StepPlan`."""
        return self.update_plan.dtypes

    def _request_for(self, request: StepRequest, update: Rule) -> StepRequest:
        """Return the request for a pass or the update; values of passes become slots."""
        request = request._replace(rule=update, slots=self._slots, vectors=self._vectors)
        # A pass does not write copies, but reads them if the step begins at them.
        is_update = update is self._updates[-1]
        return request if is_update or request.from_copies else request._replace(copies=None)

    def try_rebind(self, request: StepRequest) -> bool:
        """Bind the plan to new gradients. Return False if the request differs in anything else.

        The caller must pass the plan's variables and the slots of the last request.
        """
        if request.rule is not self._rule or request.stages != self.stages:
            return False
        if request.numbers != self._variable_numbers:
            return False
        plans = zip((*self.pass_plans, self.update_plan), self._updates, strict=True)
        return all(plan.try_rebind(self._request_for(request, update)) for plan, update in plans)

    def run_passes(self, columns: Columns, slots: Sequence[Sequence[Tensor]]) -> list[Call]:
        """Run measures, passes and stages in order; write neither variables nor slots.

        Args:
            columns: The scalars of the step.
            slots: For each variable its `shaped_slots`, in the rule's order.

        Returns:
            C functions without arguments that write the new values of `slots`.

        Raises:
            RuleError: A stage returns an invalid value.
            InvalidArgumentError, InvalidTypeError, LayoutError: A slot is invalid.
        """
        slots = self.check_slots(slots)
        passes, updates = iter(self.pass_plans), SlotUpdates()
        self._numbers, sweeps = None, group_measures(self._rule)
        stage_columns = columns
        if self._variable_numbers:
            by_variable = {**columns.by_variable, NUMBER: np.array(self._variable_numbers)}
            stage_columns = columns._replace(by_variable=by_variable)
        with no_grad():
            if self._short_groups:
                checks = cast("DensePlan", self.update_plan).memory_checks()
                drain(calls([*checks, *self._slot_checks()]))
            for members, group in self._short_groups:
                group.run_passes(columns.of_members(members))
            if self._rule.is_of_lines:
                self._matrices.read_slots(slots)
            # The kernels of small matrices have run the passes of their variables.
            for rule_pass in self._rule.passes if not self._are_short else ():
                if isinstance(rule_pass, Pass):
                    self._run_pass(rule_pass, next(passes), self._with_numbers(columns))
                elif isinstance(rule_pass, Stage):
                    self._matrices.run_stage(rule_pass, stage_columns, slots, updates)
                elif rule_pass in sweeps:
                    self._measure(sweeps[rule_pass], self._with_numbers(columns))
                # A fused stage does not change measures over variables.
                if not isinstance(rule_pass, FusedStage):
                    self._numbers = None
            if self._rule.is_of_lines:
                self._matrices.write_slots(slots, updates)
        writes = [self._mark_slots_written] if self._short_groups else list[Call]()
        writes += [call for _, group in self._short_groups for call in group.write_staged()]
        return [*writes, *columns.write_calls(*updates.pairs())]

    @property
    def stage_scalars(self) -> tuple[str, ...]:
        """Return all parameter names of stages, and the name of the step number."""
        parameters = [
            stage_inputs(entry) for entry in self._rule.passes if isinstance(entry, Stage)
        ]
        names = [name for inputs in parameters for names in inputs for name in names]
        return tuple(dict.fromkeys([*names, COUNT]))

    def can_replay_passes(self) -> bool:
        """Return True if native code can replay the passes; it may return to Python for stages.

        Matrices must be unsharded, and no stage may draw random numbers. `group_passes` must accept
        a rule over rows and columns.
        """
        is_simple = type(self._matrices) is WholeMatrices and not self._variable_numbers
        return is_simple and (not self._rule.is_of_lines or group_passes(self._rule) is not None)

    def replay_passes(
        self,
        run_pass: Callable[[int], int],
        columns: Callable[[], Columns],
        slots: Sequence[Sequence[Tensor]],
    ) -> tuple[int, list[Call]]:
        """Run the `leading_passes` of the rule in order; write neither variables nor slots.

        Args:
            run_pass: `run_pass(index)` runs a pass and returns 0, or a status that ends the run.
            columns: `columns()` returns the scalars for a stage; called before each stage.
            slots: For each variable its `shaped_slots`, which `check_slots` has accepted.

        Returns:
            (0, functions without arguments that write the new values of `slots`), or (status, [])
            if a pass returned a status other than 0.
        """
        updates, pass_indices = SlotUpdates(), count()
        with no_grad():
            for entry in self._rule.leading_passes:
                if isinstance(entry, Stage):
                    self._matrices.run_stage(entry, columns(), slots, updates)
                elif status := run_pass(next(pass_indices)):
                    return status, []
        return 0, NO_COLUMNS.write_calls(*updates.pairs())

    def _measure(self, measures: tuple[Measure, ...], columns: Columns) -> None:
        """Compute measures in one pass over memory; store the results in `self._matrices`."""
        reduction = Reduction("measures", measures, self.stages)
        lines = cast("list[list[Tensor]]", self.update_plan.reduce(reduction, columns))
        for position, measure in enumerate(measures):
            values = [tensors[position] if tensors else _EMPTY for tensors in lines]
            self._matrices.give(measure.makes, values)

    def _with_numbers(self, columns: Columns) -> Columns:
        """Return `columns` plus cached measures over variables, if the rule has any."""
        if not self._rule.is_of_lines:
            return columns
        if self._numbers is None:
            self._numbers = self._matrices.numbers()
        return columns._replace(by_variable={**columns.by_variable, **self._numbers})

    def check_slots(self, slots: Sequence[Sequence[Tensor]]) -> Sequence[Sequence[Tensor]]:
        """Validate `shaped_slots` unless their memory and layout are as in the last call.

        Then bind the slots to the kernels for small matrices.

        Args:
            slots: For each variable its tensors of `rule.shaped_slots`.

        Returns:
            Aliases of the slots, which keep the memory that was validated.

        Raises:
            InvalidArgumentError, InvalidTypeError, LayoutError: As `check_shaped_slots`.
        """
        all_slots = [slot for var_slots in slots for slot in var_slots]
        # The kernels of small matrices are made in `_bind_short`, even without slots.
        if not all_slots and not self._short_groups:
            return slots
        slots = slots or [()] * len(self._variables)
        slots = [list(map(Tensor.detach, var_slots)) for var_slots in slots]
        self._held_slots, aliases = slots, list(chain.from_iterable(slots))
        try:
            slot_layout: list[Any] | None = [
                list(map(id, all_slots)),
                *(list(map(getter, aliases)) for getter in _LAYOUT_GETTERS),
            ]
        # A slot without memory has no ptr; `check_shaped_slots` raises for it.
        except RuntimeError:
            slot_layout = None
        if slot_layout is None or slot_layout != self._slot_layout:
            element_slots = [tensors[len(self._rule.made) :] for tensors in self._slots]
            shapes = self._matrices.slot_shapes
            check_shaped_slots(
                self._rule, self._variables, element_slots, slots, shapes, self._titles
            )
            target_slots: list[Tensor] = []
            for members, group in self._short_groups:
                positions: list[int] = group.members
                target_slots += [
                    slot for position in positions for slot in slots[members[position]]
                ]
            self._mark_slots_written = partial(torch._C._increment_version, target_slots)  # pyright: ignore[reportPrivateUsage]
            self._slot_bounds, self._are_disjoint = layout.merge_byte_spans(target_slots), None
            self._slot_layout = slot_layout
        self._bind_short(slots)
        return slots

    def _bind_short(self, slots: Sequence[Sequence[Tensor]]) -> None:
        """Write the addresses of slots into the tables of kernels for small matrices.

        If a gradient overlaps with a slot, the kernels write to copies of slots. Do nothing if
        slots and overlap are unchanged since the last call.
        """
        are_disjoint = all(
            layout.lie_apart(group.table.base[:, 1], group.bytes, self._slot_bounds)
            for group in self._readers
        )
        if are_disjoint == self._are_disjoint:
            return
        # Until all groups are bound: an interrupted call must not count as done.
        self._are_disjoint = None
        for members, group in self._short_groups:
            positions: list[int] = group.members
            group.bind_slots([slots[members[position]] for position in positions], are_disjoint)
        self._are_disjoint = are_disjoint

    def _run_pass(self, rule_pass: Pass, plan: StepPlan, columns: Columns) -> None:
        """Run the plan of a pass; raise RuleError if a scalar of the formula is missing."""
        # Passes write memory of the plan, whether or not the step is applied.
        try:
            rounds = list(plan.make_rounds(columns._replace(apply_flag=None)))
        except KeyError:
            scalars = {**columns.shared[plan.dtypes[0]], **columns.by_variable}
            check_given(
                place_of(rule_pass.function),
                trace_formula(rule_pass.function).scalars,
                scalars,
                self._rule,
            )
            raise
        for write_round in rounds:
            for call in write_round.all_calls:
                call()

    @property
    def device(self) -> torch.device | None:
        """See `Reductions`."""
        return self.update_plan.device

    def reduce(self, reduction: Reduction, columns: Columns) -> Results:
        """Return a reduction over the variables; see `Reductions`.

        Measures of a rule with row or column passes are summed by rows. Other formulas are summed
        by leaves (blocks of 65,536 elements).

        Raises:
            RuleError: `reduction` asks for leaves of a formula that is summed by rows.
        """
        if reduction.kind == "measures":
            return self.update_plan.reduce(reduction, self._with_numbers(columns))
        line_formulas = self._select_line_formulas(reduction.formulas)
        if not line_formulas:
            return self.update_plan.reduce(reduction, columns)
        if reduction.kind == "leaves":
            raise RuleError(
                f"Rule {self._rule.name!r} has measures that may read values of rows or columns,"
                " and cannot update variables that are sharded over ranks."
            )
        return self._sum_lines(reduction, line_formulas, self._with_numbers(columns))

    def _sum_lines(
        self, reduction: Reduction, line_formulas: tuple[Any, ...], columns: Columns
    ) -> Float64:
        """Return the sums of all formulas as an array (variables, formulas).

        `line_formulas` are summed by rows, other formulas by leaves.
        """
        totals: dict[Any, Float64] = {}
        leaf_formulas = tuple(x for x in reduction.formulas if x not in line_formulas)
        if leaf_formulas:
            sums = self.update_plan.reduce(replace(reduction, formulas=leaf_formulas), columns)
            totals |= zip(leaf_formulas, as_array(sums).T, strict=True)
        measures = tuple(map(_sum_measure, line_formulas))
        lines = Reduction("measures", measures, reduction.stages)
        tensors_by_variable = cast("list[list[Tensor]]", self.update_plan.reduce(lines, columns))
        for position, formula in enumerate(line_formulas):
            values = [
                tensors[position].reshape(()) if tensors else _EMPTY.sum()
                for tensors in tensors_by_variable
            ]
            totals[formula] = np.array(list(map(to_host, values)), np.float64)
        return np.stack([totals[formula] for formula in reduction.formulas], axis=-1)

    def _select_line_formulas(self, formulas: Formulas) -> tuple[Any, ...]:
        """Return the elements of `formulas` that are the rule's measures, to be summed by rows.

        Return () if the rule has no passes over rows or columns.
        """
        rule = self._rule
        if not rule.is_of_lines:
            return ()
        levels = (level.measures for level in rule.levels)
        line_formulas = {
            formula for group in (rule.measures, *levels) for formula in group.values()
        }
        return tuple(formula for formula in formulas if formula in line_formulas)

    def make_rounds(self, columns: Columns) -> Iterator[WriteRound]:
        """See `StepPlan`."""
        for write_round in self.update_plan.make_rounds(self._with_numbers(columns)):
            yield write_round._replace(checks=[*write_round.checks, *self._slot_checks()])

    def _slot_checks(self) -> list[Call]:
        """Return `WriteRound.checks` of `shaped_slots`."""
        if self._slot_layout is None:
            return []
        present = map(Tensor.data_ptr, chain.from_iterable(self._held_slots))
        fail = partial(raise_cut, self._titles, self._held_slots)
        return [check_call(present, self._slot_layout[1], fail)]

    def release_gradients(self) -> None:
        """See `StepPlan`."""
        for plan in (*self.pass_plans, self.update_plan):
            plan.release_gradients()
