"""One step of a rule: gradients are clipped, scalars prepared, and all variables updated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from torch import Tensor

from thalweg import scalars
from thalweg.core.hyperparameters import as_number
from thalweg.core.outcome import not_taken
from thalweg.core.pairs import Gradient, Pair
from thalweg.core.pipeline import SCALARS, Dtype, Pipeline, Separate
from thalweg.engines import (
    Runner,
    Selection,
    check_gradients,
    check_scalars,
    compute_dtype,
    prepared,
)
from thalweg.errors import InvalidArgumentError, InvalidTypeError, RuleError
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices
from thalweg.running import current_session
from thalweg.variable import variable_constraint

Copies = Sequence[Tensor | None] | None
Shared = dict[Dtype, dict[str, Any]]  # a step's scalars, for each compute dtype
ScalarsOf = Callable[[Dtype], dict[str, Any]]

_SPARE = 16  # variables of earlier steps whose plans may be kept
_GIVEN = SCALARS | {"t"}  # scalars that a step adds to the rule's


def check_pairs(
    pairs: Sequence[Pair], titles: Sequence[str], *, scatter: bool, narrow: bool = False
) -> None:
    """Refuse a step that cannot be taken as a whole; nothing has changed then.

    Args:
        pairs: The step, gradients converted.
        titles: The variables' names for messages.
        scatter: Whether a bad index is reported as TensorFlow's scatter kernels do, or as its
            fused sparse kernels do.
        narrow: Whether a dense gradient of a float32 variable may be of a 16-bit type.

    Raises:
        InvalidTypeError: For a dtype that is not computed, or a gradient of another dtype.
        InvalidArgumentError: For another shape or device, or an index out of range.
        LayoutError: For memory that cannot be updated in place.
        RuntimeError: For a sparse gradient of a constrained variable.
    """
    gradients, variables = [grad for grad, _ in pairs], [var for _, var in pairs]
    check_gradients(variables, gradients, titles, scatter=scatter, narrow=narrow)
    for grad, var, title in zip(gradients, variables, titles, strict=True):
        if isinstance(grad, IndexedSlices) and variable_constraint(var) is not None:
            raise RuntimeError(f"Cannot use a constraint function on a sparse variable: '{title}'.")


def scatters(rule: Rule) -> bool:
    """Whether TensorFlow has scatter kernels for the rule, with their own words for a bad index."""
    return rule.update_untouched is not None or rule.duplicates == "successive"


def derived(rule: Rule, values: dict[str, Any], dtype: Dtype, step: int) -> dict[str, Any]:
    """All that a rule's formulas may ask for.

    Args:
        rule: The rule.
        values: Its hyperparameters as scalars of `dtype`; powers that are given are kept.
        dtype: The compute dtype.
        step: The number of this step, from 1.

    Raises:
        RuleError: The rule's `prepare` asks for what there is not, or makes what it must not.
    """
    for power, hyper in rule.powers.items():
        if power not in values:
            values[power] = scalars.power(values[hyper], dtype(step))
    values.setdefault("t", dtype(step))
    found = prepared(rule, values)
    if not SCALARS.isdisjoint(found):
        raise _taken(rule, "makes scalars", SCALARS & found.keys())
    for name, value in found.items():
        if type(value) is not dtype:
            found[name] = _converted(rule, name, value, dtype)
    return found


def check_names(rule: Rule) -> None:
    """Refuse a rule in which one name would stand for two scalars.

    Raises:
        RuleError: Names them.
    """
    given = [*(hyper.name for hyper in rule.hypers), *rule.powers]
    if not _GIVEN.isdisjoint(given):
        raise _taken(rule, "has hyperparameters or powers", _GIVEN.intersection(given))
    twice = sorted({name for name in given if given.count(name) > 1})
    if twice:
        raise RuleError(
            f"Rule {rule.name!r} has a hyperparameter and a power named {', '.join(twice)}."
            " Rename one."
        )


def _taken(rule: Rule, what: str, names: Iterable[str]) -> RuleError:
    return RuleError(
        f"Rule {rule.name!r} {what} named {', '.join(sorted(names))}, which every step gives its"
        " own meaning. Rename them."
    )


def _converted(rule: Rule, name: str, value: Any, dtype: Dtype) -> Any:
    """What `prepare` made of the scalar `name`, in the compute dtype."""
    try:
        with np.errstate(over="ignore"):
            return dtype(as_number(name, value))
    except InvalidTypeError:
        raise RuleError(
            f"prepare of rule {rule.name!r} made {name} of type {type(value).__name__}, which is"
            " no number."
        ) from None
    except InvalidArgumentError:
        return dtype(np.nan)


class Stepper:
    """Takes the steps of one optimizer, and keeps what the next one can use again.

    A step is all or nothing: whatever may fail does so before the first write.
    """

    def __init__(self) -> None:
        self._runner = Runner()

    def repeat(
        self,
        rule: Rule,
        pipeline: Pipeline,
        variables: Sequence[Tensor],
        gradients: Sequence[Any],
        scalars_of: ScalarsOf,
        selection: Selection,
        *,
        calls: bool,
        copies: Copies = None,
    ) -> Shared | None:
        """Take the step if it is the one before with other gradients.

        Args:
            rule: The rule.
            pipeline: What happens to the gradients first.
            variables: As in the step before.
            gradients: Theirs; they are not converted.
            scalars_of: Gives the rule's scalars of a compute dtype.
            selection: The engine.
            calls: Whether `scalars_of` calls users' functions, which may move a variable's memory.
            copies: For each variable a tensor of a 16-bit type that is set to it, or None.

        Returns:
            The step's scalars, or None if the step is left to `take`.
        """
        # A `Variable` that is given a constraint has its plans made anew; others do not tell. This
        # is `variable_constraint` of each, without a call for each.
        constraints = [getattr(var, "constraint", None) for var in variables]
        if constraints.count(None) < len(constraints):
            return None
        runner = self._runner
        if not runner.aim(rule, pipeline.stages, variables, gradients, selection, copies):
            return None
        with not_taken():
            shared = {dtype: scalars_of(dtype) for dtype in runner.dtypes}
        if calls and not runner.aim(rule, pipeline.stages, variables, gradients, selection, copies):
            return None
        self._run(shared, variables, gradients, pipeline, selection)
        return shared

    def take(
        self,
        rule: Rule,
        pipeline: Pipeline,
        pairs: Sequence[Pair],
        titles: Sequence[str],
        slots: Sequence[Sequence[Tensor]],
        scalars_of: ScalarsOf,
        selection: Selection,
        *,
        calls: bool,
        copies: Copies = None,
    ) -> Shared:
        """Take a step that `check_pairs` accepted.

        Args:
            rule: The rule.
            pipeline: What happens to the gradients first.
            pairs: Gradients and variables. A variable may come twice: it is updated twice.
            titles: The variables' names for messages.
            slots: For each pair the variable's slots, in the rule's order.
            scalars_of: Gives the rule's scalars of a compute dtype.
            selection: The engine.
            calls: Whether `scalars_of` calls users' functions, which may move a variable's memory.
            copies: For each variable a tensor of a 16-bit type that is set to it, or None.

        Returns:
            The step's scalars for each compute dtype.

        Raises:
            InvalidArgumentError, InvalidTypeError, LayoutError: Slots do not fit their variable.
            RuleError: A formula asks for a scalar that nobody gives.
        """
        variables = [var for _, var in pairs]
        gradients = [grad for grad, _ in pairs]
        with not_taken():
            shared = {d: scalars_of(d) for d in dict.fromkeys(map(_compute, variables))}
            for values in shared.values():
                check_scalars(rule, values)
            if calls:
                check_pairs(pairs, titles, scatter=scatters(rule))
            _check_shapes(variables, slots, titles)
            self._runner.plan(
                rule, pipeline.stages, variables, gradients, slots, titles, selection, copies
            )
        self._run(shared, variables, gradients, pipeline, selection)
        return shared

    def _run(
        self,
        shared: Shared,
        variables: Sequence[Tensor],
        gradients: Sequence[Gradient],
        pipeline: Pipeline,
        selection: Selection,
    ) -> None:
        runner = self._runner
        separate: Separate = {}
        if pipeline:
            for dtype, values in shared.items():
                values.update(pipeline.scalars(dtype))
            try:
                separate = pipeline.separate(runner.measure(variables, gradients), runner.dtypes[0])
            except BaseException:
                runner.let_go()
                raise
        runner.run(shared, separate, selection.denormals == "flush")


class Steppers:
    """What is kept between steps.

    Attributes:
        together: For steps over all variables at once.
        repeatable: Whether the last of those may be repeated with other gradients.
    """

    def __init__(self) -> None:
        self.together = Stepper()
        self.repeatable = False
        self._alone: dict[int, Stepper] = {}

    def alone(self, var: Tensor) -> Stepper:
        """For steps over this variable only."""
        return self._alone.setdefault(id(var), Stepper())

    def forget_others(self, variables: Sequence[Tensor]) -> None:
        """Let go of variables that were updated on their own in earlier steps, if they are many."""
        if len(self._alone) > 2 * len(variables) + _SPARE:
            kept = {id(var) for var in variables}
            self._alone = {key: each for key, each in self._alone.items() if key in kept}


class Plans:
    """What an optimizer keeps between steps, for eager mode and for each session.

    Plans hold addresses, so a copy of an optimizer makes its own.
    """

    def __init__(self) -> None:
        self._eager = Steppers()
        self._sessions: WeakKeyDictionary[Any, Steppers] = WeakKeyDictionary()

    def now(self) -> Steppers:
        """Those of the session that is running in this thread, or of eager mode."""
        session = current_session()
        if session is None:
            return self._eager
        return self._sessions.setdefault(session, Steppers())

    def __deepcopy__(self, memo: dict[int, Any]) -> Plans:
        return Plans()

    def __reduce__(self) -> tuple[Any, ...]:
        return Plans, ()


def _compute(var: Tensor) -> Dtype:
    return compute_dtype(var.dtype)


def _check_shapes(
    variables: Iterable[Tensor], slots: Iterable[Sequence[Tensor]], titles: Iterable[str]
) -> None:
    """Refuse a variable that was given another shape since its slots were made."""
    for var, own, title in zip(variables, slots, titles, strict=True):
        for slot in own:
            if slot.shape != var.shape:
                raise InvalidArgumentError(
                    f"'{title}' has shape {tuple(var.shape)} now, but its slot has shape"
                    f" {tuple(slot.shape)}. Make a new optimizer for it."
                )
