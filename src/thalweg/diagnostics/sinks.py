"""Receivers of tables: files of JSON lines, and TensorBoard's events."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from thalweg._base.showing import show_value
from thalweg.diagnostics.table import COLUMNS, Parameters, Table, check_columns
from thalweg.errors import InvalidTypeError

_VERSION = 1
_NAMED = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}  # what JSON has no numbers for


class Sink(ABC):
    """Base class of receivers of tables and losses."""

    @abstractmethod
    def table(self, table: Table, loss: float | None) -> None:
        """Write a table, and the loss of its step if that is known."""

    @abstractmethod
    def loss(self, parameters: Parameters, step: int, loss: float) -> None:
        """Write the loss of a step of which there is no table."""

    def close(self) -> None:  # noqa: B027
        """Write out what waits, and let go of files."""


class JsonLines(Sink):
    """A file with a line of JSON for each table and each loss beside; what is there already stays.

    Before the first line, and again where parameters have changed or somebody else has written or
    removed the file, a line has their names, sizes and groups. Each line is written at once.

    Args:
        path: The file, which stays where it is if the working folder changes, or an open one of
            text, which is not closed here.

    Raises:
        InvalidTypeError: It is neither.
    """

    def __init__(self, path: str | os.PathLike[str] | Any) -> None:
        self._is_ours = isinstance(path, str | os.PathLike)
        if not (self._is_ours or hasattr(path, "write")):
            raise InvalidTypeError(
                f"path must be a path or a file of text, not {show_value(path)}."
            )
        self._given = path
        self._path: Any = os.path.abspath(path) if self._is_ours else path
        self._known: Parameters | None = None
        self._header = ""  # of these
        self._end: int | None = None  # of what was written here

    def table(self, table: Table, loss: float | None) -> None:
        record: dict[str, object] = {"step": table.step, "time": time.time()}
        if loss is not None:
            record["loss"] = json_number(loss)
        for name in COLUMNS:
            pairs = zip(table.records[name].tolist(), table.measured[name].tolist(), strict=True)
            record[name] = [json_number(value) if is_known else None for value, is_known in pairs]
        self._write(table.parameters, record)

    def loss(self, parameters: Parameters, step: int, loss: float) -> None:
        self._write(parameters, {"step": step, "loss": json_number(loss)})

    def _write(self, parameters: Parameters, record: dict[str, object]) -> None:
        text, is_known = _line(record), parameters == self._known
        if not is_known:
            self._header = _line(_header(parameters))
        if self._is_ours:
            self._append(text, is_known)
        else:
            self._path.write(text if is_known else self._header + text)
            if hasattr(self._path, "flush"):
                self._path.flush()
        self._known = parameters

    def _append(self, line: str, is_known: bool) -> None:
        """Write a line, and a header if it needs one: all of them or nothing."""
        # The file is open for no longer: trainings end anywhere, fork, and are copied.
        with open(self._path, "ab+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END) if file.seekable() else 0  # a pipe is not
            is_headed = is_known and (end == self._end or not file.seekable())
            text = (line if is_headed else self._header + line).encode("utf-8", "replace")
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":  # of a process that was ended in the midst of a line
                    text = b"\n" + text
            self._end = end + len(text)
            try:
                while text:
                    text = text[file.write(text) :]
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(end)
                raise

    def __repr__(self) -> str:
        return f"JsonLines({self._given!r})"


def _line(record: dict[str, object]) -> str:
    return f"{json.dumps(record, ensure_ascii=False)}\n"


def _header(parameters: Parameters) -> dict[str, object]:
    begins = {"thalweg": "diagnostics", "version": _VERSION}
    return {**begins, **parameters._asdict(), "columns": [*COLUMNS]}


def json_number(value: float) -> float | str:
    """Return a number of four digits, or a text for what JSON has none for."""
    rounded = float(f"{value:.4g}")  # of the largest numbers it is infinite
    return rounded if math.isfinite(rounded) else _NAMED[f"{rounded:f}"]


class TensorBoard(Sink):
    """A scalar `column/parameter` for each number that was measured, and `loss`, for TensorBoard.

    Args:
        writer: A folder for a file of events, which needs the package tensorboard, or a
            `SummaryWriter` of torch, which is not closed here.
        columns: Those that are written.

    Raises:
        InvalidTypeError, InvalidArgumentError: The writer is none, or a column is not known.
    """

    def __init__(
        self, writer: str | os.PathLike[str] | Any, columns: Iterable[str] = COLUMNS
    ) -> None:
        given: object = writer
        if not isinstance(given, str | os.PathLike) and not hasattr(given, "add_scalar"):
            raise InvalidTypeError(
                f"writer must be a folder or a SummaryWriter, not {show_value(writer)}."
            )
        self._columns = check_columns(columns)
        self._given = writer
        self._writer: Any = None if isinstance(given, str | os.PathLike) else writer

    def table(self, table: Table, loss: float | None) -> None:
        writer = self._events()
        if loss is not None:
            writer.add_scalar("loss", loss, table.step)
        for name, value in table.scalars(self._columns).items():
            writer.add_scalar(name, value, table.step)

    def loss(self, parameters: Parameters, step: int, loss: float) -> None:
        self._events().add_scalar("loss", loss, step)

    def close(self) -> None:
        if self._writer is not None and self._writer is not self._given:
            writer, self._writer = self._writer, None
            writer.close()

    def _events(self) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._writer = SummaryWriter(str(self._given))
        return self._writer

    def __repr__(self) -> str:
        return f"TensorBoard({self._given!r})"
