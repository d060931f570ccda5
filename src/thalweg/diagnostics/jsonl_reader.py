"""Incremental reader of diagnostics files in JSON lines.

A file has a header, then a record for each step. A resumed training adds another header. Invalid
lines are counted and skipped: a process that is killed leaves an incomplete line.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from thalweg.errors import DataLossError, MissingFileError, UnsupportedCheckpointError

VERSION = 1
# float64 and JavaScript count exactly up to this step.
MAX_STEP = 1 << 53
# Marks an unmeasured number, unlike NaN; no column contains negative infinity.
UNMEASURED = float("-inf")
# Maximum number of tokens in the number cache.
_CACHE_SIZE = 1 << 17


class LogHeader(NamedTuple):
    """Header of a diagnostics file, valid for the records after it.

    Attributes:
        every: The number of steps between two records with columns.
        names: The names of the parameters.
        sizes: The number of elements of each parameter; empty if the file omits it.
        groups: The group index of each parameter; empty if the file omits it.
        columns: The measured columns.
    """

    every: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    groups: tuple[int, ...]
    columns: tuple[str, ...]


class Record(NamedTuple):
    """Record of one step.

    Attributes:
        header: The latest header before the record.
        step: The number of the step.
        loss: The loss; None if it was not recorded.
        rows: {column: array with one number per parameter}; empty if the step has only a loss.
    """

    header: LogHeader
    step: int
    loss: float | None
    rows: dict[str, np.ndarray]


class JsonLinesReader:
    """Reader of a diagnostics file that may still grow; usable as a context manager.

    Args:
        path: The file.
        columns: The names of the columns to read; None reads all.

    Attributes:
        damaged: The number of skipped lines.
        restarts: The number of times that the file was replaced or shortened, and read again.

    Raises:
        MissingFileError: The file does not exist.
        DataLossError: The file is unreadable or not a diagnostics file.
    """

    def __init__(self, path: str | Path, columns: frozenset[str] | None = None) -> None:
        self.path = Path(path)
        self.damaged = self.restarts = 0
        self._columns = columns
        self._header: LogHeader | None = None
        self._cache = _NumberCache()
        self._file = self._open()
        self._partial_line = b""
        if not self._file.seekable():
            self._file.close()
            raise DataLossError(f"cannot read '{self.path}': it is a pipe, not a file.")
        first = self._file.read(1024).removeprefix(codecs.BOM_UTF8).lstrip()[:1]
        self._file.seek(0)
        if first not in (b"", b"{"):
            self._file.close()
            raise self._format_error("it does not begin with a line of JSON")

    def __enter__(self) -> JsonLinesReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def header(self) -> LogHeader | None:
        """The latest header; None before the first."""
        return self._header

    @property
    def share(self) -> float:
        """Fraction of the file that has been read, from 0 to 1."""
        return self._file.tell() / max(1, os.fstat(self._file.fileno()).st_size)

    def read_new(self) -> Iterator[Record]:
        """Yield records added since the last call, without an incomplete last line.

        Read from the start if the file was replaced or shortened.
        """
        # A training that begins anew truncates or replaces its file while a report follows it.
        if os.fstat(self._file.fileno()).st_size < self._file.tell() or not self._is_same_file():
            self._file.close()
            self._file, self._partial_line, self._header = self._open(), b"", None
            self.damaged, self.restarts = 0, self.restarts + 1
        while line := self._file.readline():
            line, self._partial_line = self._partial_line + line, b""
            if not line.endswith(b"\n"):
                self._partial_line = line
                break
            yield from self._parse_line(line)

    def read_all(self) -> Iterator[Record]:
        """Yield all new records, including the last line without a line break.

        Raises:
            DataLossError: The file has no header.
        """
        yield from self.read_new()
        if self._partial_line:
            yield from self._parse_line(self._partial_line)
            self._partial_line = b""
        if self._header is None:
            raise self._format_error("no line of it is a header")

    def _open(self) -> BinaryIO:
        """Return the open file; raise MissingFileError or DataLossError."""
        try:
            return open(self.path, "rb")
        except FileNotFoundError:
            raise MissingFileError(f"there is no file '{self.path}'.") from None
        except OSError as error:
            raise DataLossError(f"cannot read '{self.path}': {error.strerror}.") from error

    def _is_same_file(self) -> bool:
        """Return True if `self.path` is the open file or does not exist."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except OSError:
            return True

    def _parse_line(self, line: bytes) -> Iterator[Record]:
        """Yield the record of a line. Store a header; count an invalid line in `damaged`."""
        if not line.strip():
            return
        try:
            header = self._header
            if header and (record := self._cache.read_record(line, header, self._columns)):
                yield record
                return
            fields = json.loads(line)
            if "thalweg" in fields:
                self._header = self._read_header(fields)
            elif self._header is None:
                raise ValueError("a record before a header")
            else:
                yield _read_record(fields, self._header, self._columns)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            self.damaged += 1

    def _read_header(self, fields: dict[str, Any]) -> LogHeader:
        """Return the header with the values of `fields`.

        Raises:
            UnsupportedCheckpointError: The version of the file is not supported.
            ValueError, TypeError: A field is invalid.
        """
        if fields["thalweg"] != "diagnostics":
            raise ValueError("a header of another kind")
        if fields["version"] != VERSION:
            raise UnsupportedCheckpointError(
                f"'{self.path}' is a file of diagnostics of version {fields['version']!r}; this"
                f" release reads version {VERSION}. A newer thalweg reads it."
            )
        names = fields["names"]
        if not all(isinstance(name, str) for name in [*names, *fields["columns"]]):
            raise TypeError("names that are no texts")
        sizes, groups = ([*map(int, fields.get(key) or ())] for key in ("sizes", "groups"))
        if {len(names)} < {len(names), *(len(values) for values in (sizes, groups) if values)}:
            raise ValueError("lists of several lengths")
        every = max(1, int(fields.get("every") or 1))
        if every > MAX_STEP:
            raise ValueError("more steps than there are")
        return LogHeader(every, tuple(names), tuple(sizes), tuple(groups), tuple(fields["columns"]))

    def _format_error(self, reason: str) -> DataLossError:
        """Return the error for a file in another format."""
        return DataLossError(f"'{self.path}' is no file of diagnostics: {reason}.")


class _NumberCache(dict[bytes, float]):
    """Cache {JSON token: number}; a lookup is five times as fast as parsing."""

    def __init__(self) -> None:
        super().__init__()
        # By column the text and the array of the latest row: counts are 0 in most steps.
        self._latest: dict[str, tuple[bytes, np.ndarray]] = {}

    def __missing__(self, token: bytes) -> float:
        parsed = json.loads(token)
        if len(self) >= _CACHE_SIZE:
            self.clear()
        self[token] = parsed_value = UNMEASURED if parsed is None else float(parsed)
        return parsed_value

    def read_record(
        self, line: bytes, header: LogHeader, selected: frozenset[str] | None
    ) -> Record | None:
        """Return the record in a line that has the columns of `header`, as `JsonLines` writes them.

        Return None for any other line, such as a line with only a loss. Parse only the `selected`
        columns; None selects all columns.
        """
        # Rows are found as text, because tokens of most rows are cached or equal the latest row.
        begin, end = line.find(b"["), 0
        head = line[: line.rfind(b",", 0, max(0, begin))]
        if not (head.startswith(b'{"step"') and line.rstrip().endswith(b"]}")):
            return None
        if line.count(b"[") != len(header.columns):
            return None
        rows: dict[str, np.ndarray] = {}
        for column in header.columns:
            if selected is not None and column not in selected:
                continue
            key = f'"{column}": ['.encode("utf-8", "replace")
            begin = line.find(key, end) + len(key)
            end = line.find(b"]", begin)
            text = line[begin:end]
            latest = self._latest.get(column)
            if latest is None or latest[0] != text:
                tokens = text.split(b", ")
                try:
                    row = np.fromiter(map(self.__getitem__, tokens), np.float64, len(tokens))
                except (ValueError, TypeError, OverflowError):
                    return None
                row.flags.writeable = False
                self._latest[column] = latest = text, row
            if begin < len(key) or len(latest[1]) != len(header.names):
                return None
            rows[column] = latest[1]
        return _make_record(json.loads(head + b"}"), header, rows)


def _read_record(
    fields: dict[str, Any], header: LogHeader, selected: frozenset[str] | None
) -> Record:
    """Return the record with the values of `fields` and the selected columns."""
    rows: dict[str, np.ndarray] = {}
    for column in header.columns:
        if (selected is None or column in selected) and column in fields:
            rows[column] = _read_row(fields[column], len(header.names))
    return _make_record(fields, header, rows)


def _make_record(fields: dict[str, Any], header: LogHeader, rows: dict[str, np.ndarray]) -> Record:
    """Return a record with step and loss from JSON fields; raise if the step is invalid."""
    step, loss = fields["step"], fields.get("loss")
    if not isinstance(step, int) or isinstance(step, bool):
        raise TypeError("a step that is no whole number")
    if abs(step) > MAX_STEP:
        raise ValueError("a step beyond all that are counted")
    return Record(header, step, None if loss is None else float(loss), rows)


def _read_row(values: list[Any], count: int) -> np.ndarray:
    """Return `count` numbers as an array; None becomes `UNMEASURED`.

    Raise ValueError or TypeError unless `values` is a list of `count` numbers.
    """
    if not isinstance(values, list) or len(values) != count:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError("a column of another length")
    if None in values:
        values = [UNMEASURED if value is None else value for value in values]
    # NumPy also parses the texts "NaN" and "Infinity".
    row = np.array(values, np.float64)
    if row.ndim != 1:
        raise ValueError("lists in a column")
    return row
