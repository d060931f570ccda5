"""`thalweg conform`: another optimizer beside ours, over the same gradients."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from thalweg._cli.console import make_console
from thalweg._cli.options import Whole, split_values
from thalweg._cli.progress import show_busy, watch_shares
from thalweg._cli.terminal_escape import escape_text

if TYPE_CHECKING:
    from thalweg.conform import Divergence, Outcome

PARTS, FAILED = 1, 2
_COLORS = {"bits": "green", "rounding": "yellow", "parts": "red"}


class NothingToCompare(click.ClickException):
    """Neither that both agree nor that they part is known."""

    exit_code = FAILED


@click.command(short_help="Check whether another optimizer takes the same steps as thalweg's.")
@click.argument("theirs", required=False, metavar="[PACKAGE:CLASS]")
@click.option(
    "--rule",
    metavar="NAME",
    help="The optimizer of thalweg: a name of `thalweg rules`, optim: before one of thalweg.optim, "
    "file.py:NAME for your own rule, or PACKAGE:CLASS. [default: the one with the name of the "
    "class]",
)
@click.option(
    "--set", "given", multiple=True, callback=split_values, metavar="NAME=VALUE",
    help="An argument of the class, and of thalweg's optimizer if it has one of this name.",
)  # fmt: skip
@click.option(
    "--ours", "own", multiple=True, callback=split_values, metavar="NAME=VALUE",
    help="An argument of thalweg's optimizer alone.",
)  # fmt: skip
@click.option(
    "--group", multiple=True, callback=split_values, metavar="NAME=VALUE",
    help="An entry of the parameter group that the class is constructed with.",
)  # fmt: skip
@click.option(
    "--steps",
    default=20,
    show_default=True,
    type=Whole(1, 1000),
    help="Number of steps to compare.",
)
@click.option(
    "--atlas",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Import and compare all classes of a list, and draw a table of the results: FILE.svg.",
)
@click.option(
    "--list", "listed",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --atlas: the list, as JSON. [default: conform/atlas.json of the library]",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def conform(
    theirs: str | None,
    rule: str | None,
    given: dict[str, object],
    own: dict[str, object],
    group: dict[str, object],
    steps: int,
    atlas: Path | None,
    listed: Path | None,
    as_json: bool,
) -> None:
    """Check whether PACKAGE:CLASS, any optimizer with torch's interface, takes the same steps as
    thalweg's.

    PACKAGE is imported, so its code is executed; name only packages that you trust. Give a class
    of your own file as file.py:CLASS.

    Both optimizers receive the same gradients. The result is one of three: parameters have the
    same bits after each step; they differ by at most 1e-5 of the distance they move, which is
    rounding; or they diverge. For a divergence the command prints the first step, parameter and
    element, and which of the listed arguments, each tried alone, removes it. Thalweg's optimizer
    receives the values of all arguments that both have.

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
    if (atlas is None) == (theirs is None):
        raise click.UsageError("give either PACKAGE:CLASS, or --atlas FILE.svg.")
    if atlas is None:
        if listed is not None:
            raise click.UsageError("--list goes with --atlas.")
        _compare(theirs or "", rule, given, own, group, steps, as_json)
    if rule or given or own or group:
        raise click.UsageError("--atlas takes rules and arguments from its list.")
    _draw(atlas, listed, steps, as_json)


def _compare(
    name: str, rule: str | None, given: dict[str, object], own: dict[str, object],
    group: dict[str, object], steps: int, as_json: bool,
) -> NoReturn:  # fmt: skip
    from thalweg.conform import ConformError, compare
    from thalweg.conform.external_optimizers import load_class
    from thalweg.conform.thalweg_optimizers import find_like, find_rule

    try:
        # What packages print is none of our output.
        with show_busy(f"comparing {escape_text(name)}"), contextlib.redirect_stdout(sys.stderr):
            theirs, note = load_class(name)
            ours = find_rule(rule) if rule else find_like(theirs.name)
            one = replace(theirs.with_arguments(**given), group=group)
            found = compare(one, ours.with_arguments(**own), steps=steps)
    except ConformError as error:
        _fail(str(error))
    if as_json:
        told = {"theirs": name, "ours": ours.name, "note": note, "outcome": asdict(found)}
        click.echo(json.dumps(_as_json(told), indent=2))
    else:
        _print(name, ours.name, found, note)
    sys.exit(0 if found.agrees else PARTS)


def _fail(message: str) -> NoReturn:
    raise NothingToCompare(message)


def _as_json(value: object) -> object:
    """What JSON has: no infinity, and the text of what it does not know."""
    match value:
        case dict():
            return {str(key): _as_json(each) for key, each in value.items()}
        case list() | tuple():
            return [_as_json(each) for each in value]
        case float() if value - value != 0:
            return None
        case None | bool() | int() | float() | str():
            return value
    return str(value)


def _print(name: str, ours: str, found: Outcome, note: str) -> None:
    from rich.text import Text

    console = make_console(soft_wrap=True)

    def line(text: str, style: str = "") -> None:
        console.print(Text(escape_text(text), style=style))

    line(f"{name} beside {ours}, {found.steps} steps ({found.way})", "bold")
    line(_describe_verdict(found), _COLORS[found.verdict])
    if found.verdict == "parts":
        line(_describe_closing(found))
    line(f"theirs: {_list_arguments(found.theirs)}", "dim")
    line(f"ours:   {_list_arguments(found.ours)}", "dim")
    if note:
        line(f"{name.partition(':')[0]} was {note}.", "dim")


def _describe_verdict(found: Outcome) -> str:
    after = f"{found.difference:.1e} of the movement after {found.steps} steps"
    if found.parting is None:
        return "The same bits after each step."
    if found.agrees:
        return f"Rounding: {after}; bits first differ in {_describe_place(found.parting)}."
    return f"They part in {_describe_place(found.parting)}; {after}."


def _describe_place(at: Divergence) -> str:
    element = f", element {list(at.element)}" if at.element else ""
    return (
        f"step {at.step}, parameter {at.parameter} of shape {list(at.shape)}{element}:"
        f" {at.theirs:.9g} of theirs, {at.ours:.9g} of ours"
    )


def _describe_closing(found: Outcome) -> str:
    if found.closed_by:
        return f"Closed by: {'; or '.join(found.closed_by)}."
    if not found.tried:
        return "There is no argument to try."
    return f"None of the {len(found.tried)} changes tried closes it: {', '.join(found.tried)}."


def _list_arguments(values: dict[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _draw(path: Path, listed: Path | None, steps: int, as_json: bool) -> None:
    from thalweg.conform import ConformError, atlas, svg

    if path.suffix.lower() != ".svg":
        raise click.BadParameter(f"'{path}' must end in .svg.", param_hint="--atlas")
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"'{path.parent}' is not a folder.", param_hint="--atlas")
    try:
        table = atlas.read_list(listed)
        with watch_shares("importing") as progress:
            found = atlas.survey(table, steps, progress)
    except ConformError as error:
        _fail(str(error))
    own = [*(["--list", str(listed)] if listed else []), *(["--steps", str(steps)] * (steps != 20))]
    command = shlex.join(["thalweg", "conform", "--atlas", str(path), *own])
    path.write_text(svg.draw(found, command), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        click.echo(f"{found.summarize()} Saved {path}")
