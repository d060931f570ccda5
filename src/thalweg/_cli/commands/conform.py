"""`thalweg conform`: comparison of another optimizer with thalweg's over the same gradients."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

import click
from rich.text import Text

from thalweg._cli.console import make_console
from thalweg._cli.options import Whole, split_values
from thalweg._cli.progress import show_busy, watch_fraction
from thalweg._cli.report.json_values import plain_values
from thalweg._cli.terminal_escape import escape_text
from thalweg.conform import ConformError, Divergence, Outcome, compare, svg
from thalweg.conform import atlas as conform_atlas
from thalweg.conform.external_optimizers import load_class
from thalweg.conform.thalweg_optimizers import find_like, find_rule

PARTS, FAILED = 1, 2
_COLORS = {"bits": "green", "rounding": "yellow", "parts": "red"}


class NothingToCompare(click.ClickException):
    """Error of a comparison that could not take place."""

    exit_code = FAILED


@click.command()
@click.argument("class_name", required=False, metavar="[PACKAGE:CLASS]")
@click.option(
    "--rule",
    metavar="NAME",
    help="The optimizer of thalweg: a name of `thalweg rules`, optim: before one of thalweg.optim, "
    "file.py:NAME for your own rule, or PACKAGE:CLASS. [default: the one with the name of the "
    "class]",
)
@click.option(
    "--set", "shared_arguments", multiple=True, callback=split_values, metavar="NAME=VALUE",
    help="An argument of the class, and of thalweg's optimizer if it has one of this name.",
)  # fmt: skip
@click.option(
    "--ours", "rule_arguments", multiple=True, callback=split_values, metavar="NAME=VALUE",
    help="An argument of thalweg's optimizer alone.",
)  # fmt: skip
@click.option(
    "--group", multiple=True, callback=split_values, metavar="NAME=VALUE",
    help="An entry of the parameter group that the class is constructed with.",
)  # fmt: skip
@click.option(
    "--steps",
    default=20,
    type=Whole(1, 1000),
    help="Number of steps to compare.",
)
@click.option(
    "--atlas",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Import and compare all classes of a list, and draw a table of the results: FILE.svg.",
)
@click.option(
    "--list", "list_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --atlas: the list, as JSON. [default: conform/atlas.json of the library]",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def conform(
    class_name: str | None,
    rule: str | None,
    shared_arguments: dict[str, object],
    rule_arguments: dict[str, object],
    group: dict[str, object],
    steps: int,
    atlas: Path | None,
    list_path: Path | None,
    as_json: bool,
) -> None:
    """Check whether PACKAGE:CLASS, any optimizer with torch's interface, takes the same steps as
    thalweg's.

    PACKAGE is imported, so its code is executed; name only packages that you trust. Give a class
    of your own file as file.py:CLASS.

    Both optimizers receive the same gradients. The result is one of three: parameters have the
    same bits after each step; they differ by at most 1e-5 of the distance they move, which is
    rounding; or they diverge. For a divergence the command prints the first step, parameter and
    element. It then changes one argument at a time, and prints the changes that remove the
    divergence. Thalweg's optimizer receives the values of all arguments that both have.

    The exit status is 0 if they agree, 1 if they diverge, and 2 if they cannot be compared: the
    class cannot be constructed, needs an argument, or is not deterministic.

    \b
    Examples:
      thalweg conform torch.optim:AdamW
      thalweg conform lion_pytorch:Lion --set weight_decay=0.1
      thalweg conform timm.optim:Lamb --rule optim:LAMB --set max_grad_norm=None
      thalweg conform mine.py:MyLion --rule optim:Lion --ours "betas=(0.9, 0.99)" --json
      thalweg conform --atlas atlas.svg
    """
    if (atlas is None) == (class_name is None):
        raise click.UsageError("give either PACKAGE:CLASS, or --atlas FILE.svg.")
    if atlas is None:
        if list_path is not None:
            raise click.UsageError("--list goes with --atlas.")
        _compare(class_name or "", rule, shared_arguments, rule_arguments, group, steps, as_json)
    if rule or shared_arguments or rule_arguments or group:
        raise click.UsageError("--atlas takes rules and arguments from its list.")
    _draw(atlas, list_path, steps, as_json)


def _compare(
    name: str, rule: str | None, shared_arguments: dict[str, object],
    rule_arguments: dict[str, object], group: dict[str, object], steps: int, as_json: bool,
) -> NoReturn:  # fmt: skip

    try:
        # Keep output of the imported package off stdout, which may be JSON.
        with show_busy(f"comparing {escape_text(name)}"), contextlib.redirect_stdout(sys.stderr):
            external, note = load_class(name)
            rule_optimizer = find_rule(rule) if rule else find_like(external.name)
            configured = replace(external.with_arguments(**shared_arguments), group=group)
            outcome = compare(
                configured, rule_optimizer.with_arguments(**rule_arguments), steps=steps
            )
    except ConformError as error:
        raise NothingToCompare(str(error)) from error
    if as_json:
        report = {
            "theirs": name,
            "ours": rule_optimizer.name,
            "note": note,
            "outcome": asdict(outcome),
        }
        click.echo(json.dumps(plain_values(report), indent=2))
    else:
        _print(name, rule_optimizer.name, outcome, note)
    sys.exit(0 if outcome.agrees else PARTS)


def _print(name: str, rule_name: str, outcome: Outcome, note: str) -> None:
    console = make_console(soft_wrap=True)

    def line(text: str, style: str = "") -> None:
        console.print(Text(escape_text(text), style=style))

    line(f"{name} beside {rule_name}, {outcome.steps} steps ({outcome.way})", "bold")
    line(_describe_verdict(outcome), _COLORS[outcome.verdict])
    if outcome.verdict == "parts":
        line(_describe_closing(outcome))
    line(f"theirs: {_list_arguments(outcome.theirs)}", "dim")
    line(f"ours:   {_list_arguments(outcome.ours)}", "dim")
    if note:
        line(f"{name.partition(':')[0]} was {note}.", "dim")


def _describe_verdict(outcome: Outcome) -> str:
    difference = f"{outcome.difference:.1e} of the movement after {outcome.steps} steps"
    if outcome.parting is None:
        return "The same bits after each step."
    if outcome.agrees:
        return f"Rounding: {difference}; bits first differ in {_describe_place(outcome.parting)}."
    return f"They part in {_describe_place(outcome.parting)}; {difference}."


def _describe_place(divergence: Divergence) -> str:
    element = f", element {list(divergence.element)}" if divergence.element else ""
    return (
        f"step {divergence.step}, parameter {divergence.parameter} of shape"
        f" {list(divergence.shape)}{element}: {divergence.theirs:.9g} of theirs,"
        f" {divergence.ours:.9g} of ours"
    )


def _describe_closing(outcome: Outcome) -> str:
    if outcome.closed_by:
        return f"Closed by: {'; or '.join(outcome.closed_by)}."
    if not outcome.tried:
        return "There is no argument to try."
    return f"None of the {len(outcome.tried)} changes tried closes it: {', '.join(outcome.tried)}."


def _list_arguments(values: dict[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _draw(path: Path, list_path: Path | None, steps: int, as_json: bool) -> None:
    if path.suffix.lower() != ".svg":
        raise click.BadParameter(f"'{path}' must end in .svg.", param_hint="--atlas")
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"'{path.parent}' is not a folder.", param_hint="--atlas")
    try:
        table = conform_atlas.read_list(list_path)
        with watch_fraction("importing") as progress:
            survey = conform_atlas.survey(table, steps, progress)
    except ConformError as error:
        raise NothingToCompare(str(error)) from error
    options = [
        *(["--list", str(list_path)] if list_path else []),
        *(["--steps", str(steps)] * (steps != 20)),
    ]
    command = shlex.join(["thalweg", "conform", "--atlas", str(path), *options])
    path.write_text(svg.draw(survey, command), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(asdict(survey), indent=2))
    else:
        click.echo(f"{survey.summarize()} Saved {path}")
