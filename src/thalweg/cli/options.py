"""Options that commands share."""

from __future__ import annotations

import os

import click


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def clamped(context: click.Context, parameter: click.Parameter, threads: int | None) -> int | None:
    """The number of threads, no more than there are cores; says so where it was more."""
    if threads is None or threads <= cores():
        return threads
    some = "1 core" if cores() == 1 else f"{cores()} cores"
    click.echo(f"--threads {threads} is more than the {some} here; using {cores()}.", err=True)
    return cores()
