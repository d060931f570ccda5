"""Common parts of wrappers, which put a formula around the step of a rule."""

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
# Measures that do not read the step.
_STEP_FREE = (variable_squares, ones)


def keep_by_rule(wrap: Callable[P, Rule]) -> Callable[P, Rule]:
    """Return `wrap` with cached results; calls raise InvalidTypeError unless `rule` is a Rule."""
    cached_wrap = lru_cache(None, typed=True)(wrap)  # typed, as True == 1

    @wraps(wrap)
    def checked(*args: P.args, **kwargs: P.kwargs) -> Rule:
        rule = args[0] if args else kwargs.get("rule")
        if not isinstance(rule, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
            name = wrap.__name__
            raise InvalidTypeError(
                f"{name} wraps a thalweg.Rule, not {show_value(rule)}; optimizers of"
                f" thalweg.optim have it as an option, {name}=True."
            )
        try:
            hash((*args, *kwargs.values()))
        except TypeError:
            return wrap(*args, **kwargs)  # raises an error that names the option
        return cached_wrap(*args, **kwargs)

    return checked


def wrapped(
    rule: Rule,
    name: str,
    formula: Formula,
    source: str,
    *,
    measures: Mapping[str, Formula] | None = None,
    per_variable: Formula | None = None,
    slots: tuple[Slot, ...] = (),
    decays: bool = False,
) -> Rule:
    """Return a copy of a rule with a formula around its step.

    Args:
        rule: The rule to wrap.
        name: Suffix of the new rule's name.
        formula: `formula(var, grad, base, step, *, scalars)` returns the new variable. `base` and
            `step` are those of the call `moved(base, step)` in the rule's `update`.
        source: Text that is appended to the rule's `source`.
        measures: {name: formula}. `formula(var, grad, base, step)` returns a term of a sum.
        per_variable: Computes {name: scalar} for `formula` from the sums of `measures`.
        slots: Scalar slots that `per_variable` reads and returns.
        decays: True to require a `base` other than the variable, as with decoupled decay.

    Raises:
        RuleError: The rule has this wrapper already.
    """
    fields: dict[str, Any] = {}
    if per_variable is not None:
        named_measures = (measures or {}).items()
        level = Level(
            {n: x if x in _STEP_FREE else StepMeasure(rule.update, x) for n, x in named_measures},
            per_variable,
        )
        used_names = [*rule.measures, *(slot.name for slot in rule.slots)]
        for wrapper in rule.levels:
            used_names += wrapper.measures
        if not {*level.measures, *(slot.name for slot in slots)}.isdisjoint(used_names):
            raise RuleError(f"Rule {rule.name!r} is {name} already.")
        if rule.per_variable is not None or rule.per_optimizer is not None:
            fields = {"levels": (*rule.levels, level)}  # once the step is known
        else:
            fields = {"measures": level.measures, "per_variable": per_variable}
        fields["slots"] = (*slots, *rule.slots)
    return around(rule, name, formula, source, decays, **fields)


def around(
    rule: Rule, name: str, formula: Formula, source: str, decays: bool = False, **fields: Any
) -> Rule:
    """Return a copy of a rule with a formula around its step; sparse gradients become dense.

    Args:
        rule, name, formula, source, decays: See `wrapped`.
        fields: Further fields of `Rule` to replace.
    """
    return replace(
        rule,
        name=f"{rule.name} {name}",
        update=WrappedStepFormula(rule.update, formula, decays),
        update_sparse=None,
        update_single=None,
        update_untouched=None,
        whole=True,
        duplicates="sum",
        linear=False,
        source="; ".join(filter(None, (rule.source, source))),
        **fields,
    )


def check_rate(rule: Rule, name: str) -> None:
    """Raise RuleError if a rule's steps cannot be scaled by its learning rate.

    The rule has no `learning_rate`, or has `per_optimizer`, which computes a rate. `name` is the
    wrapper's name for the message.
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
    """Raise unless `value` is from 0 to `highest`; a `highest` of None accepts positive numbers.

    Raises:
        InvalidTypeError: The value is not a number.
        InvalidArgumentError: The value is out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):  # pyright: ignore
        raise InvalidTypeError(f"{name} must be a number, not {show_value(value)}.")
    is_fit = 0 < value <= float_info.max if highest is None else 0 <= value <= highest
    if not is_fit:
        expected = "a positive number" if highest is None else f"from 0 to {highest:g}"
        raise InvalidArgumentError(f"{name} must be {expected}, not {show_value(value)}.")
