"""`thalweg watch`: the layers of a training while it runs, the worst first."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thalweg._cli.console import make_console
from thalweg._cli.options import INTERRUPTED, Whole
from thalweg._cli.terminal_escape import escape_text

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType

    from thalweg._cli.report.tail import Latest

INTERVAL = 0.5  # seconds between looks at the file
TOLD = 3  # warnings beneath the table


@click.command(short_help="Show the layers of a training while it runs, worst first.")
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
    from rich.live import Live

    from thalweg._cli.report.tail import Latest
    from thalweg.diagnostics.jsonl_reader import JsonLinesReader

    console = make_console()
    # Where no escape codes are wanted or obeyed, nothing can be drawn over.
    is_followed = sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal
    with JsonLinesReader(run) as reader:
        latest = Latest(reader)
        if as_json:
            latest.read_all()
            click.echo(json.dumps(_as_json(latest, layers), indent=2))
            return
        if once or not is_followed:
            latest.read_all()
            console.print(_lay_out(latest, console, layers or 20))
            return
        latest.read_new()
        # Refreshed when there is something new: what watches must not take time from a training.
        with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(_lay_out(latest, console, layers), refresh=True)
                time.sleep(INTERVAL)
                while not latest.read_new():
                    time.sleep(INTERVAL)
        sys.exit(INTERRUPTED)  # and nothing is said: Ctrl-C is the way it ends


def _as_json(latest: Latest, layers: int | None) -> dict[str, Any]:
    from thalweg._cli.layer_table import rank_layers
    from thalweg._cli.report.json_values import json_number, plain_number, plain_warned

    places = rank_layers(latest.rows).places[:layers].tolist() if latest.rows else []
    return {
        "step": latest.step,
        "measured": latest.measured,
        "loss": None if latest.loss is None else json_number(latest.loss),
        "layers": [
            {"name": latest.names[place]}
            | {key: plain_number(float(row[place])) for key, row in latest.rows.items()}
            for place in places
        ],
        "warned": [plain_warned(each) for each in latest.warned],
        "damaged": latest.damaged,
    }


def _lay_out(latest: Latest, console: Console, layers: int | None) -> Group:
    from rich.console import Group
    from rich.text import Text

    from thalweg._cli.layer_table import make_table, rank_layers
    from thalweg._cli.report.page import tell_damaged

    parts: list[RenderableType] = [Text(escape_text(latest.summarize()), style="bold")]
    notes: list[Text] = []
    if latest.rows:
        room = max(3, console.height - 10 - TOLD)
        rows = {escape_text(key): row for key, row in latest.rows.items()}
        worst = rank_layers(rows)
        names = [escape_text(each) for each in latest.names]
        most = layers or room
        parts.append(make_table(rows, names, worst, most, console.width))
        left = len(names) - most
        more = f"; {left:,} more" if left > 0 else ""
        notes.append(Text(f"Worst first: {worst.words}{more}.", style="dim"))
    for each in latest.warned[-TOLD:]:
        notes.append(Text(escape_text(each), style="yellow"))
    if latest.damaged:
        notes.append(Text(tell_damaged(latest.damaged), style="yellow"))
    return Group(*parts, *notes)
