"""Scalars that all variables of an optimizer share, computed from sums over all variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from thalweg._base.device_numbers import number_of
from thalweg._core import vectors
from thalweg._core.atomic_section import Call
from thalweg._core.norms import sum_in_order
from thalweg._engines import bind_arguments
from thalweg._engines.layout import all_have_memory, check_memory
from thalweg._engines.protocol import Columns, StepRequest, split_into_rounds
from thalweg.errors import RuleError
from thalweg.formula import Rule

if TYPE_CHECKING:
    from thalweg._core.gradient_stats import GradientStats


def read_shared_scalars(rule: Rule, slots: Sequence[Sequence[Tensor]]) -> dict[str, float]:
    """Return {slot name: value} of a rule's slots that are equal for all variables.

    Values are read from the slots of the first variable. Without variables, return initial values.

    Raises:
        LayoutError: A slot has no memory for its element.
    """
    if not slots:
        return {slot.name: float(slot.initial) for slot in rule.common_slots}
    if not all_have_memory([slot for var_slots in slots for slot in var_slots]):
        # The step writes the slots of all variables.
        for var_slots in slots:
            for slot_spec, slot in zip(rule.common_slots, var_slots, strict=True):
                check_memory(slot, f"'{slot_spec.name}' of rule {rule.name!r}")
    pairs = zip(rule.common_slots, slots[0], strict=True)
    return {slot_spec.name: float(number_of(slot)) for slot_spec, slot in pairs}


def per_optimizer(
    request: StepRequest,
    columns: Columns,
    stats: GradientStats,
    shared_scalars: Mapping[str, float],
    slots: Sequence[Sequence[Tensor]],
) -> tuple[Columns, list[Call]]:
    """Call a rule's `per_optimizer` with sums over all variables; add its results to the scalars.

    If a variable is listed twice, only its first gradient counts.

    Args:
        columns: The scalars of the rule and of the gradient transforms.
        stats: Computes the rule's reductions, on the host.
        shared_scalars: {slot name: value} of slots that are equal for all variables.
        slots: For each variable of the optimizer, the slots of `shared_scalars`.

    Returns:
        `columns` with the results in `shared`; and the calls that write results to `slots`.

    Raises:
        RuleError: The rule returns different numbers for different variables.
    """
    rule = request.rule
    arguments = dict(_iterate_scalars(columns))
    first_round = split_into_rounds(request.variables)[0]
    for name, formula in rule.measures.items():
        sums = vectors.place_like(stats.measure(formula, columns), None)
        arguments[name] = np.float64(sum_in_order(sums[first_round]))
    arguments |= {name: np.float64(scalar) for name, scalar in shared_scalars.items()}
    arguments = bind_arguments(rule, "per_optimizer", arguments)
    with np.errstate(all="ignore"):
        outputs = rule.per_optimizer(**arguments)  # pyright: ignore[reportOptionalCall]
    new_scalars = {name: _as_float(rule, name, scalar) for name, scalar in outputs.items()}
    names = {slot.name for slot in rule.common_slots}
    other_scalars = {name: scalar for name, scalar in new_scalars.items() if name not in names}
    shared = {
        dtype: {**dtype_scalars, **other_scalars} for dtype, dtype_scalars in columns.shared.items()
    }
    return columns._replace(shared=shared), _writes_of(rule, slots, new_scalars, columns)


def _iterate_scalars(columns: Columns) -> Iterator[tuple[str, Any]]:
    """Yield the name and the float64 value of each scalar; an array if variables differ."""
    for name, scalar in next(iter(columns.shared.values())).items():
        yield name, np.float64(scalar.item() if isinstance(scalar, Tensor) else scalar)
    for name, scalar in columns.by_variable.items():
        yield name, vectors.place_like(scalar, None).astype(np.float64)


def _as_float(rule: Rule, name: str, value: Any) -> float:
    """Return a result of a rule's `per_optimizer` as a float.

    Args:
        rule, name: The rule and the name of the result, for the message.
        value: A number, or a vector of equal elements for all variables.

    Raises:
        RuleError: Elements of the vector differ, or are NaN.
    """
    if not np.ndim(value):
        return float(value)
    if np.all(value == value[0]):
        return float(value[0])
    raise RuleError(
        f"per_optimizer of rule {rule.name!r} made {name} of {value!r}; expected one number for all"
        " variables, whose groups have to agree in what it follows from."
    )


def _writes_of(
    rule: Rule,
    slots: Sequence[Sequence[Tensor]],
    new_scalars: Mapping[str, float],
    columns: Columns,
) -> list[Call]:
    """Return calls that write `new_scalars` to the slots of all variables.

    With `columns.apply_flag`, a call does nothing if the device decides to skip the step.
    """
    targets: list[Tensor] = []
    new_values: list[Tensor] = []
    # Write every variable's copy: a later step reads that of the variable which is first then.
    for index, slot_spec in enumerate(rule.common_slots):
        if slot_spec.name in new_scalars:
            values: dict[Any, Tensor] = {}
            for var_slots in slots:
                slot = var_slots[index]
                key = slot.dtype, slot.device
                if key not in values:
                    values[key] = vectors.as_slot(new_scalars[slot_spec.name], slot)
                targets.append(slot)
                new_values.append(values[key])
    return columns.write_calls(targets, new_values)
