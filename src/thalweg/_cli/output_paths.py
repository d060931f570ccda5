"""Checks that a command can write its outputs, made before it begins."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path

import click


def check_writable(folder: Path, files: list[Path], option: str = "--out") -> None:
    """Refuse a folder that cannot be written to, and files that are folders or devices.

    Raises:
        click.BadParameter: Names it, as the option.
        click.Abort: The folder is not there, and nobody wants it.
    """
    try:
        _ask_for(folder, option)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for file in files:
            _check_file(file, option)
    except OSError as error:
        raise refuse_folder(option, folder, error) from error


def _check_file(file: Path, option: str) -> None:
    if file.is_dir():
        raise click.BadParameter(f"'{file}' is a folder.", param_hint=option)
    # What is written takes the place of what is there: a device would be gone for all.
    if (file.exists() and not file.is_file()) or file.absolute().parent == Path("/dev"):
        raise click.BadParameter(
            f"'{file}' is a device, not a file that can be replaced.", param_hint=option
        )


def _ask_for(folder: Path, option: str) -> None:
    """Make a folder that is not there, if somebody is there to agree."""
    try:
        folder.stat()
    except FileNotFoundError:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            command = f"mkdir -p {shlex.quote(str(folder))}"
            raise click.BadParameter(
                f"there is no folder '{folder}'; make it first: {command}", param_hint=option
            ) from None
        click.confirm(f"There is no folder '{folder}'. Make it?", abort=True, err=True)
        folder.mkdir(parents=True, exist_ok=True)


def refuse_folder(option: str, folder: Path, error: OSError) -> click.BadParameter:
    """Return the error of an option whose folder cannot be written to."""
    return click.BadParameter(f"cannot write to '{folder}': {error.strerror}.", param_hint=option)
