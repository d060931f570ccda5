"""Scalars that a rule computes for each variable from reductions over it.

A rule computes them in one or more levels: each level has reductions, and a function of them that
may use scalars of the levels before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from thalweg._base.device_numbers import number_of
from thalweg._core import vectors
from thalweg._core.atomic_section import Call
from thalweg._core.vectors import Device
from thalweg._engines import bind_arguments, compute_dtype
from thalweg._engines.layout import all_have_memory, check_memory
from thalweg._engines.memory_protection import check_numbers_writable
from thalweg._engines.protocol import Columns, Dtype, StepRequest, split_into_rounds
from thalweg.errors import RuleError
from thalweg.formula import Rule

if TYPE_CHECKING:
    from thalweg._core.gradient_stats import GradientStats
    from thalweg.formula import Level


def per_variable(
    request: StepRequest,
    scalar_slots: Sequence[Sequence[Tensor]],
    columns: Columns,
    stats: GradientStats,
) -> tuple[Columns, list[Call]]:
    """Call `per_variable` of each level of a rule, and add the results to the scalars.

    A level has reductions over each variable, and a function that may use scalars of earlier
    levels. A variable that is listed twice is reduced once, but its scalar slots are updated twice.

    Args:
        scalar_slots: For each variable its slots of shape (), in the rule's order; not written.
        columns: The scalars of the rule and of the gradient transforms.
        stats: Computes the reductions.

    Returns:
        The scalars of the step and of all levels; and the calls that write the scalar slots.
    """
    rule = request.rule
    slots = {id(slot): slot.detach() for var_slots in scalar_slots for slot in var_slots}
    slot_values: dict[int, Any] = {}
    for index, level in enumerate(rule.all_levels):
        # The measures of the first level have been requested already.
        if index or rule.per_variable is None:
            stats.request_sums(tuple(level.measures.values()), columns)
        measures = {
            name: stats.measure(formula, columns) for name, formula in level.measures.items()
        }
        device = next((sums.device for sums in measures.values() if isinstance(sums, Tensor)), None)
        if not slot_values:
            if device is None:
                _check_numbers(request, scalar_slots)
            # Later levels read the values that earlier ones have returned.
            slot_values = {
                key: number_of(slot) if device is None else slot for key, slot in slots.items()
            }
        columns = _add_level(level, request, scalar_slots, columns, measures, slot_values, device)
    new_values = [vectors.as_slot(slot_values[key], slot) for key, slot in slots.items()]
    return columns, columns.write_calls(slots.values(), new_values)


def _add_level(
    level: Level,
    request: StepRequest,
    scalar_slots: Sequence[Sequence[Tensor]],
    columns: Columns,
    measures: Mapping[str, Any],
    slot_values: dict[int, Any],
    device: Device,
) -> Columns:
    """Call `per_variable` of a level; return a copy of `columns` with the results.

    Args:
        measures: {name: vector over the variables} of the level's reductions.
        slot_values: {`id` of a scalar slot: value}; updated in place.
        device: The device that computes the scalars; None for the host.
    """
    rule, variables = request.rule, request.variables
    names = [slot.name for slot in rule.measured_slots]
    scalars: dict[str, list[Any]] = {}
    dtypes = [compute_dtype(var.dtype) for var in variables]
    for members in _group_by_dtype(variables, dtypes):
        dtype = dtypes[members[0]]
        arguments = _select_scalars(columns, measures, members, dtype, device)
        for position, name in enumerate(names):
            numbers = [slot_values[id(scalar_slots[member][position])] for member in members]
            arguments[name] = vectors.round_to(vectors.join_numbers(numbers, device), dtype, device)
        arguments = bind_arguments(rule, "per_variable", arguments, level.per_variable)
        arguments = {name: vectors.number(value, device) for name, value in arguments.items()}
        with np.errstate(all="ignore"):
            outputs = level.per_variable(**arguments)  # pyright: ignore[reportOptionalCall]
        for name, value in outputs.items():
            values = vectors.split_numbers(
                _spread_value(rule, name, value, dtype, len(members), device)
            )
            if name in names:
                position = names.index(name)
                keys = (id(scalar_slots[member][position]) for member in members)
                slot_values |= zip(keys, values, strict=True)
            else:
                var_values = scalars.setdefault(name, [values[0]] * len(variables))
                for member, scalar in zip(members, values, strict=True):
                    var_values[member] = scalar
    by_variable = {**columns.by_variable}
    by_variable |= {
        name: vectors.join_numbers(numbers, device) for name, numbers in scalars.items()
    }
    return columns._replace(by_variable=by_variable)


def _check_numbers(request: StepRequest, scalar_slots: Sequence[Sequence[Tensor]]) -> None:
    """Raise LayoutError for the first slot of shape () that is read-only or has no memory."""
    slots = [slot for var_slots in scalar_slots for slot in var_slots]
    slot_names = [kind.name for kind in request.rule.measured_slots]

    def name_of(index: int) -> str:
        return (
            f"{slot_names[index % len(slot_names)]} of {request.titles[index // len(slot_names)]}"
        )

    if not all_have_memory(slots):
        for index, slot in enumerate(slots):
            member, position = divmod(index, len(slot_names))
            label = f"'{slot_names[position]}' of '{request.titles[member]}'"
            check_memory(slot, label, request.variables[member])
    check_numbers_writable(slots, name_of)


def _select_scalars(
    columns: Columns,
    measures: Mapping[str, object],
    members: list[int],
    dtype: Dtype,
    device: Device,
) -> dict[str, object]:
    """Return {name: value} of a level's scalars and reductions, for variables of one dtype.

    `members` are the indices of the variables.
    """
    scalars = vectors.rounded(columns.shared[dtype], dtype)
    for name, values in columns.by_variable.items():
        scalars[name] = vectors.round_to(vectors.pick_members(values, members), dtype, device)
    return scalars | {
        name: vectors.pick_members(values, members) for name, values in measures.items()
    }


def _group_by_dtype(variables: Sequence[Tensor], dtypes: Sequence[Dtype]) -> Iterator[list[int]]:
    """Yield lists of indices of variables with one compute dtype.

    No list has a variable twice: first occurrences come first, then second ones, etc.
    """
    for round_members in split_into_rounds(variables):
        for dtype in dict.fromkeys(dtypes[index] for index in round_members):
            yield [index for index in round_members if dtypes[index] == dtype]


def _spread_value(
    rule: Rule, name: str, value: object, dtype: Dtype, count: int, device: Device
) -> object:
    """Return a result of `per_variable` as a vector over `count` variables.

    Args:
        rule, name: The rule and the name of the result, for the message.
        value: The result: a number or a vector.
        dtype: The dtype of the vector.
        count: The number of variables.
        device: The device of the vector; None for the host.

    Raises:
        RuleError: The result is neither a number nor a vector of this length.
    """
    try:
        return vectors.spread_over(value, dtype, count, device)
    except (RuntimeError, TypeError, ValueError):
        raise RuleError(
            f"per_variable of rule {rule.name!r} made {name} of {value!r}; expected a number, or an"
            f" array of shape ({count},): one for each variable."
        ) from None
