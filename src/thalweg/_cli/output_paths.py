"""Checks, before a command begins, that outputs can be written."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path

import click


def check_writable(directory: Path, files: list[Path], option: str = "--out") -> None:
    """Raise an error that names `option` unless `files` can be written in `directory`.

    Raises:
        click.BadParameter: The folder is not writable, or a file is a folder or a device. Or the
            folder does not exist, and there is no terminal to ask whether to create it.
        click.Abort: The folder does not exist, and the user declined to create it.
    """
    try:
        _ask_for(directory, option)
        with tempfile.TemporaryFile(dir=directory):
            pass
        for file in files:
            _check_file(file, option)
    except OSError as error:
        raise refuse_directory(option, directory, error) from error


def _check_file(file: Path, option: str) -> None:
    """Raise `click.BadParameter` if an output file is a folder or a device."""
    if file.is_dir():
        raise click.BadParameter(f"'{file}' is a folder.", param_hint=option)
    # The output replaces an existing file, which would delete a device for all users.
    if (file.exists() and not file.is_file()) or file.absolute().parent == Path("/dev"):
        raise click.BadParameter(
            f"'{file}' is a device, not a file that can be replaced.", param_hint=option
        )


def _ask_for(directory: Path, option: str) -> None:
    """Create a missing directory if the user agrees. Without a terminal, raise BadParameter."""
    try:
        directory.stat()
    except FileNotFoundError:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            command = f"mkdir -p {shlex.quote(str(directory))}"
            raise click.BadParameter(
                f"there is no folder '{directory}'; make it first: {command}", param_hint=option
            ) from None
        click.confirm(f"There is no folder '{directory}'. Make it?", abort=True, err=True)
        directory.mkdir(parents=True, exist_ok=True)


def refuse_directory(option: str, directory: Path, error: OSError) -> click.BadParameter:
    """Return the error about an option with a directory that is not writable."""
    return click.BadParameter(
        f"cannot write to '{directory}': {error.strerror}.", param_hint=option
    )
