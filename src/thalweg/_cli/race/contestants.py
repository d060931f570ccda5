"""Contestants by name: optimizers of the library, of user files and of other packages."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from thalweg._cli import registry
from thalweg._cli.race.contestant import Contestant, Optimizer
from thalweg._cli.race.default_rates import default_rate
from thalweg._cli.race.entry import RaceEntry, load, parse_entry
from thalweg._cli.race.errors import EntryError, RaceError
from thalweg._cli.race.user_optimizers import enter_own
from thalweg._cli.registry.apply_gradients_adapter import ApplyGradientsAdapter
from thalweg.errors import NotFoundError
from thalweg.keras.optimizers import RuleOptimizer
from thalweg.rules import KERAS_RULES

# Rules that Keras reaches through arguments of its eight classes race as rules.
RULES = {rule.name: rule for rule in KERAS_RULES if rule.name not in registry.KERAS}
# Ftrl's first step multiplies the initial weights by 1 - sqrt(a / (a + g^2)), a the accumulator:
# with the default of 0.1 they all but vanish, and a network of more than one layer never learns.
ACCUMULATOR = {"initial_accumulator_value": 1e-8}
ARGUMENTS: dict[str, dict[str, float]] = {
    "Ftrl": ACCUMULATOR,
    "FtrlPower": ACCUMULATOR,
    "v1:FtrlOptimizer": ACCUMULATOR,
}
# Short names of entries with options.
SHORT = {"optim:AdamW8bit": 'optim:AdamW(state_storage="8bit")'}


def line_up(
    names: Sequence[str], rates: Mapping[str, float], problem: str, rate: float | None = None
) -> list[Contestant]:
    """Build the contestants of a race from the entries of the command line.

    Args:
        names: Registered names in any case, `file.py:NAME` or `PACKAGE:NAME`. The prefix of a
            registered name is the package: `v1:`, `openseq2seq:`, `optim:`, `torch:`, or none.
            Options may follow in parentheses.
        rates: {name in any case: learning rate}.
        problem: The name of the problem; default learning rates depend on it.
        rate: The learning rate of optimizers that have none in `rates` or in their options.

    Raises:
        RaceError: A name or a rate is invalid, or an optimizer rejects its options.
        EntryError: A user's file fails.
        RuleError: A user's rule is invalid.
    """
    entries: list[RaceEntry] = []
    contestants: list[Contestant] = []
    for name in names:
        entry = parse_entry(name)
        contestant = _find_optimizer(entry, problem)
        names_before = [earlier.name for earlier in contestants]
        if contestant.name in names_before and entry.is_own:
            contestant = replace(contestant, name=entry.text)
        if contestant.name in names_before:
            raise RaceError(f"'{contestant.name}' is in the race twice.")
        entries.append(entry)
        contestants.append(contestant)
    if not contestants:
        raise RaceError("no optimizer was named; all are listed by `thalweg rules`.")
    return _set_rates(entries, contestants, rates, rate)


def _set_rates(
    entries: Sequence[RaceEntry], contestants: Sequence[Contestant], rates: Mapping[str, float],
    rate: float | None,
) -> list[Contestant]:  # fmt: skip
    """Return contestants with learning rates; raise RaceError for an invalid rate or option.

    The first of these counts: the rate in `rates`, the rate in the entry, `rate`, the default.
    """
    by_key = {name.lower(): value for name, value in rates.items()}
    exact = {contestant.name.lower() for contestant in contestants}
    used: set[str] = set()
    with_rates: list[Contestant] = []
    for entry, contestant in zip(entries, contestants, strict=True):
        # A part of the name sets the rate of all that have it, unless it is all of another name.
        short = (entry.text, entry.name, entry.label, entry.name.rpartition(":")[2])
        keys = [contestant.name.lower()]
        keys += [key for key in map(str.lower, short) if key not in exact]
        key = next((key for key in keys if key in by_key), None)
        if key is not None:
            used.add(key)
        shared = rate if entry.rate is None else entry.rate
        learning_rate = shared if key is None else by_key[key]
        if learning_rate is not None:
            if not (math.isfinite(learning_rate) and learning_rate > 0):
                name = contestant.name
                text = f"must be a positive number, not {learning_rate}."
                raise RaceError(f"the learning rate of {name} {text}")
            contestant = replace(contestant, learning_rate=learning_rate)
        # Errors of options appear before the data are loaded and any step is taken.
        _check_made(contestant)
        with_rates.append(contestant)
    for name in rates:
        if name.lower() not in used:
            racing = ", ".join(contestant.name for contestant in contestants)
            raise RaceError(f"a learning rate for '{name}', which is not in the race: {racing}.")
    return with_rates


def _check_made(contestant: Contestant) -> None:
    """Build the optimizer of a contestant once; raise `RaceError` if building fails."""
    try:
        optimizer = contestant.make(contestant.learning_rate)
        if isinstance(optimizer, ApplyGradientsAdapter) and optimizer.rule is not None:
            # A class with torch's interface is constructed later, with the model's parameters.
            inspect.signature(optimizer.factory).bind([], **contestant.arguments)
    except (RaceError, EntryError):
        raise
    except Exception as error:
        raise RaceError(
            f"'{contestant.name}' cannot be made: {type(error).__name__}: {error}"
        ) from error


def _find_optimizer(entry: RaceEntry, problem: str) -> Contestant:
    if entry.is_own:
        return enter_own(entry, load(entry.name))
    options_text = entry.text[len(entry.name) :]
    short = next((name for name in SHORT if name.lower() == entry.name.lower()), None)
    if short is not None:
        long = parse_entry(SHORT[short])
        entry = replace(entry, name=long.name, options={**long.options, **entry.options})
    try:
        spelling = registry.spelled(entry.name, "optimizer")
    except NotFoundError as error:
        raise RaceError(str(error)) from error
    return _enter_named(entry, spelling, (short or spelling) + options_text, problem)


def _enter_named(entry: RaceEntry, spelling: str, label: str, problem: str) -> Contestant:
    """Return a contestant called `label`, with the optimizer registered as `spelling`."""
    registered = registry.named(spelling)
    learning_rate = (
        default_rate(problem, spelling, registered.of) if entry.rate is None else entry.rate
    )
    if spelling in RULES:
        arguments, rule = ARGUMENTS.get(spelling, {}), RULES[spelling]
        if arguments:
            first = arguments["initial_accumulator_value"]
            rule = replace(rule, slots=(replace(rule.slots[0], initial=first), *rule.slots[1:]))
        return Contestant(
            label,
            lambda rate: RuleOptimizer(rule, rate, **entry.options),
            learning_rate,
            "thalweg.rules",
            {**arguments, **entry.options},
        )
    arguments: dict[str, Any] = {
        **registered.options, **ARGUMENTS.get(registered.of, {}), **entry.options
    }  # fmt: skip

    def make(rate: float | None) -> Optimizer:
        return registered.make(learning_rate if rate is None else rate, **arguments)

    return Contestant(label, make, learning_rate, registered.cls.__module__, arguments)
