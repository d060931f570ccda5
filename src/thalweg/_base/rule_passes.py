"""Computations of a rule, an optimizer's formula, before its update: passes, reductions, stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from thalweg._base.exports import exported_from
from thalweg._base.matrix_layout import ONE_MATRIX, MatrixLayout, as_layout
from thalweg._base.showing import show_value
from thalweg.errors import RuleError


def _check_function(entry: Pass | Measure | Stage) -> None:
    kind, function = type(entry).__name__, entry.function
    if not callable(function):
        raise RuleError(f"A {kind} needs a function, not {show_value(function)}.")


@exported_from("thalweg.formula")
@dataclass(frozen=True, eq=False)
class Pass:
    """Values that a step computes for each element before the update, and drops afterwards.

    A pass writes to no state.

    Args:
        function: A formula like `update`, `(var, grad, *made, *slots, *, scalars...) -> value`, or
            several values; `made` are the values of earlier passes.
        makes: The name of each value; values have the compute dtype.

    Raises:
        RuleError: The function cannot be called, or a name is not a string.
    """

    function: Callable[..., Any]
    makes: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_function(self)
        names = (self.makes,) if isinstance(self.makes, str) else tuple(self.makes)
        if not names or not all(isinstance(name, str) and name for name in names):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RuleError(f"makes of a Pass must be names, not {show_value(self.makes)}.")
        object.__setattr__(self, "makes", names)

    @property
    def of_elements(self) -> tuple[str, ...]:
        """The names of the values."""
        return self.makes


@exported_from("thalweg.formula")
@dataclass(frozen=True, eq=False)
class Measure:
    """Sum or maximum over each row, column or variable, in one pass over the elements.

    Consecutive measures share a pass over memory.

    Args:
        function: A formula, `(var, grad, *made, *slots, *, scalars...) -> value`. It is computed in
            float64; if marked by `formula.like_update`, in the dtype of the update.
        makes: The name of the result. Later stages receive it as a float64 tensor; later formulas
            like a scalar, in the compute dtype.
        over: The elements of one result: a "row" or "column" of the last two dimensions of a
            variable, or the "variable".
        reduce: "sum", or "largest", which is NaN if an element is NaN.

    Raises:
        RuleError: An argument is invalid.
    """

    function: Callable[..., Any]
    makes: str
    over: Literal["row", "column", "variable"] = "variable"
    reduce: Literal["sum", "largest"] = "sum"

    def __post_init__(self) -> None:
        _check_function(self)
        if not isinstance(self.makes, str) or not self.makes:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RuleError(f"makes of a Measure must be a name, not {show_value(self.makes)}.")
        for name, choices in (
            ("over", ("row", "column", "variable")),
            ("reduce", ("sum", "largest")),
        ):
            if getattr(self, name) not in choices:
                raise RuleError(
                    f"{name} of Measure {self.makes!r} must be one of {', '.join(choices)}, not"
                    f" {getattr(self, name)!r}."
                )


@exported_from("thalweg.formula")
@dataclass(frozen=True, eq=False)
class Level:
    """Further measures of a rule, whose formulas read scalars made from earlier measures.

    Args:
        measures: {name: formula}, as `measures` of a rule.
        per_variable: Optional. A function, as `per_variable` of a rule.

    Raises:
        RuleError: A measure or `per_variable` is not a function.
    """

    measures: Mapping[str, Callable[..., Any]] = field(
        default_factory=dict[str, Callable[..., Any]]
    )
    per_variable: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        functions = (*self.measures.values(), self.per_variable)
        if not all(map(callable, functions)):
            raise RuleError(
                f"A Level needs functions, not {show_value(self.measures)}, {self.per_variable}."
            )


@exported_from("thalweg.formula")
@dataclass(frozen=True, eq=False)
class Stage:
    """Torch functions over full matrices, between two passes of a step.

    Args:
        function: Called with the arguments that it names: values of passes, as tensors of shape
            (batch, rows, columns) with matrices of one shape; slots with a shape, as `(batch,
            *shape)`; scalars, as numbers, or as tensors of shape (batch, 1, 1) if variables differ.
            Returns {name: new value} for some of the values and slots, of equal shapes. It must not
            write to its arguments.

            In a rule with a `Measure` all tensors have four dimensions: of elements (batch,
            matrices, rows, columns), of rows (batch, matrices, rows, 1), of columns (batch,
            matrices, 1, columns), of variables (batch, 1, 1, 1). A variable of shape (..., rows,
            columns) has `matrices` matrices. Further arguments are `row_count` and `column_count`
            of a matrix, and `element_count` of the variable.
        every: The function is called in steps 1, 1 + every, 1 + 2 * every, ...
        heads: Short for a layout of equal blocks of rows, `MatrixLayout(rows=heads)`.
        of_matrices: True if the function receives (batch, rows, columns) in a rule with a
            `Measure`, too, and no measures. Such a rule may wrap another rule.
        layout: The matrices that each variable holds, an `optim.MatrixLayout` or its text. A slot
            has the shape of each matrix. The slots of a variable's matrices are one tensor, stacked
            as rows if the matrices differ only in row counts, else flat. None is one matrix of the
            first dimension and all further dimensions. It rejects variables of three dimensions,
            which may be stacks of matrices. After `__post_init__`, the layout of `heads` is here,
            too.
        seed: The seed of the input `random`, an integer from 0 to 2**48 - 1. The methods
            `random.normal(*shape)` and `random.uniform(*shape)` return tensors `(batch, *shape)`.

    Raises:
        RuleError: The function cannot be called. `every`, `heads` or `seed` is invalid. `heads` and
            `layout` are both given.
        InvalidArgumentError: The layout is invalid.
    """

    function: Callable[..., Any]
    every: int = 1
    heads: int | None = None
    of_matrices: bool = False
    layout: MatrixLayout | str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_function(self)
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 48:
            raise RuleError(
                f"seed of a Stage must be an integer from 0 to 2**48 - 1, not"
                f" {show_value(self.seed)}."
            )
        heads = 1 if self.heads is None else self.heads
        for name, value in (("every", self.every), ("heads", heads)):
            if type(value) is not int or value < 1:
                raise RuleError(
                    f"{name} of a Stage must be a positive integer, not {show_value(value)}."
                )
        if self.heads is not None and self.layout is not None:
            raise RuleError("A Stage has either heads= or layout=, not both.")
        layout = as_layout(self.layout) if self.heads is None else MatrixLayout(rows=heads)
        object.__setattr__(self, "layout", layout)

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Call the function with the arguments by name."""
        return self.function(**arguments)


def check_levels(rule: Any) -> None:
    """Raise RuleError, which names the rule, unless its levels are a tuple of `Level`."""
    levels: tuple[object, ...] = rule.levels
    if not isinstance(levels, tuple) or not all(isinstance(level, Level) for level in levels):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RuleError(
            f"levels of rule {rule.name!r} must be a tuple of thalweg.formula.Level, not"
            f" {show_value(levels)}."
        )


def slots_with_layout(rule: Any) -> tuple[Any, ...]:
    """Return the slots of a rule. Slots with a `shape` have the layout of the rule's stages."""
    return tuple(
        replace(slot, layout=rule.layout) if slot.shape and slot.layout != rule.layout else slot
        for slot in rule.slots
    )


def check_passes(rule: Any) -> None:
    """Raise RuleError unless the passes are valid and compatible with the rest of the rule."""
    passes: tuple[object, ...] = rule.passes
    of_rule = f"of rule {rule.name!r}"
    expectation = f"passes {of_rule} must be a tuple of thalweg.Pass, Measure, Stage and FusedStage"
    if not isinstance(passes, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RuleError(f"{expectation}, not a {type(passes).__name__}.")
    for entry in passes:
        if not isinstance(entry, Pass | Measure | Stage):
            raise RuleError(f"{expectation}; {entry!r} is none.")
    measure_names = [entry.makes for entry in passes if isinstance(entry, Measure)]
    names = [*rule.made, *measure_names, *(slot.name for slot in rule.slots)]
    duplicates = [name for name in names if names.count(name) > 1]
    if duplicates:
        raise RuleError(f"Two slots or values {of_rule} are named {duplicates[0]!r}.")
    if rule.update_sparse or rule.update_single:
        raise RuleError(f"There are passes {of_rule}, beside which there are no formulas for rows.")
    if rule.shaped_slots and not any(isinstance(entry, Stage) for entry in passes):
        raise RuleError(
            f"The slot {rule.shaped_slots[0].name!r} {of_rule} has a shape of its own, and there is"
            " no Stage that reads it."
        )
    _check_layouts(rule, [entry for entry in passes if isinstance(entry, Stage)])


def _check_layouts(rule: Any, stages: Sequence[Stage]) -> None:
    """Raise RuleError unless all stages of a rule have the same layout.

    If the rule has a `Measure`, or a slot per row or column, only its stages with `of_matrices` can
    have a layout. If it then has no such stage, no slot may have a shape.
    """
    line_stages = [stage for stage in stages if not stage.of_matrices]
    has_layout = any(stage.layout not in (None, ONE_MATRIX) for stage in line_stages)
    is_shaped = len(line_stages) == len(stages) and any(slot.shape for slot in rule.slots)
    if rule.is_of_lines and (has_layout or is_shaped):
        raise RuleError(
            f"Stages of rule {rule.name!r} see rows and columns of the last two dimensions: they"
            " have neither heads= nor layout= nor slots with a shape=."
        )
    layouts = {stage.layout or ONE_MATRIX for stage in stages
               if stage.of_matrices or not rule.is_of_lines}  # fmt: skip
    if len(layouts) > 1:
        raise RuleError(
            f"Stages of rule {rule.name!r} have the layouts"
            f" {' and '.join(sorted(repr(str(layout)) for layout in layouts))}: give all of them"
            " the same one."
        )
