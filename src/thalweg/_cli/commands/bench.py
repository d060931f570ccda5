"""`thalweg bench`: the time of a step, against other libraries and against the machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from thalweg._base.literals import names_file
from thalweg._cli import rule_loader
from thalweg._cli.bench import compare, memory, registry, table
from thalweg._cli.bench import peers as others
from thalweg._cli.bench import shapes as sets
from thalweg._cli.bench.registry import BenchmarkedRule
from thalweg._cli.bench.roofline import MOST_SLOTS
from thalweg._cli.bench.shapes import ShapeSet
from thalweg._cli.bench.table import format_size
from thalweg._cli.bench.timing import Timings
from thalweg._cli.bench.workload import try_options
from thalweg._cli.console import make_console
from thalweg._cli.log_progress import ProgressLines
from thalweg._cli.options import Whole, clamp_threads, split_values
from thalweg._cli.registry import spelled
from thalweg.errors import NotFoundError
from thalweg.formula import Rule


def _split_names(value: str, choices: tuple[str, ...], noun: str) -> list[str]:
    """Return the distinct comma-separated names in `value`, spelled as in `choices`.

    Raises:
        click.BadParameter: A name is not in `choices`, or `value` is empty.
    """
    spellings = {name.lower(): name for name in choices}
    names = _split_value(value)
    unknown = [name for name in names if name.lower() not in spellings]
    if unknown or not names:
        bad = f"no {noun} '{unknown[0]}'" if unknown else f"no {noun} given"
        raise click.BadParameter(
            f"{bad}; here there are {', '.join(choices)}.", param_hint=f"--{noun}s"
        )
    return list(dict.fromkeys(spellings[name.lower()] for name in names))


def _split_value(value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]


def _entries_named(value: str) -> dict[str, BenchmarkedRule]:
    """Return {registered name: rule} for the comma-separated names in `value`.

    The key for `file.py:NAME` is the rule's name, or `file.py:NAME` if the name is in use.

    Raises:
        click.BadParameter: A rule is unknown, updates matrices, or has too many slots.
    """
    entries: dict[str, BenchmarkedRule] = {}
    names = _split_value(value)
    if not names:
        raise click.BadParameter("no rule given.", param_hint="--rules")
    for name in dict.fromkeys(names):
        if not names_file(name):
            try:
                spelling = spelled(name)
                entries[spelling] = registry.entry(spelling)
            except NotFoundError as error:
                raise click.BadParameter(str(error), param_hint="--rules") from None
            _check_elements(spelling, entries[spelling].rule)
            continue
        rule = rule_loader.load_rule(name)
        _check_elements(name, rule)
        count = len(rule.element_slots)
        if count > MOST_SLOTS:
            raise click.BadParameter(
                f"'{name}' has {count} slots; up to {MOST_SLOTS} can be measured.",
                param_hint="--rules",
            )
        is_ambiguous = rule.name in entries or rule.name in registry.RULE_ENTRIES
        entries[name if is_ambiguous else rule.name] = registry.own(rule)
    return entries


def _check_elements(name: str, rule: Rule) -> None:
    """Raise `click.BadParameter` for a rule whose time is that of matrix products."""
    if rule.passes and not rule.is_of_lines:
        raise click.BadParameter(
            f"'{name}' is for matrices, whose products take most of its time: see"
            " `python benchmarks/figures.py --only matrices`.",
            param_hint="--rules",
        )


@click.command()
@click.argument("shapes", default="resnet50", metavar="[SHAPES|FILE]")
@click.option(
    "--rules",
    default="Adam",
    metavar="A,B,...",
    help="Optimizers, separated by commas: a name, v1: before an optimizer of TensorFlow 1, optim: "
    "before one of thalweg.optim, torch: before one of torch.optim, or file.py:NAME for your "
    "own rule.",
)
@click.option(
    "--peers",
    metavar="A,B,...",
    help="Libraries to compare with: torch-fused, torch-foreach, torch-forloop, optax, keras, "
    "tensorflow. [default: all that are installed]",
)
@click.option(
    "--rounds",
    default=7,
    type=Whole(1),
    help="Number of undisturbed rounds; each optimizer takes steps in each round.",
)
@click.option(
    "--threads",
    type=Whole(1),
    callback=clamp_threads,
    help="Number of threads of a step. [default: torch's choice]",
)
@click.option(
    "--set", "options", multiple=True, callback=split_values, metavar="NAME=VALUE",
    help="Another argument of the optimizers of --rules, such as state_storage=8bit.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.option(
    "--plot",
    default=None,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Save a bar chart, as .png, .svg or .pdf.",
)
def bench(
    shapes: str,
    rules: str,
    peers: str | None,
    rounds: int,
    threads: int | None,
    options: dict[str, object],
    as_json: bool,
    plot: Path | None,
) -> None:
    """Time a step on SHAPES: gpt2, resnet50, small2000, or the shapes of a model's FILE.

    FILE is a state_dict saved with torch.save, or a .safetensors file; only its shapes are read.
    Every step runs in interleaved rounds with torch's fused Adam ("ratio") and with a kernel that
    does one addition over the same memory ("of roofline"). Rounds that other processes disturb
    are repeated, so a busy machine takes up to a minute for each rule. A warning says if too few
    rounds are left or if times vary too much.

    \b
    Examples:
      thalweg bench
      thalweg bench gpt2 --rules Adam,Adagrad,Ftrl
      thalweg bench model.safetensors --rules Nadam --plot steps.png
      thalweg bench --rules v1:RMSPropOptimizer,v1:MomentumOptimizer
      thalweg bench --rules optim:AdamW,torch:AdamW
      thalweg bench --rules optim:AdamW --set state_storage=8bit
      thalweg bench --rules Adam,mine.py:MyRule
    """
    try:
        shape_set = sets.load(shapes)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="SHAPES") from None
    entries, peer_names = _entries_named(rules), others.installed_peers()
    if peers is not None:
        peer_names = _split_names(peers, peer_names, "peer")
    for name, entry in entries.items() if options else ():
        _try_options(name, entry, options, shape_set)
    if plot is not None:
        _check_plot(plot)
    previous_threads = torch.get_num_threads()
    torch.set_num_threads(threads or previous_threads)
    try:
        rows = _measure_all(shape_set, entries, tuple(peer_names), rounds, options, as_json)
        if as_json:
            click.echo(json.dumps(table.report(shape_set, rows, options), indent=2))
        else:
            _print_table(partial(table.table, shape_set, rows), table.judge_noise(rows)["message"])
        if plot is not None:
            table.plot(plot, shape_set, rows)
            click.echo(f"Saved {plot}", err=True)
    finally:
        torch.set_num_threads(previous_threads)


def _print_table(table_of_width: Callable[[int], object], warning: str) -> None:
    console = make_console()
    if warning:
        console.print(Text(f"Warning: {warning}", style="bold red"), soft_wrap=True)
    console.print(table_of_width(console.width))


def _try_options(
    name: str, entry: BenchmarkedRule, options: dict[str, object], shapes: ShapeSet
) -> None:
    try:
        try_options(entry, options, shapes.dtypes)
    # A constructor or a step may raise any exception.
    except Exception as error:
        arguments = ", ".join(f"{key}={value!r}" for key, value in options.items())
        message = f"{name} with {arguments}: {type(error).__name__}: {error}"
        raise click.BadParameter(message, param_hint="--set") from error


def _check_plot(path: Path) -> None:
    # Raise before the measurement, not after it.
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise click.UsageError("--plot needs matplotlib: pip install matplotlib") from None
    kinds = FigureCanvasAgg(Figure()).get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in kinds:
        raise click.BadParameter(f"'{path}' must end in .png, .svg or .pdf.", param_hint="--plot")
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"'{path.parent}' is not a folder.", param_hint="--plot")


def _progress_bar(console: Console, disable: bool) -> Progress:
    # Refreshed between blocks of steps: a refreshing thread would disturb timed steps.
    return Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn(),
        TextColumn("{task.fields[now]}", style="dim"), console=console, transient=True,
        auto_refresh=False, disable=disable,
    )  # fmt: skip


def _check_memory(
    shapes: Any, entries: dict[str, BenchmarkedRule], peer_names: tuple[str, ...]
) -> None:
    """Raise ClickException if free memory is too small for a rule together with all peers."""
    free_bytes = memory.available_bytes()
    needed_bytes = max(
        compare.needed_bytes(shapes, entry, peer_names) for entry in entries.values()
    )
    if free_bytes is not None and needed_bytes > free_bytes:
        raise click.ClickException(
            f"{shapes.name} needs about {format_size(needed_bytes)} for all peers together;"
            f" {format_size(free_bytes)} are free. Name fewer with --peers, for example"
            " --peers torch-fused."
        )


def _measure_all(
    shapes: Any,
    entries: dict[str, BenchmarkedRule],
    peer_names: tuple[str, ...],
    rounds: int,
    options: dict[str, object],
    quiet: bool,
) -> list[Any]:
    _check_memory(shapes, entries, peer_names)
    rows: list[Any] = []
    has_explained = quiet
    # The bar is for terminals, on stderr, so that the table on stdout stays clean.
    console = make_console(stderr=True)
    lines = None if console.is_terminal else ProgressLines()
    with _progress_bar(console, disable=quiet or lines is not None) as progress:
        for index, (name, entry) in enumerate(entries.items()):
            task = progress.add_task(f"{name} on {shapes.name}", total=rounds, now="")

            def doing(activity: str, task: Any = task) -> None:
                progress.update(task, now=activity, refresh=True)

            def done(
                count: int, total: int, timings: Timings, task: Any = task, name: str = name,
                index: int = index,
            ) -> None:  # fmt: skip
                nonlocal has_explained
                progress.update(task, completed=count, total=total)
                if lines is not None:
                    fraction = (index + count / total) / len(entries)
                    lines.show(fraction, lambda: f"{name}: {count} of {total} rounds")
                if not has_explained and count < total <= len(timings.cores_of_others):
                    has_explained = True
                    console.print(table.explain_delay(timings), highlight=False, soft_wrap=True)

            settings = {"rounds": rounds, "options": options, "progress": done, "doing": doing}
            rows += compare.compare(name, entry, shapes, peer_names, **settings)
            progress.remove_task(task)
    return rows
