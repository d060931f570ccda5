"""Latest step of a growing file of diagnostics."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from thalweg.diagnostics.jsonl_reader import JsonLinesReader, Record
from thalweg.diagnostics.spikes import Spikes, Warned

# The number of latest warnings to keep.
MAX_WARNINGS = 100


class Latest:
    """Latest step of a diagnostics file, with recent warnings.

    Attributes:
        names: The names of the parameters.
        rows: The columns of the latest step that has columns; empty before the first.
        warnings: The recent warnings, the latest last.
        step, loss: The latest step and loss; None before the first.
        measured_step: The step of `rows`.
    """

    def __init__(self, reader: JsonLinesReader) -> None:
        self._reader = reader
        self._begin()

    @property
    def damaged(self) -> int:
        """Return the number of skipped lines."""
        return self._reader.damaged

    def read_new(self) -> bool:
        """Read new records; return whether there were new lines."""
        return self._take(self._reader.read_new())

    def read_all(self) -> None:
        """Read all records up to the end of the file.

        Raises:
            DataLossError: The file does not contain diagnostics.
        """
        self._take(self._reader.read_all())

    def summarize(self) -> str:
        """Return file name, latest step and loss as one line."""
        path = self._reader.path.name
        if self.step is None:
            return f"{path}: no step yet"
        summary = f"{path}: step {self.step:,}"
        if self.loss is not None:
            summary += f", loss {self.loss:.4g}"
        if self.rows and self.measured_step != self.step:
            summary += f"; layers at step {self.measured_step:,}"
        return summary

    def _begin(self) -> None:
        self.names: tuple[str, ...] = ()
        self.rows: dict[str, np.ndarray] = {}
        self.warnings: list[Warned] = []
        self._spikes = Spikes()
        self.step: int | None = None
        self.loss: float | None = None
        self.measured_step: int | None = None
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
                self.measured_step = record.step
            self.warnings += self._spikes.feed(
                record.rows, record.header.names, record.step, record.loss, record.header.sizes
            )
        del self.warnings[:-MAX_WARNINGS]
        has_new |= self._reader.damaged != self._damaged
        self._damaged = self._reader.damaged
        return has_new
