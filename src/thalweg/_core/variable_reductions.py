"""What a rule makes of its measures: numbers of each variable, level by level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from thalweg._core import vectors
from thalweg._core.atomic_section import Call
from thalweg._core.vectors import Device
from thalweg._engines import bind_arguments, compute_dtype
from thalweg._engines.layout import all_have_memory, check_memory
from thalweg._engines.memory_protection import check_numbers_writable
from thalweg._engines.protocol import Columns, Dtype, StepRequest, in_rounds
from thalweg.errors import RuleError
from thalweg.formula import Rule

if TYPE_CHECKING:
    from thalweg._core.gradient_stats import GradientStats
    from thalweg.formula import Level


def per_variable(
    asked: StepRequest,
    scalar_slots: Sequence[Sequence[Tensor]],
    columns: Columns,
    known: GradientStats,
) -> tuple[Columns, list[Call]]:
    """The same with what a rule makes of its measures, level by level.

    A variable that comes twice is measured once; its scalar slots move twice.

    Args:
        asked: The step.
        scalar_slots: For each variable its slots of shape (), in the rule's order.
        columns: The scalars of rule and stages.
        known: Answers what is measured.

    Returns:
        The columns, and what writes the scalar slots, as functions in C.
    """
    rule = asked.rule
    slots = {id(slot): slot.detach() for own in scalar_slots for slot in own}
    now: dict[int, Any] = {}
    for number, level in enumerate(rule.all_levels):
        if number or rule.per_variable is None:  # those of the first are known to be wanted
            known.want(tuple(level.measures.values()), columns)
        measures = {name: known.measure(each, columns) for name, each in level.measures.items()}
        there = next((each.device for each in measures.values() if isinstance(each, Tensor)), None)
        if not now:
            if there is None:
                _check_numbers(asked, scalar_slots)
            # The scalar slots as they are in the course of the step.
            now = {key: slot.item() if there is None else slot for key, slot in slots.items()}
        columns = _leveled(level, asked, scalar_slots, columns, measures, now, there)
    return columns, _writes_of(slots, now, columns.taken) if slots else []


def _leveled(
    level: Level,
    asked: StepRequest,
    scalar_slots: Sequence[Sequence[Tensor]],
    columns: Columns,
    measures: Mapping[str, Any],
    now: dict[int, Any],
    there: Device,
) -> Columns:
    """The columns with what a level makes; `now` becomes what it makes of slots."""
    rule, variables = asked.rule, asked.variables
    names = [slot.name for slot in rule.measured_slots]
    found: dict[str, list[Any]] = {}
    dtypes = [compute_dtype(var.dtype) for var in variables]
    for members in _in_turn(variables, dtypes):
        dtype = dtypes[members[0]]
        given = _scalars_of_members(columns, measures, members, dtype, there)
        for place, name in enumerate(names):
            own = [now[id(scalar_slots[i][place])] for i in members]
            given[name] = vectors.round_to(vectors.join_numbers(own, there), dtype, there)
        given = bind_arguments(rule, "per_variable", given, level.per_variable)
        given = {name: vectors.number(each, there) for name, each in given.items()}
        with np.errstate(all="ignore"):
            made = level.per_variable(**given)  # pyright: ignore[reportOptionalCall]
        for name, value in made.items():
            values = vectors.split_numbers(_over(rule, name, value, dtype, len(members), there))
            if name in names:
                place = names.index(name)
                keys = (id(scalar_slots[i][place]) for i in members)
                now |= zip(keys, values, strict=True)
            else:
                of_all = found.setdefault(name, [values[0]] * len(variables))
                for i, each in zip(members, values, strict=True):
                    of_all[i] = each
    separate = {**columns.separate}
    separate |= {name: vectors.join_numbers(each, there) for name, each in found.items()}
    return columns._replace(separate=separate)


def _check_numbers(asked: StepRequest, scalar_slots: Sequence[Sequence[Tensor]]) -> None:
    """Raise if storages of scalar slots were cut, or are memory that may only be read.

    Raises:
        LayoutError: Names the first.
    """
    slots = [slot for own in scalar_slots for slot in own]
    kinds = [kind.name for kind in asked.rule.measured_slots]

    def name_of(index: int) -> str:
        return f"{kinds[index % len(kinds)]} of {asked.titles[index // len(kinds)]}"

    if not all_have_memory(slots):
        for index, slot in enumerate(slots):
            title = asked.titles[index // len(kinds)]
            check_memory(slot, f"'{kinds[index % len(kinds)]}' of '{title}'")
    check_numbers_writable(slots, name_of)


def _scalars_of_members(
    columns: Columns,
    measures: Mapping[str, object],
    members: list[int],
    dtype: Dtype,
    there: Device,
) -> dict[str, object]:
    """The scalars of a rule and its measures, for some variables of one dtype."""
    given = vectors.rounded(columns.shared[dtype], dtype)
    for name, each in columns.separate.items():
        given[name] = vectors.round_to(vectors.pick_members(each, members), dtype, there)
    return given | {name: vectors.pick_members(each, members) for name, each in measures.items()}


def _writes_of(slots: Mapping[int, Tensor], now: Mapping[int, object], taken: Any) -> list[Call]:
    """What writes numbers to scalar slots, both by `id` of the slot, if the step is taken."""
    moved = [vectors.as_slot(now[key], slot) for key, slot in slots.items()]
    if taken is not None:
        pairs = zip(moved, slots.values(), strict=True)
        moved = [torch.where(taken, each, slot) for each, slot in pairs]
    copy = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    return [partial(copy, list(slots.values()), moved)]


def _in_turn(variables: Sequence[Tensor], dtypes: Sequence[Dtype]) -> Iterator[list[int]]:
    """Positions of variables that are computed alike, each variable once, the first ones first."""
    for own in in_rounds(variables):
        for dtype in dict.fromkeys(dtypes[index] for index in own):
            yield [index for index in own if dtypes[index] == dtype]


def _over(rule: Rule, name: str, value: object, dtype: Dtype, count: int, there: Device) -> object:
    """What `per_variable` made of a name, a vector over the variables."""
    try:
        return vectors.spread_over(value, dtype, count, there)
    except (RuntimeError, TypeError, ValueError):
        raise RuleError(
            f"per_variable of rule {rule.name!r} made {name} of {value!r}; expected a number, or an"
            f" array of shape ({count},): one for each variable."
        ) from None
