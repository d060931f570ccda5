"""`thalweg race`: training of one model from the same start with several optimizers."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from thalweg._base.literals import split_at_commas
from thalweg._cli.console import make_console
from thalweg._cli.launch import launch_ranks
from thalweg._cli.options import RaceOptions, Rates, Stopped, Whole, clamp_threads
from thalweg._cli.output_paths import check_writable, refuse_directory
from thalweg._cli.race import events, html_page, outcome, plot, report
from thalweg._cli.race.contestant import Contestant
from thalweg._cli.race.contestants import line_up
from thalweg._cli.race.errors import RaceError, need_modules
from thalweg._cli.race.outcome import RaceOutcome
from thalweg._cli.race.problems import DEFAULT_OPTIMIZERS, PROBLEMS
from thalweg._cli.race.race_diagnostics import is_measurable
from thalweg._cli.race.sweep import enter_rates
from thalweg._cli.race_progress import watch_race
from thalweg._cli.race_target import race_to_targets
from thalweg.distribute import Strategy

SWEEP = "sweep"
# RaceOptions that are valid only with --target.
OF_TARGETS = ("trials", "studies", "resume", "jobs")
# Those that are valid only without, and why.
OF_RACES = {
    "lr": "rates are drawn from search spaces",
    "epochs": "the steps are those of the target",
    "seeds": "--studies says how many there are",
    "nproc": "a trial runs in one process, and --jobs of them at once",
    "logdir": "it writes no events",
    "report": "no steps of trials are measured",
}
# Batch sizes below the maximum of --nproc.
BATCHES = {"lm": 16}


def _parse_rates(context: click.Context, parameter: click.Parameter, value: str | None) -> Rates:
    """Parse --lr: `0.01`, `Adam=0.01,Ftrl=0.5`, a list of both, or `sweep`."""
    shared: float | None = None
    by_name: dict[str, float] = {}
    pieces = split_at_commas(value or "")
    if SWEEP in map(str.lower, pieces):
        if len(pieces) > 1:
            raise click.BadParameter(
                f"'{SWEEP}' stands alone: everyone tries as many learning rates."
            )
        return Rates(None, {}, sweep=True)
    for piece in pieces:
        name, equals, rate_text = piece.rpartition("=")
        try:
            rate = float(rate_text)
        except ValueError:
            raise click.BadParameter(
                f"'{piece}' is neither a number nor NAME=NUMBER, nor '{SWEEP}'."
            ) from None
        if equals:
            by_name[name.strip()] = rate
        else:
            shared = rate
    return Rates(shared, by_name)


def _parse_problems(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, ...]:
    """Parse --problem, such as `digits,lm`; return an empty tuple without the option."""
    problems = [] if value is None else [word.strip().lower() for word in value.split(",")]
    for name in problems:
        if name not in PROBLEMS:
            choices = ", ".join(map(repr, PROBLEMS))
            raise click.BadParameter(f"'{name}' is not one of {choices}.")
        if problems.count(name) > 1:
            raise click.BadParameter(f"'{name}' comes twice.")
    return tuple(problems)


@click.command()
@click.option(
    "--optimizers",
    metavar="A,B,...",
    help="The optimizers to compare, separated by commas: a name, v1: before an optimizer of "
    "TensorFlow 1 (v1:AdamOptimizer), optim: before one of thalweg.optim, torch: before one of "
    "torch.optim; `thalweg rules` lists all. file.py:NAME is your own rule or optimizer, "
    "PACKAGE:NAME one of another package; their code is executed. Append arguments in "
    "parentheses: 'optim:AdamW(weight_decay=0.1)'. [default: torch:AdamW as the baseline, "
    "AdamW, 8-bit AdamW, Muon with AdamW, SOAP and Lion of thalweg.optim, Adam and Ftrl of "
    "Keras; for lines all eight of Keras; for stdlib those that are cheap on sparse gradients; "
    "for lm and with --target modern rules]",
)
@click.option(
    "--lr",
    callback=_parse_rates,
    metavar="RATE|A=RATE,...|sweep",
    help="The learning rate of all optimizers, or by name. sweep tries five rates for each, from a "
    "tenth to ten times the default one, and continues with the one of the lowest training "
    "loss; this takes five times as long. [default: a tuned rate for each optimizer of "
    "thalweg]",
)
@click.option(
    "--epochs",
    type=Whole(1),
    help="Passes over the training examples. [default: 10 for digits, 3 for lines, 1 for stdlib "
    "and lm]",
)
@click.option(
    "--seed",
    type=Whole(0, 2**63 - 1),
    default=0,
    help="Seed of the initial weights and of the order of the examples.",
)
@click.option(
    "--seeds",
    type=Whole(1, 100),
    default=1,
    help="Number of seeds, starting at --seed; the table then shows the spread and the possible "
    "ranks.",
)
@click.option(
    "--threads",
    type=Whole(1),
    default=1,
    callback=clamp_threads,
    help="Number of threads; for models this small one is as fast as many.",
)
@click.option(
    "--nproc",
    type=Whole(1, 32),  # examples in the smallest batch
    default=1,
    help="Number of processes that share each batch, started by torch's launcher.",
)
@click.option(
    "--problem",
    "problems",
    callback=_parse_problems,
    metavar="[digits|lines|stdlib|lm]",
    help="digits: handwritten digits, small convolutional network; lines: lines of such digits, "
    "CTC; stdlib: the next token of Python's standard library, large embedding table, sparse "
    "gradients; lm: the next character of it, small transformer. Give several with --target, "
    "as digits,lm. [default: digits; with --target all]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    help="Folder for race.png and race.json, with --target for target.svg and target.json. Asks "
    "before it creates a folder.",
)
@click.option(
    "--logdir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for TensorBoard events; each race creates a new folder in it.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write an HTML page of the first seed: the loss of each optimizer and, for those of "
    "thalweg.optim (optim:AdamW), all layers step by step, as in `thalweg report`. Recording "
    "takes time, so do not compare times in this run.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.option(
    "--target",
    is_flag=True,
    help="Measure the time to a fixed loss for each problem, as AlgoPerf does: each optimizer "
    "tries points of its published search space, and the fastest counts. Takes half an hour on two "
    "cores.",
)
@click.option(
    "--trials",
    type=Whole(1, 1000),
    default=5,
    help="With --target: number of points per study.",
)
@click.option(
    "--studies",
    type=Whole(1, 100),
    default=3,
    help="With --target: number of studies; the median counts.",
)
@click.option(
    "--jobs",
    type=Whole(1, 256),
    help="With --target: number of trials that run at once; only one at a time is timed. [default: "
    "the number of cores]",
)
@click.option(
    "--resume",
    is_flag=True,
    help="With --target: continue from target.json after Ctrl-C.",
)
@click.pass_context
def race(context: click.Context, **values: Any) -> None:
    """Train one model with several optimizers, side by side, on real data.

    All optimizers start from the same weights and see the same batches; blocks of steps
    alternate, so that times are comparable. Writes race.png and race.json. Ctrl-C ends the race
    early and keeps the results so far, unless several processes race.

    \b
    Examples:
      thalweg race
      thalweg race --optimizers Adam,Nadam --lr 0.002 --epochs 30 --seed 1
      thalweg race --optimizers Adam,v1:AdamOptimizer,v1:LazyAdamOptimizer
      thalweg race --optimizers optim:AdamW,torch:AdamW
      thalweg race --optimizers Adam,mine.py:MyRule --lr MyRule=0.1
      thalweg race --optimizers "torch:AdamW,lion_pytorch:Lion(weight_decay=0.1)"
      thalweg race --optimizers Adam,Nadam --lr sweep --seeds 5
      thalweg race --problem stdlib --logdir runs
      thalweg race --problem lm --optimizers optim:AdamW,optim:Muon
      thalweg race --optimizers optim:AdamW,torch:AdamW --report race.html
      thalweg race --nproc 2
      thalweg race --target --trials 5 --studies 3
    """
    options = RaceOptions(**values)
    _check_options(context, options.target)
    problems = options.problems or tuple(PROBLEMS)[: None if options.target else 1]
    options = options._replace(problems=problems)
    need_modules("matplotlib", *(["sklearn"] if {"digits", "lines"} & set(problems) else []))
    if options.target:
        race_to_targets(options)
    else:
        _check_sizes(options)
        if options.logdir is not None:
            need_modules("tensorboard")
        _start_race(options)


def _check_sizes(options: RaceOptions) -> None:
    """Raise UsageError for several problems, more processes than examples, or large seeds."""
    problem, *further_problems = options.problems
    nproc, seed, seeds = options.nproc, options.seed, options.seeds
    if further_problems:
        raise click.UsageError("--problem: one at a time; with --target, several.")
    if nproc > BATCHES.get(problem, nproc):
        raise click.UsageError(
            f"--nproc {nproc} is more than the {BATCHES[problem]} examples in a batch of {problem}."
        )
    if seed + seeds > 2**63:
        raise click.UsageError(f"--seeds {seeds} from --seed {seed} on go beyond {2**63 - 1}.")


def _start_race(options: RaceOptions) -> None:
    """Check the contestants and the output paths, then race in this process or in several."""
    out, page = options.out, options.report
    output_paths = [out / "race.json", out / "race.png"]
    contestants = _choose_contestants(options)
    check_writable(out, output_paths)
    if page is not None:
        _check_page(page, output_paths, contestants)
        output_paths.append(page)
    if options.nproc > 1:
        launch_ranks(options.nproc, _run_race, options, output_paths)
    else:
        _run_race(options, output_paths)


def _check_options(context: click.Context, target: bool) -> None:
    """Raise `click.UsageError` for options that do not apply with --target, or without it."""
    misplaced = [name for name in (OF_RACES if target else OF_TARGETS)
             if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]  # fmt: skip
    if misplaced and target:
        reason = OF_RACES[misplaced[0]]
        raise click.UsageError(f"--{misplaced[0]} does not go with --target: {reason}.")
    if misplaced:
        raise click.UsageError(f"--{misplaced[0]} goes with --target.")


def _choose_contestants(options: RaceOptions) -> list[Contestant]:
    try:
        contestants = line_up(
            split_at_commas(options.optimizers) if options.optimizers is not None
            else DEFAULT_OPTIMIZERS[options.problems[0]],
            options.lr.by_name, options.problems[0], rate=options.lr.shared,
        )  # fmt: skip
        if options.lr.sweep:
            enter_rates(contestants)  # a rate that cannot be set is found here
        return contestants
    except RaceError as error:
        raise click.UsageError(str(error)) from error


def _check_page(page: Path, output_paths: list[Path], contestants: list[Contestant]) -> None:
    """Raise an error if the page is not writable or no contestant can record diagnostics."""
    check_writable(page.parent, [page], "--report")
    if os.path.realpath(page) in map(os.path.realpath, output_paths):
        raise click.BadParameter(f"the race writes '{page}' itself.", param_hint="--report")
    if not any(
        is_measurable(contestant.make(contestant.learning_rate)) for contestant in contestants
    ):
        names = ", ".join(contestant.name for contestant in contestants)
        raise click.UsageError(
            f"--report shows layers of optimizers of thalweg.optim, and none races: {names}. Name"
            " one, as in --optimizers optim:AdamW,torch:AdamW."
        )


def _run_race(options: RaceOptions, output_paths: list[Path]) -> None:
    """Run the race on this rank; rank 0 shows the progress and writes the files."""
    strategy, contestants = Strategy(), _choose_contestants(options)
    problem, seeds = options.problems[0], range(options.seed, options.seed + options.seeds)

    def ran(progress: outcome.Progress | None) -> outcome.RaceOutcome:
        return outcome.race_seeds(
            PROBLEMS[problem], contestants, seeds=seeds, sweeps=options.lr.sweep,
            epochs=options.epochs, threads=options.threads, progress=progress, strategy=strategy,
            measures=options.report is not None and strategy.ranks.rank == 0,
        )  # fmt: skip

    if strategy.ranks.rank:
        ran(None)
        return
    console = make_console(stderr=options.as_json)
    with _make_events_directory(options.logdir, problem) as events_directory:
        with watch_race(make_console(stderr=True), problem) as progress:
            result = ran(progress)
        report.save(result, output_paths[0])
        plot.save(result, output_paths[1])
        if options.report is not None:
            html_page.save(result, options.report)
        if events_directory is not None:
            events.save(result, events_directory)
            output_paths.append(events_directory)
    if options.as_json:
        click.echo(report.text(result))
    else:
        _print_race(console, result, output_paths)
    if result.stopped:
        raise Stopped(_describe_stop(result))


def _describe_stop(result: RaceOutcome) -> str:
    """Return a message about the step where Ctrl-C stopped a race, and about saved results."""
    race = result.race
    if not race.stopped:
        finished = f"{len(result.races)} of {result.seeds} seeds"
        return f"stopped; the races of {finished} are kept."
    return (
        f"stopped at step {race.step:,} of {race.steps:,}; what was raced until then is kept,"
        " ranked by the latest scores that all have."
    )


@contextmanager
def _make_events_directory(logdir: Path | None, problem: str) -> Generator[Path | None]:
    if logdir is None:
        yield None
        return

    with ExitStack() as stack:
        try:
            directory = stack.enter_context(events.make_directory(logdir, problem))
        except OSError as error:
            raise refuse_directory("--logdir", logdir, error) from error
        yield directory


def _print_race(console: Any, result: RaceOutcome, output_paths: list[Path]) -> None:
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
    saved_line = "Saved " + ", ".join(map(str, output_paths))
    console.print(saved_line, markup=False, highlight=False, soft_wrap=True)
