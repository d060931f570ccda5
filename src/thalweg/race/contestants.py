"""Who races: the library's optimizers by name, and the user's from a file, each with its rate."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from thalweg import catalogue
from thalweg.catalogue.by_pairs import ByPairs
from thalweg.engines.check import check_rule
from thalweg.errors import NotFoundError
from thalweg.formula import Rule
from thalweg.keras import optimizers
from thalweg.race.entry import load
from thalweg.race.errors import EntryError, RaceError
from thalweg.race.rates import default_rate
from thalweg.rules import KERAS_RULES
from thalweg.v1 import train

# Rules that Keras reaches through arguments of its eight classes race as rules.
RULES = {rule.name: rule for rule in KERAS_RULES if rule.name not in catalogue.KERAS}
Optimizer = optimizers.Optimizer | train.Optimizer | ByPairs
# Ftrl's first step multiplies the initial weights by 1 - sqrt(a / (a + g^2)), a the accumulator:
# with the default of 0.1 they all but vanish, and a network of more than one layer never learns.
ACCUMULATOR = {"initial_accumulator_value": 1e-8}
ARGUMENTS: dict[str, dict[str, float]] = {
    "Ftrl": ACCUMULATOR,
    "FtrlPower": ACCUMULATOR,
    "v1:FtrlOptimizer": ACCUMULATOR,
}


@dataclass(frozen=True)
class Contestant:
    """An optimizer in the race.

    Args:
        name: As the table shows it.
        make: Makes the optimizer with a learning rate, or with its own if that is None.
        learning_rate: The learning rate to make it with.
        source: Where it comes from.
        arguments: The other arguments that it is made with.
    """

    name: str
    make: Callable[[float | None], Optimizer]
    learning_rate: float | None
    source: str
    arguments: Mapping[str, float] = field(default_factory=dict)


def line_up(
    names: Sequence[str], rates: Mapping[str, float], problem: str, rate: float | None = None
) -> list[Contestant]:
    """The contestants.

    Args:
        names: Names of optimizers in any case, `v1:` before those of `thalweg.v1`,
            `openseq2seq:` before that of `thalweg.openseq2seq`, `optim:` and `torch:` before those
            of `thalweg.optim` and torch's own, or `file.py:NAME`.
        rates: Learning rates by name, in any case.
        problem: Name of the problem, which decides the default learning rates.
        rate: The learning rate of the contestants that `rates` does not name.

    Raises:
        RaceError: For a name or a rate that means nothing.
        EntryError: For a user's file that fails.
        RuleError: For a user's rule that could not take a step.
    """
    contestants: list[Contestant] = []
    left = {name.lower(): (name, value) for name, value in rates.items()}
    for name in names:
        contestant = _find_optimizer(name, problem)
        if any(contestant.name == other.name for other in contestants):
            known = {each.lower() for each in [*catalogue.names(), *catalogue.by_torch()]}
            if contestant.name.lower() in known and name.lower() in known:
                raise RaceError(f"'{contestant.name}' is in the race twice.")
            contestant = replace(contestant, name=name)
        keys = dict.fromkeys((contestant.name.lower(), name.rpartition(":")[2].lower()))
        given = [left.pop(key)[1] for key in keys if key in left] or [rate]
        if given[0] is not None:
            contestant = replace(contestant, learning_rate=_check_rate(given[0], contestant.name))
        contestant.make(contestant.learning_rate)  # what cannot be made fails here, not in the race
        contestants.append(contestant)
    if not contestants:
        raise RaceError("no optimizer was named; all are listed by `thalweg rules`.")
    for name, _ in left.values():
        racing = ", ".join(contestant.name for contestant in contestants)
        raise RaceError(f"a learning rate for '{name}', which is not in the race: {racing}.")
    return contestants


def _check_rate(rate: float, name: str) -> float:
    if not (math.isfinite(rate) and rate > 0):
        raise RaceError(f"the learning rate of {name} must be a positive number, not {rate}.")
    return rate


def _find_optimizer(name: str, problem: str) -> Contestant:
    try:
        known = catalogue.spelled(name, "optimizer")
    except NotFoundError as error:
        if ".py" not in name:
            raise RaceError(str(error)) from error
        return _enter_own(name, load(name))
    named = catalogue.named(known)
    rate = default_rate(problem, known, named.of)
    if known in RULES:
        arguments, rule = ARGUMENTS.get(known, {}), RULES[known]
        if arguments:
            first = arguments["initial_accumulator_value"]
            rule = replace(rule, slots=(replace(rule.slots[0], initial=first), *rule.slots[1:]))
        return Contestant(known, _by_rule(rule), rate, "thalweg.rules", arguments)
    arguments = {**named.options, **ARGUMENTS.get(named.of, {})}

    def make(given: float | None) -> Optimizer:
        return named.make(rate if given is None else given, **arguments)

    return Contestant(known, make, rate, named.cls.__module__, arguments)


def _by_rule(rule: Rule) -> Callable[[float | None], Optimizer]:
    return lambda rate: optimizers.RuleOptimizer(rule, rate)


def _enter_own(text: str, thing: object) -> Contestant:
    """A contestant of the user's."""
    name = text.rpartition(":")[2]
    if isinstance(thing, Rule):
        check_rule(thing)
        return Contestant(thing.name, _by_rule(thing), None, text)
    if isinstance(thing, Optimizer):
        return Contestant(name, lambda rate: _with_rate(thing, rate, text), None, text)
    if not callable(thing):
        raise RaceError(
            f"'{text}' is a {type(thing).__name__}; a thalweg.Rule, an Optimizer, or a function "
            "that makes one can race."
        )

    def make(rate: float | None) -> Optimizer:
        try:
            takes = "learning_rate" in inspect.signature(thing).parameters
            made = thing(learning_rate=rate) if takes and rate is not None else thing()
        except Exception as error:
            raise EntryError(
                f"'{text}' failed while it was made: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(made, Optimizer):
            raise RaceError(f"'{text}' made a {type(made).__name__}, not a thalweg Optimizer.")
        return made if takes else _with_rate(made, rate, text)

    return Contestant(name, make, None, text)


def _with_rate(optimizer: Any, rate: float | None, text: str) -> Optimizer:
    if rate is not None:
        attribute = catalogue.rate_name(optimizer)
        if attribute is None:
            raise RaceError(
                f"'{text}' is a {type(optimizer).__name__}, whose learning rate cannot be set from"
                " outside; a function with the argument learning_rate can make one."
            )
        setattr(optimizer, attribute, rate)
    return optimizer
