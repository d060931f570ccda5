"""Run one step of a rule over any variables: choose the engine for each, check all, then update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.engines import layout, reference
from thalweg.engines.cpu.measure import Tensors
from thalweg.engines.cpu.mixed import MixedPlan, own_scalars
from thalweg.engines.cpu.plan import DensePlan, Scalars
from thalweg.engines.cpu.sparse import ENTRIES, SparsePlan
from thalweg.engines.selection import Selection
from thalweg.formula import Formula, Rule
from thalweg.indexed_slices import IndexedSlices

_SPARE = 16  # plans of variables of earlier steps that are kept
Gradient = Tensor | IndexedSlices
Stages = tuple[Formula, ...]
Step = Callable[[dict[type, Scalars], dict[str, np.ndarray], bool], None]


def check_gradients(
    variables: Sequence[Tensor],
    gradients: Sequence[Gradient],
    names: Sequence[str],
    *,
    scatter: bool = True,
    narrow: bool = False,
) -> None:
    """Refuse a step that cannot be taken as a whole; nothing has changed then.

    Args:
        variables, gradients, names: The step, a gradient and a name for each variable.
        scatter: Whether a bad index is reported as TensorFlow's scatter kernels do, or as its
            fused sparse kernels do.
        narrow: Whether a dense gradient of a float32 variable may be of a 16-bit type.

    Raises:
        InvalidTypeError: For a dtype that is not computed, or a gradient of another dtype.
        InvalidArgumentError: For another shape or device, or an index out of range.
        LayoutError: For memory that cannot be updated in place.
    """
    for var, grad, name in zip(variables, gradients, names, strict=True):
        layout.check_variable(var, name)
        if isinstance(grad, IndexedSlices):
            layout.check_slices(grad, var, name, scatter)
        else:
            layout.check_gradient(grad, var, name, narrow)
    once: dict[int, int] = {}
    for index, var in enumerate(variables):
        once.setdefault(id(var), index)
    distinct = list(once.values())
    layout.check_disjoint([variables[i] for i in distinct], [names[i] for i in distinct])


class Runner:
    """Takes steps, and keeps what the next one can use again.

    Attributes:
        dtypes: The compute dtypes of the step that was made ready.
    """

    def __init__(self) -> None:
        self._steady: DensePlan | MixedPlan | None = None  # what `aim` may use again
        self._selection: Selection | None = None
        self._kept: DensePlan | None = None  # the last one, for steps with other gradients, too
        self._sparse: dict[tuple[int, int], SparsePlan] = {}  # by variable and round
        self._warned: set[int] = set()
        self._steps: list[Step] = []
        self._aimed = False
        self.dtypes: tuple[type[np.floating], ...] = ()

    def aim(
        self,
        rule: Rule,
        stages: Stages,
        variables: Sequence[Tensor],
        gradients: Sequence[Any],
        selection: Selection,
        copies: Sequence[Tensor | None] | None = None,
    ) -> bool:
        """Whether the step is the one before with other gradients; if so it is ready to run."""
        plan = self._steady
        if (
            plan is None
            or plan.rule is not rule
            or plan.stages != stages
            or selection != self._selection
            or not plan.copied_to(copies)
        ):
            return False
        # Else torch looks for an override whenever a `Variable` is asked for something.
        with torch._C.DisableTorchFunctionSubclass():
            if not (plan.applies(variables) and plan.aim(gradients)):
                return False
        self.dtypes = plan.dtypes
        self._steps = [plan.run]
        self._aimed = True
        return True

    def plan(
        self,
        rule: Rule,
        stages: Stages,
        variables: Sequence[Tensor],
        gradients: Sequence[Gradient],
        slots: Sequence[Sequence[Tensor]],
        names: Sequence[str],
        selection: Selection,
        copies: Sequence[Tensor | None] | None = None,
    ) -> None:
        """Make ready a step that `check_gradients` accepted.

        Args:
            rule, stages, variables, gradients, slots, names, selection: The step.
            copies: For each variable a tensor of its shape and of a 16-bit type that the step
                sets to it, or None; of steps with dense gradients of distinct variables only.

        Raises:
            InvalidTypeError, InvalidArgumentError, LayoutError: Slots do not fit their variable.
        """
        self._steady = None
        self._aimed = False
        self._steps = []
        self.dtypes = tuple(dict.fromkeys(layout.compute_dtype(var.dtype) for var in variables))
        rounds: list[list[int]] = []
        seen: dict[int, int] = {}
        for index, var in enumerate(variables):
            number = seen.get(id(var), 0)
            seen[id(var)] = number + 1
            if number == len(rounds):
                rounds.append([])
            rounds[number].append(index)
        if len(self._sparse) > 2 * len(variables) + _SPARE:  # of variables long gone
            self._sparse = {key: each for key, each in self._sparse.items() if key[0] in seen}
        copies = copies or [None] * len(variables)
        _check_memory(variables, slots, names, copies)
        gradients = _apart(variables, gradients, slots, copies)
        for number, indices in enumerate(rounds):
            plan = self._plan_round(
                rule, stages, number, indices, variables, gradients, slots, names, selection, copies
            )
            if len(rounds) == 1:
                self._steady, self._selection = plan, selection

    def _plan_round(
        self,
        rule: Rule,
        stages: Stages,
        number: int,
        indices: list[int],
        variables: Sequence[Tensor],
        gradients: Sequence[Gradient],
        slots: Sequence[Sequence[Tensor]],
        names: Sequence[str],
        selection: Selection,
        copies: Sequence[Tensor | None],
    ) -> DensePlan | MixedPlan | None:
        """Add the steps of distinct variables; returns a plan that takes them again, if any can."""
        dense: list[int] = []
        sparse: list[tuple[int, SparsePlan]] = []
        for index in indices:
            grad, var, own = gradients[index], variables[index], slots[index]
            copy = copies[index]
            beside = own if copy is None else [*own, copy]
            raw = self._raw(var, beside, names[index], selection)
            if isinstance(grad, IndexedSlices):
                if raw and var.is_contiguous() and len(grad.indices) < ENTRIES:
                    plan = self._sparse_plan(rule, number, var, own)
                    plan.point_at(grad.values.detach(), grad.indices)
                    sparse.append((index, plan))
                else:
                    self._steps.append(_reference_rows(rule, stages, index, var, grad, list(own)))
            elif raw:
                dense.append(index)
            else:
                self._steps.append(_reference_step(rule, stages, index, var, grad, list(own), copy))
        made = None
        if dense:
            made, step = self._dense_step(rule, stages, dense, variables, gradients, slots, copies)
            self._steps.append(step)
        self._steps += [_sparse_step(stages, index, plan) for index, plan in sparse]
        if len(dense) + len(sparse) < len(indices):
            return None
        return MixedPlan(rule, stages, made, dense, sparse) if sparse else made

    def _sparse_plan(
        self, rule: Rule, number: int, var: Tensor, slots: Sequence[Tensor]
    ) -> SparsePlan:
        # A plan is aimed at one gradient, so repeats of a variable need plans of their own.
        plan = self._sparse.get((id(var), number))
        if plan is None or not plan.serves(rule, var, slots):
            plan = self._sparse[id(var), number] = SparsePlan(rule, var, slots)
        return plan

    def _raw(self, var: Tensor, beside: Sequence[Tensor], name: str, selection: Selection) -> bool:
        if selection.name == "reference" or var.device.type != "cpu":
            return False
        fits = (
            layout.dense(var)
            and layout.aligned(var)
            and all(layout.same_strides(other, var) for other in beside)
        )
        if not fits and id(var) not in self._warned:
            self._warned.add(id(var))
            layout.warn_slow(name, f"has strides {var.stride()} for shape {tuple(var.shape)}")
        return fits

    def _dense_step(
        self,
        rule: Rule,
        stages: Stages,
        indices: list[int],
        variables: Sequence[Tensor],
        gradients: Sequence[Gradient],
        slots: Sequence[Sequence[Tensor]],
        copies: Sequence[Tensor | None],
    ) -> tuple[DensePlan, Step]:
        own = [variables[i] for i in indices]
        own_slots = [slots[i] for i in indices]
        own_copies = [copies[i] for i in indices]
        # A plan points at one step's gradients, so repeats of a variable need plans of their own.
        plan, self._kept = self._kept, None
        fitting = [layout.like(gradients[i], variables[i]) for i in indices]  # pyright: ignore
        made = rule, stages, own, own_slots, [grad.dtype for grad in fitting], own_copies
        if plan is None or not plan.serves(*made):
            plan = DensePlan(*made)
        plan.point_at(fitting)
        whole = len(indices) == len(variables)

        def step(
            scalars: dict[type, Scalars], separate: dict[str, np.ndarray], flush: bool
        ) -> None:
            own = separate if whole else {key: value[indices] for key, value in separate.items()}
            plan.run(scalars, own, flush)
            fitting.clear()
            self._kept = plan

        return plan, step

    def measure(
        self, variables: Sequence[Tensor], gradients: Sequence[Gradient]
    ) -> Tensors | DensePlan | MixedPlan:
        """Answers questions about the step that was made ready.

        The values of a sparse gradient count as they are, repeated rows and all.
        """
        if self._aimed and self._steady is not None:
            return self._steady
        values = [grad.values if isinstance(grad, IndexedSlices) else grad for grad in gradients]
        return Tensors(values, variables)

    def let_go(self) -> None:
        """Forget the step that was made ready, and the gradients with it."""
        self._steps = []

    def run(
        self, scalars: dict[type, Scalars], separate: dict[str, np.ndarray], flush: bool
    ) -> None:
        """Take the step that `aim` or `plan` made ready.

        Args:
            scalars: The scalars of the step, for each compute dtype (numpy.float32, numpy.float64).
            separate: Scalars that differ by variable, an array over the step's variables each.
            flush: Whether denormals are treated as zero.
        """
        steps, self._steps = self._steps, []
        for step in steps:
            step(scalars, separate, flush)


def _sparse_step(stages: Stages, index: int, plan: SparsePlan) -> Step:
    def step(scalars: dict[type, Scalars], separate: dict[str, np.ndarray], flush: bool) -> None:
        plan.run(stages, own_scalars(scalars[plan.compute], separate, index), flush)

    return step


def _reference_rows(
    rule: Rule, stages: Stages, index: int, var: Tensor, grad: IndexedSlices, slots: list[Tensor]
) -> Step:
    values, indices = grad.values.detach(), grad.indices

    def step(scalars: dict[type, Scalars], separate: dict[str, np.ndarray], flush: bool) -> None:
        own = own_scalars(scalars[layout.compute_dtype(var.dtype)], separate, index)
        changed = reference.transform(stages, values, own, flush)
        reference.update_sparse(rule, var, changed, indices, slots, own, flush)
        torch.autograd.graph.increment_version([var, *slots])

    return step


def _reference_step(
    rule: Rule,
    stages: Stages,
    index: int,
    var: Tensor,
    grad: Tensor,
    slots: list[Tensor],
    copy: Tensor | None,
) -> Step:
    def step(scalars: dict[type, Scalars], separate: dict[str, np.ndarray], flush: bool) -> None:
        own = own_scalars(scalars[layout.compute_dtype(var.dtype)], separate, index)
        reference.update_dense(rule, stages, var, grad.detach(), slots, own, flush)
        if copy is not None:
            reference.saturate(var, copy)

    return step


def _check_memory(
    variables: Sequence[Tensor],
    slots: Sequence[Sequence[Tensor]],
    names: Sequence[str],
    copies: Sequence[Tensor | None],
) -> None:
    tensors: list[Tensor] = []
    titles: list[str] = []
    seen: set[int] = set()
    for var, own, name, copy in zip(variables, slots, names, copies, strict=True):
        layout.check_slots(var, own, name)
        if id(var) not in seen:
            seen.add(id(var))
            tensors += [var, *own]
            titles += [name, *(f"a slot of {name}" for _ in own)]
        if copy is not None:
            layout.check_copy(var, copy, name)
            tensors.append(copy)
            titles.append(f"the copy of {name}")
    layout.check_disjoint(tensors, titles)


def _apart(
    variables: Sequence[Tensor],
    gradients: Sequence[Gradient],
    slots: Sequence[Sequence[Tensor]],
    copies: Sequence[Tensor | None],
) -> list[Gradient]:
    """The gradients, copied where they lie in memory that the step writes."""
    written = [*variables, *(slot for each in slots for slot in each)]
    written += [copy for copy in copies if copy is not None]
    spans = sorted(layout.span(tensor) for tensor in written if tensor.device.type == "cpu")
    starts = np.array([start for start, _ in spans], np.int64)
    ends = np.maximum.accumulate(np.array([end for _, end in spans], np.int64))
    result: list[Gradient] = []
    for grad in gradients:
        memory = grad.values if isinstance(grad, IndexedSlices) else grad
        if memory.device.type != "cpu":
            result.append(grad)
            continue
        start, end = layout.span(memory)
        # Runs that begin before the gradient ends; the farthest end among them decides.
        before = int(np.searchsorted(starts, end, side="left"))
        if not before or ends[before - 1] <= start:
            result.append(grad)
        elif isinstance(grad, IndexedSlices):
            result.append(IndexedSlices(grad.values.clone(), grad.indices, grad.dense_shape))
        else:
            result.append(grad.clone())
    return result
