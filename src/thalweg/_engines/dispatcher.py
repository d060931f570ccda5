"""The gate of the engines: a step is checked as a whole, and each variable gets its engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from thalweg._base.locks import importing
from thalweg._engines import cpu, cuda, layout
from thalweg._engines.composite import CompositeStep, Part, Parts, Staying
from thalweg._engines.cpu.work_table import ENTRIES
from thalweg._engines.cuda.availability import takes_device
from thalweg._engines.dense_plan import DensePlan
from thalweg._engines.engine_selection import EngineName
from thalweg._engines.memory_protection import check_writable
from thalweg._engines.protocol import Gradient, StepPlan, StepRequest, in_rounds
from thalweg.indexed_slices import IndexedSlices

if TYPE_CHECKING:
    from thalweg._engines.cpu.sparse_plan import RowsPlan
    from thalweg._engines.offload import OffloadLink, OffloadTransfers
    from thalweg._engines.staged_step import StagedStep
    from thalweg.formula import Rule

Home = Literal["cpu", "cuda", "reference"]
_BY_ADDRESS = ("cpu", "cuda")  # devices on which an address says where a tensor lies
SIDE = 1 << 30  # rows or columns that kernels for GPUs count, at most
_SPARE = 16  # plans of variables of earlier steps that are kept


def check_gradients(
    variables: Sequence[Tensor],
    gradients: Sequence[Gradient],
    names: Sequence[str],
    *,
    scatter: bool = True,
    narrow: bool = False,
    devices: Sequence[torch.device] | None = None,
) -> None:
    """Refuse a step that cannot be taken as a whole; nothing has changed then.

    Args:
        variables, gradients, names: The step, a gradient and a name for each variable.
        scatter: Whether a bad index is reported as TensorFlow's scatter kernels do, or as its
            fused sparse kernels do.
        narrow: Whether a gradient of a float32 variable may be of a 16-bit type.
        devices: Where dense gradients are to be, if not with their variables.

    Raises:
        InvalidTypeError: For a dtype that is not computed, or a gradient of another dtype.
        InvalidArgumentError: For another shape or device, or an index out of range.
        LayoutError: For memory that cannot be updated in place.
    """
    homes = devices or [None] * len(variables)
    for var, grad, name, home in zip(variables, gradients, names, homes, strict=True):
        layout.check_variable(var, name)
        if isinstance(grad, IndexedSlices):
            layout.check_slices(grad, var, name, scatter, narrow)
        else:
            layout.check_gradient(grad, var, name, narrow, home)
    once: dict[int, int] = {}
    for index, var in enumerate(variables):
        once.setdefault(id(var), index)
    distinct, titles = [variables[i] for i in once.values()], [names[i] for i in once.values()]
    layout.check_disjoint(distinct, titles)
    check_writable(zip(distinct, titles, strict=True))


def engine_of(device: torch.device, name: EngineName) -> Home:
    """The engine that updates variables of a device when the engine of that name is chosen."""
    if takes_device(device, name):
        return "cuda"
    return "cpu" if device.type == "cpu" and name in ("auto", "cpu") else "reference"


class Dispatcher:
    """Makes steps ready, and keeps of their plans what the next one can use again."""

    def __init__(self) -> None:
        # The last ones, for steps with other gradients, too.
        self._dense: dict[tuple[Home, int], DensePlan] = {}  # by engine and run
        self._sparse: dict[tuple[Home, int, int], RowsPlan] = {}  # by engine, variable and round
        self._far: dict[int, OffloadLink] = {}  # by `id` of variables
        self._warned: set[int] = set()
        self._passes: dict[Rule, list[Dispatcher]] = {}  # those of their passes

    def plan_step(self, asked: StepRequest) -> StepPlan:
        """A step that `check_gradients` accepted, ready to be measured and taken.

        Raises:
            InvalidTypeError, InvalidArgumentError, LayoutError: Slots do not fit their variable.
        """
        if asked.rule.passes:
            return self._plan_passes(asked)
        variables = asked.variables
        rounds = in_rounds(variables)
        if len(self._sparse) > 2 * len(variables) + _SPARE:  # of variables long gone
            here = set(map(id, variables))
            self._sparse = {key: each for key, each in self._sparse.items() if key[1] in here}
        copies = asked.copies or [None] * len(variables)
        if asked.rule.codecs:
            with importing:
                from thalweg._engines.codecs.checks import check_encoded
            check_encoded(asked)
        _check_memory(variables, asked.slots, asked.titles, copies, asked.rule.codecs)
        crossing = self._plan_transfers(asked)
        asked = crossing.request
        copies = copies if asked.copies is None else asked.copies
        gradients = _set_apart(variables, asked.gradients, asked.slots, copies)
        asked = asked._replace(gradients=gradients)
        homes = self._engines_of(asked, len(rounds) > 1)
        made = [
            self._plan_round(asked, number, own, homes, crossing)
            for number, own in enumerate(rounds)
        ]
        if len(made) == len(made[0]) == 1 and isinstance(made[0][0][1], DensePlan):
            return made[0][0][1]
        return CompositeStep(asked, made)

    def _plan_passes(self, asked: StepRequest) -> StagedStep:
        """A step of a rule with passes, each of which has plans of its own."""
        with importing:
            from thalweg._engines.staged_step import StagedStep
        count = 1 + len(asked.rule.passes)
        own = self._passes.setdefault(asked.rule, [Dispatcher() for _ in range(count)])
        if asked.rule.is_of_lines:
            homes = [engine_of(var.device, asked.selection.name) for var in asked.variables]
            asked = asked._replace(short=cpu.find_short(asked, homes))
        return StagedStep(asked, [each.plan_step for each in own])

    def _plan_transfers(self, asked: StepRequest) -> OffloadTransfers | Staying:
        """What crosses between devices, if anything does."""
        crossing: OffloadTransfers | Staying = Staying(asked)
        pairs = zip(asked.variables, asked.copies or (), strict=False)
        if any(copy is not None and layout.is_far(copy, var.device) for var, copy in pairs):
            with importing:
                from thalweg._engines.offload import OffloadTransfers
            crossing = OffloadTransfers(asked, self._far)
        if len(self._far) > 2 * len(asked.variables) + _SPARE:
            here = set(map(id, asked.variables))
            self._far = {key: each for key, each in self._far.items() if key in here}
        return crossing

    def _engines_of(self, asked: StepRequest, repeats: bool) -> list[Home]:
        """The engine of each variable; one that repeats has one engine."""
        homes: list[Home] = [self._engine_of(asked, index) for index in range(len(asked.variables))]
        if repeats and "reference" in homes:
            pairs = list(zip(asked.variables, homes, strict=True))
            slow = {id(var) for var, home in pairs if home == "reference"}
            for index, var in enumerate(asked.variables):
                if id(var) in slow:
                    homes[index] = "reference"
        return homes

    def _engine_of(self, asked: StepRequest, index: int) -> Home:
        home = engine_of(asked.variables[index].device, asked.selection.name)
        if home == "cuda" and asked.vectors and max(asked.variables[index].shape[-2:]) > SIDE:
            return "reference"
        return home if home == "reference" or self._fits_or_warns(asked, index) else "reference"

    def _fits_or_warns(self, asked: StepRequest, index: int) -> bool:
        """Whether a variable's memory is fit for an engine that goes by addresses."""
        var, grad = asked.variables[index], asked.gradients[index]
        copy = None if asked.copies is None else asked.copies[index]
        slots = layout.without_records(asked.slots[index], asked.rule.codecs)
        beside = slots if copy is None else [*slots, copy]
        is_encoded = len(slots) < len(asked.slots[index])
        fits = (
            (var.is_contiguous() if is_encoded else layout.is_dense(var))
            and layout.is_aligned(var)
            and all(layout.same_strides(other, var) for other in beside)
            and (not asked.vectors or var.is_contiguous())
        )
        if not fits and id(var) not in self._warned:
            self._warned.add(id(var))
            strides = f"has strides {var.stride()} for shape {tuple(var.shape)}"
            layout.warn_slow(asked.titles[index], strides)
        if fits and isinstance(grad, IndexedSlices):
            return var.is_contiguous() and len(grad.indices) < ENTRIES
        return fits

    def _plan_round(
        self,
        asked: StepRequest,
        number: int,
        members: Sequence[int],
        homes: Sequence[Home],
        crossing: OffloadTransfers | Staying,
    ) -> Parts:
        """The parts of a round of distinct variables."""
        dense: dict[tuple[Home, int], list[int]] = {}
        parts: list[tuple[Sequence[int], Part]] = []
        for index in members:
            home = homes[index]
            if home == "reference":
                with importing:
                    from thalweg._engines.reference import ReferencePart
                parts.append(([index], ReferencePart(crossing.take_share(asked, [index]))))
            elif not isinstance(asked.gradients[index], IndexedSlices):
                dense.setdefault((home, crossing.runs.get(index, -1)), []).append(index)
            else:
                share = crossing.take_share(asked, [index])
                parts.append(([index], self._sparse_plan(share, home, number)))
        plans = [
            (own, self._dense_plan(crossing.take_share(asked, own), key))
            for key, own in dense.items()
        ]
        return [(own, crossing.wrap_part(own, part)) for own, part in (*plans, *parts)]

    def _sparse_plan(self, asked: StepRequest, home: Home, number: int) -> RowsPlan:
        # A plan is aimed at one gradient, so repeats of a variable need plans of their own.
        key = (home, id(asked.variables[0]), number)
        plan = self._sparse.get(key)
        if plan is None or not plan.serves(asked):
            plan = self._sparse[key] = (cuda.RowsPart if home == "cuda" else cpu.SparsePlan)(asked)
        plan.point_at(asked.gradients[0])
        return plan

    def _dense_plan(self, asked: StepRequest, key: tuple[Home, int]) -> DensePlan:
        # A plan points at one step's gradients, so repeats of a variable need plans of their own.
        fitting = map(layout.with_strides_of, asked.gradients, asked.variables)
        asked = asked._replace(gradients=list(fitting))
        plan = self._dense.get(key)
        if plan is not None and not plan.is_aimed and plan.serves(asked):
            plan.point_at(asked.gradients)
        else:
            group = cuda.Group if key[0] == "cuda" else _group_on_cpu
            plan = self._dense[key] = DensePlan(asked, group)
        return plan


def _group_on_cpu(asked: StepRequest, members: list[int]) -> cpu.Group:
    is_short = bool(asked.short) and asked.short[members[0]]
    return (cpu.ShortGroup if is_short else cpu.Group)(asked, members)


def _check_memory(
    variables: Sequence[Tensor],
    slots: Sequence[Sequence[Tensor]],
    names: Sequence[str],
    copies: Sequence[Tensor | None],
    codecs: Sequence[str | None],
) -> None:
    tensors: list[Tensor] = []
    titles: list[str] = []
    seen: set[int] = set()
    for var, own, name, copy in zip(variables, slots, names, copies, strict=True):
        layout.check_slots(var, layout.without_records(own, codecs), name)
        if id(var) not in seen:
            seen.add(id(var))
            tensors += [var, *own]
            titles += [name, *(f"a slot of {name}" for _ in own)]
        if copy is not None and id(copy) not in seen:
            seen.add(id(copy))
            layout.check_copy(var, copy, name)
            tensors.append(copy)
            titles.append(f"the copy of {name}")
    layout.check_disjoint(tensors, titles)
    looked_at = set(map(id, variables))  # with their gradients
    named = zip(tensors, titles, strict=True)
    check_writable((tensor, title) for tensor, title in named if id(tensor) not in looked_at)


def _set_apart(
    variables: Sequence[Tensor],
    gradients: Sequence[Gradient],
    slots: Sequence[Sequence[Tensor]],
    copies: Sequence[Tensor | None],
) -> list[Gradient]:
    """The gradients, copied where they or their indices lie in memory that the step writes."""
    written = [*variables, *(slot for each in slots for slot in each)]
    written += [copy for copy in copies if copy is not None]
    spans = sorted(
        layout.byte_span(tensor) for tensor in written if tensor.device.type in _BY_ADDRESS
    )
    starts = np.array([start for start, _ in spans], np.int64)
    ends = np.maximum.accumulate(np.array([end for _, end in spans], np.int64))

    def apart(memory: Tensor) -> Tensor:
        if memory.device.type not in _BY_ADDRESS:
            return memory
        start, end = layout.byte_span(memory)
        # Runs that begin before the memory ends; the farthest end among them decides.
        before = int(np.searchsorted(starts, end, side="left"))
        return memory if not before or ends[before - 1] <= start else memory.clone()

    result: list[Gradient] = []
    for grad in gradients:
        if isinstance(grad, IndexedSlices):
            values, indices = apart(grad.values), apart(grad.indices)
            if values is not grad.values or indices is not grad.indices:
                grad = IndexedSlices(values, indices, grad.dense_shape)
            result.append(grad)
        else:
            result.append(apart(grad))
    return result
