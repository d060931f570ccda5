"""`thalweg report`: a page of what the steps of a training say of themselves."""

from __future__ import annotations

from pathlib import Path

import click

from thalweg.cli.escaped import escape_text
from thalweg.cli.outputs import check_writable


@click.command(short_help="Draw a page of what a training's steps say of themselves.")
@click.argument("run", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "-o", "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page. [default: FILE with .html in place of its suffix]",
)  # fmt: skip
@click.option("--title", help="Its title. [default: the name of FILE]")
def report(run: Path, out: Path | None, title: str | None) -> None:
    """Draw a page of FILE, the diagnostics of a training: layers by steps, with what went first.

    The page is one file of HTML, which needs no network. It has the update beside the weight of
    each layer and the norm of its gradient as strips of colour, the loss above them on the same
    axis, and marks where a layer was not usual.

    \b
    Examples:
      thalweg report run.jsonl
      thalweg report run.jsonl -o page.html --title "GPT-2 small, rate 6e-4"
    """
    from thalweg.race.report import whole
    from thalweg.report.history import read_history
    from thalweg.report.page import draw, tell_damaged

    out = out or run.with_suffix(".html")
    if out.resolve() == run.resolve():
        raise click.BadParameter(f"'{out}' is FILE itself.", param_hint="--out")
    history = read_history(run)
    check_writable(out.parent, [out])
    page = draw(history, title or run.name).encode("utf-8", "replace")  # a path may be any bytes
    with whole(out) as file:
        file.write(page)
    if history.damaged:
        click.echo(tell_damaged(history.damaged), err=True)
    click.echo(f"Saved {escape_text(out)}")
