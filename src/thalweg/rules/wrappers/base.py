"""Common parts of wrappers of rules."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, wraps
from sys import float_info
from typing import Any, ParamSpec

from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError, InvalidTypeError, RuleError
from thalweg.formula import (
    Formula,
    Level,
    Rule,
    Slot,
    StepMeasure,
    WrappedStepFormula,
    variable_squares,
)
from thalweg.rules.modern.common import ones

P = ParamSpec("P")
_WHOLE = (variable_squares, ones)  # measures that read no step


def keep_by_rule(wrap: Callable[P, Rule]) -> Callable[P, Rule]:
    """Return a wrapper that makes one rule of each, and refuses what is none."""
    kept = lru_cache(None, typed=True)(wrap)  # True is no 1 here

    @wraps(wrap)
    def checked(*given: P.args, **named: P.kwargs) -> Rule:
        rule = given[0] if given else named.get("rule")
        if not isinstance(rule, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
            name = wrap.__name__
            raise InvalidTypeError(
                f"{name} wraps a thalweg.Rule, not {show_value(rule)}; optimizers of"
                f" thalweg.optim have it as an option, {name}=True."
            )
        try:
            hash((*given, *named.values()))
        except TypeError:
            return wrap(*given, **named)  # which refuses it by name
        return kept(*given, **named)

    return checked


def wrapped(
    rule: Rule,
    name: str,
    how: Formula,
    source: str,
    *,
    measures: Mapping[str, Formula] | None = None,
    per_variable: Formula | None = None,
    slots: tuple[Slot, ...] = (),
    decays: bool = False,
) -> Rule:
    """Return a rule with a formula around its step.

    Args:
        rule: The rule.
        name: What it is called then, after its name.
        how: The formula, as `WrappedStepFormula` takes it.
        source: Of the wrapper.
        measures: Formulas `(var, grad, base, step) -> number`, whose sums `per_variable` is given.
        per_variable: As that of a rule; makes scalars for `how`.
        slots: Numbers that `per_variable` reads and makes anew.
        decays: As for `WrappedStepFormula`.

    Raises:
        RuleError: The rule is wrapped so already.
    """
    own: dict[str, Any] = {}
    if per_variable is not None:
        found = (measures or {}).items()
        level = Level(
            {n: x if x in _WHOLE else StepMeasure(rule.update, x) for n, x in found}, per_variable
        )
        before = [each for own in (rule.measures, *_measures_of(rule)) for each in own]
        before += [slot.name for slot in rule.slots]
        if not {*level.measures, *(slot.name for slot in slots)}.isdisjoint(before):
            raise RuleError(f"Rule {rule.name!r} is {name} already.")
        if rule.per_variable is not None or rule.per_optimizer is not None:
            own = {"levels": (*rule.levels, level)}  # once the step is known
        else:
            own = {"measures": level.measures, "per_variable": per_variable}
        own["slots"] = (*slots, *rule.slots)
    return around(rule, name, how, source, decays, **own)


def _measures_of(rule: Rule) -> list[Mapping[str, Formula]]:
    return [each.measures for each in rule.levels]


def around(
    rule: Rule, name: str, how: Formula, source: str, decays: bool = False, **own: Any
) -> Rule:
    """Return a rule with a formula around its step, and fields of its own.

    Args:
        rule, name, how, source, decays: As for `wrapped`.
        own: The fields.
    """
    return replace(
        rule,
        name=f"{rule.name} {name}",
        update=WrappedStepFormula(rule.update, how, decays),
        update_sparse=None,
        update_single=None,
        update_untouched=None,
        whole=True,
        duplicates="sum",
        linear=False,
        source="; ".join(filter(None, (rule.source, source))),
        **own,
    )


def check_rate(rule: Rule, name: str) -> None:
    """Refuse a rule of whose steps nobody knows how long they are without their rate.

    Raises:
        RuleError: It has no hyperparameter `learning_rate`, or finds its rate by itself.
    """
    if rule.per_optimizer is not None:
        raise RuleError(
            f"Rule {rule.name!r} {name}: it finds by itself how long steps are, by sums over all"
            " variables, and that would be gone."
        )
    if all(hyper.name != "learning_rate" for hyper in rule.hypers):
        raise RuleError(
            f"Rule {rule.name!r} {name} needs a hyperparameter named 'learning_rate', by which"
            " steps are as long as they are."
        )


def check_share(name: str, value: float, highest: float | None) -> None:
    """Refuse what is no share.

    Args:
        name: What it is called.
        value: It.
        highest: What it may be at most; without one it must be more than 0.

    Raises:
        InvalidTypeError: It is no number.
        InvalidArgumentError: It is out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):  # pyright: ignore
        raise InvalidTypeError(f"{name} must be a number, not {show_value(value)}.")
    is_fit = 0 < value <= float_info.max if highest is None else 0 <= value <= highest
    if not is_fit:
        wanted = "a positive number" if highest is None else f"from 0 to {highest:g}"
        raise InvalidArgumentError(f"{name} must be {wanted}, not {show_value(value)}.")
