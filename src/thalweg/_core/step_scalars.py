"""The scalars of a step: of groups of hyperparameters, of stages, and of single variables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from thalweg import formula
from thalweg._base.showing import show_value
from thalweg._core.gradient_transforms import SCALARS
from thalweg._core.hyperparameters import as_number, hint
from thalweg._engines import apply_prepare, compute_dtype
from thalweg._engines.protocol import Columns, Dtype
from thalweg.errors import InvalidArgumentError, InvalidTypeError, RuleError
from thalweg.formula import Rule

if TYPE_CHECKING:
    from thalweg._core.gradient_stats import GradientStats

Groups = Sequence[Hashable] | None
ScalarsOf = Callable[[Dtype, Hashable], dict[str, Any]]

_GIVEN = SCALARS | {"t"}  # scalars that a step adds to the rule's


def derived(rule: Rule, values: dict[str, object], dtype: Dtype, step: int) -> dict[str, Any]:
    """All that a rule's formulas may ask for.

    Args:
        rule: The rule.
        values: Its hyperparameters as scalars of `dtype`; powers that are given are kept.
        dtype: The compute dtype.
        step: The number of this step, from 1.

    Raises:
        RuleError: The rule's `prepare` asks for what there is not, or makes what it must not.
    """
    t = dtype(step)
    for power, hyper in rule.powers.items():
        if power not in values:
            values[power] = formula.power(values[hyper], t)
    values.setdefault("t", t)
    found = apply_prepare(rule, values)
    if not SCALARS.isdisjoint(found):
        raise _taken(rule, "makes scalars", SCALARS & found.keys())
    for name, value in found.items():
        if type(value) is not dtype:
            found[name] = _converted(rule, name, value, dtype)
    return found


def defaults_of(rule: object) -> dict[str, Any]:
    """The hyperparameters of a rule, for a constructor that is handed one.

    Raises:
        TypeError: It is no rule.
        RuleError: One name would stand for two of its scalars; names them.
    """
    if not isinstance(rule, Rule):
        raise TypeError(f"rule must be a thalweg.Rule, not {show_value(rule)}.{hint(rule)}")
    given = [*(hyper.name for hyper in rule.hypers), *rule.powers]
    if not _GIVEN.isdisjoint(given):
        raise _taken(rule, "has hyperparameters or powers", _GIVEN.intersection(given))
    twice = sorted({name for name in given if given.count(name) > 1})
    if twice:
        raise RuleError(
            f"Rule {rule.name!r} has a hyperparameter and a power named {', '.join(twice)}."
            " Rename one."
        )
    return {hyper.name: hyper.default for hyper in rule.hypers}


def _taken(rule: Rule, what: str, names: Any) -> RuleError:
    return RuleError(
        f"Rule {rule.name!r} {what} named {', '.join(sorted(names))}, which every step gives its"
        " own meaning. Rename them."
    )


def _converted(rule: Rule, name: str, value: object, dtype: Dtype) -> object:
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


def columns_of(
    groups: Groups, scalars_of: ScalarsOf, dtypes: Sequence[Dtype], variables: Sequence[Tensor]
) -> Columns:
    """The scalars of a rule: those that all variables share, and those that differ by group.

    Args:
        groups: For each variable its group; None if there is one.
        scalars_of: Gives the scalars of a group in a compute dtype; asked once for each.
        dtypes: The compute dtypes of the step.
        variables: The variables.
    """
    if groups is None:
        return Columns({dtype: scalars_of(dtype, None) for dtype in dtypes}, {})
    own = [(compute_dtype(var.dtype), group) for var, group in zip(variables, groups, strict=True)]
    found = {key: scalars_of(*key) for key in dict.fromkeys(own)}
    shared: dict[Dtype, dict[str, object]] = {}
    for (dtype, _), values in found.items():
        shared.setdefault(dtype, values)
    differing = {
        name: None
        for (dtype, _), values in found.items()
        for name, value in values.items()
        if value != shared[dtype][name]
    }
    separate = {name: np.array([found[key][name] for key in own], np.float64) for name in differing}
    return Columns(shared, separate)


def processed(columns: Columns, known: GradientStats, dtypes: Sequence[Dtype]) -> Columns:
    """The same with the scalars of the stages."""
    shared = {dtype: {**columns.shared[dtype], **known.shared(dtype)} for dtype in dtypes}
    return columns._replace(shared=shared, separate={**columns.separate, **known.separate})
