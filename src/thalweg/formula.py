"""Parts of a rule: slots, hyperparameters, formulas, and the functions that formulas may use.

The functions here work on floats, NumPy arrays and tensors, so that a formula can be called and
debugged as the plain Python it is; on NumPy scalars, as `prepare` gets them, they give TensorFlow's
numbers. Engines bind the same names to their own versions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from thalweg._base import scalars
from thalweg._base.composed_formula import ChainedFormula as ChainedFormula
from thalweg._base.execution_context import is_ours
from thalweg._base.lazy import lazy, offered
from thalweg._base.locks import importing
from thalweg._base.showing import show_value
from thalweg.errors import RuleError

if TYPE_CHECKING:
    from thalweg._base.fused_stage import FusedStage as FusedStage
    from thalweg._base.fused_stage import mean_over_columns as mean_over_columns
    from thalweg._base.fused_stage import mean_over_rows as mean_over_rows
    from thalweg._base.rule_passes import Level, Measure, Pass, Stage
    from thalweg._base.wrapped_formula import StepMeasure as StepMeasure
    from thalweg._base.wrapped_formula import WrappedStepFormula as WrappedStepFormula

Formula = Callable[..., Any]

STORED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)  # what slots may be
FORMULAS = ("before", "update", "update_sparse", "update_single", "update_untouched")
_SCALARS = (np.float32, np.float64)
SHIFT = 600  # by how many powers of two measures move the largest and smallest numbers
_OFFERED = {
    "FusedStage": "fused_stage",
    "mean_over_columns": "fused_stage",
    "mean_over_rows": "fused_stage",
    "Level": "rule_passes",
    "Measure": "rule_passes",
    "Pass": "rule_passes",
    "Stage": "rule_passes",
    "WrappedStepFormula": "wrapped_formula",
    "StepMeasure": "wrapped_formula",
}
_UP, _DOWN = 2.0**SHIFT, 2.0**-SHIFT


def _check_named(thing: Slot | Hyper, number: str) -> None:
    kind, value = type(thing).__name__, getattr(thing, number)
    if not isinstance(thing.name, str) or not thing.name:
        raise RuleError(f"The name of a {kind} must be a text, not {thing.name!r}.")
    if not isinstance(value, Real):
        raise RuleError(
            f"{number} of {kind} {thing.name!r} must be a number, not {show_value(value)}."
        )


def _several(rule: str, field_name: str, given: Any, kind: type) -> tuple[Any, ...]:
    """What is given for a field of a rule as a tuple, if it holds nothing but `kind`."""
    wanted = f"{field_name} of rule {rule!r} must be a tuple of thalweg.{kind.__name__}"
    if isinstance(given, kind):
        raise RuleError(f"{wanted}, not one alone: a comma is missing in ({given!r},).")
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise RuleError(f"{wanted}, not {show_value(given)}.")
    made = tuple(given)
    for thing in made:
        if not isinstance(thing, kind):
            hint = f" Write {kind.__name__}({thing!r}, ...)." if isinstance(thing, str) else ""
            raise RuleError(f"{wanted}; {thing!r} is a {type(thing).__name__}.{hint}")
    return made


@dataclass(frozen=True)
class Slot:
    """A tensor of state per variable, filled with `initial`.

    Attributes:
        name: Its name.
        initial: What it is filled with.
        dtype: Its dtype; the variable's if None, and for a `scalar` the one of the arithmetic.
        scalar: Whether it is one number per variable, of shape (), and not one per element. It is
            read and written by `per_variable` of the rule; under `thalweg.optim`, whose steps have
            numbers of their own for each parameter, by `prepare`, too.
        shape: Its shape beside a matrix of so many rows and columns, if it is neither; it is read
            and written by stages of the rule.
        per: What it is one number for, if not for each element. "row" or "column": of a variable's
            last two dimensions; it has the variable's shape with a 1 in place of what it does not
            tell apart, is read and written by stages, and read by formulas as a scalar is.
            "optimizer": for all variables together, a `scalar`, of float64 unless `dtype` says
            otherwise. It is read by `prepare`, and read and written by `per_optimizer` of the rule.
            Each variable has a copy of it in its state: that of the first one counts, and a step
            writes all of them, with a gradient or without.
        positive: Whether it is never negative, as a mean of squares.
        exact: Whether 8 bits are too few for it in any case, as for weights, or sums that grow and
            grow: the steps would be lost.
        storage: The codec of 8 bits in which `thalweg.optim` keeps it, such as "softsign8", for
            parameters of 4,096 elements and more; see `thalweg._engines.codecs`. None keeps numbers
            of the dtype.
        momentum: 1 if it is a mean or sum of gradients, -1 if it is that of their negatives, else
            0: `diagnostics` of `thalweg.optim` tell how a gradient agrees with the first such slot.
    """

    name: str
    initial: float = 0.0
    dtype: torch.dtype | None = None
    scalar: bool = False
    shape: Callable[[int, int], tuple[int, ...]] | None = None
    per: Literal["row", "column", "optimizer"] | None = None
    positive: bool = False
    exact: bool = False
    storage: str | None = None
    momentum: Literal[-1, 0, 1] = 0

    def __post_init__(self) -> None:
        _check_named(self, "initial")
        if self.per not in (None, "row", "column", "optimizer"):
            raise RuleError(
                f"per of Slot {self.name!r} must be 'row', 'column' or 'optimizer', not"
                f" {show_value(self.per)}."
            )
        if self.per == "optimizer":
            object.__setattr__(self, "scalar", True)
            object.__setattr__(self, "dtype", self.dtype or torch.float64)
        elif self.per is not None and (self.scalar or self.shape is not None):
            raise RuleError(
                f"Slot {self.name!r} is one number for each {self.per}, and no scalar and of no"
                " shape= beside."
            )
        if self.shape is not None and (self.scalar or not callable(self.shape)):
            raise RuleError(
                f"shape of Slot {self.name!r} must be a function of rows and columns, of a slot"
                f" that is not a scalar, not {show_value(self.shape)}."
            )
        if self.momentum not in (-1, 0, 1) or (self.momentum and (self.scalar or self.is_shaped)):
            raise RuleError(
                f"momentum of Slot {self.name!r} must be -1, 0 or 1, and 0 unless it has the"
                f" variable's shape, not {show_value(self.momentum)}."
            )
        if self.storage is not None and (self.scalar or self.shape or self.dtype):
            raise RuleError(
                f"storage of Slot {self.name!r} is for a slot of the variable's shape, without a"
                f" dtype, not {show_value(self.storage)}."
            )
        if self.dtype not in (None, *STORED):
            expected = ", ".join(str(each).removeprefix("torch.") for each in STORED)
            raise RuleError(
                f"dtype of Slot {self.name!r} must be None or one of {expected}, not"
                f" {show_value(self.dtype)}."
            )

    @property
    def is_shaped(self) -> bool:
        """True if the slot's shape is neither that of its variable nor ()."""
        return self.shape is not None or self.per in ("row", "column")


@dataclass(frozen=True)
class Hyper:
    """A number the user chooses for a whole step, with its default and one line about it."""

    name: str
    default: float
    doc: str = ""

    def __post_init__(self) -> None:
        _check_named(self, "default")


@dataclass(frozen=True, kw_only=True, eq=False)
class Rule:
    """An update rule, written once and run by every engine.

    `update(var, grad, *slots, *, scalars...) -> (var, *slots)` is the formula for one element; its
    keyword-only parameters are scalars. It is straight arithmetic: `+ - * / **`, comparisons, `&`
    and `|` between comparisons, and the functions of this module; no branch on data (use `where`).
    The order of operations is the rule's contract: engines neither reorder nor contract it.

    Args:
        name: Name of the rule, as `thalweg rules` lists it.
        update: The formula for a dense gradient.
        hypers: Hyperparameters with defaults, in the order of a constructor.
        slots: State per variable, in the order in which `update` takes and returns it.
        prepare: Optional. Called once a step on the host with the hypers and powers it names, as
            scalars of the compute dtype; returns a dict of further scalars for `update`. A
            parameter with a default is filled where there is such a scalar.
        powers: Scalars that are a hyper raised to the step's number: `{"beta1_power": "beta1"}`.
        update_sparse: The formula for rows that a sparse gradient names; `update` when None.
        update_single: The same for rows of one element, where TensorFlow orders those differently;
            `update_sparse` when None.
        update_untouched: The formula for the other rows, `(var, *slots, *, scalars...)`, without a
            gradient. None leaves those rows alone.
        before: Optional. What becomes of the variable before the other formulas read it,
            `(var, *, scalars...)`, rounded to its dtype: once per element, and with a sparse
            gradient once per element of a row that it names. Measures are taken earlier.
        measures: Optional. Sums over a variable's elements, taken before any write, by name:
            functions of `(var, grad, *slots)` in float64, or `like_update`. `gradient_squares` and
            `variable_squares` of this module cost no sweep of their own beside a norm that is
            measured anyway; any other has sparse gradients made dense, as `whole` does.
        per_variable: Optional. Called once a step with the measures it names, as float64 arrays
            over the variables, with scalar slots, as arrays of the compute dtype, and with scalars;
            returns a dict of arrays: further scalars of each variable for `update`, and the scalar
            slots as they are after the step.
        levels: What is measured after that, each `Level` by a sweep of its own: its measures may
            ask for what `per_variable` and levels before it have made of theirs, and its
            `per_variable` makes further scalars and scalar slots.
        per_optimizer: Optional. Called once a step, before `per_variable`, with the measures it
            names, each summed over all variables of the step, with the slots per optimizer, all of
            float64, and with scalars, as arrays over the variables where these differ; returns a
            dict of numbers: further scalars for all variables, and those slots as they are after
            the step. It sees float64 whatever variables are computed in.
        whole: Whether a sparse gradient is made dense first, rows that repeat added up.
        duplicates: What happens to a row that a sparse gradient names twice: "sum" adds its values
            in order of appearance and updates once; "successive" updates once for each.
        passes: What comes before `update`: each `Pass` makes values of each element, which `update`
            is given after the gradient, each `Measure` a number of each row, column or variable,
            which formulas ask for by name, and a `Stage` changes them with torch's functions over
            whole matrices. `measures` are then taken after them, and see these values, too. Sparse
            gradients are for such a rule if it is `whole`.
        linear: Whether `update` is linear in variable, gradient and slots. Optimizers of Keras then
            update complex variables, as pairs of real numbers.
        source: The paper, or the API and kernel that the formula transcribes.
        differs: What a user of `torch.optim` should know.

    Raises:
        RuleError: A field is of the wrong type, names are not unique, or a power is of no
            hyperparameter. What the formulas say is checked by `check_rule`.
    """

    name: str
    update: Formula
    hypers: tuple[Hyper, ...] = (Hyper("learning_rate", 0.001),)
    slots: tuple[Slot, ...] = ()
    prepare: Formula | None = None
    powers: Mapping[str, str] = field(default_factory=dict)
    update_sparse: Formula | None = None
    update_single: Formula | None = None
    update_untouched: Formula | None = None
    before: Formula | None = None
    measures: Mapping[str, Formula] = field(default_factory=dict)
    per_variable: Formula | None = None
    levels: tuple[Level, ...] = ()
    per_optimizer: Formula | None = None
    passes: tuple[Pass | Measure | Stage, ...] = ()
    whole: bool = False
    duplicates: Literal["sum", "successive"] = "sum"
    linear: bool = False
    source: str = ""
    differs: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise RuleError(f"The name of a rule must be a text, not {self.name!r}.")
        object.__setattr__(self, "hypers", _several(self.name, "hypers", self.hypers, Hyper))
        object.__setattr__(self, "slots", _several(self.name, "slots", self.slots, Slot))
        for part in (*FORMULAS, "prepare", "per_variable", "per_optimizer"):
            given = getattr(self, part)
            if not callable(given) and (given is not None or part == "update"):
                raise RuleError(
                    f"{part} of rule {self.name!r} must be a function, not {show_value(given)}."
                )
        if not isinstance(self.powers, Mapping):
            raise RuleError(
                f"powers of rule {self.name!r} must be a dict of names, not"
                f" {show_value(self.powers)}."
            )
        for kind, things in (("hyperparameter", self.hypers), ("slot", self.slots)):
            names = [thing.name for thing in things]
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise RuleError(f"Rule {self.name!r} has two {kind}s named {twice[0]!r}.")
        known = {hyper.name for hyper in self.hypers}
        for power, hyper in self.powers.items():
            if hyper not in known:
                raise RuleError(
                    f"Rule {self.name!r} has the power {power!r} of {hyper!r}, which is none of"
                    f" its hyperparameters: {', '.join(sorted(known))}."
                )
        if not isinstance(self.measures, Mapping) or not all(map(callable, self.measures.values())):
            raise RuleError(
                f"measures of rule {self.name!r} must be a dict of functions, not"
                f" {show_value(self.measures)}."
            )
        unread = self.measures or (self.scalar_slots and self.prepare is None)
        if self.per_variable is None and self.per_optimizer is None and unread:
            raise RuleError(
                f"Rule {self.name!r} has measures or scalar slots, but no per_variable that reads"
                " them."
            )
        if self.common_slots and self.per_optimizer is None:
            raise RuleError(
                f"Rule {self.name!r} has slots per optimizer, but no per_optimizer that makes them."
            )
        if self.levels != ():
            with importing:
                from thalweg._base.rule_passes import check_levels
            check_levels(self)
        if self.passes or self.shaped_slots:
            with importing:
                from thalweg._base.rule_passes import check_passes
            check_passes(self)
        if self.duplicates not in ("sum", "successive"):
            raise RuleError(
                f"duplicates of rule {self.name!r} must be 'sum' or 'successive', not"
                f" {show_value(self.duplicates)}."
            )

    @property
    def is_measured(self) -> bool:
        """Return whether a step takes measures of whole variables."""
        return bool(self.measures or self.all_levels or self.per_optimizer is not None)

    @lazy
    def all_levels(self) -> tuple[Level, ...]:
        """Levels of measures, `per_variable` first, with one sweep each."""
        if self.per_variable is None:
            return self.levels
        with importing:
            from thalweg._base.rule_passes import Level
        return (Level(self.measures, self.per_variable), *self.levels)

    @lazy
    def made(self) -> tuple[str, ...]:
        """The names of what the passes make."""
        return tuple(name for each in self.passes for name in getattr(each, "of_elements", ()))

    @lazy
    def vectors(self) -> Mapping[str, str]:
        """Names of the vectors that formulas get for each row and column: "row" or "column" by
        name.
        """
        made = {each.makes: each.over for each in self._measures}
        of_lines = {name: over for name, over in made.items() if over != "variable"}
        return {**{slot.name: str(slot.per) for slot in self._line_slots}, **of_lines}

    @lazy
    def _line_slots(self) -> tuple[Slot, ...]:
        """The slots of rows and columns."""
        return tuple(slot for slot in self.slots if slot.per in ("row", "column"))

    @lazy
    def seen(self) -> tuple[str, ...]:
        """The names of what formulas are given as scalars are, of rows, columns and variables."""
        return (*self.vectors, *(each.makes for each in self._measures))

    @lazy
    def _measures(self) -> tuple[Measure, ...]:
        """Its passes that measure."""
        passes: tuple[Any, ...] = self.passes
        return tuple(each for each in passes if hasattr(each, "over"))

    @lazy
    def is_of_lines(self) -> bool:
        """True if the rule uses rows and columns of variables' last two dimensions."""
        return bool(self._measures or self._line_slots)

    @lazy
    def heads(self) -> tuple[int, ...]:
        """Into how many blocks of rows its stages cut variables."""
        return tuple(dict.fromkeys(getattr(each, "block_count", 1) for each in self.passes))

    @lazy
    def needs_layout(self) -> bool:
        """True if stages see whole matrices and do not define the blocks of stacks of matrices.

        Stages of a rule that measures rows and columns see the last two dimensions instead, unless
        they are `of_matrices`.
        """
        stages: list[Any] = [each for each in self.passes if hasattr(each, "block_count")]
        return any(
            stage.heads is None and (stage.of_matrices or not self.is_of_lines) for stage in stages
        )

    @lazy
    def reduces_variables(self) -> bool:
        """True if an update depends on a reduction over the elements of its variable.

        Sums that `per_optimizer` alone reads are over all variables.
        """
        if self._line_slots or any(not hasattr(each, "of_elements") for each in self.passes):
            return True
        if any(level.measures for level in self.levels):
            return True
        asked = () if self.per_variable is None else inspect.signature(self.per_variable).parameters
        return not self.measures.keys().isdisjoint(asked)

    @lazy
    def is_whole(self) -> bool:
        """True if sparse gradients are made dense: the rule has a sum over all elements."""
        own = set(self.measures.values()) - {gradient_squares, variable_squares}
        return self.whole or bool(own)

    @lazy
    def calls_users(self) -> bool:
        """True if a step calls functions of the rule that are not the library's."""
        given = (self.prepare, self.per_variable, self.per_optimizer)
        given += tuple(each.per_variable for each in self.levels)
        given += tuple(each.function for each in self.passes)
        return not all(map(is_ours, given))

    @lazy
    def element_slots(self) -> tuple[Slot, ...]:
        """The slots of the variable's shape, which formulas take and return."""
        return tuple(slot for slot in self.slots if not (slot.scalar or slot.is_shaped))

    @lazy
    def codecs(self) -> tuple[str | None, ...]:
        """Codecs of the slots of the variable's shape; () if none has one."""
        named = tuple(slot.storage for slot in self.element_slots)
        return named if any(named) else ()

    @lazy
    def scalar_slots(self) -> tuple[Slot, ...]:
        """The slots of shape ()."""
        return tuple(slot for slot in self.slots if slot.scalar)

    @lazy
    def numbers(self) -> tuple[Slot, ...]:
        """Slots that `prepare` reads and returns, where variables have numbers of their own."""
        own = [slot for slot in self.scalar_slots if slot.per is None]
        if not own or not self.all_levels:
            return tuple(own)
        if self.prepare is None:
            return ()
        made, *several = (
            inspect.signature(function).parameters
            for function in (self.prepare, *(each.per_variable for each in self.all_levels))
            if function is not None
        )
        return tuple(s for s in own if s.name in made and not any(s.name in x for x in several))

    @lazy
    def measured_slots(self) -> tuple[Slot, ...]:
        """Slots that `per_variable` reads and returns."""
        own = (slot for slot in self.scalar_slots if slot.per is None)
        return tuple(slot for slot in own if slot not in self.numbers)

    @lazy
    def common_slots(self) -> tuple[Slot, ...]:
        """Slots that all variables share, which `per_optimizer` returns."""
        return tuple(slot for slot in self.scalar_slots if slot.per is not None)

    @lazy
    def shaped_slots(self) -> tuple[Slot, ...]:
        """The slots with a shape of their own."""
        return tuple(slot for slot in self.slots if slot.is_shaped)

    def __deepcopy__(self, memo: dict[int, Any]) -> Rule:
        return self  # as a function is its own copy; plans know a rule by its identity


def like_update(formula: Formula) -> Formula:
    """Have a measure computed in the type of the update, whose numbers it then has.

    Else it is computed in float64, where roots and divisions take several times as long. Sums are
    float64 anyway: `wide(step) * wide(step)` adds up squares that float32 might not hold.
    """
    formula.is_like_update = True  # pyright: ignore[reportFunctionMemberAccess]
    return formula


def is_like_update(formula: Formula) -> bool:
    """Return True if a measure is computed in the type of the update."""
    return getattr(formula, "is_like_update", False)


def gradient_squares(var: Any, grad: Any) -> Any:
    """A measure: its root is the norm of the gradient."""
    return grad * grad


def large_gradient_squares(var: Any, grad: Any) -> Any:
    """A measure: as `gradient_squares` of elements so large that no square leaves float64."""
    grad = grad * _DOWN
    return grad * grad


def small_gradient_squares(var: Any, grad: Any) -> Any:
    """A measure: as `gradient_squares` of elements so small that no square leaves float64."""
    grad = grad * _UP
    return grad * grad


def variable_squares(var: Any, grad: Any) -> Any:
    """A measure: its root is the norm of the variable."""
    return var * var


def _namespace(*values: Any) -> Any:
    return torch if any(isinstance(value, torch.Tensor) for value in values) else np


def sqrt(x: Any) -> Any:
    """Return the square root of x, correctly rounded for NumPy values and float32 tensors.

    For float64 tensors on the CPU, torch's own root may differ in the last place.
    """
    if isinstance(x, torch.Tensor) and x.dtype is torch.float32:
        return x.double().sqrt().float()  # torch's own is not, on the CPU
    return _namespace(x).sqrt(x)


def absolute(x: Any) -> Any:
    """Absolute value."""
    return _namespace(x).abs(x)


def sign(x: Any) -> Any:
    """-1, 0 or 1; NaN stays NaN."""
    return where(x > 0, 1.0, where(x < 0, -1.0, x))


def where(condition: Any, a: Any, b: Any) -> Any:
    """`a` where the condition holds, else `b`."""
    if isinstance(condition, bool | np.bool):
        return a if condition else b
    return _namespace(condition, a, b).where(condition, a, b)


def maximum(a: Any, b: Any) -> Any:
    """Return the larger of two; NaN if either is."""
    return where((a > b) | (a != a), a, b)


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller of two; NaN if either is."""
    return where((a < b) | (a != a), a, b)


def exp(x: Any) -> Any:
    """Exponential; engines evaluate float32 in float64 and round once."""
    return scalars.exp(x) if type(x) in _SCALARS else _namespace(x).exp(x)


def log(x: Any) -> Any:
    """Natural logarithm; engines evaluate float32 in float64 and round once."""
    return scalars.log(x) if type(x) in _SCALARS else _namespace(x).log(x)


def power(x: Any, y: Any) -> Any:
    """`x` to the power of `y`; engines evaluate float32 in float64 and round once."""
    return scalars.power(x, y) if type(x) in _SCALARS else x**y


def wide(x: Any) -> Any:
    """`x` in float64, for the few kernels that compute float32 in double precision."""
    if hasattr(x, "widen"):  # a symbol of `_core/scalar_tracing.py`
        return x.widen()
    return x.double() if isinstance(x, torch.Tensor) else np.asarray(x, np.float64)[()]


def narrow(x: Any, like: Any) -> Any:
    """`x` rounded to the dtype of `like`, which must not be `wide`."""
    if isinstance(like, torch.Tensor):
        return x.to(like.dtype)
    if hasattr(like, "narrow"):  # a symbol of `_core/scalar_tracing.py`
        return like.narrow(x)
    return np.asarray(x, np.asarray(like).dtype)[()]


def number_like(number: float, like: Any) -> Any:
    """Return a number in the type of a scalar, of the host or of a device; for `prepare`."""
    return like.new_full((), number) if isinstance(like, torch.Tensor) else type(like)(number)


def moved(base: Any, step: Any) -> Any:
    """`base + step`: what is left of a variable, and how it moves.

    A formula says so once, of its first result, and `thalweg.rules.wrappers` finds the step.
    """
    return base + step


def __getattr__(name: str) -> Any:
    return offered(__name__, _OFFERED, name, "thalweg._base")
