"""Validation of a step, selection of an engine for each variable, and cached plans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from thalweg._base.locks import importing
from thalweg._engines import layout
from thalweg._engines.composite import CompositeStep, Part, Parts, select_members
from thalweg._engines.cpu.work_table import ENTRIES
from thalweg._engines.cuda.availability import takes_device, why_unfused
from thalweg._engines.dense_plan import DensePlan, Group
from thalweg._engines.engine_selection import EngineName
from thalweg._engines.memory_protection import check_writable
from thalweg._engines.protocol import Gradient, StepPlan, StepRequest, split_into_rounds
from thalweg.errors import PerformanceWarning, warn
from thalweg.indexed_slices import IndexedSlices

if TYPE_CHECKING:
    from thalweg._engines.cpu.sparse_plan import RowsPlan
    from thalweg._engines.offload import OffloadLink, OffloadTransfers
    from thalweg._engines.staged_step import StagedStep
    from thalweg.formula import Rule

EngineKind = Literal["cpu", "cuda", "reference", "torch"]
# The largest number of rows or columns that kernels for GPUs support.
SIDE = 1 << 30
# Number of cached plans beyond twice the variables of the step, before old ones are dropped.
_SPARE = 16


def check_gradients(
    variables: Sequence[Tensor],
    gradients: Sequence[Gradient],
    names: Sequence[str],
    *,
    scatter: bool = True,
    narrow: bool = False,
    devices: Sequence[torch.device] | None = None,
) -> None:
    """Validate variables and gradients of a step; change nothing.

    Args:
        variables, gradients, names: The variables, with a gradient and a name for each.
        scatter: True for the messages of TensorFlow's scatter kernels about wrong indices. False
            for the messages of its fused sparse kernels.
        narrow: True to accept 16-bit gradients of float32 variables.
        devices: The device of each dense gradient; by default the variable's.

    Raises:
        InvalidTypeError: A dtype is not supported, or a gradient and its variable differ in dtype.
        InvalidArgumentError: A shape or device differs, or an index is out of range.
        LayoutError: A variable cannot be updated in place.
    """
    grad_devices = devices or [None] * len(variables)
    for var, grad, name, device in zip(variables, gradients, names, grad_devices, strict=True):
        layout.check_variable(var, name)
        if isinstance(grad, IndexedSlices):
            layout.check_slices(grad, var, name, scatter, narrow)
        else:
            layout.check_kind(grad, var, name, narrow, device)
            layout.check_shape(grad, var, name)
    first_occurrences = next(iter(split_into_rounds(variables)), list[int]())
    distinct = [variables[index] for index in first_occurrences]
    labels = [names[index] for index in first_occurrences]
    layout.check_disjoint(distinct, labels)
    check_writable(zip(distinct, labels, strict=True))


def engine_of(device: torch.device, name: EngineName) -> EngineKind:
    """Return the engine that updates variables on `device` if `name` is selected."""
    if takes_device(device, name):
        return "cuda"
    if device.type != "cpu" or name == "torch":
        return "torch"
    return "cpu" if name in ("auto", "cpu") else "reference"


@cache
def _warn_unfused(device: torch.device) -> None:
    """Warn once per process that torch functions compute the steps on a device without kernels."""
    warn(
        f"thalweg has no kernels for {device}, because {why_unfused(device)}. Its steps are"
        " computed by torch functions: the results are those of kernels, but each operation of a"
        " rule reads and writes memory, and new values of parameters and state are held until all"
        " are computed. For fused steps, train on the CPU or on a GPU that docs/platforms.md lists."
        " To accept this, ignore thalweg.errors.PerformanceWarning.",
        PerformanceWarning,
    )


class Dispatcher:
    """Planner of steps; caches plans for later steps over the same variables."""

    def __init__(self) -> None:
        # By engine and offload run; reused for other gradients, too.
        self._dense: dict[tuple[EngineKind, int], DensePlan] = {}
        # By engine, `id` of the variable, and round.
        self._sparse: dict[tuple[EngineKind, int, int], RowsPlan] = {}
        # By `id` of the variable.
        self._links: dict[int, OffloadLink] = {}
        self._warned_ids: set[int] = set()
        self._pass_dispatchers: dict[Rule, list[Dispatcher]] = {}

    def plan_step(self, request: StepRequest) -> StepPlan:
        """Return the plan of a step that `check_gradients` accepted, bound to its gradients.

        Nothing is written. Gradients that overlap with memory written by the step are cloned.

        Raises:
            InvalidTypeError, InvalidArgumentError, LayoutError: A slot or copy is invalid.
        """
        if request.rule.passes:
            return self._plan_passes(request)
        variables = request.variables
        rounds = split_into_rounds(variables)
        # Drop plans of variables that are no longer used.
        if len(self._sparse) > 2 * len(variables) + _SPARE:
            ids = set(map(id, variables))
            self._sparse = {key: plan for key, plan in self._sparse.items() if key[1] in ids}
        copies = request.copies or [None] * len(variables)
        if request.rule.codecs:
            with importing:
                from thalweg._engines.codecs.checks import check_encoded
            check_encoded(request)
        _check_memory(variables, request.slots, request.titles, copies, request.rule.codecs)
        transfers = self._plan_transfers(request)
        request = request if transfers is None else transfers.request
        copies = copies if request.copies is None else request.copies
        gradients = _copy_overlapping(variables, request.gradients, request.slots, copies)
        request = request._replace(gradients=gradients)
        engines = self._select_engines(request, len(rounds) > 1)
        plans = [
            self._plan_round(request, round_index, members, engines, transfers)
            for round_index, members in enumerate(rounds)
        ]
        if len(plans) == len(plans[0]) == 1 and isinstance(plans[0][0][1], DensePlan):
            return plans[0][0][1]
        return CompositeStep(request, plans)

    def _plan_passes(self, request: StepRequest) -> StagedStep:
        """Return the plan of a step whose rule has passes (formulas that run before the update)."""
        with importing:
            from thalweg._engines.staged_step import StagedStep
        # Each pass has a dispatcher, because the keys of a dispatcher's caches have no rule.
        count = 1 + len(request.rule.passes)
        new_dispatchers = [Dispatcher() for _ in range(count)]
        dispatchers = self._pass_dispatchers.setdefault(request.rule, new_dispatchers)
        if request.rule.is_of_lines:
            engines = [engine_of(var.device, request.selection.name) for var in request.variables]
            with importing:
                from thalweg._engines.cpu.small_matrices import find_short
            request = request._replace(short=find_short(request, engines))
        return StagedStep(request, [dispatcher.plan_step for dispatcher in dispatchers])

    def _plan_transfers(self, request: StepRequest) -> OffloadTransfers | None:
        """Return the transfers of a step with copies on another device, else None."""
        transfers = None
        pairs = zip(request.variables, request.copies or (), strict=False)
        if any(copy is not None and layout.is_far(copy, var.device) for var, copy in pairs):
            with importing:
                from thalweg._engines.offload import OffloadTransfers
            transfers = OffloadTransfers(request, self._links)
        if len(self._links) > 2 * len(request.variables) + _SPARE:
            ids = set(map(id, request.variables))
            self._links = {key: link for key, link in self._links.items() if key in ids}
        return transfers

    def _select_engines(self, request: StepRequest, repeats: bool) -> list[EngineKind]:
        """Return the engine of each variable.

        With `repeats`, a variable may occur several times. All occurrences get one engine: if one
        occurrence cannot use kernels, none does.
        """
        indices = range(len(request.variables))
        engines: list[EngineKind] = [self._select_engine(request, index) for index in indices]
        if not repeats:
            return engines
        pairs = list(zip(map(id, request.variables), engines, strict=True))
        slow: dict[int, EngineKind] = {
            key: engine for key, engine in pairs if engine in ("reference", "torch")
        }
        return [slow.get(key, engine) for key, engine in pairs]

    def _select_engine(self, request: StepRequest, index: int) -> EngineKind:
        """Return the engine of the variable at `index`.

        If the selected engine's kernels cannot update the variable, return "reference" on the CPU
        and "torch" on other devices. Warn about devices without kernels, and about strides.
        """
        device = request.variables[index].device
        engine = engine_of(device, request.selection.name)
        if engine == "torch" and request.selection.name == "auto" and device.type != "meta":
            _warn_unfused(device)
        if engine in ("reference", "torch"):
            return engine
        is_long = engine == "cuda" and max((0, *request.variables[index].shape[-2:])) > SIDE
        if (is_long and request.vectors) or not self._fits_or_warns(request, index):
            return "reference" if device.type == "cpu" else "torch"
        return engine

    def _fits_or_warns(self, request: StepRequest, index: int) -> bool:
        """Return True if kernels can update the variable at `index` by memory addresses.

        The variable must be aligned and dense; with encoded slots or vectors also contiguous.
        Slots and copy must have the variable's strides. If not, warn once per variable. A sparse
        gradient needs a contiguous variable and less than `ENTRIES` indices. If not, do not warn.
        """
        var, grad = request.variables[index], request.gradients[index]
        copy = None if request.copies is None else request.copies[index]
        slots = layout.without_records(request.slots[index], request.rule.codecs)
        other_tensors = slots if copy is None else [*slots, copy]
        is_encoded = len(slots) < len(request.slots[index])
        fits = (
            (var.is_contiguous() if is_encoded else layout.is_dense(var))
            and layout.is_aligned(var)
            and all(layout.same_strides(tensor, var) for tensor in other_tensors)
            and (not request.vectors or var.is_contiguous())
        )
        if not fits and id(var) not in self._warned_ids:
            self._warned_ids.add(id(var))
            strides = f"has strides {var.stride()} for shape {tuple(var.shape)}"
            layout.warn_slow(request.titles[index], strides)
        if fits and isinstance(grad, IndexedSlices):
            return var.is_contiguous() and len(grad.indices) < ENTRIES
        return fits

    def _plan_round(
        self,
        request: StepRequest,
        round_index: int,
        members: Sequence[int],
        engines: Sequence[EngineKind],
        transfers: OffloadTransfers | None,
    ) -> Parts:
        """Group the variables `members` by engine; return [(indices of a group, the group's part)].

        Args:
            round_index: How often the variables occur earlier in the step.
            members: Indices of distinct variables.
        """
        groups: dict[tuple[EngineKind, int, torch.device | None, int], list[int]] = {}
        for index in members:
            var, engine = request.variables[index], engines[index]
            is_single = engine == "reference" or isinstance(request.gradients[index], IndexedSlices)
            device = var.device if engine == "torch" else None
            run = -1 if is_single or transfers is None else transfers.runs.get(index, -1)
            key = (engine, run, device, index if is_single else -1)
            groups.setdefault(key, []).append(index)
        plans: list[tuple[Sequence[int], Part]] = []
        # The groups of several variables come first.
        for (engine, run, _, single), group in sorted(
            groups.items(), key=lambda item: item[0][3] >= 0
        ):
            share = select_members if transfers is None else transfers.take_share
            sub_request = share(request, group)
            if engine in ("reference", "torch"):
                part = _make_array_part(sub_request, engine)
            elif single < 0:
                part = self._find_dense_plan(sub_request, (engine, run))
            else:
                part = self._find_rows_plan(sub_request, engine, round_index)
            if transfers is not None:
                part = transfers.wrap_part(group, part)
            plans.append((group, part))
        return plans

    def _find_rows_plan(self, request: StepRequest, engine: EngineKind, round_index: int) -> Part:
        """Return a cached or new plan of a variable with a sparse gradient, bound to the gradient.

        Args:
            round_index: How often the variable occurs earlier in the step; part of the cache key.
        """
        key = (engine, id(request.variables[0]), round_index)
        plan = self._sparse.get(key)
        if plan is None or not plan.serves(request):
            with importing:
                if engine == "cuda":
                    from thalweg._engines.cuda.sparse import RowsPart as plan_class
                else:
                    from thalweg._engines.cpu.sparse import SparsePlan as plan_class
            plan = self._sparse[key] = plan_class(request)
        plan.point_at(request.gradients[0])
        return plan

    def _find_dense_plan(self, request: StepRequest, key: tuple[EngineKind, int]) -> DensePlan:
        """Return a cached or new plan of a step over dense gradients, bound to the gradients.

        Args:
            key: The cache key: the engine, and the index of the offload run or -1.
        """
        fitting = map(layout.with_strides_of, request.gradients, request.variables)
        request = request._replace(gradients=list(fitting))
        plan = self._dense.get(key)
        # A plan that is still bound is in use, such as in an earlier round of this step.
        if plan is not None and not plan.is_bound and plan.serves(request):
            plan.point_at(request.gradients)
        else:
            make_group = partial(_make_group, key[0])
            plan = self._dense[key] = DensePlan(request, make_group)
        return plan


def _make_array_part(request: StepRequest, engine: EngineKind) -> Part:
    """Return a part that evaluates formulas by NumPy ("reference") or torch functions ("torch")."""
    is_sparse = isinstance(request.gradients[0], IndexedSlices)
    with importing:
        if engine == "reference":
            from thalweg._engines.reference_part import ReferencePart, ReferenceRows

            return ReferenceRows(request) if is_sparse else ReferencePart(request)
        from thalweg._engines.torch_part import TorchPart
        from thalweg._engines.torch_rows import TorchRows
    return TorchRows(request) if is_sparse else TorchPart(request)


def _make_group(engine: EngineKind, request: StepRequest, members: list[int]) -> Group:
    """Return the `dense_plan.Group` of variables with equal dtypes, for an engine with kernels."""
    with importing:
        if engine == "cuda":
            from thalweg._engines.cuda.kernel_group import Group as group_class
        elif request.short and request.short[members[0]]:
            from thalweg._engines.cpu.small_matrices import ShortGroup as group_class
        else:
            from thalweg._engines.cpu.kernel_group import Group as group_class
    return group_class(request, members)


def _check_memory(
    variables: Sequence[Tensor],
    slots: Sequence[Sequence[Tensor]],
    names: Sequence[str],
    copies: Sequence[Tensor | None],
    codecs: Sequence[str | None],
) -> None:
    """Raise LayoutError, InvalidTypeError or InvalidArgumentError for invalid slots or copies.

    All variables, slots and copies must have disjoint memory.
    """
    tensors: list[Tensor] = []
    labels: list[str] = []
    seen_ids: set[int] = set()
    # The tensors of a variable that occurs twice do not overlap with themselves.
    for var, var_slots, name, copy in zip(variables, slots, names, copies, strict=True):
        layout.check_slots(var, layout.without_records(var_slots, codecs), name)
        if id(var) not in seen_ids:
            seen_ids.add(id(var))
            tensors += [var, *var_slots]
            labels += [name, *(f"a slot of {name}" for _ in var_slots)]
        if copy is not None and id(copy) not in seen_ids:
            seen_ids.add(id(copy))
            layout.check_copy(var, copy, name)
            tensors.append(copy)
            labels.append(f"the copy of {name}")
    layout.check_disjoint(tensors, labels)
    # `check_gradients` has checked the variables.
    checked_ids = set(map(id, variables))
    titled = zip(tensors, labels, strict=True)
    check_writable((tensor, label) for tensor, label in titled if id(tensor) not in checked_ids)


def _copy_overlapping(
    variables: Sequence[Tensor],
    gradients: Sequence[Gradient],
    slots: Sequence[Sequence[Tensor]],
    copies: Sequence[Tensor | None],
) -> list[Gradient]:
    """Return the gradients; clone those whose memory the step writes."""
    targets = [*variables, *(slot for var_slots in slots for slot in var_slots)]
    targets += [copy for copy in copies if copy is not None]
    spans = sorted(
        layout.byte_span(tensor) for tensor in targets if tensor.device.type in layout.BY_ADDRESS
    )
    # `layout.lie_apart` would clone memory at address 0, which another thread has just cut.
    starts = np.array([start for start, _ in spans], np.int64)
    ends = np.maximum.accumulate(np.array([end for _, end in spans], np.int64))

    def copy_if_overlapping(memory: Tensor) -> Tensor:
        """Return `memory`, or a clone if the step writes to some of its bytes."""
        if memory.device.type not in layout.BY_ADDRESS:
            return memory
        start, end = layout.byte_span(memory)
        # Ranges that begin before the memory ends; it overlaps if one ends after it begins.
        count = int(np.searchsorted(starts, end, side="left"))
        return memory if not count or ends[count - 1] <= start else memory.clone()

    disjoint_gradients: list[Gradient] = []
    for grad in gradients:
        if isinstance(grad, IndexedSlices):
            values, indices = copy_if_overlapping(grad.values), copy_if_overlapping(grad.indices)
            if values is not grad.values or indices is not grad.indices:
                grad = IndexedSlices(values, indices, grad.dense_shape)
            disjoint_gradients.append(grad)
        else:
            disjoint_gradients.append(copy_if_overlapping(grad))
    return disjoint_gradients
