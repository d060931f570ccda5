"""`thalweg watch`: the layers of a training while it runs, the worst first."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from thalweg._cli.console import make_console
from thalweg._cli.layer_table import make_table, rank_layers
from thalweg._cli.options import INTERRUPTED, Whole
from thalweg._cli.report.json_values import json_number, plain_number, plain_warned
from thalweg._cli.report.page import tell_damaged
from thalweg._cli.report.tail import Latest
from thalweg._cli.terminal_escape import escape_text
from thalweg.diagnostics.jsonl_reader import JsonLinesReader

# Seconds between polls of the file.
INTERVAL = 0.5
# The number of warnings below the table.
MAX_WARNINGS = 3


@click.command()
@click.argument("run", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--once", is_flag=True, help="Print one table and exit; the default if the output is piped."
)
@click.option(
    "--layers", type=Whole(1, 10_000),
    help="Number of layers to show. [default: as many as fit; 20 if the output is piped]",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the latest step as JSON and exit.")
def watch(run: Path, once: bool, layers: int | None, as_json: bool) -> None:
    """Show the latest step in FILE, the diagnostics of a training, layer by layer.

    The worst layers come first: those with NaN or infinity, then those with the largest ratio of
    update to weight. The latest warnings follow. The table is updated until Ctrl-C.

    \b
    Examples:
      thalweg watch run.jsonl
      thalweg watch run.jsonl --once --layers 5
      thalweg watch run.jsonl --json
    """
    console = make_console()
    # Without escape codes a table cannot be redrawn in place.
    is_interactive = sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal
    with JsonLinesReader(run) as reader:
        latest = Latest(reader)
        if as_json:
            latest.read_all()
            click.echo(json.dumps(_as_json(latest, layers), indent=2))
            return
        if once or not is_interactive:
            latest.read_all()
            console.print(_lay_out(latest, console, layers or 20))
            return
        latest.read_new()
        # Refreshed only for new lines, to take no processor time from the training.
        with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(_lay_out(latest, console, layers), refresh=True)
                time.sleep(INTERVAL)
                while not latest.read_new():
                    time.sleep(INTERVAL)
        # Ctrl-C is the normal end of this command, so there is no message.
        sys.exit(INTERRUPTED)


def _as_json(latest: Latest, layers: int | None) -> dict[str, Any]:
    indices: list[int] = rank_layers(latest.rows).indices[:layers].tolist() if latest.rows else []
    return {
        "step": latest.step,
        "measured": latest.measured_step,
        "loss": None if latest.loss is None else json_number(latest.loss),
        "layers": [
            {"name": latest.names[index]}
            | {key: plain_number(float(row[index])) for key, row in latest.rows.items()}
            for index in indices
        ],
        "warned": [plain_warned(warning) for warning in latest.warnings],
        "damaged": latest.damaged,
    }


def _lay_out(latest: Latest, console: Console, layers: int | None) -> Group:
    renderables: list[RenderableType] = [Text(escape_text(latest.summarize()), style="bold")]
    notes: list[Text] = []
    if latest.rows:
        max_rows = max(3, console.height - 10 - MAX_WARNINGS)
        rows = {escape_text(key): row for key, row in latest.rows.items()}
        ranking = rank_layers(rows)
        names = [escape_text(name) for name in latest.names]
        max_layers = layers or max_rows
        renderables.append(make_table(rows, names, ranking, max_layers, console.width))
        hidden = len(names) - max_layers
        remainder = f"; {hidden:,} more" if hidden > 0 else ""
        notes.append(Text(f"Worst first: {ranking.description}{remainder}.", style="dim"))
    for warning in latest.warnings[-MAX_WARNINGS:]:
        notes.append(Text(escape_text(warning), style="yellow"))
    if latest.damaged:
        notes.append(Text(tell_damaged(latest.damaged), style="yellow"))
    return Group(*renderables, *notes)
