"""A table of many classes beside ours, each driven in a process of its own."""

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

from thalweg.conform.errors import ConformError

LIST = Path(__file__).with_name("atlas.json")
REFERENCE, NOT_DRIVEN = "reference", "not driven"

Progress = Callable[[float, Callable[[], str]], None]


@dataclass
class Cell:
    """A class of a package, or that there is none.

    Attributes:
        name: `PACKAGE:CLASS`; empty where the package has no such class.
        verdict: That of `compare`, "reference", or "not driven".
        difference: After the last step, as a share of the movement.
        way: How its constructor is called.
        step: Where they part, from 1.
        closed_by: What makes both agree.
        tried: How many changes were tried.
        note: Why it is not driven, or what was left out to import it.
        command: What drives it alone.
        arguments: Its own, beside those of the row.
        group: What the group of its parameters has.
    """

    name: str
    verdict: str = ""
    difference: float | None = None
    way: str = ""
    step: int | None = None
    closed_by: list[str] = field(default_factory=list)
    tried: int = 0
    note: str = ""
    command: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    group: dict[str, Any] = field(default_factory=dict)


@dataclass
class AtlasRow:
    """An optimizer: ours, the arguments of all, and the classes of its name, one per column."""

    optimizer: str
    rule: str
    arguments: dict[str, Any]
    cells: list[Cell]


@dataclass
class Column:
    """A package; its module is empty where each class names its own."""

    name: str
    module: str
    version: str | None = None


@dataclass
class Atlas:
    """Table of the comparisons of all optimizers and packages.

    Attributes:
        columns: Packages.
        rows: Optimizers.
        seconds: The time limit of a class.
        steps: The number of steps of each class.
        versions: Of thalweg and torch.
    """

    columns: list[Column]
    rows: list[AtlasRow]
    seconds: float
    steps: int = 0
    versions: dict[str, str] = field(default_factory=dict)

    def list_cells(self) -> Iterator[tuple[AtlasRow, Column, Cell]]:
        """Yield the row, column and cell of each class that a package has."""
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                if cell.name:
                    yield row, column, cell

    def summarize(self) -> str:
        """Return a summary of the verdicts, in a sentence or two."""
        verdicts = [cell.verdict for _, _, cell in self.list_cells() if cell.verdict != REFERENCE]
        words = {"bits": "bits", "rounding": "rounding", "parts": "another formula",
                 NOT_DRIVEN: NOT_DRIVEN}  # fmt: skip
        counts = ", ".join(f"{verdicts.count(each)} {word}" for each, word in words.items())
        driven = {row.optimizer for row, _, _ in self.list_cells()}
        parted = [
            all(cell.closed_by for cell in row.cells if cell.verdict == "parts")
            for row in self.rows
            if any(cell.verdict == "parts" for cell in row.cells)
        ]
        return (
            f"{len(verdicts)} classes: {counts}. {len(parted)} of {len(driven)} names stand for"
            f" different optimizers, {sum(parted)} of them up to one argument."
        )


def read_list(path: Path | None = None) -> Atlas:
    """Return the list of packages and classes; the library's own by default.

    Raises:
        ConformError: It is not such a list.
    """
    path = path or LIST
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        columns = [Column(each["name"], each.get("module", "")) for each in told["packages"]]
        rows = [_read_row(each, columns) for each in told["optimizers"]]
        return Atlas(columns, rows, float(told["seconds"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConformError(
            f"'{path}' is no list of classes: {type(error).__name__}: {error}."
        ) from error


def survey(atlas: Atlas, steps: int, progress: Progress = lambda share, text: None) -> Atlas:
    """Drive all classes of the list, one after another; fills it in and returns it.

    Args:
        atlas: The list.
        steps: How many steps each takes.
        progress: Is told the share that is done, and what makes a line of it.
    """
    from thalweg.version import __version__

    atlas.steps = steps
    atlas.versions = {"thalweg": __version__, "torch": _version_of("torch") or ""}
    for column in atlas.columns:
        column.version = _version_of(column.module.partition(".")[0]) if column.module else None
    all_cells = list(atlas.list_cells())
    for done, (row, _, cell) in enumerate(all_cells):
        progress(done / len(all_cells), lambda cell=cell: cell.name)
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


def _read_row(told: dict[str, Any], columns: list[Column]) -> AtlasRow:
    classes = dict(told["classes"])
    cells = [_read_cell(classes.pop(each.name, ""), each) for each in columns]
    if classes:
        raise ValueError(f"{told['name']} has classes of {', '.join(classes)}, no package")
    return AtlasRow(told["name"], told["rule"], dict(told.get("set", {})), cells)


def _read_cell(told: str | dict[str, object], column: Column) -> Cell:
    own: dict[str, Any] = {"class": told} if isinstance(told, str) else told
    name = own["class"]
    name = name if not name or ":" in name else f"{column.module}:{name}"
    return Cell(name, arguments=own.get("set", {}), group=own.get("group", {}))


def _fill_cell(cell: Cell, arguments: list[str], seconds: float) -> None:
    package = cell.name.partition(":")[0].partition(".")[0]
    if importlib.util.find_spec(package) is None:
        cell.verdict, cell.note = NOT_DRIVEN, f"{package} is not installed"
        return
    out, error = _run_in_time(
        [sys.executable, "-m", "thalweg", "conform", *arguments, "--json"], seconds
    )
    try:
        told = json.loads(out)
        found = told["outcome"]
    except ValueError:
        cell.verdict, cell.note = NOT_DRIVEN, error
        return
    cell.verdict, cell.difference, cell.way = found["verdict"], found["difference"], found["way"]
    cell.closed_by, cell.tried, cell.note = found["closed_by"], len(found["tried"]), told["note"]
    cell.step = found["parting"] and found["parting"]["step"]


def _run_in_time(command: list[str], seconds: float) -> tuple[str, str]:
    """What it prints, and the reason where it fails; it and all that it began ends in time."""
    # Files, not pipes: a process that it has left behind would hold a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=error, start_new_session=True
        )
        try:
            started.wait(seconds)
        except subprocess.TimeoutExpired:
            return "", f"it took more than {seconds:g} s"
        finally:
            _kill_group(started)
        out.seek(0)
        error.seek(0)
        return out.read(), _find_reason(error.read(), started.returncode)


def _kill_group(started: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing is left of it
            os.killpg(started.pid, signal.SIGKILL)
    started.kill()
    started.wait()


def _find_reason(text: str, status: int) -> str:
    told = [line for line in text.splitlines() if line.startswith("Error: ")]
    return told[-1].removeprefix("Error: ") if told else f"its process ended with status {status}"


def _version_of(package: str) -> str | None:
    found = packages_distributions().get(package)
    return version(found[0]) if found else None
