"""A training as its file of diagnostics tells it, in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from thalweg.diagnostics.jsonl_reader import UNMEASURED, JsonLinesReader, Record
from thalweg.diagnostics.spikes import COLUMNS, Spikes, Warned

DRAWN = ("ratio", "gradient_norm")
WANTED = frozenset((*DRAWN, *COLUMNS))
TOLD = 100  # records between two looks at how much was read


class History:
    """Records that were read so far.

    Attributes:
        names: The names of all parameters, in the order of the file.
        losses: By step, in the order of steps.
        rows: By step and drawn column, a number per parameter in the order of `names` at that step.
        warned: The unusual numbers.
        resumed: The steps at which the training went on from an earlier one.
        every: The number of steps between records.
        damaged: The number of lines that were skipped.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.losses: dict[int, float] = {}
        self.rows: dict[int, dict[str, np.ndarray]] = {}
        self.warned: list[Warned] = []
        self.resumed: list[int] = []
        self.every = 1
        self.damaged = 0
        self._spikes = Spikes()
        self._places: dict[tuple[str, ...], list[int]] = {}
        self._last: int | None = None

    @property
    def last(self) -> int | None:
        """The number of the latest step; None before the first."""
        return self._last

    def add(self, record: Record) -> None:
        """Add a record; one of an earlier step takes the place of all from that step on."""
        step, header = record.step, record.header
        if self._last is not None and step < self._last:
            self._go_back(step)
        self._last, self.every = step, header.every
        if record.loss is not None:
            self.losses[step] = record.loss
        if record.rows:
            self.rows[step] = {key: self._place(header.names, record.rows[key])
                               for key in DRAWN if key in record.rows}  # fmt: skip
        self.warned += self._spikes.feed(record.rows, header.names, step, record.loss, header.sizes)

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps that have a column, and its numbers: a row per step, a column per
        parameter.
        """
        steps = [step for step, rows in self.rows.items() if name in rows]
        found = np.full((len(steps), len(self.names)), UNMEASURED)
        for place, step in enumerate(steps):
            row = self.rows[step][name]
            found[place, : len(row)] = row
        return np.array(steps, np.int64), found

    def _go_back(self, step: int) -> None:
        for kept in (self.losses, self.rows):
            for later in [each for each in kept if each >= step]:
                del kept[later]
        self.warned = [each for each in self.warned if each.step < step]
        self.resumed.append(step)

    def _place(self, names: tuple[str, ...], row: np.ndarray) -> np.ndarray:
        """The row in the order of all names: a resumed training may have others."""
        if names not in self._places:
            known = {name: place for place, name in enumerate(self.names)}
            self.names += [name for name in dict.fromkeys(names) if name not in known]
            known = {name: place for place, name in enumerate(self.names)}
            self._places[names] = [known[name] for name in names]
        if self._places[names] == list(range(len(self.names))):
            return row
        placed = np.full(len(self.names), UNMEASURED)
        placed[self._places[names]] = row
        return placed


def read_history(path: Path, tell: Callable[[float], object] = lambda share: None) -> History:
    """Read all records of a file.

    Args:
        path: The file.
        tell: Called from time to time with the fraction that was read.

    Raises:
        MissingFileError: There is no such file.
        DataLossError: It is not a file of diagnostics.
    """
    found = History()
    with JsonLinesReader(path, WANTED) as reader:
        for number, record in enumerate(reader.read_all()):
            found.add(record)
            if number % TOLD == 0:
                tell(reader.share)
        found.damaged = reader.damaged
    return found
