"""Command group of `thalweg`, with the error messages and exit statuses of all commands."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click
from rich.text import Text

from thalweg._cli.console import make_console
from thalweg._cli.options import INTERRUPTED
from thalweg._cli.terminal_escape import escape_text
from thalweg.errors import ThalwegError
from thalweg.version import __version__

OK, FAILURE, USAGE = 0, 1, 2
# Module of each command in `commands`, which is imported when the command is used, and its line in
# the help.
COMMANDS = {
    "bench": ("bench", "Time a step against other libraries and the machine."),
    "conform": ("conform", "Check whether another optimizer takes the same steps as thalweg's."),
    "convert": ("files", "Convert a checkpoint of TensorFlow to thalweg, or back."),
    "diff": ("files", "Compare two checkpoints."),
    "doctor": ("doctor", "Show versions, engines, devices and the folder of compiled kernels."),
    "inspect": ("files", "List the contents of a checkpoint."),
    "race": ("race", "Train one model with several optimizers, side by side."),
    "report": ("report", "Draw a page of the diagnostics of a training."),
    "rules": ("rules", "List the update rules, one line each."),
    "scan": ("scan", "List the TensorFlow names of a script that thalweg.tf lacks."),
    "show": ("rules", "Print a rule: formula, slots, defaults, differences."),
    "verify": ("files", "Verify the checksums of checkpoints."),
    "watch": ("watch", "Show the layers of a training while it runs, worst first."),
}


class Commands(click.Group):
    """Command group that prints an error as one red line, or with --debug as a traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *_: object,
        **__: object,
    ) -> Any:
        """Run a command line, then exit the process. An error is printed as one line."""
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
        except OSError as error:
            _show_error(f"{error.filename or 'system'}: {error.strerror or error}.", debug)
            status = FAILURE
        except Exception as error:
            _show_error(f"{type(error).__name__}: {error} (--debug shows where)", debug)
            status = FAILURE
        sys.exit(status if isinstance(status, int) else OK)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command; return the command, or None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module_name, short_help = COMMANDS[cmd_name]
        module = import_module(f"thalweg._cli.commands.{module_name}")
        members = vars(module).values()
        commands = {member.name: member for member in members if isinstance(member, click.Command)}
        commands[cmd_name].short_help = short_help
        return commands[cmd_name]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names of all commands with their lines, without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def _with_hint(self, error: click.UsageError, arguments: Sequence[str]) -> str:
        if error.ctx is not None:
            command = error.ctx.command_path
        else:
            # An option without a value fails before click has made a context.
            command_name = next((argument for argument in arguments if argument in COMMANDS), None)
            command = f"thalweg {command_name}" if command_name else "thalweg"
        return f"{error.format_message()} (Help: {command} --help)"


def _show_error(message: str, debug: bool) -> None:
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
