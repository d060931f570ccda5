"""Command group of `thalweg`, with the error messages and exit statuses of all commands."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from thalweg._cli.commands.bench import bench
from thalweg._cli.commands.conform import conform
from thalweg._cli.commands.doctor import doctor
from thalweg._cli.commands.files import convert, diff, inspect_, verify
from thalweg._cli.commands.race import race
from thalweg._cli.commands.report import report
from thalweg._cli.commands.rules import rules, show
from thalweg._cli.commands.scan import scan
from thalweg._cli.commands.watch import watch
from thalweg._cli.console import make_console
from thalweg._cli.options import INTERRUPTED
from thalweg._cli.terminal_escape import escape_text
from thalweg.errors import ThalwegError
from thalweg.version import __version__

OK, FAILURE, USAGE = 0, 1, 2


class Commands(click.Group):
    """A group whose errors are one red line, and a traceback with --debug."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *_: object,
        **__: object,
    ) -> Any:
        """Optimizers for PyTorch: compare them, time them, and inspect their checkpoints."""
        arguments = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in arguments
        arguments = [argument for argument in arguments if argument != "--debug"]
        try:
            # A bare exit status means that click has printed help or a version.
            status = super().main(arguments, prog_name or "thalweg", standalone_mode=False)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            status = USAGE
        except click.UsageError as error:
            _show_error(self._with_hint(error, arguments), debug)
            status = USAGE
        except (click.Abort, KeyboardInterrupt) as error:
            # click raises Abort for Ctrl-C and for a question that was answered by no.
            cause = error.__context__ if isinstance(error, click.Abort) else error
            _show_error("stopped.", False)
            status = INTERRUPTED if isinstance(cause, KeyboardInterrupt) else FAILURE
        except click.ClickException as error:
            _show_error(error.format_message(), debug)
            status = error.exit_code
        except ThalwegError as error:
            _show_error(str(error), debug)
            status = FAILURE
        except Exception as error:
            _show_error(f"{type(error).__name__}: {error} (--debug shows where)", debug)
            status = FAILURE
        sys.exit(status if isinstance(status, int) else OK)

    def _with_hint(self, error: click.UsageError, arguments: Sequence[str]) -> str:
        if error.ctx is not None:
            command = error.ctx.command_path
        else:
            # An option without a value fails before click has made a context.
            command_name = next(
                (argument for argument in arguments if argument in self.commands), None
            )
            command = f"thalweg {command_name}" if command_name else "thalweg"
        return f"{error.format_message()} (Help: {command} --help)"


def _show_error(message: str, debug: bool) -> None:
    from rich.text import Text

    if debug:
        click.echo("\n".join(map(escape_text, traceback.format_exc().split("\n"))), err=True)
    line = escape_text(" ".join(message.split()))
    make_console(stderr=True, soft_wrap=True).print(Text(f"Error: {line}", style="red"))


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="New here? Run `thalweg race`: it compares eight optimizers in a minute.",
)
@click.version_option(__version__, prog_name="thalweg")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Optimizers for PyTorch: compare them, time them, and inspect their checkpoints.

    \b
    Examples:
      thalweg race
      thalweg race --optimizers Adam,Ftrl,mine.py:MyRule --lr Ftrl=0.05
      thalweg show Adam
      thalweg scan train.py

    \b
    Completion of commands, options and files, in ~/.bashrc, ~/.zshrc or config.fish:
      eval "$(_THALWEG_COMPLETE=bash_source thalweg)"
      eval "$(_THALWEG_COMPLETE=zsh_source thalweg)"
      _THALWEG_COMPLETE=fish_source thalweg | source
    """


for command in (
    race, rules, show, bench, conform, watch, report, inspect_, verify, diff, convert, scan, doctor,
):  # fmt: skip
    main.add_command(command)
