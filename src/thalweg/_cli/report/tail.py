"""Latest step of a growing file of diagnostics."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from thalweg.diagnostics.jsonl_reader import JsonLinesReader, Record
from thalweg.diagnostics.spikes import Spikes, Warned

KEPT = 100  # warnings


class Latest:
    """The latest step, and what was not usual until then.

    Attributes:
        names: Of the parameters.
        rows: Of the latest step that has columns; empty before the first.
        warned: What was not usual, the latest last.
        step, loss: The latest of each; None before the first.
        measured: The step of `rows`.
    """

    def __init__(self, reader: JsonLinesReader) -> None:
        self._reader = reader
        self._begin()

    @property
    def damaged(self) -> int:
        """Number of lines that were skipped."""
        return self._reader.damaged

    def read_new(self) -> bool:
        """Take what has come; whether there was anything."""
        return self._take(self._reader.read_new())

    def read_all(self) -> None:
        """Take all until the end of the file.

        Raises:
            DataLossError: It is no file of diagnostics.
        """
        self._take(self._reader.read_all())

    def summarize(self) -> str:
        """Return the file, its latest step and loss, in a line."""
        path = self._reader.path.name
        if self.step is None:
            return f"{path}: no step yet"
        told = f"{path}: step {self.step:,}"
        if self.loss is not None:
            told += f", loss {self.loss:.4g}"
        if self.rows and self.measured != self.step:
            told += f"; layers at step {self.measured:,}"
        return told

    def _begin(self) -> None:
        self.names: tuple[str, ...] = ()
        self.rows: dict[str, np.ndarray] = {}
        self.warned: list[Warned] = []
        self._spikes = Spikes()
        self.step: int | None = None
        self.loss: float | None = None
        self.measured: int | None = None
        self._restarts = self._reader.restarts
        self._damaged = 0

    def _take(self, records: Iterable[Record]) -> bool:
        has_new = False
        for record in records:
            if self._reader.restarts != self._restarts:
                self._begin()
            has_new = True
            self.step = record.step
            self.loss = self.loss if record.loss is None else record.loss
            if record.rows:
                self.names, self.rows = record.header.names, record.rows
                self.measured = record.step
            self.warned += self._spikes.feed(
                record.rows, record.header.names, record.step, record.loss, record.header.sizes
            )
        del self.warned[:-KEPT]
        has_new |= self._reader.damaged != self._damaged
        self._damaged = self._reader.damaged
        return has_new
