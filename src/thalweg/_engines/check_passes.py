"""Validation of a rule's passes, measures and stages; stages run over small matrices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from thalweg._base.fused_stage import FusedStage
from thalweg._base.rule_passes import Measure, Pass, Stage
from thalweg._base.showing import show_value
from thalweg._engines.check_formula import (
    check_numbers,
    check_order,
    check_sides,
    check_value_counts,
)
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.formula_source import place_of
from thalweg._engines.fused_stage import SIZES, read_stage
from thalweg._engines.matrix_batches import (
    RANDOM,
    check_stage_input,
    check_stage_outputs,
    sizes_by_name,
    stage_inputs,
)
from thalweg._engines.matrix_shapes import shape_beside
from thalweg._engines.stage_random import StageRandom
from thalweg.errors import RuleError
from thalweg.formula import Rule, Slot

_CPU = torch.device("cpu")


def check_passes(rule: Rule, scalars: Mapping[str, Any]) -> None:
    """Raise a RuleError unless passes, measures and stages fit the rule.

    Args:
        rule: The rule.
        scalars: The scalars of the first step, by name.
    """
    made_names, measure_dims = list[str](), dict[str, str]()
    scalars = {
        **scalars,
        **dict.fromkeys((slot.name for slot in rule.shaped_slots if slot.per), np.float32(1)),
    }
    for rule_pass in rule.passes:
        if isinstance(rule_pass, Pass):
            formula_graph = trace_formula(rule_pass.function)
            inputs = [*made_names, *(slot.name for slot in rule.element_slots)]
            check_sides(inputs, rule_pass.function, formula_graph, 2, scalars)
            count, names = len(rule_pass.makes), ", ".join(rule_pass.makes)
            check_value_counts(rule_pass.function, formula_graph, inputs, count, names)
            check_order(inputs, rule_pass.function, formula_graph, True)
            check_numbers(rule, rule_pass.function, formula_graph, scalars)
            made_names += rule_pass.makes
        elif isinstance(rule_pass, Measure):
            _check_measure(
                rule, rule_pass, [*made_names, *(slot.name for slot in rule.element_slots)], scalars
            )
            scalars = {**scalars, rule_pass.makes: np.float32(1)}
            measure_dims[rule_pass.makes] = rule_pass.over
        else:
            allowed = (
                {*scalars, *SIZES} if rule.is_of_lines and not rule_pass.of_matrices else scalars
            )
            for name in stage_inputs(rule_pass).required:
                title = f"{type(rule_pass).__name__} {place_of(rule_pass.function)}"
                if name != RANDOM:
                    check_stage_input(title, name, [*made_names, *measure_dims], allowed, rule)
            if isinstance(rule_pass, FusedStage):
                read_stage(rule, rule_pass)
            _try_stage(rule, rule_pass, made_names, measure_dims, scalars)


def _check_measure(
    rule: Rule, measure: Measure, inputs: list[str], scalars: Mapping[str, Any]
) -> None:
    """Raise a RuleError if a measure has several results, unknown inputs, or reads itself."""
    formula_graph = trace_formula(measure.function)
    check_order(inputs, measure.function, formula_graph, True)
    if len(formula_graph.results) != 1 or len(formula_graph.positional) > 2 + len(inputs):
        raise RuleError(
            f"Measure {place_of(measure.function)} takes {len(formula_graph.positional)} values and"
            f" returns {len(formula_graph.results)}; it may take"
            f" {', '.join(['var', 'grad', *inputs])}, and returns 1."
        )
    cyclic_names = [name for name in formula_graph.scalars if name == measure.makes]
    if cyclic_names:
        raise RuleError(
            f"Measure {place_of(measure.function)} asks for {measure.makes}, which it makes."
        )
    check_numbers(rule, measure.function, formula_graph, scalars)


def _try_stage(
    rule: Rule,
    stage: Stage,
    made_names: list[str],
    measure_dims: Mapping[str, str],
    scalars: Mapping[str, Any],
) -> None:
    """Raise a RuleError if a stage fails over random matrices, or its outputs are invalid."""
    dice = torch.Generator(device="cpu").manual_seed(0)
    rand = partial(torch.rand, generator=dice, dtype=torch.float32, device="cpu")
    for rows, columns in ((3, 2), (2, 3)):
        inputs = _stage_inputs(rule, stage, rows, columns, made_names, measure_dims, scalars, rand)
        tensors = {
            name: tensor for name, tensor in inputs.items() if isinstance(tensor, torch.Tensor)
        }
        versions = {name: tensor._version for name, tensor in tensors.items()}
        try:
            outputs = stage.call(inputs)
        except Exception as error:
            raise RuleError(
                f"{place_of(stage.function)} fails over matrices of shape {(rows, columns)}:"
                f" {type(error).__name__}: {error}"
            ) from error
        title = f"Stage {place_of(stage.function)}"
        check_stage_outputs(
            rule, title, outputs, inputs, dict.fromkeys([*made_names, *measure_dims])
        )
        mutated = [name for name, tensor in tensors.items() if tensor._version != versions[name]]
        # A stage may overwrite a measure that it replaces by an output.
        mutated = [name for name in mutated if name not in measure_dims or name not in outputs]
        if mutated:
            raise RuleError(
                f"{title} writes to {', '.join(mutated)}, which it was given: return a new tensor."
            )


def _stage_inputs(
    rule: Rule,
    stage: Stage,
    rows: int,
    columns: int,
    made_names: list[str],
    measure_dims: Mapping[str, str],
    scalars: Mapping[str, Any],
    rand: Any,
) -> dict[str, Any]:
    """Return inputs for a stage by name: scalars, initial slots, and random values by `rand`."""
    params = stage_inputs(stage)
    of_lines = rule.is_of_lines and not stage.of_matrices
    shape = (2, rows, columns) if of_lines else (rows, columns)
    values: dict[str, Any] = {name: rand(2, *shape) for name in made_names}
    for slot in rule.shaped_slots:
        slot_shape = _shape_of(slot, shape)
        values[slot.name] = torch.full(
            (2, *slot_shape), slot.initial, dtype=torch.float32, device="cpu"
        )
    if of_lines:
        sides = {"row": (2, rows, 1), "column": (2, 1, columns), "variable": (1, 1, 1)}
        for name, dimension in measure_dims.items():
            values[name] = rand(2, *sides[dimension], dtype=torch.float64)
        # A slot with the name of a size replaces it.
        values = sizes_by_name(shape) | values
    values |= {name: float(scalar) for name, scalar in scalars.items() if name not in values}
    values.setdefault(RANDOM, StageRandom(rule, stage, [0, 1], 1, _CPU, torch.float32))
    return {name: values[name] for name in (*params.required, *params.optional) if name in values}


def _shape_of(slot: Slot, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a slot of a matrix; raise a RuleError if it is not a tuple of sizes."""
    if slot.per is not None:
        # Stages receive squeezed slots with a dimension of size 1, too.
        return shape_beside(Slot(slot.name, per=slot.per), torch.Size(shape))
    try:
        returned: Any = slot.shape(*shape[-2:])  # pyright: ignore[reportOptionalCall]
        sizes = cast("tuple[Any, ...]", returned if isinstance(returned, tuple) else (None,))
        is_shape = all(type(size) is int and size >= 0 for size in sizes)
    except Exception as error:
        raise RuleError(
            f"The shape of slot {slot.name!r} fails beside a matrix of shape {shape}:"
            f" {type(error).__name__}: {error}"
        ) from error
    if not is_shape:
        raise RuleError(
            f"The shape of slot {slot.name!r} must be a tuple of sizes, not"
            f" {show_value(cast('object', returned))}."
        )
    return sizes
