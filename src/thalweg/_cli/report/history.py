"""History of a training, read from its diagnostics file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from thalweg.diagnostics.jsonl_reader import UNMEASURED, JsonLinesReader, Record
from thalweg.diagnostics.spikes import COLUMNS, Spikes, Warned

PLOTTED_COLUMNS = ("ratio", "gradient_norm")
READ_COLUMNS = frozenset((*PLOTTED_COLUMNS, *COLUMNS))
# Records between two progress updates.
RECORDS_PER_UPDATE = 100


class History:
    """Records of a training read so far.

    Attributes:
        names: The names of all parameters, in the order of the file.
        losses: The losses by step, in the order of steps.
        rows: {step: {column: a number per parameter, in the order of `names` at that step}}.
        warnings: The warnings about unusual numbers.
        resumed: The steps at which the training was resumed.
        interval: The number of steps between records.
        damaged: The number of lines that were skipped.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.losses: dict[int, float] = {}
        self.rows: dict[int, dict[str, np.ndarray]] = {}
        self.warnings: list[Warned] = []
        self.resumed: list[int] = []
        self.interval = 1
        self.damaged = 0
        self._spikes = Spikes()
        self._columns_by_names: dict[tuple[str, ...], list[int]] = {}
        self._latest_step: int | None = None

    @property
    def last(self) -> int | None:
        """Return the latest step; None before the first."""
        return self._latest_step

    def add(self, record: Record) -> None:
        """Add a record, which replaces earlier records of its step and of later steps."""
        step, header = record.step, record.header
        if self._latest_step is not None and step < self._latest_step:
            self._go_back(step)
        self._latest_step, self.interval = step, header.every
        if record.loss is not None:
            self.losses[step] = record.loss
        if record.rows:
            self.rows[step] = {key: self._reorder(header.names, record.rows[key])
                               for key in PLOTTED_COLUMNS if key in record.rows}  # fmt: skip
        self.warnings += self._spikes.feed(
            record.rows, header.names, step, record.loss, header.sizes
        )

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (steps with the column, numbers of shape (steps, parameters))."""
        steps = [step for step, rows in self.rows.items() if name in rows]
        values = np.full((len(steps), len(self.names)), UNMEASURED)
        for index, step in enumerate(steps):
            row = self.rows[step][name]
            values[index, : len(row)] = row
        return np.array(steps, np.int64), values

    def _go_back(self, step: int) -> None:
        for records in (self.losses, self.rows):
            for step_ in [recorded_step for recorded_step in records if recorded_step >= step]:
                del records[step_]
        self.warnings = [warning for warning in self.warnings if warning.step < step]
        self.resumed.append(step)

    def _reorder(self, names: tuple[str, ...], row: np.ndarray) -> np.ndarray:
        """Return `row`, of the layers `names`, in the order of `self.names`; first add new names.

        Layers that are not in `names` get `UNMEASURED`.
        """
        if names not in self._columns_by_names:
            index_by_name = {name: index for index, name in enumerate(self.names)}
            self.names += [name for name in dict.fromkeys(names) if name not in index_by_name]
            index_by_name = {name: index for index, name in enumerate(self.names)}
            self._columns_by_names[names] = [index_by_name[name] for name in names]
        if self._columns_by_names[names] == list(range(len(self.names))):
            return row
        reordered = np.full(len(self.names), UNMEASURED)
        reordered[self._columns_by_names[names]] = row
        return reordered


def read_history(
    path: Path, progress: Callable[[float], object] = lambda fraction: None
) -> History:
    """Read all records of a diagnostics file into a `History`.

    Args:
        progress: `progress(fraction)` is called from time to time with the fraction read so far.

    Raises:
        MissingFileError: The file does not exist.
        DataLossError: The file does not contain diagnostics.
    """
    history = History()
    with JsonLinesReader(path, READ_COLUMNS) as reader:
        for index, record in enumerate(reader.read_all()):
            history.add(record)
            if index % RECORDS_PER_UPDATE == 0:
                progress(reader.share)
        history.damaged = reader.damaged
    return history
