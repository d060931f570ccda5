"""Options that commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import click

from thalweg._base.literals import parse_argument

# Exit status after Ctrl-C, by the convention of shells.
INTERRUPTED = 130


class Stopped(click.ClickException):
    """Error of a command that Ctrl-C ended after results were saved."""

    exit_code = INTERRUPTED


class Whole(click.ParamType):
    """Click type of an integer from `minimum` to `maximum`. None means no upper limit."""

    name = "number"

    def __init__(self, minimum: int, maximum: int | None = None) -> None:
        self.minimum, self.maximum = minimum, maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the integer; call `fail` for a text that is not an integer within the limits."""
        try:
            integer = int(value)
        except ValueError:
            integer = None
        if integer is None or integer < self.minimum or (self.maximum or integer) < integer:
            limit = "" if self.maximum is None else f" and no more than {self.maximum}"
            self.fail(
                f"it must be a whole number, {self.minimum} or more{limit}; not '{value}'.",
                param, ctx,
            )  # fmt: skip
        return integer


class Rates(NamedTuple):
    """Value of --lr: a shared rate, rates by optimizer name, or a sweep over several rates."""

    shared: float | None
    by_name: dict[str, float]
    sweep: bool = False


class RaceOptions(NamedTuple):
    """Values of the options of `thalweg race`; without --target there is one problem."""

    optimizers: str | None
    lr: Rates
    epochs: int | None
    seed: int
    seeds: int
    threads: int
    nproc: int
    problems: tuple[str, ...]
    out: Path
    logdir: Path | None
    report: Path | None
    as_json: bool
    target: bool
    trials: int
    studies: int
    jobs: int | None
    resume: bool


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def clamp_threads(
    context: click.Context, parameter: click.Parameter, threads: int | None
) -> int | None:
    """Return `threads`, or print a note and return the number of cores if there are fewer."""
    if threads is None or threads <= usable_cores():
        return threads
    cores = "1 core" if usable_cores() == 1 else f"{usable_cores()} cores"
    click.echo(
        f"--threads {threads} is more than the {cores} here; using {usable_cores()}.", err=True
    )
    return usable_cores()


def split_values(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, object]:
    """Parse NAME=VALUE texts into a dictionary; values are Python literals or plain words."""
    try:
        return dict(map(parse_argument, values))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
