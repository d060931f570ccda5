"""Loader of user-defined rules, named `file.py:NAME` on the command line."""

from __future__ import annotations

import click

from thalweg._cli.race.entry import load
from thalweg._cli.race.errors import RaceError
from thalweg._engines.rule_check import check_rule
from thalweg.formula import Rule


def load_rule(name: str) -> Rule:
    """Load and validate the rule `file.py:NAME`.

    Raises:
        click.UsageError: If the file or the rule in it does not exist.
        RuleError: If the rule could not take a step.
        EntryError: If the file fails while it is imported.
    """
    try:
        rule = load(name)
    except RaceError as error:
        raise click.UsageError(str(error)) from error
    if not isinstance(rule, Rule):
        raise click.UsageError(f"'{name}' is a {type(rule).__name__}, not a thalweg.Rule.")
    check_rule(rule)
    return rule
