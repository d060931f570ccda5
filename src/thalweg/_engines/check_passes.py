"""Check what comes before a rule's update: its passes, and its stages over small matrices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from thalweg._base.fused_stage import FusedStage
from thalweg._base.rule_passes import Measure, Pass, Stage
from thalweg._base.showing import show_value
from thalweg._engines.check_formula import check_numbers, check_order, check_sides, check_taken
from thalweg._engines.formula_parser import place_of, transcribe
from thalweg._engines.fused_stage import SIZES, read_stage
from thalweg._engines.matrix_batches import (
    check_stage_input,
    check_stage_outputs,
    sizes_by_name,
    split_into_blocks,
    stage_inputs,
)
from thalweg._engines.matrix_shapes import shape_beside
from thalweg.errors import RuleError
from thalweg.formula import Rule, Slot


def check_passes(rule: Rule, known: Mapping[str, Any]) -> None:
    """Refuse passes that take or make other values than they say, and stages that ask for more."""
    made, measured = list[str](), dict[str, str]()
    known = {
        **known,
        **dict.fromkeys((slot.name for slot in rule.shaped_slots if slot.per), np.float32(1)),
    }
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
        elif isinstance(each, Measure):
            _check_measure(rule, each, [*made, *(slot.name for slot in rule.element_slots)], known)
            known = {**known, each.makes: np.float32(1)}
            measured[each.makes] = each.over
        else:
            own = {*known, *SIZES} if rule.is_of_lines and not each.of_matrices else known
            for name in stage_inputs(each).required:
                title = f"{type(each).__name__} {place_of(each.function)}"
                check_stage_input(title, name, [*made, *measured], own, rule)
            if isinstance(each, FusedStage):
                read_stage(rule, each)
            _try_stage(rule, each, made, measured, known)


def _check_measure(rule: Rule, each: Measure, taken: list[str], known: Mapping[str, Any]) -> None:
    """Refuse a measure that returns several values, or asks for what is not there before it."""
    transcript = transcribe(each.function)
    check_order(taken, each.function, transcript, True)
    if len(transcript.results) != 1 or len(transcript.positional) > 2 + len(taken):
        raise RuleError(
            f"Measure {place_of(each.function)} takes {len(transcript.positional)} values and"
            f" returns {len(transcript.results)}; it may take {', '.join(['var', 'grad', *taken])},"
            " and returns 1."
        )
    wanted = [name for name in transcript.scalars if name == each.makes]
    if wanted:
        raise RuleError(f"Measure {place_of(each.function)} asks for {each.makes}, which it makes.")
    check_numbers(rule, each.function, transcript, known)


def _try_stage(
    rule: Rule,
    stage: Stage,
    made: list[str],
    measured: Mapping[str, str],
    known: Mapping[str, Any],
) -> None:
    """Refuse a stage that fails over two small matrices, or returns what it may not."""
    dice = torch.Generator(device="cpu").manual_seed(0)
    rand = partial(torch.rand, generator=dice, dtype=torch.float32, device="cpu")
    asked = stage_inputs(stage)
    heads = stage.block_count
    for rows, columns in ((3, 2), (2, 3)):
        of_lines = rule.is_of_lines and not stage.of_matrices
        shape = (2, rows, columns) if of_lines else (rows * heads, columns)
        there: dict[str, Any] = {name: rand(2, *shape) for name in made}
        for slot in rule.shaped_slots:
            own = _shape_of(rule, slot, shape)
            if slot.per is None and heads > 1 and slot.name in asked.required + asked.optional:
                _check_cut(slot, own, heads, shape)
            there[slot.name] = torch.full(
                (2, *own), slot.initial, dtype=torch.float32, device="cpu"
            )
        for name, over in measured.items() if of_lines else ():
            sides = {"row": (2, rows, 1), "column": (2, 1, columns), "variable": (1, 1, 1)}[over]
            there[name] = rand(2, *sides, dtype=torch.float64)
        if of_lines:
            there = sizes_by_name(shape) | there  # a slot of such a name comes first
        there |= {name: float(each) for name, each in known.items() if name not in there}
        given = {
            name: split_into_blocks(there[name], heads) if heads > 1 else there[name]
            for name in (*asked.required, *asked.optional)
            if name in there
        }
        tensors = {name: each for name, each in given.items() if isinstance(each, torch.Tensor)}
        before = {name: each._version for name, each in tensors.items()}
        try:
            found = stage.call(given)
        except Exception as error:
            raise RuleError(
                f"{place_of(stage.function)} fails over matrices of shape {(rows, columns)}:"
                f" {type(error).__name__}: {error}"
            ) from error
        title = f"Stage {place_of(stage.function)}"
        check_stage_outputs(rule, title, found, given, dict.fromkeys([*made, *measured]))
        written = [name for name, each in tensors.items() if each._version != before[name]]
        # What a measure gave is the stage's own where it puts something in its place.
        written = [name for name in written if name not in measured or name not in found]
        if written:
            raise RuleError(
                f"{title} writes to {', '.join(written)}, which it was given: return a new tensor."
            )


def _check_cut(slot: Slot, shape: tuple[int, ...], heads: int, matrix: tuple[int, ...]) -> None:
    if not shape or shape[0] % heads:
        raise RuleError(
            f"The slot {slot.name!r} has shape {shape} beside a matrix of shape {matrix}, whose"
            f" first dimension a Stage does not cut into heads={heads} equal blocks."
        )


def _shape_of(rule: Rule, slot: Slot, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a slot beside a matrix."""
    if slot.per is not None:
        return shape_beside(slot, torch.Size(shape))
    try:
        found: Any = slot.shape(*shape[-2:])  # pyright: ignore[reportOptionalCall]
        sizes = cast("tuple[Any, ...]", found if isinstance(found, tuple) else (None,))
        is_shape = all(type(size) is int and size >= 0 for size in sizes)
    except Exception as error:
        raise RuleError(
            f"The shape of slot {slot.name!r} fails beside a matrix of shape {shape}:"
            f" {type(error).__name__}: {error}"
        ) from error
    if not is_shape:
        raise RuleError(
            f"The shape of slot {slot.name!r} must be a tuple of sizes, not"
            f" {show_value(cast('object', found))}."
        )
    return sizes
