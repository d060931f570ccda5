"""Stages (functions of matrices), called over batches of variables with equal matrix shapes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._base.device_numbers import wide_dtype
from thalweg._base.fused_stage import FusedStage
from thalweg._base.rule_passes import Stage
from thalweg._engines.formula_arguments import read_parameter_names
from thalweg._engines.formula_source import place_of
from thalweg._engines.fused_stage import SIZES, bind_stage
from thalweg._engines.layout import compute_dtype, is_dense
from thalweg._engines.matrix_blocks import Division, division_of
from thalweg._engines.matrix_shapes import matrix_shape
from thalweg._engines.protocol import Columns, Dtype
from thalweg._engines.row_column_reductions import view_of
from thalweg._engines.stage_random import StageRandom
from thalweg.errors import RuleError, did_you_mean
from thalweg.formula import Rule, is_like_update

COUNT = "t"  # the scalar with the number of the step
RANDOM = "random"  # the input of a stage with random numbers
NUMBER = "variable_number"  # the scalar with the number of a variable in the optimizer
_PIECE = 1 << 14  # rows or columns in one call of a fused stage over NumPy arrays


class StageInputs(NamedTuple):
    """Names of the inputs of a stage.

    Attributes:
        required: Parameters without a default.
        optional: Parameters with a default.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]


@lru_cache(256)
def stage_inputs(stage: Stage) -> StageInputs:
    """Return the names of a stage's parameters that a `functools.partial` has not bound."""
    function: Any = stage.function
    bound: dict[str, Any] = function.keywords if isinstance(function, partial) else {}
    required, optional = read_parameter_names(function)
    return StageInputs(required, tuple(name for name in optional if name not in bound))


@lru_cache(256)
def draws(rule: Rule) -> bool:
    """Return True if a stage of the rule takes random numbers."""
    reserved_names = {
        *rule.made,
        *rule.seen,
        *(entry.name for entry in (*rule.slots, *rule.hypers)),
    }
    stages = [entry for entry in rule.passes if isinstance(entry, Stage)]
    return RANDOM not in reserved_names and any(
        RANDOM in names for stage in stages for names in stage_inputs(stage)
    )


class Batch:
    """Variables whose matrices have one shape, dtype and device.

    Args:
        members: Indices in the step of the variables of the batch.
        shape: Optional. The full shape of each variable, if `variables` are shards.

    Attributes:
        is_of_lines: True if the rule has passes over rows and columns.
        shape: (rows, columns) of a matrix; (matrices, rows, columns) with `is_of_lines`.
        matrix: (rows, columns) of each variable as one matrix.
        full_shape: The full shape of the first variable.
        sizes: {name: size}, the sizes that stages may take as inputs.
        stays_on_device: True if no value is copied to the host.
        pass_values: {name: a tensor per variable, of the variable's shape, that a pass computes}.
        measured_values: {name: measure of all variables, or output of a stage over measures}.
            Shapes: (variables, matrices, rows, 1), (variables, matrices, 1, columns), (variables,
            1, 1, 1).
        vectors: {name: row or column vectors of all variables, inputs of formulas}; same shapes.
        slots: {name of a row or column slot: dtype}.
        new_slot_values: {name of a row or column slot: new values of all variables}.
        memories: Addresses of the storages of `pass_values`.
    """

    def __init__(
        self,
        rule: Rule,
        variables: Sequence[Tensor],
        members: Sequence[int],
        shape: torch.Size | None = None,
    ) -> None:
        batch_variables = [variables[index] for index in members]
        shapes = [shape or var.shape for var in batch_variables]
        self.members, self.shape = list(members), sides_of(rule, shapes[0])
        self.is_of_lines = rule.is_of_lines
        self.sizes = sizes_by_name(self.shape) if rule.is_of_lines else {}
        self.matrix, self.full_shape = matrix_shape(shapes[0]), shapes[0]
        self.dtype: Dtype = compute_dtype(batch_variables[0].dtype)
        self.kind = arithmetic_dtype(batch_variables[0])
        self.device = batch_variables[0].device
        self.stays_on_device = self.device.type != "cpu"
        self._allocate_pass_values(rule, batch_variables, shape)
        self.measured_values: dict[str, Tensor] = {}
        self.new_slot_values: dict[str, Tensor] = {}
        self.slots: dict[str, torch.dtype] = {}
        self.vectors: dict[str, Tensor] = {}
        for name, axis in rule.vectors.items():
            matrices, rows, columns = self.shape
            sizes = (rows, 1) if axis == "row" else (1, columns)
            self.vectors[name] = torch.empty(
                len(batch_variables), matrices, *sizes, dtype=self.kind, device=self.device
            )

        all_outputs = (tensor for tensors in self.pass_values.values() for tensor in tensors)
        self.memories = {tensor.untyped_storage().data_ptr() for tensor in all_outputs}

    def _allocate_pass_values(
        self, rule: Rule, variables: Sequence[Tensor], shape: torch.Size | None
    ) -> None:
        """Allocate `pass_values`. Row-major variables share one tensor per name."""
        self.pass_values: dict[str, list[Tensor]] = {}
        self._blocks: dict[str, Tensor] = {}  # pass values of all variables in one tensor
        for name in rule.made:
            if shape is not None or all(var.is_contiguous() for var in variables):
                block = torch.empty(
                    len(variables), *self.matrix, dtype=self.kind, device=self.device
                )
                self._blocks[name] = block
                pairs = zip(block, variables, strict=True)
                self.pass_values[name] = [x.view(shape or var.shape) for x, var in pairs]
            else:
                self.pass_values[name] = list(map(empty_like_elements, variables))

    def matrices(self, name: str, rows: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return a pass's values as a tensor (len(rows), *shape), which may be a view.

        Args:
            rows: The indices in the batch of the variables to return.
            shape: The shape of one variable in the stage.
        """
        if name in self._blocks:
            block = self._blocks[name].view(-1, *shape)
            return block if len(rows) == len(block) else block[list(rows)]
        return torch.stack([self.pass_values[name][row].reshape(shape) for row in rows])

    def set_pass_values(self, name: str, rows: Sequence[int], values: Tensor) -> None:
        """Overwrite the values of a pass with the output of a stage.

        Args:
            rows: The indices in the batch of the variables that are overwritten.
            values: The new values, one for each of `rows`.
        """
        if name in self._blocks and len(rows) == len(self.members):
            self._blocks[name].copy_(values.view(self._blocks[name].shape))
            return
        for row, row_values in zip(rows, values, strict=True):
            target = self.pass_values[name][row]
            target.copy_(row_values.reshape(target.shape))

    def set_values(self, name: str, values: Tensor, rows: Sequence[int] | None = None) -> None:
        """Store a measure in `measured_values[name]`, and in `vectors[name]` if that exists.

        Args:
            values: (len(rows), ...), in the order of the variables.
            rows: The indices in the batch of the variables to set; None for all.
        """
        if rows is not None and len(rows) < len(self.members):
            values = _replace_rows(self.measured_values[name].clone(), rows, values)
        self.measured_values[name] = values
        if name in self.vectors:
            self.vectors[name].copy_(values)

    def set_slot(self, name: str, values: Tensor, rows: Sequence[int]) -> None:
        """Store new values of a slot in `new_slot_values[name]`, rounded to the slot's dtype.

        Variables outside `rows` keep their earlier new value; without one, the slot's value.
        """
        values = values.to(self.slots[name])
        if len(rows) < len(self.members):
            old_values = self.new_slot_values.get(name, self.vectors[name])
            values = _replace_rows(old_values.to(values.dtype, copy=True), rows, values)
        # Later stages read the slot as it will be stored.
        self.new_slot_values[name] = values.to(self.kind)

    def rows_by_count(self, columns: Columns, period: int) -> list[list[int]]:
        """Group the variables by step number; return lists of indices in the batch.

        Variables whose step number is not due (see `is_due`) are left out.
        """
        rows_by_step: dict[float, list[int]] = {}
        for row, count in enumerate(counts_of(columns, self.members)):
            if is_due(count, period):
                rows_by_step.setdefault(count, []).append(row)
        return list(rows_by_step.values())

    def scalar(self, name: str, columns: Columns, rows: Sequence[int], shape: Sequence[int]) -> Any:
        """Return a scalar of the step: a float, or a tensor if the scalar is on a GPU.

        If variables have different values, return a tensor (len(rows), 1, ...).

        Args:
            rows: The indices in the batch of the variables that the stage computes.
            shape: The shape of a variable in the stage. `len(shape)` dimensions of 1 are added.

        Raises:
            KeyError: The step has no scalar `name`.
        """
        if name not in columns.by_variable:
            shared_scalar = columns.shared[self.dtype][name]
            return shared_scalar if isinstance(shared_scalar, Tensor) else float(shared_scalar)
        vector = columns.by_variable[name][[self.members[row] for row in rows]]
        ones = [1] * len(shape)
        kind = wide_dtype(self.device) if self.is_of_lines else self.kind  # as a number is
        if isinstance(vector, Tensor):
            return vector.to(kind).to(self.device).view(-1, *ones)
        if (vector == vector[0]).all():
            return float(vector[0])
        return torch.tensor(vector, dtype=kind, device=self.device).view(-1, *ones)


def sides_of(rule: Rule, shape: torch.Size) -> tuple[int, ...]:
    """Return (matrices, rows, columns) if `rule` has row or column passes, else (rows, columns)."""
    return tuple(view_of(shape)) if rule.is_of_lines else matrix_shape(shape)


def _replace_rows(values: Tensor, rows: Sequence[int], new_values: Tensor) -> Tensor:
    """Overwrite some rows of a tensor, and return the tensor."""
    values[list(rows)] = new_values.to(values.dtype)
    return values


def arithmetic_dtype(var: Tensor) -> torch.dtype:
    """Return the dtype of the arithmetic of a variable's step."""
    return torch.float64 if var.dtype == torch.float64 else torch.float32


def empty_like_elements(var: Tensor) -> Tensor:
    """Return uninitialized memory like a variable's, in the dtype of the arithmetic."""
    dtype = arithmetic_dtype(var)
    if is_dense(var):
        return torch.empty_strided(var.shape, var.stride(), dtype=dtype, device=var.device)
    return torch.empty(var.shape, dtype=dtype, device=var.device)


def counts_of(columns: Columns, members: Sequence[int]) -> list[float]:
    """Return the step number, from 1, of each variable at an index in `members`."""
    if COUNT not in columns.by_variable:
        scalars = next(iter(columns.shared.values()))
        return [float(scalars[COUNT])] * len(members)
    counts: list[float] = columns.by_variable[COUNT][list(members)].tolist()
    return counts


def is_due(count: float, period: int) -> bool:
    """Return True for the step numbers 1, 1 + period, 1 + 2 * period, ..."""
    return not (count - 1) % period


def group_by_shape(rule: Rule, variables: Sequence[Tensor]) -> list[list[int]]:
    """Return lists of indices of variables; each list becomes a `Batch`.

    The variables of a list have one matrix shape, dtype and device, and all or none are contiguous.
    """
    groups: dict[Any, list[int]] = {}
    for index, var in enumerate(variables):
        sizes = sides_of(rule, var.shape)
        if rule.made and rule.is_of_lines:  # stages may see either
            sizes += matrix_shape(var.shape)
        batch = var.shape if rule.layout.batch else ()
        key = (*sizes, batch, var.dtype, var.device, var.is_contiguous())
        groups.setdefault(key, []).append(index)
    return list(groups.values())


@lru_cache(1024)
def place_of_slot(rule: Rule, name: str) -> int | None:
    """Return the index of a slot among the rule's shaped slots, or None for other names."""
    names = [slot.name for slot in rule.shaped_slots]
    return names.index(name) if name in names else None


class StageCall(NamedTuple):
    """Call of a stage over a batch.

    Attributes:
        rule, stage, batch: The rule, one of its stages, and the batch.
        columns: The scalars of the step.
        slot_of: `slot_of(member, index)` returns the slot `rule.shaped_slots[index]` of the step's
            variable `member`.
    """

    rule: Rule
    stage: Stage
    batch: Batch
    columns: Columns
    slot_of: Callable[[int, int], Tensor]


def call_stage(call: StageCall, rows: Sequence[int]) -> dict[str, Tensor]:
    """Call a stage and return {name: output (len(rows), ...)}; write nothing.

    Args:
        rows: The indices in the batch of the variables that the stage computes.

    Raises:
        RuleError: An input of the stage does not exist, or an output is invalid.
    """
    rule, stage, batch = call.rule, call.stage, call.batch
    inputs = _gather_inputs(call, rows)
    label = f"Stage {place_of(stage.function)} of rule {rule.name!r}"
    if stage in rule.matrix_stages and (division := division_of(rule.layout, batch.full_shape)):
        return _call_divided(call, inputs, division, label)
    outputs = _call_function(stage, batch, inputs, label)
    pass_values = {**batch.pass_values, **batch.measured_values}
    check_stage_outputs(rule, label, outputs, inputs, pass_values)
    # A stage may return an input under another name.
    copies = {
        name: values.clone()
        for name, values in outputs.items()
        if values is not inputs.get(name) and values.untyped_storage().data_ptr() in batch.memories
    }
    return {**outputs, **copies}


def _call_divided(
    call: StageCall, inputs: Mapping[str, Any], division: Division, label: str
) -> dict[str, Tensor]:
    """Call a stage on the matrices that `division` cuts variables into, once for each shape.

    `inputs` are those of whole variables, by name. Return {name: output for whole variables}.
    """
    rule, batch, outputs = call.rule, call.batch, dict[str, Tensor]()
    slots = {slot.name: slot for slot in rule.shaped_slots if slot.name not in batch.pass_values}
    pass_values = {**batch.pass_values, **batch.measured_values}
    for group in division.groups:
        group_inputs = dict(inputs)
        for name, argument in inputs.items():
            if name in batch.pass_values:
                group_inputs[name] = division.take(argument, group)
            elif name in slots:
                group_inputs[name] = division.take_slot(slots[name], argument, group)
            elif isinstance(argument, StageRandom):
                argument.matrix_count = division.matrix_count(group)
            # A number of each variable is repeated for its matrices.
            elif isinstance(argument, Tensor) and argument.dim():
                group_inputs[name] = argument.repeat_interleave(division.matrix_count(group), 0)
        group_outputs = _call_function(call.stage, batch, group_inputs, label)
        check_stage_outputs(rule, label, group_outputs, group_inputs, pass_values)
        if outputs and outputs.keys() != group_outputs.keys():
            raise RuleError(
                f"{label} returns {', '.join(outputs)} for some matrices and"
                f" {', '.join(group_outputs)} for others."
            )
        for name, values in group_outputs.items():
            # All groups together write all elements.
            target = outputs.setdefault(name, torch.empty_like(inputs[name]))
            if name in slots:
                division.put_slot(slots[name], target, group, values)
            else:
                division.put(target, group, values)
    return outputs


def _disable_autocast(device_type: str) -> AbstractContextManager[object]:
    """Return a context manager that disables autocast, or does nothing on devices without it."""
    # With autocast, torch would compute products of matrices in 16 bits.
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def _call_function(stage: Stage, batch: Batch, inputs: dict[str, Any], label: str) -> Any:
    """Call the function of a stage without autocast; add a note with `label` to exceptions."""
    call = stage.call
    if isinstance(stage, FusedStage):
        call = partial(_call_fused, stage, batch)
    try:
        with _disable_autocast(batch.device.type):
            return call(inputs)
    except Exception as error:
        error.add_note(f"This is {label}, over matrices of shape {batch.shape}.")
        raise


def _gather_inputs(call: StageCall, rows: Sequence[int]) -> dict[str, Any]:
    """Return {name: input} of a stage: tensors (len(rows), ...), numbers or a `StageRandom`.

    Optional parameters without a value are left out.

    Raises:
        RuleError: A required parameter has no value.
    """
    rule, stage, batch, columns, slot_of = call
    inputs: dict[str, Any] = {}
    parameters = stage_inputs(stage)
    shape = batch.matrix if stage.of_matrices else batch.shape
    for name in (*parameters.required, *parameters.optional):
        if name in batch.pass_values:
            inputs[name] = batch.matrices(name, rows, shape)
        elif name in batch.slots:
            values = batch.new_slot_values.get(name, batch.vectors[name])
            inputs[name] = values if len(rows) == len(values) else values[list(rows)]
        elif (slot_index := place_of_slot(rule, name)) is not None:
            slots = [slot_of(batch.members[row], slot_index) for row in rows]
            inputs[name] = torch.stack([slot.to(batch.kind) for slot in slots])
        elif name in batch.measured_values:
            values = batch.measured_values[name]
            inputs[name] = values if len(rows) == len(values) else values[list(rows)]
        elif rule.is_of_lines and name in SIZES and not stage.of_matrices:
            inputs[name] = batch.sizes[name]  # precedes scalars, as in kernels
        else:
            try:
                inputs[name] = batch.scalar(name, columns, rows, shape)
            except KeyError:
                if name == RANDOM:
                    inputs[name] = _make_random(call, rows)
                    continue
                scalars = {**columns.shared[batch.dtype], **columns.by_variable}
                if name in parameters.required:
                    pass_values = {**batch.pass_values, **batch.measured_values}
                    label = f"Stage {place_of(stage.function)}"
                    check_stage_input(label, name, pass_values, scalars, rule)
                    raise
    return inputs


def _make_random(call: StageCall, rows: Sequence[int]) -> StageRandom:
    """Return the random numbers of a stage for variables with one step number."""
    batch, members = call.batch, [call.batch.members[row] for row in rows]
    variable_indices = call.columns.by_variable[NUMBER][members].tolist()
    step = int(counts_of(call.columns, members)[0])
    example = torch.empty(0, dtype=batch.kind, device=batch.device)
    return StageRandom(call.rule, call.stage, variable_indices, step, example)


def sizes_by_name(shape: Sequence[int]) -> dict[str, float]:
    """Return the sizes that stages may take, by name, of a shape (matrices, rows, columns)."""
    matrices, rows, columns = shape
    return dict(zip(SIZES, map(float, (rows, columns, matrices * rows * columns)), strict=True))


def _call_fused(stage: FusedStage, batch: Batch, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Evaluate the formula of a fused stage over a batch; return {name: output}."""
    kind = batch.kind if is_like_update(stage.function) else wide_dtype(batch.device)
    arguments = {
        x: argument.to(kind) if isinstance(argument, Tensor) else argument
        for x, argument in inputs.items()
    }
    if not batch.stays_on_device:
        return _call_over_arrays(stage, batch.shape, kind, arguments)
    to_tensor = partial(torch.full, (), dtype=kind, device=batch.device)
    arguments = {
        name: argument if isinstance(argument, Tensor) else to_tensor(fill_value=argument)
        for name, argument in arguments.items()
    }
    outputs = bind_stage(stage.function, kind, batch.device)(**arguments)
    return dict(zip(stage.makes, outputs, strict=True))


def _call_over_arrays(
    stage: FusedStage, shape: Sequence[int], kind: torch.dtype, inputs: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Evaluate a fused stage on the CPU in pieces that fit the cache; return {name: output}."""
    bound, dtype = bind_stage(stage.function, kind, None), compute_dtype(kind)
    arrays: dict[str, Any] = {
        x: array.numpy() if isinstance(array, Tensor) else dtype(array)
        for x, array in inputs.items()
    }
    size = max(1, _PIECE // max(shape[1:]))
    with np.errstate(all="ignore"):
        pieces = [
            bound(
                **{x: _slice_matrices(array, shape[0], first, size) for x, array in arrays.items()}
            )
            for first in range(0, shape[0], size)
        ]
    outputs = (
        pieces[0] if len(pieces) == 1 else [np.concatenate(array, 1) for array in zip(*pieces)]
    )
    named_outputs = zip(stage.makes, outputs, strict=True)
    return {name: torch.from_numpy(array) for name, array in named_outputs}  # pyright: ignore[reportUnknownMemberType]


def _slice_matrices(array: Any, matrices: int, first: int, size: int) -> Any:
    """Return `size` matrices of an array from `first` on; the array if all matrices share it."""
    has_all_matrices = array.ndim and array.shape[1] == matrices
    return array[:, first : first + size] if has_all_matrices else array


def run_stage(
    rule: Rule, stage: Stage, batch: Batch, columns: Columns, slot_of: Callable[[int, int], Tensor]
) -> dict[str, list[tuple[int, Tensor]]]:
    """Run a stage over a batch; store outputs in `batch`, but return the new values of other slots.

    Outputs for passes, measures and slots of rows or columns are stored. A stage that depends on
    the step number is called once for each step number that is due.

    Args:
        rule, stage, batch, columns, slot_of: As for `StageCall`.

    Returns:
        {name of an output: [(index of a variable in the step, new value of the slot)]}. The list is
        empty for outputs stored in `batch`.
    """
    call = StageCall(rule, stage, batch, columns, slot_of)
    parameters, new_slots = stage_inputs(stage), dict[str, list[tuple[int, Tensor]]]()
    names = {*parameters.required, *parameters.optional}
    counts = stage.every > 1 or not names.isdisjoint((COUNT, RANDOM))
    all_rows = [*range(len(batch.members))]
    for rows in batch.rows_by_count(columns, stage.every) if counts else [all_rows]:
        for name, values in call_stage(call, rows).items():
            slot_values = new_slots.setdefault(name, [])
            if name in batch.measured_values:
                batch.set_values(name, values, rows)
            elif name in batch.slots:
                batch.set_slot(name, values, rows)
            elif place_of_slot(rule, name) is None:
                batch.set_pass_values(name, rows, values)
            else:
                slot_values += zip([batch.members[row] for row in rows], values, strict=True)
    return new_slots


def check_stage_input(
    label: str, name: str, pass_values: Collection[str], scalars: Collection[str], rule: Rule
) -> None:
    """Raise if an input of a stage does not exist.

    Args:
        label: The stage, as the message names it.
        pass_values: The names of values that earlier passes compute.
        scalars: The names of the scalars of the step.

    Raises:
        RuleError: The name is unknown; the message lists the known names.
    """
    shaped = [slot.name for slot in rule.shaped_slots]
    available = dict.fromkeys([*pass_values, *shaped, *scalars])
    if name in available:
        return
    if name in [slot.name for slot in rule.element_slots]:
        reason = (
            "a slot of the variable's shape, which passes are given; a stage's has a shape= or per="
        )
    elif name in ("var", "grad"):
        reason = "for formulas of elements; a Pass or a Measure makes of it what a stage sees"
    else:
        reason = "neither made by a pass before it, nor a slot with a shape= or per=, nor a scalar"
    advice = did_you_mean(name, available) or f"There are {', '.join(available)}."
    raise RuleError(f"{label} asks for {name}, which is {reason}. {advice}")


def check_stage_outputs(
    rule: Rule, label: str, outputs: Any, inputs: Mapping[str, Any], pass_values: Mapping[str, Any]
) -> None:
    """Raise RuleError unless `outputs` is {name of an input: real tensor of the input's shape}.

    Each name must be the name of a pass value or of a shaped slot.
    """
    if not isinstance(outputs, Mapping):
        raise RuleError(f"{label} must return a dict, not a {type(outputs).__name__}.")
    for name, output in cast("Mapping[str, Any]", outputs).items():
        if not (name in pass_values or place_of_slot(rule, name) is not None):
            raise RuleError(
                f"{label} returns {name!r}, which is neither a value that passes have made, nor a"
                " slot with a shape of its own."
            )
        if name not in inputs:
            raise RuleError(f"{label} returns {name!r}, which it must take, too: {name} after *.")
        expected = tuple(inputs[name].shape)
        if not isinstance(output, Tensor) or tuple(output.shape) != expected or output.is_complex():
            kind = f"{output.dtype} " if isinstance(output, Tensor) and output.is_complex() else ""
            description = (
                f"{kind}of shape {tuple(output.shape)}" if isinstance(output, Tensor) else output
            )
            raise RuleError(f"{label} returns {name!r} {description}; expected {expected}.")
