"""Numbers that all variables of an optimizer have in common, and sums over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from thalweg._core import vectors
from thalweg._core.atomic_section import Call
from thalweg._core.norms import sum_in_order
from thalweg._engines import bind_arguments
from thalweg._engines.layout import all_have_memory, check_memory
from thalweg._engines.protocol import Columns, StepRequest, in_rounds
from thalweg.errors import RuleError
from thalweg.formula import Rule

if TYPE_CHECKING:
    from thalweg._core.gradient_stats import GradientStats


def read_shared_scalars(rule: Rule, slots: Sequence[Sequence[Tensor]]) -> dict[str, float]:
    """The numbers per optimizer: what the first variable has, or what they begin with.

    Raises:
        LayoutError: The storage of one was cut.
    """
    if not slots:
        return {slot.name: float(slot.initial) for slot in rule.common_slots}
    if not all_have_memory([slot for own in slots for slot in own]):
        for own in slots:  # all of them are written
            for kind, slot in zip(rule.common_slots, own, strict=True):
                check_memory(slot, f"'{kind.name}' of rule {rule.name!r}")
    pairs = zip(rule.common_slots, slots[0], strict=True)
    return {kind.name: float(slot.item()) for kind, slot in pairs}


def per_optimizer(
    asked: StepRequest,
    columns: Columns,
    known: GradientStats,
    before: Mapping[str, float],
    slots: Sequence[Sequence[Tensor]],
) -> tuple[Columns, list[Call]]:
    """The scalars of a step with what a rule makes of sums over all of its variables.

    A variable that comes twice counts once.

    Args:
        asked: The step.
        columns: The scalars of rule and stages.
        known: Answers what is measured, on the host.
        before: The numbers per optimizer.
        slots: Those of each variable of the optimizer that has them.

    Returns:
        The columns, and what writes the slots per optimizer, as functions in C.

    Raises:
        RuleError: What the rule makes is no number.
    """
    rule = asked.rule
    given = dict(_scalars_of(columns))
    first = in_rounds(asked.variables)[0]
    for name, formula in rule.measures.items():
        sums = vectors.place_like(known.measure(formula, columns), None)
        given[name] = np.float64(sum_in_order(sums[first]))
    given |= {name: np.float64(each) for name, each in before.items()}
    given = bind_arguments(rule, "per_optimizer", given)
    with np.errstate(all="ignore"):
        made = rule.per_optimizer(**given)  # pyright: ignore[reportOptionalCall]
    found = {name: _number(rule, name, each) for name, each in made.items()}
    names = {slot.name for slot in rule.common_slots}
    beside = {name: each for name, each in found.items() if name not in names}
    shared = {dtype: {**own, **beside} for dtype, own in columns.shared.items()}
    return columns._replace(shared=shared), _writes_of(rule, slots, found, columns.taken)


def _scalars_of(columns: Columns) -> Iterator[tuple[str, Any]]:
    """The scalars of a step in float64, arrays where variables differ."""
    for name, each in next(iter(columns.shared.values())).items():
        yield name, np.float64(each.item() if isinstance(each, Tensor) else each)
    for name, each in columns.separate.items():
        yield name, vectors.place_like(each, None).astype(np.float64)


def _number(rule: Rule, name: str, value: Any) -> float:
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
    found: Mapping[str, float],
    taken: Tensor | None,
) -> list[Call]:
    """What writes numbers to the slots of all variables, if the step is taken."""
    written: list[Tensor] = []
    moved: list[Tensor] = []
    for k, kind in enumerate(rule.common_slots):
        if kind.name in found:
            known: dict[Any, Tensor] = {}
            for own in slots:
                slot = own[k]
                key = slot.dtype, slot.device
                if key not in known:
                    known[key] = vectors.as_slot(found[kind.name], slot)
                written.append(slot)
                moved.append(known[key])
    if taken is not None:
        pairs = zip(moved, written, strict=True)
        moved = [torch.where(taken, new, old) for new, old in pairs]
    copy = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    return [partial(copy, written, moved)] if written else []
