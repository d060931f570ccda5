"""`thalweg scan`: which names of TensorFlow a script uses, and what becomes of them here."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from thalweg._cli.console import make_console
from thalweg._cli.progress import watch_shares
from thalweg._cli.terminal_escape import escape_text

if TYPE_CHECKING:
    from thalweg._cli.scan.script import Name, Scanned

MISSING, UNREADABLE = 1, 2
_COLORS = {"changed": "yellow", "missing": "red"}


@click.command(short_help="List the TensorFlow names of a script that thalweg.tf lacks.")
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER]...", type=click.Path())
@click.option(
    "--names", is_flag=True, help="List all names that are available and all that are not."
)
@click.option("--markdown", is_flag=True, help="With --names: print Markdown tables.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def scan(files: tuple[str, ...], names: bool, markdown: bool, as_json: bool) -> None:
    """List the TensorFlow names of scripts that thalweg.tf lacks, without running the scripts.

    For a missing name the command prints a replacement, for other names known differences. A
    FOLDER stands for all .py files in it. The exit status is 0 if all names exist, 1 if one is
    missing, 2 if a file cannot be read.

    \b
    Examples:
      thalweg scan train.py
      thalweg scan --json project/
      thalweg scan --names
    """
    if names == bool(files):
        raise click.UsageError("give either files, or --names.")
    if markdown and (as_json or not names):
        raise click.UsageError("--markdown goes with --names, and without --json.")
    if names:
        _print_names(markdown, as_json)
        return
    from thalweg._cli.scan.script import ScanError
    from thalweg._cli.scan.script import scan as scanned

    found: list[Scanned] = []
    failed: list[str] = []
    paths = list(_find_scripts(files))
    with watch_shares("scanning") as progress:
        for number, path in enumerate(paths):
            progress(number / len(paths), lambda path=path: escape_text(path))
            try:
                found.append(scanned(path))
            except ScanError as error:
                failed.append(str(error))
    if as_json:
        click.echo(json.dumps([_as_json(each) for each in found], indent=2))
    else:
        _print_found(found)
    for message in failed:
        click.echo(f"Error: {escape_text(' '.join(message.split()))}", err=True)
    lacking = any(each.of("missing") for each in found)
    sys.exit(UNREADABLE if failed else MISSING if lacking else 0)


def _find_scripts(files: tuple[str, ...]) -> Iterator[str]:
    for name in files:
        folder = Path(name)
        if folder.is_dir():
            yield from map(str, sorted(folder.rglob("*.py")))
        else:
            yield name


def _as_json(scanned: Scanned) -> dict[str, object]:
    return {
        "path": scanned.path,
        "tensorflow": scanned.version if scanned.names else None,
        "names": [asdict(each) for each in scanned.names],
    }


def _print_found(found: list[Scanned]) -> None:
    from rich.text import Text

    console = make_console(soft_wrap=True)
    for scanned in found:
        path = escape_text(scanned.path)
        console.print(Text(f"{path}: {_count_states(scanned)}", style="bold"))
        for name in scanned.names:
            if name.state != "there":
                console.print(_format_line(path, name))
    if len(found) > 1:
        totals = [sum(len(each.of(state)) for each in found) for state in ("changed", "missing")]
        console.print(
            f"{len(found)} files: {totals[0]} changed, {totals[1]} missing", highlight=False
        )


def _count_states(scanned: Scanned) -> str:
    if not scanned.names:
        return "no names of TensorFlow"
    counts = {state: len(scanned.of(state)) for state in ("there", "changed", "missing")}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"TensorFlow {scanned.version}, {told}"


def _format_line(path: str, name: Name) -> object:
    from rich.text import Text

    first, *others = name.lines
    line = Text(f"{path}:{first}: {name.name}: ")
    if name.uses:
        line = Text(f"{path}:{first}: {name.name} ({_names_below(name)}): ")
    line.append(name.state, style=_COLORS[name.state])
    line.append(f"; {escape_text(name.words)}")
    if others:
        line.append(f" (also {', '.join(map(str, others))})", style="dim")
    return line


def _names_below(name: Name) -> str:
    from thalweg.errors import listed

    return listed((use.removeprefix(f"{name.name}.") for use in name.uses), most=5)


def _print_names(markdown: bool, as_json: bool) -> None:
    from thalweg._cli.scan import table

    found = table.names()
    if as_json:
        click.echo(json.dumps(found._asdict(), indent=2))
        return
    if markdown:
        click.echo(table.markdown(found))
        return
    from rich import box
    from rich.table import Table

    rows: list[tuple[tuple[str, str], dict[str, str]]] = [
        (("module", "what is there"), {key: ", ".join(own) for key, own in found.there.items()}),
        (("there, but", "how it differs"), found.changed),
        (("not there", "what to do"), found.missing),
    ]
    console = make_console()
    for headings, each in rows:
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        made.add_column(headings[0], no_wrap=True, overflow="fold")
        made.add_column(headings[1], overflow="fold")
        for key, words in each.items():
            made.add_row(key, words)
        console.print(made)
