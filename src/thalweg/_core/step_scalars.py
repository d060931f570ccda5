"""Scalars of a step: scalars of the rule for each parameter group, and of gradient transforms."""

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

# Scalars that a step adds to the rule's.
_RESERVED = SCALARS | {"t"}


def derived(rule: Rule, values: dict[str, object], dtype: Dtype, step: int) -> dict[str, Any]:
    """Return the scalars for a rule's formulas: hyperparameters, powers, "t", results of `prepare`.

    Args:
        values: {name: scalar of `dtype`} of the hyperparameters. Missing powers and "t" are added
            in place.
        dtype: The compute dtype.
        step: The number of this step, from 1.

    Raises:
        RuleError: The rule's `prepare` has an unknown argument, or returns an invalid name or
            value.
    """
    t = dtype(step)
    for power, hyper in rule.powers.items():
        if power not in values:
            values[power] = formula.power(values[hyper], t)
    values.setdefault("t", t)
    scalars = apply_prepare(rule, values)
    if not SCALARS.isdisjoint(scalars):
        raise _make_reserved_error(rule, "makes scalars", SCALARS & scalars.keys())
    for name, value in scalars.items():
        if type(value) is not dtype:
            scalars[name] = _convert_scalar(rule, name, value, dtype)
    return scalars


def defaults_of(rule: object) -> dict[str, Any]:
    """Return {name: default} of the hyperparameters of a rule.

    Raises:
        TypeError: `rule` is not a rule.
        RuleError: Two scalars of the rule have one name; the message contains the names.
    """
    if not isinstance(rule, Rule):
        raise TypeError(f"rule must be a thalweg.Rule, not {show_value(rule)}.{hint(rule)}")
    names = [*(hyper.name for hyper in rule.hypers), *rule.powers]
    if not _RESERVED.isdisjoint(names):
        raise _make_reserved_error(
            rule, "has hyperparameters or powers", _RESERVED.intersection(names)
        )
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise RuleError(
            f"Rule {rule.name!r} has a hyperparameter and a power named {', '.join(duplicates)}."
            " Rename one."
        )
    return {hyper.name: hyper.default for hyper in rule.hypers}


def _make_reserved_error(rule: Rule, action: str, names: Any) -> RuleError:
    """Return the error that a rule uses names which every step defines."""
    return RuleError(
        f"Rule {rule.name!r} {action} named {', '.join(sorted(names))}, which every step gives its"
        " own meaning. Rename them."
    )


def _convert_scalar(rule: Rule, name: str, value: object, dtype: Dtype) -> object:
    """Return a scalar from a rule's `prepare`, converted to the compute dtype.

    An integer that is too large becomes NaN.

    Raises:
        RuleError: The scalar is not a number.
    """
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
    """Return the scalars of a rule in a step, as `Columns`.

    `shared` has the scalars of the first group of each dtype. `by_variable` has a vector over the
    variables for each scalar that differs between groups.

    Args:
        groups: The group of each variable; None for a single group.
        scalars_of: `scalars_of(dtype, group)` returns scalars by name; called once per pair.
        dtypes: The compute dtypes of the step; used for a single group only.
        variables: The variables, whose dtypes are used for several groups only.
    """
    if groups is None:
        return Columns({dtype: scalars_of(dtype, None) for dtype in dtypes}, {})
    keys = [(compute_dtype(var.dtype), group) for var, group in zip(variables, groups, strict=True)]
    table = {key: scalars_of(*key) for key in dict.fromkeys(keys)}
    shared: dict[Dtype, dict[str, object]] = {}
    for (dtype, _), values in table.items():
        shared.setdefault(dtype, values)
    unequal = {
        name: None
        for (dtype, _), values in table.items()
        for name, value in values.items()
        if value != shared[dtype][name]
    }
    by_variable = {
        name: np.array([table[key][name] for key in keys], np.float64) for name in unequal
    }
    return Columns(shared, by_variable)


def processed(columns: Columns, stats: GradientStats, dtypes: Sequence[Dtype]) -> Columns:
    """Return a copy of `columns` with the scalars of the gradient transforms.

    Args:
        columns: The scalars of the rule; not changed.
        stats: The statistics of the gradients, which compute the scalars.
        dtypes: The compute dtypes of the step.
    """
    shared = {dtype: {**columns.shared[dtype], **stats.shared(dtype)} for dtype in dtypes}
    return columns._replace(
        shared=shared, by_variable={**columns.by_variable, **stats.variable_scalars}
    )
