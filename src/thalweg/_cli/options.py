"""Options that commands share."""

from __future__ import annotations

import os
from typing import Any

import click

from thalweg._base.literals import parse_argument

INTERRUPTED = 130  # the exit status after Ctrl-C, as shells have it


class Stopped(click.ClickException):
    """Ctrl-C has ended a command that keeps what was done until then."""

    exit_code = INTERRUPTED


class Whole(click.ParamType):
    """A whole number of at least `least`."""

    name = "number"

    def __init__(self, least: int, most: int | None = None) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; refuses all else in words."""
        try:
            number = int(value)
        except ValueError:
            number = None
        if number is None or number < self.least or (self.most or number) < number:
            limit = "" if self.most is None else f" and no more than {self.most}"
            self.fail(
                f"it must be a whole number, {self.least} or more{limit}; not '{value}'.",
                param, ctx,
            )  # fmt: skip
        return number


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def clamp_threads(
    context: click.Context, parameter: click.Parameter, threads: int | None
) -> int | None:
    """Return the number of threads, no more than there are cores; says so if more were asked
    for.
    """
    if threads is None or threads <= usable_cores():
        return threads
    some = "1 core" if usable_cores() == 1 else f"{usable_cores()} cores"
    click.echo(
        f"--threads {threads} is more than the {some} here; using {usable_cores()}.", err=True
    )
    return usable_cores()


def split_values(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, object]:
    """Return arguments by name; a value is a literal of Python, or a word."""
    try:
        return dict(map(parse_argument, values))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
