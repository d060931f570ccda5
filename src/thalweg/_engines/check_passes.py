"""Validation of passes (formulas), measures (reductions) and stages (functions of matrices)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._base.fused_stage import FusedStage
from thalweg._base.rule_passes import Measure, Stage
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


class _Available(NamedTuple):
    """Values that a stage may take at its position among the passes of a rule.

    Attributes:
        pass_names: Names of values that earlier passes compute.
        measure_dims: {name of an earlier measure: "row", "column" or "variable"}.
        scalars: {name: scalar of the first step}; 1 for earlier measures and row or column slots.
    """

    rule: Rule
    pass_names: list[str]
    measure_dims: dict[str, str]
    scalars: dict[str, Any]


def check_passes(rule: Rule, scalars: Mapping[str, Any]) -> None:
    """Raise RuleError unless passes, measures and stages are valid for the rule.

    Each stage is called twice, with random matrices.

    Args:
        scalars: The scalars of the first step, by name.
    """
    vectors = (slot.name for slot in rule.shaped_slots if slot.per)
    available = _Available(rule, [], {}, {**scalars, **dict.fromkeys(vectors, np.float32(1))})
    for rule_pass in rule.passes:
        if isinstance(rule_pass, Stage):
            _check_stage(rule_pass, available)
            continue
        inputs = [*available.pass_names, *(slot.name for slot in rule.element_slots)]
        if isinstance(rule_pass, Measure):
            _check_measure(rule, rule_pass, inputs, available.scalars)
            available.scalars[rule_pass.makes] = np.float32(1)
            available.measure_dims[rule_pass.makes] = rule_pass.over
            continue
        check_sides(inputs, rule_pass.function, 2, available.scalars)
        count, names = len(rule_pass.makes), ", ".join(rule_pass.makes)
        check_value_counts(rule_pass.function, inputs, count, names)
        check_order(inputs, rule_pass.function, True)
        check_numbers(rule, rule_pass.function, available.scalars)
        available.pass_names.extend(rule_pass.makes)


def _check_stage(stage: Stage, available: _Available) -> None:
    """Raise RuleError if a stage takes an unknown value or fails over random matrices."""
    rule, pass_names, measure_dims, scalars = available
    if isinstance(stage, FusedStage):
        read_stage(rule, stage)
    takes_sizes = rule.is_of_lines and not stage.of_matrices
    allowed = {*scalars, *SIZES} if takes_sizes else scalars
    for name in stage_inputs(stage).required:
        label = f"{type(stage).__name__} {place_of(stage.function)}"
        if name != RANDOM:
            check_stage_input(label, name, [*pass_names, *measure_dims], allowed, rule)
    _try_stage(stage, available)


def _check_measure(
    rule: Rule, measure: Measure, inputs: list[str], scalars: Mapping[str, Any]
) -> None:
    """Raise RuleError if a measure has several results, reads itself or reads an unknown value."""
    formula_graph = trace_formula(measure.function)
    check_order(inputs, measure.function, True)
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
    check_numbers(rule, measure.function, scalars)


def _try_stage(stage: Stage, available: _Available) -> None:
    """Call a stage with random 3 x 2 and 2 x 3 float32 matrices, to find its errors.

    Random numbers are from a private generator. `available` is not changed.

    Raises:
        RuleError: The stage raises an exception, returns an invalid dict (see
            `check_stage_outputs`), or writes to an argument. A measure that the stage returns may
            be written.
    """
    rule, pass_names, measure_dims, _ = available
    dice = torch.Generator(device="cpu").manual_seed(0)
    rand = partial(torch.rand, generator=dice, dtype=torch.float32, device="cpu")
    # A stage may treat tall and wide matrices differently.
    for matrix_shape in ((3, 2), (2, 3)):
        inputs = _make_inputs(stage, matrix_shape, available, rand)
        tensors = {name: tensor for name, tensor in inputs.items() if isinstance(tensor, Tensor)}
        versions = {name: tensor._version for name, tensor in tensors.items()}
        try:
            outputs = stage.call(inputs)
        except Exception as error:
            raise RuleError(
                f"{place_of(stage.function)} fails over matrices of shape {matrix_shape}:"
                f" {type(error).__name__}: {error}"
            ) from error
        label = f"Stage {place_of(stage.function)}"
        pass_values = dict.fromkeys([*pass_names, *measure_dims])
        check_stage_outputs(rule, label, outputs, inputs, pass_values)
        mutated = [name for name, tensor in tensors.items() if tensor._version != versions[name]]
        # A stage may overwrite a measure that it replaces by an output.
        mutated = [name for name in mutated if name not in measure_dims or name not in outputs]
        if mutated:
            raise RuleError(
                f"{label} writes to {', '.join(mutated)}, which it was given: return a new tensor."
            )


def _make_inputs(
    stage: Stage, matrix_shape: tuple[int, int], available: _Available, rand: Callable[..., Tensor]
) -> dict[str, Any]:
    """Return {name: input} of a stage for two variables.

    Values of passes and measures are random. Slots have initial values.

    Args:
        matrix_shape: Rows and columns of the matrices.
        available: The values that the stage may take.
        rand: `rand(*shape, dtype=torch.float32)` returns random numbers from 0 to 1.
    """
    rule, pass_names, measure_dims, scalars = available
    params = stage_inputs(stage)
    of_lines = rule.is_of_lines and not stage.of_matrices
    shape = (2, *matrix_shape) if of_lines else matrix_shape
    values: dict[str, Any] = {name: rand(2, *shape) for name in pass_names}
    for slot in rule.shaped_slots:
        slot_shape = (2, *_compute_shape(slot, shape))
        values[slot.name] = torch.full(slot_shape, slot.initial, dtype=torch.float32, device="cpu")
    if of_lines:
        rows, columns = matrix_shape
        line_shapes = {"row": (2, rows, 1), "column": (2, 1, columns), "variable": (1, 1, 1)}
        for name, dimension in measure_dims.items():
            values[name] = rand(2, *line_shapes[dimension], dtype=torch.float64)
        # A slot with the name of a size replaces it.
        values = sizes_by_name(shape) | values
    values |= {name: float(scalar) for name, scalar in scalars.items() if name not in values}
    example = torch.empty(0, dtype=torch.float32, device="cpu")
    values.setdefault(RANDOM, StageRandom(rule, stage, [0, 1], 1, example))
    return {name: values[name] for name in (*params.required, *params.optional) if name in values}


def _compute_shape(slot: Slot, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a slot of a matrix; raise RuleError if it is not a tuple of sizes."""
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
