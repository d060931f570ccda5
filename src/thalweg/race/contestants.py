"""Who races: the library's optimizers by name, and the user's from a file, each with its rate."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from thalweg.engines.check import check_rule
from thalweg.formula import Rule
from thalweg.keras import optimizers
from thalweg.race import v1
from thalweg.race.entry import load
from thalweg.race.errors import EntryError, RaceError
from thalweg.race.names import unknown
from thalweg.race.rates import DEFAULT_LEARNING_RATE
from thalweg.rules import KERAS_RULES, OPENSEQ2SEQ_RULES, V1_RULES
from thalweg.v1 import train

KERAS = ("SGD", "Adam", "Adamax", "Nadam", "Adagrad", "Adadelta", "RMSprop", "Ftrl")
# Rules that Keras reaches through arguments of these eight; Keras' own class wins where names meet.
OTHERS = {rule.name: rule for rule in KERAS_RULES if rule.name not in KERAS}
CLASSIC = tuple(rule.name for rule in (*V1_RULES, *OPENSEQ2SEQ_RULES))
KNOWN = {name.lower(): name for name in (*KERAS, *OTHERS, *CLASSIC, *v1.classes())}
Optimizer = optimizers.Optimizer | train.Optimizer
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
        arguments: What else it is given.
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
            `openseq2seq:` before that of `thalweg.openseq2seq`, or `file.py:NAME`.
        rates: Learning rates by name, in any case.
        problem: Name of the problem, which decides the default learning rates.
        rate: The learning rate of those that `rates` does not name.

    Raises:
        RaceError: For a name or a rate that means nothing.
        EntryError: For a user's file that fails.
        RuleError: For a user's rule that could not take a step.
    """
    contestants: list[Contestant] = []
    left = {name.lower(): (name, value) for name, value in rates.items()}
    for name in names:
        contestant = _find(name, problem)
        if any(contestant.name == other.name for other in contestants):
            if contestant.name.lower() in KNOWN and name.lower() in KNOWN:
                raise RaceError(f"'{contestant.name}' is in the race twice.")
            contestant = replace(contestant, name=name)
        keys = dict.fromkeys((contestant.name.lower(), name.rpartition(":")[2].lower()))
        given = [left.pop(key)[1] for key in keys if key in left] or [rate]
        if given[0] is not None:
            contestant = replace(contestant, learning_rate=_checked(given[0], contestant.name))
        contestant.make(contestant.learning_rate)  # what cannot be made fails here, not in the race
        contestants.append(contestant)
    if not contestants:
        raise RaceError("no optimizer was named; all are listed by `thalweg rules`.")
    for name, _ in left.values():
        racing = ", ".join(contestant.name for contestant in contestants)
        raise RaceError(f"a learning rate for '{name}', which is not in the race: {racing}.")
    return contestants


def _unknown(name: str) -> RaceError:
    message = unknown("optimizer", name, KNOWN.values())
    return RaceError(v1.refusal(name) or f"{message}; yours is given as file.py:NAME.")


def _checked(rate: float, name: str) -> float:
    if not (math.isfinite(rate) and rate > 0):
        raise RaceError(f"the learning rate of {name} must be a positive number, not {rate}.")
    return rate


def _find(name: str, problem: str) -> Contestant:
    known = KNOWN.get(name.lower())
    if known is None:
        if ".py" not in name:
            raise _unknown(name)
        return _entered(name, load(name))
    if known not in KERAS and known not in OTHERS:
        return _of_tensorflow_1(known, problem)
    arguments = ARGUMENTS.get(known, {})
    rate = DEFAULT_LEARNING_RATE.get(problem, {}).get(known)
    if known in OTHERS:
        rule = OTHERS[known]
        if arguments:
            first = arguments["initial_accumulator_value"]
            rule = replace(rule, slots=(replace(rule.slots[0], initial=first), *rule.slots[1:]))
        return Contestant(known, _by_rule(rule), rate, "thalweg.rules", arguments)

    def make(rate: float | None) -> Optimizer:
        given = {} if rate is None else {"learning_rate": rate}
        return getattr(optimizers, known)(**given, **arguments)

    return Contestant(known, make, rate, "thalweg.keras.optimizers", arguments)


def _of_tensorflow_1(known: str, problem: str) -> Contestant:
    """The contestant of a name as `v1:AdamOptimizer`, or of a rule that only those run."""
    name, options = (known, {}) if known in v1.classes() else v1.by_rule()[known]
    arguments = {**v1.arguments(name), **ARGUMENTS.get(name, {}), **options}
    rate = DEFAULT_LEARNING_RATE[problem][name]

    def make(given: float | None) -> Optimizer:
        return v1.make(name, rate if given is None else given, **arguments)

    return Contestant(known, make, rate, v1.classes()[name].__module__, arguments)


def _by_rule(rule: Rule) -> Callable[[float | None], Optimizer]:
    return lambda rate: optimizers.RuleOptimizer(rule, rate)


def _entered(text: str, thing: Any) -> Contestant:
    """A contestant of the user's."""
    name = text.rpartition(":")[2]
    if isinstance(thing, Rule):
        check_rule(thing)
        return Contestant(thing.name, _by_rule(thing), None, text)
    if isinstance(thing, Optimizer):
        return Contestant(name, lambda rate: _rated(thing, rate, text), None, text)
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
        return made if takes else _rated(made, rate, text)

    return Contestant(name, make, None, text)


def _rated(optimizer: Any, rate: float | None, text: str) -> Optimizer:
    if rate is not None:
        attribute = v1.rate_name(optimizer)
        if attribute is None:
            raise RaceError(
                f"'{text}' is a {type(optimizer).__name__}, whose learning rate cannot be set from"
                " outside; a function with the argument learning_rate can make one."
            )
        setattr(optimizer, attribute, rate)
    return optimizer
