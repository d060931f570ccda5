"""Rules with slots, hyperparameters and formulas, and the functions that formulas may use.

The functions work on floats, NumPy arrays and tensors, so that a formula can be called and debugged
as plain Python. On NumPy scalars, the arguments of `prepare`, they give TensorFlow's numbers.
Engines bind the same names to their own versions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from thalweg._base import scalars
from thalweg._base.composed_formula import ChainedFormula as ChainedFormula
from thalweg._base.device_numbers import is_interpreted, widened
from thalweg._base.execution_context import is_ours
from thalweg._base.lazy import lazy, offered
from thalweg._base.locks import importing
from thalweg._base.showing import show_value
from thalweg.errors import RuleError

if TYPE_CHECKING:
    from thalweg._base.fused_stage import FusedStage as FusedStage
    from thalweg._base.fused_stage import mean_over_columns as mean_over_columns
    from thalweg._base.fused_stage import mean_over_rows as mean_over_rows
    from thalweg._base.matrix_layout import MatrixLayout
    from thalweg._base.rule_passes import Level, Measure, Pass, Stage
    from thalweg._base.wrapped_formula import StepMeasure as StepMeasure
    from thalweg._base.wrapped_formula import WrappedStepFormula as WrappedStepFormula

Formula = Callable[..., Any]

# Allowed dtypes of slots.
STORED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
FORMULAS = ("before", "update", "update_sparse", "update_single", "update_untouched")
_SCALARS = (np.float32, np.float64)
# Powers of two by which measures scale the largest and smallest numbers.
SHIFT = 600
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
_SCALE_UP, _SCALE_DOWN = 2.0**SHIFT, 2.0**-SHIFT


def _check_named(spec: Slot | Hyper, field_name: str) -> None:
    kind, value = type(spec).__name__, getattr(spec, field_name)
    if not isinstance(spec.name, str) or not spec.name:
        raise RuleError(f"The name of a {kind} must be a text, not {spec.name!r}.")
    if not isinstance(value, Real):
        raise RuleError(
            f"{field_name} of {kind} {spec.name!r} must be a number, not {show_value(value)}."
        )


def _checked_tuple(rule: str, field_name: str, entries: Any, kind: type) -> tuple[Any, ...]:
    """Return the iterable `entries` as a tuple; raise RuleError unless each entry is a `kind`."""
    requirement = f"{field_name} of rule {rule!r} must be a tuple of thalweg.{kind.__name__}"
    if isinstance(entries, kind):
        raise RuleError(f"{requirement}, not one alone: a comma is missing in ({entries!r},).")
    if not isinstance(entries, Iterable) or isinstance(entries, str | bytes | Mapping):
        raise RuleError(f"{requirement}, not {show_value(entries)}.")
    entry_tuple = tuple(entries)
    for entry in entry_tuple:
        if not isinstance(entry, kind):
            suggestion = (
                f" Write {kind.__name__}({entry!r}, ...)." if isinstance(entry, str) else ""
            )
            raise RuleError(f"{requirement}; {entry!r} is a {type(entry).__name__}.{suggestion}")
    return entry_tuple


@dataclass(frozen=True)
class Slot:
    """State tensor per variable, filled with `initial`.

    Attributes:
        name: The slot's name.
        initial: The initial value of all elements.
        dtype: The slot's dtype. None is the variable's dtype or, with `scalar`, the compute dtype.
        scalar: True for one number per variable, of shape (). The rule's `per_variable` reads and
            returns this number; under `thalweg.optim`, which has step numbers per parameter,
            `prepare` may do so, too.
        shape: Optional function (rows, columns) -> shape, called for each matrix of the variable.
            Only stages read and write a slot with a `shape`.
        per: None for a number per element. "row" or "column": a number per row or column of the
            variable's last two dimensions. The slot then has the variable's shape, with size 1 in
            the reduced dimension. Stages read and write the slot; formulas read a scalar from it.
            "optimizer": one float64 scalar for all variables. `prepare` reads it; `per_optimizer`
            reads and returns it. Every variable's state has a copy: a step reads the first
            variable's copy and writes all copies, also of variables without a gradient.
        squeezed: True if a slot per row or column lacks the dimension of size 1.
        positive: True if the slot is never negative, such as a mean of squares.
        exact: True if 8 bits are never enough, as for weights or growing sums, which would lose
            small increments.
        storage: The 8-bit codec in which `thalweg.optim` stores the slot, such as "softsign8", for
            parameters of 4,096 elements and more; see `thalweg._engines.codecs`. None stores
            numbers of the dtype.
        layout: The matrices of a variable, for a slot with a `shape`. The rule sets it to the
            layout of its stages. None is one matrix.
        momentum: 1 for a mean or sum of gradients, -1 for a mean or sum of negative gradients, else
            0. `diagnostics` of `thalweg.optim` compare the gradient with the first slot that is not
            0.
    """

    name: str
    initial: float = 0.0
    dtype: torch.dtype | None = None
    scalar: bool = False
    shape: Callable[[int, int], tuple[int, ...]] | None = None
    per: Literal["row", "column", "optimizer"] | None = None
    squeezed: bool = False
    positive: bool = False
    exact: bool = False
    storage: str | None = None
    momentum: Literal[-1, 0, 1] = 0
    layout: MatrixLayout | None = None

    def __post_init__(self) -> None:
        _check_named(self, "initial")
        self._check_shape()
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
            expected = ", ".join(str(dtype).removeprefix("torch.") for dtype in STORED)
            raise RuleError(
                f"dtype of Slot {self.name!r} must be None or one of {expected}, not"
                f" {show_value(self.dtype)}."
            )

    def _check_shape(self) -> None:
        """Raise RuleError if `per` or `shape` is invalid; set the fields that `per` determines."""
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
        if self.squeezed and self.per not in ("row", "column"):
            raise RuleError(
                f"squeezed of Slot {self.name!r} must be False: it has no dimension of size 1, as"
                " slots with per='row' or per='column' have."
            )
        if self.shape is not None and (self.scalar or not callable(self.shape)):
            raise RuleError(
                f"shape of Slot {self.name!r} must be a function of rows and columns, of a slot"
                f" that is not a scalar, not {show_value(self.shape)}."
            )

    @property
    def is_shaped(self) -> bool:
        """Return True if the slot's shape is neither that of its variable nor ()."""
        return self.shape is not None or self.per in ("row", "column")


@dataclass(frozen=True)
class Hyper:
    """Hyperparameter of a rule, with its default and a one-line description."""

    name: str
    default: float
    doc: str = ""

    def __post_init__(self) -> None:
        _check_named(self, "default")


@dataclass(frozen=True, kw_only=True, eq=False)
class Rule:
    """Update rule, written once and run by every engine.

    `update(var, grad, *slots, *, scalars...) -> (var, *slots)` is the formula for one element; its
    keyword-only parameters are scalars. It is straight arithmetic: `+ - * / **`, comparisons, `&`
    and `|` between comparisons, and the functions of this module; no branch on data (use `where`).
    The order of operations is the rule's contract: engines neither reorder nor contract it.

    Args:
        name: Name of the rule, as `thalweg rules` lists it.
        update: The formula for a dense gradient.
        hypers: Hyperparameters with defaults, in the order of a constructor.
        slots: State per variable, in the order in which `update` takes and returns it.
        prepare: Optional function, called once a step on the host. Its keyword parameters are
            hyperparameters and powers, as scalars of the compute dtype. It returns a dict of
            further scalars for `update`. A parameter with a default may name a scalar that the
            optimizer lacks.
        powers: Scalars that are a hyper raised to the step's number: `{"beta1_power": "beta1"}`.
        update_sparse: The formula for rows with an index in a sparse gradient; `update` when None.
        update_single: The formula for rows of one element, where TensorFlow orders operations
            differently; `update_sparse` when None.
        update_untouched: The formula for rows without an index in the sparse gradient: `(var,
            *slots, *, scalars...)`. When None, these rows keep their values.
        before: Optional formula `(var, *, scalars...)`. The other formulas read its result instead
            of the variable, rounded to the variable's dtype. It is computed once per element; with
            a sparse gradient, for rows with an index. Measures read the variable itself.
        measures: Optional. Sums over the elements of each variable, computed before any write:
            {name: formula `(var, grad, *slots)`}, in float64 or as `like_update` says.
            `gradient_squares` and `variable_squares` share the pass over memory of a gradient norm.
            Any other measure makes sparse gradients dense.
        per_variable: Optional function, called once a step. Its keyword parameters are measures, as
            float64 arrays over the variables; scalar slots, as arrays of the compute dtype; and
            scalars. It returns a dict of arrays: further scalars of each variable for `update`, and
            the next values of the scalar slots.
        levels: Further passes over memory after `per_variable`, one for each `Level` of measures.
            Formulas of a level may read the scalars from `per_variable` and from earlier levels.
            The level's `per_variable` returns further scalars and scalar slots.
        per_optimizer: Optional function, called once a step before `per_variable`. Its keyword
            parameters are measures, summed over all variables of the step, and the slots per
            optimizer, all in float64; and scalars, as arrays over the variables if these differ. It
            returns a dict of numbers: further scalars for all variables, and the next values of the
            slots per optimizer.
        passes: Steps before `update`, in order. A `Pass` computes values of each element, which
            `update` takes after the gradient. A `Measure` computes a number of each row, column or
            variable, which formulas read by name. A `Stage` changes these values with torch's
            functions on whole matrices. `measures` are computed after the passes, and may read
            their values. A rule with passes takes sparse gradients only if it is `whole`.
        whole: True makes a sparse gradient dense first; repeated rows are added.
        duplicates: The update of a row that a sparse gradient has twice: "sum" adds the values in
            order of appearance and updates once; "successive" updates once for each.
        linear: True if `update` is linear in variable, gradient and slots. Optimizers of Keras then
            update complex variables, as pairs of real numbers.
        source: The paper, or the API and kernel that the formula transcribes.
        differs: What a user of `torch.optim` should know.

    Raises:
        RuleError: A field is of the wrong type, names are not unique, or a power is of no
            hyperparameter. The bodies of the formulas are checked by `check_rule`, not here.
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
        object.__setattr__(self, "hypers", _checked_tuple(self.name, "hypers", self.hypers, Hyper))
        object.__setattr__(self, "slots", _checked_tuple(self.name, "slots", self.slots, Slot))
        for field_name in (*FORMULAS, "prepare", "per_variable", "per_optimizer"):
            function = getattr(self, field_name)
            if not callable(function) and (function is not None or field_name == "update"):
                raise RuleError(
                    f"{field_name} of rule {self.name!r} must be a function, not"
                    f" {show_value(function)}."
                )
        self._check_names()
        self._check_measures()
        if self.levels != ():
            with importing:
                from thalweg._base.rule_passes import check_levels
            check_levels(self)
        if self.passes or any(slot.is_shaped for slot in self.slots):
            with importing:
                from thalweg._base.rule_passes import check_passes, slots_with_layout
            if isinstance(self.passes, tuple):
                object.__setattr__(self, "slots", slots_with_layout(self))
            check_passes(self)
        if self.duplicates not in ("sum", "successive"):
            raise RuleError(
                f"duplicates of rule {self.name!r} must be 'sum' or 'successive', not"
                f" {show_value(self.duplicates)}."
            )

    def _check_names(self) -> None:
        """Raise RuleError if names are not unique or `powers` is invalid."""
        if not isinstance(self.powers, Mapping):
            raise RuleError(
                f"powers of rule {self.name!r} must be a dict of names, not"
                f" {show_value(self.powers)}."
            )
        for kind, specs in (("hyperparameter", self.hypers), ("slot", self.slots)):
            names = [spec.name for spec in specs]
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise RuleError(f"Rule {self.name!r} has two {kind}s named {twice[0]!r}.")
        hyper_names = {hyper.name for hyper in self.hypers}
        for power, hyper in self.powers.items():
            if hyper not in hyper_names:
                raise RuleError(
                    f"Rule {self.name!r} has the power {power!r} of {hyper!r}, which is none of"
                    f" its hyperparameters: {', '.join(sorted(hyper_names))}."
                )

    def _check_measures(self) -> None:
        """Raise RuleError for invalid `measures`, or if no function reads measures or slots.

        A `per_variable` without measures and scalar slots raises, too.
        """
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
        if self.per_variable is not None and not (self.measures or self.scalar_slots):
            raise RuleError(
                f"Rule {self.name!r} has a per_variable, which is not called without measures or"
                " scalar slots: compute its scalars in prepare."
            )
        if self.common_slots and self.per_optimizer is None:
            raise RuleError(
                f"Rule {self.name!r} has slots per optimizer, but no per_optimizer that makes them."
            )

    @property
    def is_measured(self) -> bool:
        """Return True if a step computes reductions over variables."""
        return bool(self.measures or self.all_levels or self.per_optimizer is not None)

    @lazy
    def all_levels(self) -> tuple[Level, ...]:
        """Return the levels of reductions, `per_variable` first, with one sweep each."""
        if self.per_variable is None:
            return self.levels
        with importing:
            from thalweg._base.rule_passes import Level
        return (Level(self.measures, self.per_variable), *self.levels)

    @lazy
    def made(self) -> tuple[str, ...]:
        """Return the names of per-element results of the passes."""
        return tuple(
            name for rule_pass in self.passes for name in getattr(rule_pass, "of_elements", ())
        )

    @lazy
    def vectors(self) -> Mapping[str, str]:
        """Return "row" or "column" by the name of each vector that formulas use."""
        axis_by_name = {measure.makes: measure.over for measure in self._measures}
        of_lines = {name: axis for name, axis in axis_by_name.items() if axis != "variable"}
        return {**{slot.name: str(slot.per) for slot in self.line_slots}, **of_lines}

    @lazy
    def line_slots(self) -> tuple[Slot, ...]:
        """Return the slots with one number per row or column."""
        return tuple(slot for slot in self.slots if slot.per in ("row", "column"))

    @lazy
    def seen(self) -> tuple[str, ...]:
        """Return the names of `vectors`, then the names of all measures in `passes`."""
        return (*self.vectors, *(measure.makes for measure in self._measures))

    @lazy
    def _measures(self) -> tuple[Measure, ...]:
        """Return the passes that are reductions."""
        passes: tuple[Any, ...] = self.passes
        return tuple(rule_pass for rule_pass in passes if hasattr(rule_pass, "over"))

    @lazy
    def is_of_lines(self) -> bool:
        """Return True if the rule uses rows or columns of variables' last two dimensions."""
        return bool(self._measures or self.line_slots)

    @lazy
    def matrix_stages(self) -> list[Any]:
        """Return the stages that see full matrices.

        Stages of a rule that measures rows and columns see the last two dimensions instead, unless
        they are `of_matrices`.
        """
        stages: list[Any] = [entry for entry in self.passes if hasattr(entry, "of_matrices")]
        return [stage for stage in stages if stage.of_matrices or not self.is_of_lines]

    @lazy
    def leading_passes(self) -> tuple[Any, ...]:
        """Return the passes up to the first measure or stage over rows and columns.

        Each is a `Pass` or one of `matrix_stages`.
        """
        passes: tuple[Any, ...] = self.passes
        stages = self.matrix_stages
        return tuple(takewhile(lambda x: hasattr(x, "of_elements") or x in stages, passes))

    @lazy
    def layout(self) -> MatrixLayout:
        """Return the matrices that stages see in a variable."""
        with importing:
            from thalweg._base.matrix_layout import ONE_MATRIX
        layouts = (stage.layout for stage in self.matrix_stages)
        return next(filter(None, layouts), ONE_MATRIX)

    @lazy
    def needs_layout(self) -> bool:
        """Return True if a stage sees full matrices and has no layout for stacks of matrices."""
        return any(stage.layout is None for stage in self.matrix_stages)

    @lazy
    def reduces_variables(self) -> bool:
        """Return True if an update depends on a reduction over its variable's elements.

        Reductions that only `per_optimizer` reads do not count: they cover all variables.
        """
        if self.line_slots or any(
            not hasattr(rule_pass, "of_elements") for rule_pass in self.passes
        ):
            return True
        if any(level.measures for level in self.levels):
            return True
        parameters = (
            () if self.per_variable is None else inspect.signature(self.per_variable).parameters
        )
        return not self.measures.keys().isdisjoint(parameters)

    @lazy
    def is_whole(self) -> bool:
        """Return True if sparse gradients are made dense, as for reductions over all elements."""
        extra_reductions = set(self.measures.values()) - {gradient_squares, variable_squares}
        return self.whole or bool(extra_reductions)

    @lazy
    def calls_users(self) -> bool:
        """Return True if a step calls user-defined functions of the rule."""
        functions = (self.prepare, self.per_variable, self.per_optimizer)
        functions += tuple(level.per_variable for level in self.levels)
        functions += tuple(rule_pass.function for rule_pass in self.passes)
        return not all(map(is_ours, functions))

    @lazy
    def element_slots(self) -> tuple[Slot, ...]:
        """Return the slots of the variable's shape, which formulas read and return."""
        return tuple(slot for slot in self.slots if not (slot.scalar or slot.is_shaped))

    @lazy
    def codecs(self) -> tuple[str | None, ...]:
        """Return the codecs of the slots of the variable's shape; () if none has one."""
        codecs = tuple(slot.storage for slot in self.element_slots)
        return codecs if any(codecs) else ()

    @lazy
    def scalar_slots(self) -> tuple[Slot, ...]:
        """Return the slots of shape ()."""
        return tuple(slot for slot in self.slots if slot.scalar)

    @lazy
    def numbers(self) -> tuple[Slot, ...]:
        """Return the scalar slots that `prepare` reads and returns; no slots per optimizer.

        Slots that are also parameters of a `per_variable` function are left out. Without any
        `per_variable`, return all scalar slots of variables.
        """
        slots = [slot for slot in self.scalar_slots if slot.per is None]
        if not slots or not self.all_levels:
            return tuple(slots)
        if self.prepare is None:
            return ()
        prepare_names, *level_names = (
            inspect.signature(function).parameters
            for function in (self.prepare, *(level.per_variable for level in self.all_levels))
            if function is not None
        )
        return tuple(
            s
            for s in slots
            if s.name in prepare_names and not any(s.name in x for x in level_names)
        )

    @lazy
    def measured_slots(self) -> tuple[Slot, ...]:
        """Return the scalar slots that `per_variable` reads and returns."""
        slots = (slot for slot in self.scalar_slots if slot.per is None)
        return tuple(slot for slot in slots if slot not in self.numbers)

    @lazy
    def common_slots(self) -> tuple[Slot, ...]:
        """Return the slots that all variables share, which `per_optimizer` returns."""
        return tuple(slot for slot in self.scalar_slots if slot.per is not None)

    @lazy
    def shaped_slots(self) -> tuple[Slot, ...]:
        """Return the slots whose shape is neither that of the variable nor ()."""
        return tuple(slot for slot in self.slots if slot.is_shaped)

    def __deepcopy__(self, memo: dict[int, Any]) -> Rule:
        # Plans identify a rule by its `id`, so a copy is the rule itself, as with functions.
        return self


def like_update(formula: Formula) -> Formula:
    """Mark a measure to be computed in the dtype of the update, and return the measure.

    Other measures are computed in float64, in which roots and divisions take several times as long.
    Sums are always float64: `wide(step) * wide(step)` sums squares that may overflow in float32.
    """
    formula.is_like_update = True  # pyright: ignore[reportFunctionMemberAccess]
    return formula


def is_like_update(formula: Formula) -> bool:
    """Return True if a measure is computed in the dtype of the update."""
    # A `functools.partial` is like its function.
    return getattr(getattr(formula, "func", formula), "is_like_update", False)


def gradient_squares(var: Any, grad: Any) -> Any:
    """Return squares whose sum is the squared norm of the gradient."""
    return grad * grad


def large_gradient_squares(var: Any, grad: Any) -> Any:
    """Return `gradient_squares` scaled down, so that large elements do not overflow."""
    grad = grad * _SCALE_DOWN
    return grad * grad


def small_gradient_squares(var: Any, grad: Any) -> Any:
    """Return `gradient_squares` scaled up, so that small elements do not underflow."""
    grad = grad * _SCALE_UP
    return grad * grad


def variable_squares(var: Any, grad: Any) -> Any:
    """Return squares whose sum is the squared norm of the variable."""
    return var * var


def _namespace(*values: Any) -> Any:
    return torch if any(isinstance(value, torch.Tensor) for value in values) else np


def sqrt(x: Any) -> Any:
    """Return the square root of x, correctly rounded for float32 and float64."""
    if isinstance(x, torch.Tensor) and x.dtype is torch.float32:
        return widened(x).sqrt().to(x.dtype)
    if isinstance(x, torch.Tensor) and x.dtype is torch.float64 and _has_host_memory(x):
        # MKL's roots, which torch takes on the CPU, are not correctly rounded.
        with np.errstate(invalid="ignore"):
            return torch.from_numpy(np.asarray(np.sqrt(x.detach().numpy())))  # pyright: ignore
    return _namespace(x).sqrt(x)


def _has_host_memory(tensor: torch.Tensor) -> bool:
    """Return True if a tensor has elements on the CPU; False for a DTensor or FakeTensor.

    Triton's interpreter runs GPU kernels on CPU tensors, which then count as those of a device.
    """
    tensor_class: Any = type(tensor)
    base_class: Any = torch.Tensor
    has_elements = tensor_class.__torch_dispatch__ is base_class.__torch_dispatch__
    return has_elements and tensor.is_cpu and not is_interpreted()


def absolute(x: Any) -> Any:
    """Return the absolute value."""
    return _namespace(x).abs(x)


def sign(x: Any) -> Any:
    """Return -1, 0 or 1; NaN for NaN."""
    return where(x > 0, 1.0, where(x < 0, -1.0, x))


def where(condition: Any, a: Any, b: Any) -> Any:
    """Return `a` where the condition is true, else `b`."""
    if isinstance(condition, bool | np.bool):
        return a if condition else b
    return _namespace(condition, a, b).where(condition, a, b)


def maximum(a: Any, b: Any) -> Any:
    """Return the larger of two numbers; NaN if either is NaN."""
    return where((a > b) | (a != a), a, b)


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller of two numbers; NaN if either is NaN."""
    return where((a < b) | (a != a), a, b)


def exp(x: Any) -> Any:
    """Return the exponential; engines evaluate float32 in float64 and round once."""
    return scalars.exp(x) if type(x) in _SCALARS else _namespace(x).exp(x)


def log(x: Any) -> Any:
    """Return the natural logarithm; engines evaluate float32 in float64 and round once."""
    return scalars.log(x) if type(x) in _SCALARS else _namespace(x).log(x)


def power(x: Any, y: Any) -> Any:
    """Return `x` to the power of `y`; engines evaluate float32 in float64 and round once."""
    return scalars.power(x, y) if type(x) in _SCALARS else x**y


def wide(x: Any) -> Any:
    """Return `x` in float64, for the few kernels that compute float32 in double precision."""
    if hasattr(x, "widen"):  # a symbol of `_core/scalar_tracing.py`
        return x.widen()
    if isinstance(x, torch.Tensor):
        return widened(x)
    return np.asarray(x, np.float64)[()]


def narrow(x: Any, like: Any) -> Any:
    """Return `x` rounded to the dtype of `like`, which must not be from `wide`."""
    if isinstance(like, torch.Tensor):
        return x.to(like.dtype)
    if hasattr(like, "narrow"):  # a symbol of `_core/scalar_tracing.py`
        return like.narrow(x)
    return np.asarray(x, np.asarray(like).dtype)[()]


def number_like(scalar: float, like: Any) -> Any:
    """Return a number in the type of a scalar, of the host or of a device; for `prepare`."""
    return like.new_full((), scalar) if isinstance(like, torch.Tensor) else type(like)(scalar)


def moved(base: Any, step: Any) -> Any:
    """Return `base + step`, and mark `step` as the movement of a variable.

    A formula calls this once, for its first result, so that `thalweg.rules.wrappers` finds it.
    """
    return base + step


def __getattr__(name: str) -> Any:
    return offered(__name__, _OFFERED, name, "thalweg._base")
