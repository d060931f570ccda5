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
# JSON has no literals for these numbers.
_NONFINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class Sink(ABC):
    """Base class of receivers of tables and losses."""

    @abstractmethod
    def table(self, table: Table, loss: float | None) -> None:
        """Write a table and the loss of its step; None omits the loss."""

    @abstractmethod
    def loss(self, parameters: Parameters, step: int, loss: float) -> None:
        """Write the loss of a step without a table."""

    def close(self) -> None:  # noqa: B027
        """Flush pending output and close files that this sink opened."""


class JsonLines(Sink):
    """Sink that appends a line of JSON for each table, and for each loss without a table.

    A header line has the names, sizes and groups of the parameters. It is written first, and again
    after the parameters have changed or another process has changed the file. Each line is flushed.

    Args:
        path: A path, made absolute at once, or an open text file, which is not closed.

    Raises:
        InvalidTypeError: `path` is neither a path nor a text file.
    """

    def __init__(self, path: str | os.PathLike[str] | Any) -> None:
        self._owns_file = isinstance(path, str | os.PathLike)
        if not (self._owns_file or hasattr(path, "write")):
            raise InvalidTypeError(
                f"path must be a path or a file of text, not {show_value(path)}."
            )
        self._argument = path
        self._path: Any = os.path.abspath(path) if self._owns_file else path
        self._header_parameters: Parameters | None = None
        # Header line of `_header_parameters`.
        self._header = ""
        # File size after the last write; another size means that another process wrote.
        self._end: int | None = None

    def table(self, table: Table, loss: float | None) -> None:
        """Append the table and the loss as one line. None omits the loss."""
        record: dict[str, object] = {"step": table.step, "time": time.time()}
        if loss is not None:
            record["loss"] = json_number(loss)
        for name in COLUMNS:
            pairs = zip(table.records[name].tolist(), table.measured[name].tolist(), strict=True)
            record[name] = [json_number(rounded) if flag else None for rounded, flag in pairs]
        self._write(table.parameters, record)

    def loss(self, parameters: Parameters, step: int, loss: float) -> None:
        """Append a loss without a table."""
        self._write(parameters, {"step": step, "loss": json_number(loss)})

    def _write(self, parameters: Parameters, record: dict[str, object]) -> None:
        """Write a record, after a header if the parameters changed since the last record."""
        text, has_header = _line(record), parameters == self._header_parameters
        if not has_header:
            self._header = _line(_header(parameters))
        if self._owns_file:
            self._append(text, has_header)
        else:
            self._path.write(text if has_header else self._header + text)
            if hasattr(self._path, "flush"):
                self._path.flush()
        self._header_parameters = parameters

    def _append(self, line: str, has_header: bool) -> None:
        """Append a line; first a header, if `has_header` is False or others changed the file.

        After an OSError, truncate the file to its former size and raise the error.
        """
        # Opened for each line: a training may be killed, forked or copied at any time.
        with open(self._path, "ab+", buffering=0) as file:
            # A pipe is not seekable.
            end = file.seek(0, os.SEEK_END) if file.seekable() else 0
            skips_header = has_header and (end == self._end or not file.seekable())
            text = (line if skips_header else self._header + line).encode("utf-8", "replace")
            if end:
                file.seek(end - 1)
                # A process that was killed leaves an incomplete line.
                if file.read(1) != b"\n":
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
        return f"JsonLines({self._argument!r})"


def _line(record: dict[str, object]) -> str:
    """Return a record as a line of JSON."""
    return f"{json.dumps(record, ensure_ascii=False)}\n"


def _header(parameters: Parameters) -> dict[str, object]:
    """Return the fields of a header line."""
    prefix = {"thalweg": "diagnostics", "version": _VERSION}
    return {**prefix, **parameters._asdict(), "columns": [*COLUMNS]}


def json_number(value: float) -> float | str:
    """Return a number rounded to four digits, or its JSON name if it is not finite."""
    # Rounding the largest numbers overflows to infinity.
    rounded = float(f"{value:.4g}")
    return rounded if math.isfinite(rounded) else _NONFINITE[f"{rounded:f}"]


class TensorBoard(Sink):
    """Sink that writes the scalar `loss`, and `column/parameter` for each measured number.

    Args:
        writer: A directory for event files (needs the package tensorboard), or a `SummaryWriter` of
            torch, which is not closed.
        columns: The names of the columns to write.

    Raises:
        InvalidTypeError, InvalidArgumentError: `writer` or `columns` is invalid.
    """

    def __init__(
        self, writer: str | os.PathLike[str] | Any, columns: Iterable[str] = COLUMNS
    ) -> None:
        target: object = writer
        if not isinstance(target, str | os.PathLike) and not hasattr(target, "add_scalar"):
            raise InvalidTypeError(
                f"writer must be a folder or a SummaryWriter, not {show_value(writer)}."
            )
        self._columns = check_columns(columns)
        self._argument = writer
        self._writer: Any = None if isinstance(target, str | os.PathLike) else writer

    def table(self, table: Table, loss: float | None) -> None:
        """Write all numbers of a table, and the loss of its step."""
        writer = self._events()
        if loss is not None:
            writer.add_scalar("loss", loss, table.step)
        for name, value in table.scalars(self._columns).items():
            writer.add_scalar(name, value, table.step)

    def loss(self, parameters: Parameters, step: int, loss: float) -> None:
        """Write a loss without a table."""
        self._events().add_scalar("loss", loss, step)

    def close(self) -> None:
        """Flush the events; close the writer if this sink opened it."""
        if self._writer is not None and self._writer is not self._argument:
            writer, self._writer = self._writer, None
            writer.close()

    def _events(self) -> Any:
        """Return the writer, opened on the first call."""
        if self._writer is None:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._writer = SummaryWriter(str(self._argument))
        return self._writer

    def __repr__(self) -> str:
        return f"TensorBoard({self._argument!r})"
