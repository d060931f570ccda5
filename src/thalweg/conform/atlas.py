"""Atlas: a table with a row per optimizer, a column per package, and comparisons as cells."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from thalweg.conform.candidate import ConformError

LIST = Path(__file__).with_name("atlas.json")
REFERENCE, NOT_DRIVEN = "reference", "not driven"

Progress = Callable[[float, Callable[[], str]], None]


@dataclass
class Cell:
    """Comparison of one class of a package; `name` is empty if the package lacks the class.

    Attributes:
        name: `PACKAGE:CLASS`; empty if the package has no such class.
        verdict: The verdict of `compare`, "reference", or "not driven" for a failure.
        difference: The norm of the difference after the last step, divided by the movement.
        way: The protocol of the constructor and of steps.
        step: The first step with a difference, from 1.
        closed_by: The argument changes after which both optimizers agree.
        tried: The number of argument changes that were tried.
        note: The reason for "not driven", or a note on the import.
        command: The command of this comparison.
        arguments: Arguments of the class besides those of the row.
        group: Further entries of the parameter group.
    """

    name: str
    verdict: str = ""
    difference: float | None = None
    way: str = ""
    step: int | None = None
    closed_by: list[str] = field(default_factory=list[str])
    tried: int = 0
    note: str = ""
    command: str = ""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    group: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class AtlasRow:
    """Optimizer of this library, arguments for all its comparisons, and one cell per package."""

    optimizer: str
    rule: str
    arguments: dict[str, Any]
    cells: list[Cell]


@dataclass
class Column:
    """Package with optimizers; `module` is empty if each class names its module."""

    name: str
    module: str
    version: str | None = None


@dataclass
class Atlas:
    """Table of the comparisons of all optimizers and packages.

    Attributes:
        seconds: The time limit per class.
        steps: The number of steps per class.
        versions: The versions of thalweg and torch.
    """

    columns: list[Column]
    rows: list[AtlasRow]
    seconds: float
    steps: int = 0
    versions: dict[str, str] = field(default_factory=dict[str, str])

    def list_cells(self) -> Iterator[tuple[AtlasRow, Column, Cell]]:
        """Yield the row, column and cell of each class that a package has."""
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                if cell.name:
                    yield row, column, cell

    def summarize(self) -> str:
        """Return two sentences: counts of verdicts, and of names that stand for several rules."""
        verdicts = [cell.verdict for _, _, cell in self.list_cells() if cell.verdict != REFERENCE]
        labels = {"bits": "bits", "rounding": "rounding", "parts": "another formula",
                 NOT_DRIVEN: NOT_DRIVEN}  # fmt: skip
        counts = ", ".join(
            f"{verdicts.count(verdict)} {label}" for verdict, label in labels.items()
        )
        names = {row.optimizer for row, _, _ in self.list_cells()}
        closable = [
            all(cell.closed_by for cell in row.cells if cell.verdict == "parts")
            for row in self.rows
            if any(cell.verdict == "parts" for cell in row.cells)
        ]
        return (
            f"{len(verdicts)} classes: {counts}. {len(closable)} of {len(names)} names stand for"
            f" different optimizers, {sum(closable)} of them up to one argument."
        )


def read_list(path: Path | None = None) -> Atlas:
    """Return an atlas without verdicts from a JSON file of packages and classes.

    By default the file is `atlas.json` of this package. Raise ConformError if the file is invalid.
    """
    path = path or LIST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        columns = [Column(entry["name"], entry.get("module", "")) for entry in content["packages"]]
        rows = [_read_row(entry, columns) for entry in content["optimizers"]]
        return Atlas(columns, rows, float(content["seconds"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConformError(
            f"'{path}' is no list of classes: {type(error).__name__}: {error}."
        ) from error


def survey(atlas: Atlas, steps: int, progress: Progress = lambda share, text: None) -> Atlas:
    """Compare each class of an atlas in a new process; write the results to `atlas`, and return it.

    Args:
        progress: `progress(fraction, text)` is called before each class, with the fraction of
            finished classes; `text()` returns the name of the class.
    """
    from thalweg.version import __version__

    atlas.steps = steps
    atlas.versions = {"thalweg": __version__, "torch": _version_of("torch") or ""}
    for column in atlas.columns:
        column.version = _version_of(column.module.partition(".")[0]) if column.module else None
    all_cells = list(atlas.list_cells())
    for index, (row, _, cell) in enumerate(all_cells):
        progress(index / len(all_cells), lambda cell=cell: cell.name)
        if cell.name == row.rule:
            cell.verdict = REFERENCE
            continue
        arguments = [cell.name, "--rule", row.rule]
        for option, values in (("--set", row.arguments | cell.arguments), ("--group", cell.group)):
            for name, value in values.items():
                arguments += [option, f"{name}={value!r}"]
        cell.command = shlex.join(["thalweg", "conform", *arguments])
        _fill_cell(cell, [*arguments, "--steps", str(steps)], atlas.seconds)
    return atlas


def _read_row(entry: dict[str, Any], columns: list[Column]) -> AtlasRow:
    """Return the row of one entry of the list."""
    classes = dict(entry["classes"])
    cells = [_read_cell(classes.pop(column.name, ""), column) for column in columns]
    if classes:
        raise ValueError(f"{entry['name']} has classes of {', '.join(classes)}, no package")
    return AtlasRow(entry["name"], entry["rule"], dict(entry.get("set", {})), cells)


def _read_cell(entry: str | dict[str, object], column: Column) -> Cell:
    """Return the cell of one entry of a row."""
    fields: dict[str, Any] = {"class": entry} if isinstance(entry, str) else entry
    name = fields["class"]
    name = name if not name or ":" in name else f"{column.module}:{name}"
    return Cell(name, arguments=fields.get("set", {}), group=fields.get("group", {}))


def _fill_cell(cell: Cell, arguments: list[str], seconds: float) -> None:
    """Run `thalweg conform` with `arguments`, and write the result of the command to `cell`.

    After a failure, or after `seconds`, the verdict is "not driven", and `cell.note` is the reason.
    """
    package = cell.name.partition(":")[0].partition(".")[0]
    # A package that is not installed needs no process.
    if importlib.util.find_spec(package) is None:
        cell.verdict, cell.note = NOT_DRIVEN, f"{package} is not installed"
        return
    output, error = _run_in_time(
        [sys.executable, "-m", "thalweg", "conform", *arguments, "--json"], seconds
    )
    try:
        report = json.loads(output)
        outcome = report["outcome"]
    except ValueError:
        cell.verdict, cell.note = NOT_DRIVEN, error
        return
    for name in ("verdict", "difference", "way", "closed_by"):
        setattr(cell, name, outcome[name])
    cell.tried, cell.note = len(outcome["tried"]), report["note"]
    cell.step = outcome["parting"] and outcome["parting"]["step"]


def _run_in_time(command: list[str], seconds: float) -> tuple[str, str]:
    """Run a command; return (standard output, text that explains a failure).

    The text is the last error message, or names the exit status, also after a success. A command
    that runs longer than `seconds` is killed; its output is then "".
    """
    # A descendant process would hold a pipe open, but not a file.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as error:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=error, start_new_session=True
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "", f"it took more than {seconds:g} s"
        finally:
            _kill_group(process)
        output.seek(0)
        error.seek(0)
        return output.read(), _find_reason(error.read(), process.returncode)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group, and wait for its end."""
    if hasattr(os, "killpg"):
        # The group may have ended already.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _find_reason(text: str, status: int) -> str:
    """Return the last error message of the output, or a text about the exit status."""
    lines = [line for line in text.splitlines() if line.startswith("Error: ")]
    return lines[-1].removeprefix("Error: ") if lines else f"its process ended with status {status}"


def _version_of(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    distributions = packages_distributions().get(package)
    return version(distributions[0]) if distributions else None
