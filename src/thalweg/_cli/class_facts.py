"""Facts about optimizer classes beyond the rules: arguments, defaults, sparse steps.

`thalweg show` and the class pages of the documentation print them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from thalweg._engines.formula_parser import trace_formula
from thalweg.formula import Hyper, Rule
from thalweg.optim.group_options import PAIRS, members_of
from thalweg.optim.signatures import parse_notes

# Other names that constructors have for the hyperparameters of rules.
_ARGUMENTS = {
    "learning_rate": ("lr",),
    "epsilon": ("eps",),
    "beta1": ("beta_1",),
    "beta2": ("beta_2",),
    "rho": ("decay",),
    "l1": ("l1_regularization_strength",),
    "l2": ("l2_regularization_strength",),
    "l2_shrinkage": ("l2_shrinkage_regularization_strength",),
}
# Keywords that signatures do not list, with their defaults, by class and hyperparameter.
_KEYWORDS = {"thalweg.keras.optimizers.nadam.Nadam": {"decay": ("schedule_decay", 0.004)}}
_EPS_PAIR = ("eps1", "eps2")  # of Adafactor, whose argument `eps` is a pair


class Number(NamedTuple):
    """Hyperparameter of a rule with the argument of an optimizer class that sets the value.

    Attributes:
        hyper: The hyperparameter.
        argument: The argument of the constructor, such as `betas[0]`; None if there is none.
        default: The argument's default, `inspect.Parameter.empty` if required. Without an argument,
            the value that the class sets, or None if the value changes from step to step.
        doc: The effect of the hyperparameter in the class.
    """

    hyper: Hyper
    argument: str | None
    default: Any
    doc: str


def numbers_of(rule: Rule, cls: type[Any]) -> list[Number]:
    """Return a `Number` per hyperparameter of `rule`, with arguments and defaults of `cls`."""
    signature = inspect.signature(cls)
    names = [hyper.name for hyper in rule.hypers]
    keywords = _KEYWORDS.get(f"{cls.__module__}.{cls.__qualname__}", {})
    fixed: Mapping[str, Any] = getattr(cls, "fixed_options", {})
    # Where a class sets a hyperparameter, such as AdamW its kind of decay, others mean less.
    notes = parse_notes(cls.__doc__, "Args:") if fixed else {}
    hypers: list[Number] = []
    for hyper in rule.hypers:
        match = keywords.get(hyper.name) or _find_argument(hyper.name, names, signature)
        argument, default = match or (None, fixed.get(hyper.name))
        doc = " ".join(notes.get(argument or "", hyper.doc).split())
        hypers.append(Number(hyper, argument, default, doc))
    return hypers


def _find_argument(
    name: str, names: list[str], signature: inspect.Signature
) -> tuple[str, Any] | None:
    """Return (argument, default) for the hyperparameter `name`; None if no argument sets it.

    `names` are all hyperparameters of the rule: an argument such as `betas` sets several.
    """
    parameters = signature.parameters
    for candidate in (name, *_ARGUMENTS.get(name, ())):
        if candidate in parameters:
            return candidate, parameters[candidate].default
    members = {key: members_of(key, names) for key in PAIRS} | {"eps": _EPS_PAIR}
    for key, member_names in members.items():
        if key in parameters and name in member_names:
            default, index = parameters[key].default, member_names.index(name)
            if isinstance(default, tuple):
                default = cast("tuple[Any, ...]", default)[index]
            return f"{key}[{index}]", default
    return None


def describe_sparse_update(
    rule: Rule, cls: type[Any] | None = None, options: Mapping[str, Any] | None = None
) -> str:
    """Describe in a few words the effect of a sparse gradient on a step.

    Args:
        cls: Optional. The class that runs the rule. The text then mentions errors of its `step`.
        options: Optional. Arguments of the class.
    """
    if message := getattr(cls, "_sparse", ""):
        return f"refused; `step` raises RuntimeError: {message}"
    takes_rows = getattr(cls, "_takes_rows", None)
    if cls is None or takes_rows is None:
        return _describe_rows(rule) + _exception_of_decay(rule)
    defaults = {
        name: parameter.default for name, parameter in inspect.signature(cls).parameters.items()
    }
    group = {**defaults, **(options or {})}
    rows = _describe_rows(rule)
    if not takes_rows(group):
        rows = "torch's own step updates every row that a gradient has named so far"
    if _raises_with_decay(takes_rows, group):
        return rows + "; with `weight_decay` they are refused, as in torch"
    return rows + _exception_of_decay(rule)


def _raises_with_decay(takes_rows: Any, group: Mapping[str, Any]) -> bool:
    """Return True if a class raises an error for sparse gradients with weight decay.

    `group` is {constructor argument: value}. `takes_rows(group)` returns True if engines support
    sparse gradients. It raises the error, or returns False if torch's step runs and raises it.
    """
    if "weight_decay" not in group:
        return False
    try:
        return not takes_rows({**group, "momentum": 0, "weight_decay": 1.0})
    except RuntimeError:
        return True


def _describe_rows(rule: Rule) -> str:
    """Return a text about the rows that a sparse gradient changes, such as "touched rows".

    The formula `update_untouched` of a rule changes rows without gradient, too.
    """
    if rule.is_whole:
        return "all rows, made dense"
    if rule.passes:
        return "none: it is refused"
    changing = _changing_outside(rule)
    rows = "all rows" if "" in changing else "touched rows"
    if changing and "" not in changing:
        slots = [slot.name for slot in rule.slots if slot.name in changing]
        rows += f" of the variable, all rows of {' and '.join(slots)}"
    if rule.duplicates == "successive":
        rows += ", one by one"
    if rule.update_sparse is not None or rule.update_single is not None:
        rows += ", own formula"
    return rows


def _changing_outside(rule: Rule) -> set[str]:
    """Return names of slots that change in rows without gradient; "" stands for the variable."""
    if rule.update_untouched is None:
        return set()
    formula_graph = trace_formula(rule.update_untouched)
    names = ["", *(slot.name for slot in rule.slots)]
    return {
        name for index, name in enumerate(names) if not formula_graph.passes_through(index, index)
    }


def _exception_of_decay(rule: Rule) -> str:
    """Return "; no weight decay" or a similar text if sparse gradients limit decay, else ""."""
    if rule.passes or rule.is_whole or "weight_decay" not in trace_formula(rule.update).scalars:
        return ""
    if "weight_decay" not in trace_formula(rule.update_sparse or rule.update).scalars:
        return "; no weight decay"
    untouched = rule.update_untouched
    if untouched is None or "weight_decay" in trace_formula(untouched).scalars:
        return ""
    return "; weight decay in touched rows only"
