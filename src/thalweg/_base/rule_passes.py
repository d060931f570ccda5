"""Work of a rule before its update: passes over elements, measures, and stages between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from thalweg._base.exports import exported_from
from thalweg._base.showing import show_value
from thalweg.errors import RuleError


def _check_function(thing: Pass | Measure | Stage) -> None:
    kind, function = type(thing).__name__, thing.function
    if not callable(function):
        raise RuleError(f"A {kind} needs a function, not {show_value(function)}.")


@exported_from("thalweg.formula")
@dataclass(frozen=True, eq=False)
class Pass:
    """Values that a step computes for each element before the update, and drops when it ends.

    A pass writes to no state.

    Args:
        function: A formula as `update` is, `(var, grad, *made, *slots, *, scalars...) -> value`, or
            several values; `made` are the values of the passes before this one.
        makes: The name of each value. They are in the type of the arithmetic.

    Raises:
        RuleError: The function cannot be called, or a name is not text.
    """

    function: Callable[..., Any]
    makes: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_function(self)
        names = (self.makes,) if isinstance(self.makes, str) else tuple(self.makes)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise RuleError(f"makes of a Pass must be names, not {show_value(self.makes)}.")
        object.__setattr__(self, "makes", names)

    @property
    def of_elements(self) -> tuple[str, ...]:
        """The names of what it makes."""
        return self.makes


@exported_from("thalweg.formula")
@dataclass(frozen=True, eq=False)
class Measure:
    """A number of each row, column or variable, made of its elements by one sweep.

    Measures that follow one another share their sweep.

    Args:
        function: A formula, `(var, grad, *made, *slots, *, scalars...) -> value`, in float64, or
            `like_update`.
        makes: The name of the number. Stages after it are given it as a float64 tensor; formulas
            after it, which are given it as a scalar is, in the type of the arithmetic.
        over: What there is a number of: each "row" or "column" of the last two dimensions of a
            variable, or the "variable".
        reduce: Whether the values of its elements are added up, "sum", or it is the "largest" of
            them, NaN if one is.

    Raises:
        RuleError: An argument is not what it can be.
    """

    function: Callable[..., Any]
    makes: str
    over: Literal["row", "column", "variable"] = "variable"
    reduce: Literal["sum", "largest"] = "sum"

    def __post_init__(self) -> None:
        _check_function(self)
        if not isinstance(self.makes, str) or not self.makes:
            raise RuleError(f"makes of a Measure must be a name, not {show_value(self.makes)}.")
        for name, known in (
            ("over", ("row", "column", "variable")),
            ("reduce", ("sum", "largest")),
        ):
            if getattr(self, name) not in known:
                raise RuleError(
                    f"{name} of Measure {self.makes!r} must be one of {', '.join(known)}, not"
                    f" {getattr(self, name)!r}."
                )


@exported_from("thalweg.formula")
@dataclass(frozen=True, eq=False)
class Level:
    """Measures of variables that depend on the scalars of earlier measures.

    Args:
        measures: As those of a rule.
        per_variable: As that of a rule.

    Raises:
        RuleError: One is not a function.
    """

    measures: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    per_variable: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        every = (*self.measures.values(), self.per_variable)
        if not all(map(callable, every)):
            raise RuleError(
                f"A Level needs functions, not {show_value(self.measures)}, {self.per_variable}."
            )


@exported_from("thalweg.formula")
@dataclass(frozen=True, eq=False)
class Stage:
    """Torch's functions over whole matrices, between two passes of a step.

    Args:
        function: Called with what it asks for by name: what passes have made, as tensors of shape
            (batch, rows, columns), those of variables of one shape in one batch; slots with a
            shape, as `(batch, *shape)`; scalars, as numbers, or as tensors of shape (batch, 1, 1)
            where variables differ. Returns a dict of what becomes of some of the first two, of the
            same shapes. It writes to none of them.

            In a rule with a `Measure` everything has four dimensions: what is of elements
            (batch, matrices, rows, columns), of rows (batch, matrices, rows, 1), of columns (batch,
            matrices, 1, columns), and of variables (batch, 1, 1, 1), where a variable of shape
            (..., rows, columns) is so many matrices. It may ask for `row_count`, `column_count` and
            `element_count`, too, which are those of a matrix and of the variable.
        every: It is called in each step whose number is 1, 1 + every, ...
        heads: The number of equal blocks of rows that each variable is cut into. Each block is a
            matrix of its own: shapes are (batch * heads, rows / heads, columns). Slots with a shape
            are cut along their first dimension, too. None means one block, and variables of three
            dimensions raise an error: they may be stacks of matrices. 1 takes them as one matrix.
        of_matrices: Whether it sees matrices, (batch, rows, columns), in a rule with a `Measure`,
            too, by which such a rule may wrap another one. It asks for no measures then.

    A variable of more than two dimensions is a matrix of its first one and all others; one of three
    dimensions needs an explicit `heads`.

    Raises:
        RuleError: The function cannot be called, or `every` or `heads` is no positive integer.
    """

    function: Callable[..., Any]
    every: int = 1
    heads: int | None = None
    of_matrices: bool = False

    def __post_init__(self) -> None:
        _check_function(self)
        for name, value in (("every", self.every), ("heads", self.block_count)):
            if type(value) is not int or value < 1:
                raise RuleError(
                    f"{name} of a Stage must be a positive integer, not {show_value(value)}."
                )

    @property
    def block_count(self) -> int:
        """Number of blocks of rows that each variable is cut into."""
        return 1 if self.heads is None else self.heads

    def call(self, given: Mapping[str, Any]) -> Any:
        """Call the function with those of the given values that it asks for by name."""
        return self.function(**given)


def check_levels(rule: Any) -> None:
    """Refuse levels that are none.

    Raises:
        RuleError: Names the rule.
    """
    levels = rule.levels
    if not isinstance(levels, tuple) or not all(isinstance(each, Level) for each in levels):
        raise RuleError(
            f"levels of rule {rule.name!r} must be a tuple of thalweg.formula.Level, not"
            f" {show_value(levels)}."
        )


def check_passes(rule: Any) -> None:
    """Refuse passes that are none, or that do not go with the rest of a rule.

    Raises:
        RuleError: Names the rule, and what is wrong.
    """
    passes, of_rule = rule.passes, f"of rule {rule.name!r}"
    wanted = f"passes {of_rule} must be a tuple of thalweg.Pass, Measure, Stage and FusedStage"
    if not isinstance(passes, tuple):
        raise RuleError(f"{wanted}, not a {type(passes).__name__}.")
    for each in passes:
        if not isinstance(each, Pass | Measure | Stage):
            raise RuleError(f"{wanted}; {each!r} is none.")
    measured = [each.makes for each in passes if isinstance(each, Measure)]
    names = [*rule.made, *measured, *(slot.name for slot in rule.slots)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise RuleError(f"Two slots or values {of_rule} are named {twice[0]!r}.")
    if rule.update_sparse or rule.update_single:
        raise RuleError(f"There are passes {of_rule}, beside which there are no formulas for rows.")
    if rule.shaped_slots and not any(isinstance(each, Stage) for each in passes):
        raise RuleError(
            f"The slot {rule.shaped_slots[0].name!r} {of_rule} has a shape of its own, and there is"
            " no Stage that reads it."
        )
    of_lines = [each for each in passes if isinstance(each, Stage) and not each.of_matrices]
    has_heads = any(each.block_count > 1 for each in of_lines)
    is_shaped = of_lines == _stages_of(passes) and any(slot.shape for slot in rule.slots)
    if rule.is_of_lines and (has_heads or is_shaped):
        raise RuleError(
            f"Stages {of_rule} see rows and columns of the last two dimensions: they have neither"
            " heads= nor slots with a shape=."
        )


def _stages_of(passes: tuple[Any, ...]) -> list[Stage]:
    return [each for each in passes if isinstance(each, Stage)]
