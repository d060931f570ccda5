"""`thalweg report`: a page of the diagnostics of a training."""

from __future__ import annotations

import json
from pathlib import Path

import click

from thalweg._cli.output_paths import check_writable
from thalweg._cli.progress import watch_fraction
from thalweg._cli.race.report import whole
from thalweg._cli.report.history import History, read_history
from thalweg._cli.report.json_values import plain_warned
from thalweg._cli.report.page import TrainingReport, draw, tell_damaged
from thalweg._cli.terminal_escape import escape_text

# Bytes above which progress is shown: they take about two seconds.
LARGE = 1 << 25


@click.command()
@click.argument("run", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "-o", "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write. [default: FILE with the suffix .html]",
)  # fmt: skip
@click.option("--title", help="The title of the page. [default: the name of FILE]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def report(run: Path, out: Path | None, title: str | None, as_json: bool) -> None:
    """Draw a page of FILE, the diagnostics of a training: layers by steps, and what failed first.

    The page is one HTML file and needs no network. Strips of colour show the ratio of update to
    weight and the gradient norm of each layer, below the loss on the same axis; marks show where
    a layer left its usual range.

    \b
    Examples:
      thalweg report run.jsonl
      thalweg report run.jsonl -o page.html --title "GPT-2 small, rate 6e-4"
    """
    history = _read(run)
    out = out or run.with_suffix(".html")
    check_writable(out.parent, [out])
    if out.exists() and out.samefile(run):
        raise click.BadParameter(f"'{out}' is FILE itself.", param_hint="--out")
    page = draw([TrainingReport(history)], title or run.name)
    with whole(out) as file:
        file.write(page.encode("utf-8", "replace"))  # a path may be any bytes
    if as_json:
        report = {
            "saved": str(out),
            "step": history.last,
            "layers": len(history.names),
            "warned": [plain_warned(layer) for layer in history.warnings],
            "damaged": history.damaged,
        }
        click.echo(json.dumps(report, indent=2))
        return
    if history.damaged:
        click.echo(tell_damaged(history.damaged), err=True)
    click.echo(f"Saved {escape_text(out)}")


def _read(run: Path) -> History:
    if not run.is_file() or run.stat().st_size < LARGE:
        return read_history(run)
    name = escape_text(run.name)
    with watch_fraction(name) as progress:
        return read_history(run, lambda fraction: progress(fraction, lambda: name))
