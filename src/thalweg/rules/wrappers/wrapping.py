"""What wrappers of rules have in common."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, wraps
from typing import Any

from thalweg.errors import InvalidTypeError, RuleError
from thalweg.formula import Around, Formula, Rule, Slot, StepMeasure, variable_squares
from thalweg.rules.modern.arithmetic import ones

_WHOLE = (variable_squares, ones)  # measures that read no step


def keep_by_rule(wrap: Callable[[Rule], Rule]) -> Callable[[Rule], Rule]:
    """A wrapper that makes one rule of each, and refuses what is none."""
    kept = cache(wrap)

    @wraps(wrap)
    def checked(rule: Rule) -> Rule:
        if not isinstance(rule, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
            name = wrap.__name__
            raise InvalidTypeError(
                f"{name} wraps a thalweg.Rule, not {rule!r}; optimizers of thalweg.optim have it as"
                f" an option, {name}=True."
            )
        return kept(rule)

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
    """A rule with a formula around its step.

    Args:
        rule: The rule.
        name: What it is called then, after its name.
        how: The formula, as `Around` takes it.
        source: Of the wrapper.
        measures: Formulas `(var, grad, base, step) -> number`, whose sums `per_variable` is given.
        per_variable: As that of a rule; makes scalars for `how`.
        slots: Numbers that `per_variable` reads and makes anew.
        decays: As for `Around`.

    Raises:
        RuleError: The wrapper measures steps, of a rule that makes them of measures of its own.
    """
    own: dict[str, Any] = {}
    if per_variable is not None:
        has_own = rule.per_variable is not None or rule.per_optimizer is not None
        if has_own or rule.is_of_lines:
            raise RuleError(
                f"Rule {rule.name!r} {name}: its step depends on its own measures, and what is"
                " measured of a step cannot follow from others."
            )
        found = (measures or {}).items()
        own = {
            "measures": {n: x if x in _WHOLE else StepMeasure(rule.update, x) for n, x in found},
            "per_variable": per_variable,
            "slots": (*slots, *rule.slots),
        }
    return replace(
        rule,
        name=f"{rule.name} {name}",
        update=Around(rule.update, how, decays),
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
        RuleError: It has no hyperparameter `learning_rate`.
    """
    if all(hyper.name != "learning_rate" for hyper in rule.hypers):
        raise RuleError(
            f"Rule {rule.name!r} {name} needs a hyperparameter named 'learning_rate', by which"
            " steps are as long as they are."
        )
