"""Variables whose matrices have one shape: what stages are given of them, and what they return."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from inspect import signature
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._base.fused_stage import FusedStage
from thalweg._base.rule_passes import Stage
from thalweg._engines.formula_parser import place_of
from thalweg._engines.fused_stage import SIZES, bind_stage
from thalweg._engines.layout import compute_dtype, is_dense
from thalweg._engines.matrix_shapes import matrix_shape
from thalweg._engines.protocol import Columns, Dtype
from thalweg._engines.row_column_reductions import view_of
from thalweg.errors import RuleError, did_you_mean
from thalweg.formula import Rule, is_like_update

COUNT = "t"  # the scalar that is the number of a step
_PIECE = 1 << 14  # rows or columns that a fused stage is called with


class StageInputs(NamedTuple):
    """What a stage asks for by name.

    Attributes:
        needed: What there must be.
        optional: What it has a default for.
    """

    needed: tuple[str, ...]
    optional: tuple[str, ...]


@lru_cache(256)
def asked_by(stage: Stage) -> StageInputs:
    """The names of a stage's parameters, but those that a `functools.partial` has bound."""
    function: Any = stage.function
    bound: dict[str, Any] = function.keywords if isinstance(function, partial) else {}
    given = signature(cast("Any", function)).parameters.values()
    own = [each for each in given if each.name not in bound]
    needed = tuple(each.name for each in own if each.default is each.empty)
    return StageInputs(needed, tuple(each.name for each in own if each.default is not each.empty))


class Batch:
    """Variables whose matrices have one shape, dtype and device.

    Args:
        rule: A rule with passes.
        variables: All variables of the step.
        members: Positions of those of the batch.
        shape: Optional. That of each as a whole, where `variables` are parts of them.

    Attributes:
        is_of_lines: Whether the rule sees rows and columns.
        shape: Rows and columns; matrices, too, where it does.
        matrix: Rows and columns of each variable as one matrix.
        sizes: What stages may ask for of them, by name.
        is_there: Whether all stays on a device, for which nobody waits.
        made: By name what passes make of each variable, in its shape.
        measured: By name what measures have made of the variables, and stages of that: of shape
            (variables, matrices, rows, 1), (variables, matrices, 1, columns), (variables, 1, 1, 1).
        vectors: By name what formulas are given of rows or columns, of the same shapes.
    """

    def __init__(
        self,
        rule: Rule,
        variables: Sequence[Tensor],
        members: Sequence[int],
        shape: torch.Size | None = None,
    ) -> None:
        own = [variables[index] for index in members]
        shapes = [shape or var.shape for var in own]
        self.members, self.shape = list(members), sides_of(rule, shapes[0])
        self.is_of_lines = rule.is_of_lines
        self.sizes = sizes_beside(self.shape) if rule.is_of_lines else {}
        self.matrix = matrix_shape(shapes[0])
        self.dtype: Dtype = compute_dtype(own[0].dtype)
        self.kind = kind_of(own[0])
        self.device = own[0].device
        self.is_there = self.device.type != "cpu"
        self.made: dict[str, list[Tensor]] = {}
        self._blocks: dict[str, Tensor] = {}  # where variables lie row by row
        for name in rule.made:
            if shape is not None or all(var.is_contiguous() for var in own):
                sides = matrix_shape(shapes[0])
                block = torch.empty(len(own), *sides, dtype=self.kind, device=self.device)
                self._blocks[name] = block
                self.made[name] = [x.view(y) for x, y in zip(block, shapes, strict=True)]
            else:
                self.made[name] = list(map(memory_beside, own))
        self.measured: dict[str, Tensor] = {}
        self.kept: dict[str, Tensor] = {}  # what slots of rows and columns are to become
        self.slots: dict[str, torch.dtype] = {}  # those of rows and columns, as they are stored
        self.vectors: dict[str, Tensor] = {}
        for name, over in rule.vectors.items():
            matrices, rows, columns = self.shape
            sides = (rows, 1) if over == "row" else (1, columns)
            self.vectors[name] = torch.empty(
                len(own), matrices, *sides, dtype=self.kind, device=self.device
            )

        every = (each for several in self.made.values() for each in several)
        self._memories = {each.untyped_storage().data_ptr() for each in every}

    def matrices(self, name: str, rows: Sequence[int], shape: tuple[int, ...]) -> Tensor:
        """What passes have made of some of the variables: (rows, *shape)."""
        if name in self._blocks:
            block = self._blocks[name].view(-1, *shape)
            return block if len(rows) == len(block) else block[list(rows)]
        return torch.stack([self.made[name][row].reshape(shape) for row in rows])

    def store(self, name: str, rows: Sequence[int], value: Tensor) -> None:
        """Have a value that passes have made be another one."""
        if name in self._blocks and len(rows) == len(self.members):
            self._blocks[name].copy_(value.view(self._blocks[name].shape))
            return
        for row, own in zip(rows, value, strict=True):
            target = self.made[name][row]
            target.copy_(own.reshape(target.shape))

    def give(self, name: str, value: Tensor, rows: Sequence[int] | None = None) -> None:
        """Have formulas see a value of rows or columns, and stages one that was measured.

        Args:
            name: Its name.
            value: (rows, ...), in the order of the variables.
            rows: Which variables it is of; None for all.
        """
        if rows is not None and len(rows) < len(self.members):
            whole = self.measured[name].clone()
            whole[list(rows)] = value.to(whole.dtype)
            value = whole
        self.measured[name] = value
        if name in self.vectors:
            self.vectors[name].copy_(value)

    def keep(self, name: str, value: Tensor, rows: Sequence[int]) -> None:
        """Have a slot of rows or columns be another one, rounded as it is stored."""
        value = value.to(self.slots[name])
        if len(rows) < len(self.members):
            whole = self.kept.get(name, self.vectors[name]).to(value.dtype, copy=True)
            whole[list(rows)] = value
            value = whole
        self.kept[name] = value.to(self.kind)

    def holds(self, value: Tensor) -> bool:
        """Whether a tensor lies in what passes have made."""
        return value.untyped_storage().data_ptr() in self._memories

    def rows_by_count(self, columns: Columns, every: int) -> list[list[int]]:
        """The rows of variables whose steps have one number each, at which a stage is due."""
        found: dict[float, list[int]] = {}
        for row, count in enumerate(counts_of(columns, self.members)):
            if is_due(count, every):
                found.setdefault(count, []).append(row)
        return list(found.values())

    def scalar(
        self, name: str, columns: Columns, rows: Sequence[int], shape: tuple[int, ...]
    ) -> Any:
        """A scalar of the step: a number, or a tensor of shape (rows, 1, 1) where it differs.

        Args:
            name, columns: Its name, and all of them.
            rows: The variables.
            shape: As the stage sees each.

        Raises:
            KeyError: There is none.
        """
        if name not in columns.separate:
            value = columns.shared[self.dtype][name]
            return value if isinstance(value, Tensor) else float(value)
        vector = columns.separate[name][[self.members[row] for row in rows]]
        ones = [1] * len(shape)
        kind = torch.float64 if self.is_of_lines else self.kind  # as a number is
        if isinstance(vector, Tensor):
            return vector.to(self.device, kind).view(-1, *ones)
        if (vector == vector[0]).all():
            return float(vector[0])
        return torch.tensor(vector, dtype=kind, device=self.device).view(-1, *ones)


def sides_of(rule: Rule, shape: torch.Size) -> tuple[int, ...]:
    """A variable of this shape as stages of a rule see it."""
    return tuple(view_of(shape)) if rule.is_of_lines else matrix_shape(shape)


def kind_of(var: Tensor) -> torch.dtype:
    """The type of the arithmetic of a variable's step."""
    return torch.float64 if var.dtype == torch.float64 else torch.float32


def memory_beside(var: Tensor) -> Tensor:
    """Memory for a number of each element, in the order of the variable's."""
    dtype = kind_of(var)
    if is_dense(var):
        return torch.empty_strided(var.shape, var.stride(), dtype=dtype, device=var.device)
    return torch.empty(var.shape, dtype=dtype, device=var.device)


def counts_of(columns: Columns, members: Sequence[int]) -> list[float]:
    """The number of the step of some variables."""
    if COUNT not in columns.separate:
        scalars = next(iter(columns.shared.values()))
        return [float(scalars[COUNT])] * len(members)
    found: list[float] = columns.separate[COUNT][list(members)].tolist()
    return found


def is_due(count: float, every: int) -> bool:
    """Whether a stage is called in a step of that number."""
    return not (count - 1) % every


def alike(rule: Rule, variables: Sequence[Tensor]) -> list[list[int]]:
    """Positions of variables whose matrices have one shape, dtype, device and order in memory."""
    found: dict[Any, list[int]] = {}
    for index, var in enumerate(variables):
        sides = sides_of(rule, var.shape)
        if rule.made and rule.is_of_lines:  # stages may see either
            sides += matrix_shape(var.shape)
        key = (*sides, var.dtype, var.device, var.is_contiguous())
        found.setdefault(key, []).append(index)
    return list(found.values())


@lru_cache(1024)
def place_of_slot(rule: Rule, name: str) -> int | None:
    """The place of a slot with a shape of its own among those of the rule; None for no such one."""
    names = [slot.name for slot in rule.shaped_slots]
    return names.index(name) if name in names else None


def call_stage(
    rule: Rule,
    stage: Stage,
    batch: Batch,
    rows: Sequence[int],
    columns: Columns,
    slot_of: Callable[[int, int], Tensor],
) -> dict[str, Tensor]:
    """What a stage makes of some of the variables of a batch; nothing is written.

    Args:
        rule, stage, batch: The rule, one of its stages, and the batch.
        rows: The rows of the variables in the batch.
        columns: The scalars of the step.
        slot_of: Gives the slot at this place, with a shape of its own, of the variable at a
            position of the step.

    Raises:
        RuleError: The stage asks for what there is not, or returns what it may not.
    """
    given: dict[str, Any] = {}
    asked = asked_by(stage)
    shape = batch.matrix if stage.of_matrices else batch.shape
    for name in (*asked.needed, *asked.optional):
        if name in batch.made:
            given[name] = batch.matrices(name, rows, shape)
        elif name in batch.slots:
            value = batch.kept.get(name, batch.vectors[name])
            given[name] = value if len(rows) == len(value) else value[list(rows)]
        elif (place := place_of_slot(rule, name)) is not None:
            own = [slot_of(batch.members[row], place) for row in rows]
            given[name] = torch.stack([each.to(batch.kind) for each in own])
        elif name in batch.measured:
            value = batch.measured[name]
            given[name] = value if len(rows) == len(value) else value[list(rows)]
        elif rule.is_of_lines and name in SIZES and not stage.of_matrices:
            given[name] = batch.sizes[name]  # before scalars, as kernels have it
        else:
            try:
                given[name] = batch.scalar(name, columns, rows, shape)
            except KeyError:
                known = {**columns.shared[batch.dtype], **columns.separate}
                if name in asked.needed:
                    made = {**batch.made, **batch.measured}
                    check_asked(f"Stage {place_of(stage.function)}", name, made, known, rule)
                    raise
    title = f"Stage {place_of(stage.function)} of rule {rule.name!r}"
    whole = {name: value.shape for name, value in given.items() if isinstance(value, Tensor)}
    if stage.block_count > 1:
        given = {name: cut_into(value, stage.block_count) for name, value in given.items()}
    call = stage.call
    if isinstance(stage, FusedStage):
        call = partial(_call_fused, stage, batch)
    try:
        with torch.autocast(batch.device.type, enabled=False):
            found = call(given)
    except Exception as error:
        error.add_note(f"This is {title}, over matrices of shape {batch.shape}.")
        raise
    check_found(rule, title, found, given, {**batch.made, **batch.measured})
    # What was given may be returned under another name.
    return {
        name: (
            value.clone() if value is not given.get(name) and batch.holds(value) else value
        ).reshape(whole[name])
        for name, value in found.items()
    }


def sizes_beside(shape: Sequence[int]) -> dict[str, float]:
    """What stages may ask for of the sizes of a variable of so many matrices, rows and columns."""
    matrices, rows, columns = shape
    return dict(zip(SIZES, map(float, (rows, columns, matrices * rows * columns)), strict=True))


def _call_fused(stage: FusedStage, batch: Batch, given: Mapping[str, Any]) -> dict[str, Tensor]:
    """What a fused stage returns."""
    kind = batch.kind if is_like_update(stage.function) else torch.float64
    own = {x: each.to(kind) if isinstance(each, Tensor) else each for x, each in given.items()}
    if not batch.is_there:
        return _call_over_arrays(stage, batch.shape, kind, own)
    to_number = partial(torch.full, (), dtype=kind, device=batch.device)
    own = {
        name: each if isinstance(each, Tensor) else to_number(fill_value=each)
        for name, each in own.items()
    }
    found = bind_stage(stage.function, kind, batch.device)(**own)
    return dict(zip(stage.makes, found, strict=True))


def _call_over_arrays(
    stage: FusedStage, shape: Sequence[int], kind: torch.dtype, given: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The same on the CPU, of as many matrices at once as a cache holds."""
    bound, number = bind_stage(stage.function, kind, None), compute_dtype(kind)
    own: dict[str, Any] = {
        x: each.numpy() if isinstance(each, Tensor) else number(each) for x, each in given.items()
    }
    size = max(1, _PIECE // max(shape[1:]))
    with np.errstate(all="ignore"):
        parts = [
            bound(**{x: _piece_of(each, shape[0], first, size) for x, each in own.items()})
            for first in range(0, shape[0], size)
        ]
    found = parts[0] if len(parts) == 1 else [np.concatenate(each, 1) for each in zip(*parts)]
    made = zip(stage.makes, found, strict=True)
    return {name: torch.from_numpy(each) for name, each in made}  # pyright: ignore[reportUnknownMemberType]


def _piece_of(value: Any, matrices: int, first: int, size: int) -> Any:
    """What some of the matrices have of a value; one that is not of each matrix as a whole."""
    is_of_each = value.ndim and value.shape[1] == matrices
    return value[:, first : first + size] if is_of_each else value


def cut_into(value: Any, heads: int) -> Any:
    """What a stage is given of variables, each cut into so many blocks of rows.

    Args:
        value: Of shape (batch, rows, ...), or a scalar, of shape (batch, 1, 1) if no number.
        heads: How many.

    Returns:
        It in shape (batch * heads, rows / heads, ...).
    """
    if not isinstance(value, Tensor) or not value.dim():
        return value
    if value.shape[1:] == (1, 1) and value.shape[1] % heads:
        return value.repeat_interleave(heads, 0)
    batch, rows, *rest = value.shape
    return value.reshape(batch * heads, rows // heads, *rest)


def run_stage(
    rule: Rule,
    stage: Stage,
    batch: Batch,
    columns: Columns,
    slot_of: Callable[[int, int], Tensor],
) -> dict[str, list[tuple[int, Tensor]]]:
    """Run a stage over a batch, those whose steps have one number at a time.

    Args:
        rule, stage, batch, columns, slot_of: As in `call_stage`.

    Returns:
        What the stage has returned by name. Slots are not written: each has the positions of
        variables, with what it is to become.
    """
    asked, found = asked_by(stage), dict[str, list[tuple[int, Tensor]]]()
    counts = stage.every > 1 or COUNT in (*asked.needed, *asked.optional)
    every = [*range(len(batch.members))]
    for rows in batch.rows_by_count(columns, stage.every) if counts else [every]:
        for name, value in call_stage(rule, stage, batch, rows, columns, slot_of).items():
            own = found.setdefault(name, [])
            if name in batch.measured:
                batch.give(name, value, rows)
            elif name in batch.slots:
                batch.keep(name, value, rows)
            elif place_of_slot(rule, name) is None:
                batch.store(name, rows, value)
            else:
                own += zip([batch.members[row] for row in rows], value, strict=True)
    return found


def check_asked(
    title: str, name: str, made: Collection[str], known: Collection[str], rule: Rule
) -> None:
    """Refuse a stage that asks for what there is not.

    Args:
        title: Names the stage.
        name: What it asks for.
        made: What passes before it have made.
        known: The scalars of the step.
        rule: The rule.

    Raises:
        RuleError: There is none of that name; says what there is.
    """
    shaped = [slot.name for slot in rule.shaped_slots]
    there = dict.fromkeys([*made, *shaped, *known])
    if name in there:
        return
    if name in [slot.name for slot in rule.element_slots]:
        why = (
            "a slot of the variable's shape, which passes are given; a stage's has a shape= or per="
        )
    elif name in ("var", "grad"):
        why = "for formulas of elements; a Pass or a Measure makes of it what a stage sees"
    else:
        why = "neither made by a pass before it, nor a slot with a shape= or per=, nor a scalar"
    near = did_you_mean(name, there) or f"There are {', '.join(there)}."
    raise RuleError(f"{title} asks for {name}, which is {why}. {near}")


def check_found(
    rule: Rule, title: str, found: Any, given: Mapping[str, Any], made: Mapping[str, Any]
) -> None:
    """Refuse what a stage may not return.

    Raises:
        RuleError: It is no dict of what it was given, values that passes have made and slots with a
            shape of their own, each of the shape that it had.
    """
    if not isinstance(found, Mapping):
        raise RuleError(f"{title} must return a dict, not a {type(found).__name__}.")
    for name, value in cast("Mapping[str, Any]", found).items():
        if not (name in made or place_of_slot(rule, name) is not None):
            raise RuleError(
                f"{title} returns {name!r}, which is neither a value that passes have made, nor a"
                " slot with a shape of its own."
            )
        if name not in given:
            raise RuleError(f"{title} returns {name!r}, which it must take, too: {name} after *.")
        wanted = tuple(given[name].shape)
        if not isinstance(value, Tensor) or tuple(value.shape) != wanted or value.is_complex():
            kind = f"{value.dtype} " if isinstance(value, Tensor) and value.is_complex() else ""
            shown = f"{kind}of shape {tuple(value.shape)}" if isinstance(value, Tensor) else value
            raise RuleError(f"{title} returns {name!r} {shown}; expected {wanted}.")
