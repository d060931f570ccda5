"""Check what comes before a rule's update: its passes, and its stages over small matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

from thalweg.engines.batches import asked_by, check_asked, check_found, cut_into
from thalweg.engines.check_formula import check_numbers, check_order, check_sides, check_taken
from thalweg.engines.transcribe import place_of, transcribe
from thalweg.errors import RuleError
from thalweg.formula import Rule, Slot
from thalweg.ground.passes import Pass, Stage


def check_passes(rule: Rule, known: Mapping[str, Any]) -> None:
    """Refuse passes that take or make other values than they say, and stages that ask for more."""
    made: list[str] = []
    for each in rule.passes:
        if isinstance(each, Pass):
            transcript = transcribe(each.function)
            taken = [*made, *(slot.name for slot in rule.element_slots)]
            check_sides(taken, each.function, transcript, 2, known)
            count, names = len(each.makes), ", ".join(each.makes)
            check_taken(each.function, transcript, taken, count, names)
            check_order(taken, each.function, transcript, True)
            check_numbers(rule, each.function, transcript, known)
            made += each.makes
        else:
            for name in asked_by(each).needed:
                check_asked(f"Stage {place_of(each.function)}", name, made, known, rule)
            _try_stage(rule, each, made, known)


def _try_stage(rule: Rule, stage: Stage, made: list[str], known: Mapping[str, Any]) -> None:
    """Refuse a stage that fails over two small matrices, or returns what it may not."""
    dice = torch.Generator().manual_seed(0)
    how: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    asked = asked_by(stage)
    heads = stage.heads
    for rows, columns in ((3, 2), (2, 3)):
        shape = rows * heads, columns
        there: dict[str, Any] = {
            name: torch.rand(2, *shape, generator=dice, **how) for name in made
        }
        for slot in rule.shaped_slots:
            own = _shape_of(rule, slot, shape)
            if heads > 1 and slot.name in asked.needed + asked.optional:
                _check_cut(slot, own, heads, shape)
            there[slot.name] = torch.full((2, *own), slot.initial, **how)
        there |= {name: float(each) for name, each in known.items() if name not in there}
        given = {
            name: cut_into(there[name], heads) if heads > 1 else there[name]
            for name in (*asked.needed, *asked.optional)
            if name in there
        }
        try:
            found = stage.function(**given)
        except Exception as error:
            raise RuleError(
                f"{place_of(stage.function)} fails over matrices of shape {(rows, columns)}:"
                f" {type(error).__name__}: {error}"
            ) from error
        title = f"Stage {place_of(stage.function)}"
        check_found(rule, title, found, given, dict.fromkeys(made))


def _check_cut(slot: Slot, shape: tuple[int, ...], heads: int, matrix: tuple[int, int]) -> None:
    if not shape or shape[0] % heads:
        raise RuleError(
            f"The slot {slot.name!r} has shape {shape} beside a matrix of shape {matrix}, whose"
            f" first dimension a Stage does not cut into heads={heads} equal blocks."
        )


def _shape_of(rule: Rule, slot: Slot, shape: tuple[int, int]) -> tuple[int, ...]:
    """The shape of a slot beside a matrix."""
    try:
        found: Any = slot.shape(*shape)  # pyright: ignore[reportOptionalCall]
        sizes = cast("tuple[Any, ...]", found if isinstance(found, tuple) else (None,))
        is_shape = all(type(size) is int and size >= 0 for size in sizes)
    except Exception as error:
        raise RuleError(
            f"The shape of slot {slot.name!r} fails beside a matrix of shape {shape}:"
            f" {type(error).__name__}: {error}"
        ) from error
    if not is_shape:
        raise RuleError(f"The shape of slot {slot.name!r} must be a tuple of sizes, not {found!r}.")
    return sizes
