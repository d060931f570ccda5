"""The file of diagnostics: one JSON object a line, read while it grows, whatever has cut its lines.

A header comes first, and again when a training is resumed; then a record for each step. Lines that
cannot be read are counted and skipped, as a machine that stops in the middle of a line leaves one.
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
LARGEST = 1 << 53  # number of a step: float64 and the page's script count so far
# Beside NaN, which says that a number is none: no column has an infinity of this sign.
UNMEASURED = float("-inf")


_KEPT = 1 << 17  # words that are remembered


class LogHeader(NamedTuple):
    """Description of the records that follow.

    Attributes:
        every: The number of steps between two records with columns.
        names: The names of the parameters.
        sizes: The number of elements of each; empty if the file does not have it.
        groups: The index of each one's group; empty if the file does not have it.
        columns: The measured columns.
    """

    every: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    groups: tuple[int, ...]
    columns: tuple[str, ...]


class Record(NamedTuple):
    """The record of one step.

    Attributes:
        header: The one before it.
        step: Its number.
        loss: None if it was not recorded.
        rows: A number per parameter, by column; empty for a step with a loss alone.
    """

    header: LogHeader
    step: int
    loss: float | None
    rows: dict[str, np.ndarray]


class JsonLinesReader:
    """Reads a file of diagnostics, and what is added to it later.

    Args:
        path: The file.
        columns: Those that are wanted; all if None.

    Attributes:
        damaged: How many lines were skipped.
        restarts: How often the file was found shorter than before: all was read from its start.

    Raises:
        MissingFileError: There is no such file.
        DataLossError: It cannot be read, or is no file of diagnostics.
    """

    def __init__(self, path: str | Path, columns: frozenset[str] | None = None) -> None:
        self.path = Path(path)
        self.damaged = self.restarts = 0
        self._columns = columns
        self._header: LogHeader | None = None
        self._words = _Words()
        self._file = self._open()
        self._rest = b""
        if not self._file.seekable():
            self._file.close()
            raise DataLossError(f"cannot read '{self.path}': it is a pipe, not a file.")
        first = self._file.read(1024).removeprefix(codecs.BOM_UTF8).lstrip()[:1]
        self._file.seek(0)
        if first not in (b"", b"{"):
            self._file.close()
            raise self._refuse("it does not begin with a line of JSON")

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
        """Fraction of the file that was read, from 0 to 1."""
        return self._file.tell() / max(1, os.fstat(self._file.fileno()).st_size)

    def read_new(self) -> Iterator[Record]:
        """Yield the records that have come since the last call; a line without its end is left."""
        if os.fstat(self._file.fileno()).st_size < self._file.tell() or not self._is_same():
            self._file.close()
            self._file, self._rest, self._header = self._open(), b"", None
            self.damaged, self.restarts = 0, self.restarts + 1
        while line := self._file.readline():
            line, self._rest = self._rest + line, b""
            if not line.endswith(b"\n"):
                self._rest = line
                break
            yield from self._take(line)

    def read_all(self) -> Iterator[Record]:
        """Yield all records until the end of the file, where a line may be cut.

        Raises:
            DataLossError: There is no header in it.
        """
        yield from self.read_new()
        if self._rest:
            yield from self._take(self._rest)
            self._rest = b""
        if self._header is None:
            raise self._refuse("no line of it is a header")

    def _open(self) -> BinaryIO:
        try:
            return open(self.path, "rb")
        except FileNotFoundError:
            raise MissingFileError(f"there is no file '{self.path}'.") from None
        except OSError as error:
            raise DataLossError(f"cannot read '{self.path}': {error.strerror}.") from error

    def _is_same(self) -> bool:
        """Return whether the path still leads to the file that is open, or to none."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except OSError:
            return True

    def _take(self, line: bytes) -> Iterator[Record]:
        if not line.strip():
            return
        try:
            header = self._header
            if header and (record := self._words.read_record(line, header, self._columns)):
                yield record
                return
            told = json.loads(line)
            if "thalweg" in told:
                self._header = self._read_header(told)
            elif self._header is None:
                raise ValueError("a record before a header")
            else:
                yield _read_record(told, self._header, self._columns)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            self.damaged += 1

    def _read_header(self, told: dict[str, Any]) -> LogHeader:
        if told["thalweg"] != "diagnostics":
            raise ValueError("a header of another kind")
        if told["version"] != VERSION:
            raise UnsupportedCheckpointError(
                f"'{self.path}' is a file of diagnostics of version {told['version']!r}; this"
                f" release reads version {VERSION}. A newer thalweg reads it."
            )
        names = told["names"]
        if not all(isinstance(each, str) for each in [*names, *told["columns"]]):
            raise TypeError("names that are no texts")
        sizes, groups = ([int(each) for each in told.get(key) or ()] for key in ("sizes", "groups"))
        if {len(names)} < {len(names), *(len(each) for each in (sizes, groups) if each)}:
            raise ValueError("lists of several lengths")
        every = max(1, int(told.get("every") or 1))
        if every > LARGEST:
            raise ValueError("more steps than there are")
        return LogHeader(every, tuple(names), tuple(sizes), tuple(groups), tuple(told["columns"]))

    def _refuse(self, reason: str) -> DataLossError:
        return DataLossError(f"'{self.path}' is no file of diagnostics: {reason}.")


class _Words(dict[bytes, float]):
    """The numbers that words of JSON stand for.

    Numbers of four digits come again and again: finding one takes a fifth of reading it.
    """

    def __init__(self) -> None:
        super().__init__()
        # Of each column the text of its latest row, and the row: counts are 0 in most steps.
        self._latest: dict[str, tuple[bytes, np.ndarray]] = {}

    def __missing__(self, word: bytes) -> float:
        told = json.loads(word)
        if len(self) >= _KEPT:
            self.clear()
        self[word] = number = UNMEASURED if told is None else float(told)
        return number

    def read_record(
        self, line: bytes, header: LogHeader, wanted: frozenset[str] | None
    ) -> Record | None:
        """Return a record in the form that `JsonLines` has, without a look at columns nobody wants.

        Returns:
            None if it has another form, or is damaged.
        """
        begin, end = line.find(b"["), 0
        head = line[: line.rfind(b",", 0, max(0, begin))]
        if not (head.startswith(b'{"step"') and line.rstrip().endswith(b"]}")):
            return None
        if line.count(b"[") != len(header.columns):
            return None
        rows: dict[str, np.ndarray] = {}
        for column in header.columns:
            if wanted is not None and column not in wanted:
                continue
            key = f'"{column}": ['.encode("utf-8", "replace")
            begin = line.find(key, end) + len(key)
            end = line.find(b"]", begin)
            text = line[begin:end]
            latest = self._latest.get(column)
            if latest is None or latest[0] != text:
                words = text.split(b", ")
                try:
                    row = np.fromiter(map(self.__getitem__, words), np.float64, len(words))
                except (ValueError, TypeError, OverflowError):
                    return None
                row.flags.writeable = False
                self._latest[column] = latest = text, row
            if begin < len(key) or len(latest[1]) != len(header.names):
                return None
            rows[column] = latest[1]
        return _make_record(json.loads(head + b"}"), header, rows)


def _read_record(told: dict[str, Any], header: LogHeader, wanted: frozenset[str] | None) -> Record:
    rows: dict[str, np.ndarray] = {}
    for column in header.columns:
        if (wanted is None or column in wanted) and column in told:
            rows[column] = _read_row(told[column], len(header.names))
    return _make_record(told, header, rows)


def _make_record(told: dict[str, Any], header: LogHeader, rows: dict[str, np.ndarray]) -> Record:
    step, loss = told["step"], told.get("loss")
    if not isinstance(step, int) or isinstance(step, bool):
        raise TypeError("a step that is no whole number")
    if abs(step) > LARGEST:
        raise ValueError("a step beyond all that are counted")
    return Record(header, step, None if loss is None else float(loss), rows)


def _read_row(values: list[Any], count: int) -> np.ndarray:
    if not isinstance(values, list) or len(values) != count:
        raise ValueError("a column of another length")
    if None in values:
        values = [UNMEASURED if each is None else each for each in values]
    row = np.array(values, np.float64)  # which reads "NaN" and "Infinity", too
    if row.ndim != 1:
        raise ValueError("lists in a column")
    return row
