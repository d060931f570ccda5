"""`thalweg scan`: list of the TensorFlow names in a script and of their state in thalweg.tf."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
from rich import box
from rich.table import Table
from rich.text import Text

from thalweg._cli.console import make_console
from thalweg._cli.progress import watch_fraction
from thalweg._cli.scan import table
from thalweg._cli.scan.script import Name, ScanError, Scanned
from thalweg._cli.scan.script import scan as scanned
from thalweg._cli.terminal_escape import escape_text
from thalweg.errors import listed

MISSING, UNREADABLE = 1, 2
_COLORS = {"changed": "yellow", "missing": "red"}


@click.command()
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

    scripts: list[Scanned] = []
    failed: list[str] = []
    paths = list(_find_scripts(files))
    with watch_fraction("scanning") as progress:
        for index, path in enumerate(paths):
            progress(index / len(paths), lambda path=path: escape_text(path))
            try:
                scripts.append(scanned(path))
            except ScanError as error:
                failed.append(str(error))
    if as_json:
        click.echo(json.dumps([_as_json(script) for script in scripts], indent=2))
    else:
        _print_found(scripts)
    for message in failed:
        click.echo(f"Error: {escape_text(' '.join(message.split()))}", err=True)
    lacking = any(script.of("missing") for script in scripts)
    sys.exit(UNREADABLE if failed else MISSING if lacking else 0)


def _find_scripts(files: tuple[str, ...]) -> Iterator[str]:
    for name in files:
        folder = Path(name)
        if folder.is_dir():
            yield from map(str, sorted(folder.rglob("*.py")))
        else:
            yield name


def _as_json(script: Scanned) -> dict[str, object]:
    return {
        "path": script.path,
        "tensorflow": script.version if script.names else None,
        "names": [asdict(name) for name in script.names],
    }


def _print_found(scripts: list[Scanned]) -> None:
    console = make_console(soft_wrap=True)
    for script in scripts:
        path = escape_text(script.path)
        console.print(Text(f"{path}: {_count_states(script)}", style="bold"))
        for name in script.names:
            if name.state != "there":
                console.print(_format_line(path, name))
    if len(scripts) > 1:
        totals = [
            sum(len(scanned_script.of(state)) for scanned_script in scripts)
            for state in ("changed", "missing")
        ]
        console.print(
            f"{len(scripts)} files: {totals[0]} changed, {totals[1]} missing", highlight=False
        )


def _count_states(script: Scanned) -> str:
    if not script.names:
        return "no names of TensorFlow"
    counts = {state: len(script.of(state)) for state in ("there", "changed", "missing")}
    summary = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"TensorFlow {script.version}, {summary}"


def _format_line(path: str, name: Name) -> object:
    first, *other_lines = name.lines
    line = Text(f"{path}:{first}: {name.name}: ")
    if name.uses:
        uses = listed((use.removeprefix(f"{name.name}.") for use in name.uses), limit=5)
        line = Text(f"{path}:{first}: {name.name} ({uses}): ")
    line.append(name.state, style=_COLORS[name.state])
    line.append(f"; {escape_text(name.words)}")
    if other_lines:
        line.append(f" (also {', '.join(map(str, other_lines))})", style="dim")
    return line


def _print_names(markdown: bool, as_json: bool) -> None:
    names = table.names()
    if as_json:
        click.echo(json.dumps(names._asdict(), indent=2))
        return
    if markdown:
        click.echo(table.markdown(names))
        return

    console = make_console()
    for headings, words_by_name in names.sections():
        table_ = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table_.add_column(headings[0], no_wrap=True, overflow="fold")
        table_.add_column(headings[1], overflow="fold")
        for key, words in words_by_name.items():
            table_.add_row(key, words)
        console.print(table_)
