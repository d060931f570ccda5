"""`thalweg race`: the same model from the same start, with several optimizers side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from thalweg.cli.options import Whole, clamped
from thalweg.cli.ranks import launched

if TYPE_CHECKING:
    from thalweg.race.run import Race


def _rates(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[float | None, dict[str, float]]:
    """`0.01`, `Adam=0.01,Ftrl=0.5`, or both: the rate of all others, and rates by name."""
    shared: float | None = None
    named: dict[str, float] = {}
    for part in (value or "").split(","):
        name, equals, number = part.strip().rpartition("=")
        if not part.strip():
            continue
        try:
            rate = float(number)
        except ValueError:
            raise click.BadParameter(
                f"'{part.strip()}' is neither a number nor NAME=NUMBER."
            ) from None
        if equals:
            named[name.strip()] = rate
        else:
            shared = rate
    return shared, named


@click.command(short_help="Train one model with several optimizers, side by side.")
@click.option(
    "--optimizers",
    metavar="A,B,...",
    help="Who races: names, v1: before those of TensorFlow 1 (v1:AdamOptimizer), optim: before "
    "those of thalweg.optim, torch: before torch's own, or file.py:NAME for a rule or optimizer of "
    "yours; thalweg rules lists all. "
    "[default: all eight of Keras; those cheap on sparse gradients for stdlib]",
)
@click.option(
    "--lr",
    callback=_rates,
    metavar="RATE|A=RATE,...",
    help="Learning rate of all, or by name. [default: a good one for each of ours]",
)
@click.option(
    "--epochs",
    type=Whole(1),
    help="Passes over the training examples. [default: 15 for digits, 3 for lines, 1 for stdlib]",
)
@click.option(
    "--seed",
    type=Whole(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Decides the first weights and the order of the examples.",
)
@click.option(
    "--threads",
    type=Whole(1),
    default=1,
    show_default=True,
    callback=clamped,
    help="How many threads compute; for models this small, one is as fast as many.",
)
@click.option(
    "--nproc",
    type=Whole(1, 32),  # examples in the smallest batch
    default=1,
    show_default=True,
    help="How many processes share each batch; torch's launcher starts them.",
)
@click.option(
    "--problem",
    type=click.Choice(["digits", "lines", "stdlib"], case_sensitive=False),
    default="digits",
    show_default=True,
    help="Handwritten digits with a small convolutional network; lines of such digits, read with "
    "CTC; or the next token in Python's own standard library with a large embedding table and "
    "sparse gradients.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Folder for race.png and race.json.",
)
@click.option(
    "--logdir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for TensorBoard events; every race gets a new folder in it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def race(
    optimizers: str | None,
    lr: tuple[float | None, dict[str, float]],
    epochs: int | None,
    seed: int,
    threads: int,
    nproc: int,
    problem: str,
    out: Path,
    logdir: Path | None,
    as_json: bool,
) -> None:
    """Train one model with several optimizers, side by side, on real data.

    Everyone starts from the same weights and sees the same batches; blocks of steps take turns,
    so that times are fair. Writes race.png and race.json.

    \b
    Examples:
      thalweg race
      thalweg race --optimizers Adam,Nadam --lr 0.002 --epochs 30 --seed 1
      thalweg race --optimizers Adam,v1:AdamOptimizer,v1:LazyAdamOptimizer
      thalweg race --optimizers optim:AdamW,torch:AdamW
      thalweg race --optimizers Adam,mine.py:MyRule --lr MyRule=0.1
      thalweg race --problem stdlib --logdir runs
      thalweg race --nproc 2
    """
    from thalweg.race.errors import need

    need("matplotlib", *(["sklearn"] if problem != "stdlib" else []))
    if logdir is not None:
        need("tensorboard")
    chosen = Chosen(optimizers, lr, epochs, seed, threads, problem, out, logdir, as_json)
    written = [out / "race.json", out / "race.png"]
    _contestants(chosen)
    _check_writable(out, written)
    if nproc > 1:
        launched(nproc, _race, chosen, written)
    else:
        _race(chosen, written)


class Chosen(NamedTuple):
    """What the command line asks for."""

    optimizers: str | None
    lr: tuple[float | None, dict[str, float]]
    epochs: int | None
    seed: int
    threads: int
    problem: str
    out: Path
    logdir: Path | None
    as_json: bool


def _contestants(chosen: Chosen) -> list[Any]:
    from thalweg.race.contestants import line_up
    from thalweg.race.errors import RaceError
    from thalweg.race.problems import DEFAULT_OPTIMIZERS

    names = (chosen.optimizers or "").split(",")
    try:
        return line_up(
            [name.strip() for name in names if name.strip()] if chosen.optimizers is not None
            else DEFAULT_OPTIMIZERS[chosen.problem],
            chosen.lr[1], chosen.problem, rate=chosen.lr[0],
        )  # fmt: skip
    except RaceError as error:
        raise click.UsageError(str(error)) from error


def _race(chosen: Chosen, written: list[Path]) -> None:
    """The race on this rank; rank 0 shows it and writes the files."""
    from rich.console import Console

    from thalweg.cli.live import watch
    from thalweg.distribute import Strategy
    from thalweg.race import events, plot, report
    from thalweg.race.problems import PROBLEMS
    from thalweg.race.run import run

    strategy, contestants = Strategy(), _contestants(chosen)

    def ran(progress: Callable[[Race], None] | None) -> Race:
        return run(
            PROBLEMS[chosen.problem](chosen.seed), contestants, epochs=chosen.epochs,
            seed=chosen.seed, threads=chosen.threads, progress=progress, strategy=strategy,
        )  # fmt: skip

    if strategy.ranks.rank:
        ran(None)
        return
    console = Console(stderr=chosen.as_json)
    with _events_folder(chosen.logdir, chosen.problem) as events_folder:
        with watch(console, chosen.problem) as progress:
            result = ran(progress)
        report.save(result, written[0])
        plot.save(result, written[1])
        if events_folder is not None:
            events.save(result, events_folder)
            written.append(events_folder)
    if chosen.as_json:
        click.echo(report.text(result))
    else:
        _print(console, result, written)


def _check_writable(folder: Path, files: list[Path]) -> None:
    """Found out before the race, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _unwritable("--out", folder, error) from error
    for file in files:
        if file.is_dir():
            raise click.BadParameter(f"'{file}' is a folder.", param_hint="--out")


@contextmanager
def _events_folder(logdir: Path | None, problem: str) -> Iterator[Path | None]:
    if logdir is None:
        yield None
        return
    from thalweg.race import events

    with ExitStack() as stack:
        try:
            made = stack.enter_context(events.folder(logdir, problem))
        except OSError as error:
            raise _unwritable("--logdir", logdir, error) from error
        yield made


def _unwritable(option: str, folder: Path, error: OSError) -> click.BadParameter:
    return click.BadParameter(f"cannot write to '{folder}': {error.strerror}.", param_hint=option)


def _print(console: Any, result: Any, written: list[Path]) -> None:
    from thalweg.race import report

    console.print(f"[bold]{result.problem.description}[/bold]", highlight=False)
    ranks = f" on {result.ranks} ranks" if result.ranks > 1 else ""
    console.print(
        f"{result.steps:,} steps of {result.problem.batch_size} examples{ranks}, "
        f"{report.epochs(result)}, seed {result.seed}, {result.seconds:.0f} s",
        highlight=False,
    )
    console.print(report.table(result))
    console.print(report.FOOTNOTE, style="dim", highlight=False)
    saved = "Saved " + ", ".join(map(str, written))
    console.print(saved, markup=False, highlight=False, soft_wrap=True)
