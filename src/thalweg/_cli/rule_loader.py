"""A rule of the user's, given to a command as `file.py:NAME`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from thalweg.formula import Rule


def load_rule(name: str) -> Rule:
    """Return the rule that `file.py:NAME` names, checked.

    Raises:
        click.UsageError: If there is no such file, or no rule of that name in it.
        RuleError: If the rule could not take a step.
        EntryError: If the file fails while it is imported.
    """
    from thalweg._cli.race.entry import load
    from thalweg._cli.race.errors import RaceError
    from thalweg._engines.rule_check import check_rule
    from thalweg.formula import Rule

    try:
        thing = load(name)
    except RaceError as error:
        raise click.UsageError(str(error)) from error
    if not isinstance(thing, Rule):
        raise click.UsageError(f"'{name}' is a {type(thing).__name__}, not a thalweg.Rule.")
    check_rule(thing)
    return thing
