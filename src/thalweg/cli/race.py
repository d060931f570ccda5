"""`thalweg race`: the same model from the same start, with several optimizers side by side."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from thalweg.cli.options import INTERRUPTED, Whole, clamp_threads
from thalweg.cli.ranks import launch_ranks

if TYPE_CHECKING:
    from thalweg.race.outcome import Outcome


SWEEP = "sweep"


class Rates(NamedTuple):
    """What --lr asks for: a rate for all, rates by name, or that each contestant tries several."""

    shared: float | None
    named: dict[str, float]
    sweep: bool = False


def _parse_rates(context: click.Context, parameter: click.Parameter, value: str | None) -> Rates:
    """`0.01`, `Adam=0.01,Ftrl=0.5`, or both: the rate of all others, and rates by name; `sweep`."""
    shared: float | None = None
    named: dict[str, float] = {}
    parts = [part.strip() for part in (value or "").split(",") if part.strip()]
    if SWEEP in map(str.lower, parts):
        if len(parts) > 1:
            raise click.BadParameter(
                f"'{SWEEP}' stands alone: everyone tries as many learning rates."
            )
        return Rates(None, {}, sweep=True)
    for part in parts:
        name, equals, number = part.rpartition("=")
        try:
            rate = float(number)
        except ValueError:
            raise click.BadParameter(
                f"'{part}' is neither a number nor NAME=NUMBER, nor '{SWEEP}'."
            ) from None
        if equals:
            named[name.strip()] = rate
        else:
            shared = rate
    return Rates(shared, named)


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
    callback=_parse_rates,
    metavar="RATE|A=RATE,...|sweep",
    help="Learning rate of all, or by name. With sweep everyone tries five, from a tenth to ten "
    "times the usual one, and goes on with the one of the lowest train loss; that takes five times "
    "as long. [default: a good one for each of ours]",
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
    "--seeds",
    type=Whole(1, 100),
    default=1,
    show_default=True,
    help="How many seeds to race with, from --seed on; the table then shows the spread, and which "
    "ranks it leaves open.",
)
@click.option(
    "--threads",
    type=Whole(1),
    default=1,
    show_default=True,
    callback=clamp_threads,
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
    help="Folder for race.png and race.json; one that is not there is made if you agree.",
)
@click.option(
    "--logdir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for TensorBoard events; every race gets a new folder in it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def race(
    optimizers: str | None,
    lr: Rates,
    epochs: int | None,
    seed: int,
    seeds: int,
    threads: int,
    nproc: int,
    problem: str,
    out: Path,
    logdir: Path | None,
    as_json: bool,
) -> None:
    """Train one model with several optimizers, side by side, on real data.

    Everyone starts from the same weights and sees the same batches; blocks of steps take turns,
    so that times are fair. Writes race.png and race.json. Ctrl-C ends the race early and keeps
    what was raced, unless several processes race.

    \b
    Examples:
      thalweg race
      thalweg race --optimizers Adam,Nadam --lr 0.002 --epochs 30 --seed 1
      thalweg race --optimizers Adam,v1:AdamOptimizer,v1:LazyAdamOptimizer
      thalweg race --optimizers optim:AdamW,torch:AdamW
      thalweg race --optimizers Adam,mine.py:MyRule --lr MyRule=0.1
      thalweg race --optimizers Adam,Nadam --lr sweep --seeds 5
      thalweg race --problem stdlib --logdir runs
      thalweg race --nproc 2
    """
    from thalweg.race.errors import need_modules

    need_modules("matplotlib", *(["sklearn"] if problem != "stdlib" else []))
    if logdir is not None:
        need_modules("tensorboard")
    if seed + seeds > 2**63:
        raise click.UsageError(f"--seeds {seeds} from --seed {seed} on go beyond {2**63 - 1}.")
    each = range(seed, seed + seeds)
    chosen = Chosen(optimizers, lr, epochs, each, threads, problem, out, logdir, as_json)
    written = [out / "race.json", out / "race.png"]
    _choose_contestants(chosen)
    _check_writable(out, written)
    if nproc > 1:
        launch_ranks(nproc, _run_race, chosen, written)
    else:
        _run_race(chosen, written)


class Stopped(click.ClickException):
    """Ctrl-C has ended the race."""

    exit_code = INTERRUPTED


class Chosen(NamedTuple):
    """What the command line asks for."""

    optimizers: str | None
    lr: Rates
    epochs: int | None
    seeds: range
    threads: int
    problem: str
    out: Path
    logdir: Path | None
    as_json: bool


def _choose_contestants(chosen: Chosen) -> list[Any]:
    from thalweg.race.contestants import line_up
    from thalweg.race.errors import RaceError
    from thalweg.race.problems import DEFAULT_OPTIMIZERS
    from thalweg.race.sweep import enter_rates

    names = (chosen.optimizers or "").split(",")
    try:
        racing = line_up(
            [name.strip() for name in names if name.strip()] if chosen.optimizers is not None
            else DEFAULT_OPTIMIZERS[chosen.problem],
            chosen.lr.named, chosen.problem, rate=chosen.lr.shared,
        )  # fmt: skip
        if chosen.lr.sweep:
            enter_rates(racing)  # a rate that cannot be set is found here
        return racing
    except RaceError as error:
        raise click.UsageError(str(error)) from error


def _run_race(chosen: Chosen, written: list[Path]) -> None:
    """The race on this rank; rank 0 shows it and writes the files."""
    from rich.console import Console

    from thalweg.cli.live import watch_race
    from thalweg.distribute import Strategy
    from thalweg.race import events, outcome, plot, report
    from thalweg.race.problems import PROBLEMS

    strategy, contestants = Strategy(), _choose_contestants(chosen)

    def ran(progress: outcome.Progress | None) -> outcome.Outcome:
        return outcome.race_seeds(
            PROBLEMS[chosen.problem], contestants, seeds=chosen.seeds, sweeps=chosen.lr.sweep,
            epochs=chosen.epochs, threads=chosen.threads, progress=progress, strategy=strategy,
        )  # fmt: skip

    if strategy.ranks.rank:
        ran(None)
        return
    console = Console(stderr=chosen.as_json)
    with _events_folder(chosen.logdir, chosen.problem) as events_folder:
        with watch_race(Console(stderr=True), chosen.problem) as progress:
            result = ran(progress)
        report.save(result, written[0])
        plot.save(result, written[1])
        if events_folder is not None:
            events.save(result, events_folder)
            written.append(events_folder)
    if chosen.as_json:
        click.echo(report.text(result))
    else:
        _print_race(console, result, written)
    if result.stopped:
        raise Stopped(_say_where(result))


def _say_where(result: Outcome) -> str:
    """Where Ctrl-C came, and what is there of the race."""
    race = result.race
    if not race.stopped:
        kept = f"{len(result.races)} of {result.seeds} seeds"
        return f"stopped; the races of {kept} are kept."
    return (
        f"stopped at step {race.step:,} of {race.steps:,}; what was raced until then is kept,"
        " ranked by the latest scores that all have."
    )


def _check_writable(folder: Path, files: list[Path]) -> None:
    """Found out before the race, not after it."""
    try:
        _ask_for(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _refuse_folder("--out", folder, error) from error
    for file in files:
        if file.is_dir():
            raise click.BadParameter(f"'{file}' is a folder.", param_hint="--out")


def _ask_for(folder: Path) -> None:
    """Make a folder that is not there, if somebody is there to agree."""
    try:
        folder.stat()
    except FileNotFoundError:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            command = f"mkdir -p {shlex.quote(str(folder))}"
            raise click.BadParameter(
                f"there is no folder '{folder}'; make it first: {command}", param_hint="--out"
            ) from None
        click.confirm(f"There is no folder '{folder}'. Make it?", abort=True, err=True)
        folder.mkdir(parents=True, exist_ok=True)


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
            raise _refuse_folder("--logdir", logdir, error) from error
        yield made


def _refuse_folder(option: str, folder: Path, error: OSError) -> click.BadParameter:
    return click.BadParameter(f"cannot write to '{folder}': {error.strerror}.", param_hint=option)


def _print_race(console: Any, result: Outcome, written: list[Path]) -> None:
    from thalweg.race import report

    race = result.race
    console.print(f"[bold]{race.problem.description}[/bold]", highlight=False)
    ranks = f" on {race.ranks} ranks" if race.ranks > 1 else ""
    console.print(
        f"{race.steps:,} steps of {race.problem.batch_size} examples{ranks}, "
        f"{report.format_epochs(race)}, {report.format_seeds(result.races)},"
        f" {result.seconds:.0f} s",
        highlight=False,
    )
    if result.swept is not None:
        console.print(report.sweep_table(result.swept, console.width))
        console.print(report.sweep_note(result.swept), style="dim", highlight=False)
    console.print(report.table(result.races, console.width))
    for note in report.write_footnotes(result.races):
        console.print(note, style="dim", highlight=False)
    saved = "Saved " + ", ".join(map(str, written))
    console.print(saved, markup=False, highlight=False, soft_wrap=True)
