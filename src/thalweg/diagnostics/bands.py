"""The band of each layer: a running median, and the departures from it that last."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

# Rows that the median and the deviation are computed from.
WINDOW = 50
# Rows before anything is usual.
WARM_UP = 20
# Rows between two computations of the median, once the window is full.
RENEWED = 5
# The least deviation, in natural logarithms, so that quiet layers are not held to their noise.
FLOOR = 0.10
# A number is a spike beyond this many deviations, and beyond its factor.
DEVIATIONS = 8.0
# One row alone is noise, of which gradients have long tails: a spike is reported once it has lasted
# this many rows, or where the loss leaves its band within so many rows.
SPIKE_ROWS, RECENT_ROWS = 3, 10
# A silent layer is reported once it has lasted for so many rows, and so many steps.
LASTING_ROWS, LASTING_STEPS = 8, 50


class Departure(NamedTuple):
    """Unusual number of one layer.

    Attributes:
        step: The step at which it began.
        place: The index of the layer.
        what: A description.
        number: The measured number.
        usual: The usual number; NaN where there is none.
        excess: The distance from the usual number, in deviations.
        kind: One of `spikes.KINDS`.
    """

    step: int
    place: int
    what: str
    number: float
    usual: float
    excess: float
    kind: str = "spike"


class RunningMedian:
    """The running median of a number per layer, and the deviation from it."""

    def __init__(self, layers: int) -> None:
        self._ring = np.zeros((WINDOW, layers))
        self.rows = 0
        self._known = np.zeros(layers, np.int64)
        self._measured: tuple[np.ndarray, np.ndarray] | None = None

    def add(self, values: np.ndarray) -> None:
        """Add a row; a value that is not finite counts as the usual one."""
        usable = np.isfinite(values)
        if not usable.all():
            values = np.where(usable, values, self.measure()[0])
        first = usable & (self._known == 0)
        self._ring[:, first] = values[first]
        self._ring[self.rows % WINDOW] = values
        self._known += usable
        self.rows += 1
        if self.rows < WINDOW or self.rows % RENEWED == 0:
            self._measured = None

    def measure(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the median and the normal deviation; NaN for a layer without a past."""
        if self._measured is None:
            ring = self._ring[: max(1, min(self.rows, WINDOW))]
            # A loss may be as large as any float.
            with np.errstate(over="ignore", invalid="ignore"):
                median = np.median(ring, 0)
                deviation = 1.4826 * np.median(np.abs(ring - median), 0)
            known = self._known > 0
            self._measured = (
                np.where(known, median, np.nan), np.where(known, deviation, np.nan)
            )  # fmt: skip
        return self._measured

    @property
    def is_warm(self) -> np.ndarray:
        """True for each layer whose past is long enough."""
        return self._known >= WARM_UP


class Duration:
    """The step since which a condition holds without a break, per layer."""

    def __init__(self, layers: int) -> None:
        self._rows = np.zeros(layers, np.int64)
        self._since = np.zeros(layers, np.int64)
        self._reported = np.zeros(layers, bool)

    def find_new(self, holds: np.ndarray, step: int) -> np.ndarray:
        """Return the layers where it has lasted long enough and was not reported before."""
        self._since[self._rows == 0] = step
        # A resumed training takes earlier steps again.
        self._since = np.minimum(self._since, step)
        self._rows = np.where(holds, self._rows + 1, 0)
        lasted = (self._rows >= LASTING_ROWS) & (step - self._since >= LASTING_STEPS)
        is_new = lasted & ~self._reported
        self._reported = lasted | (self._reported & holds)
        return np.flatnonzero(is_new)


class Band:
    """The band of a number per layer, and the layers that rise far above it.

    Args:
        layers: How many there are.
        what: The number, in words.
        factor: The least factor above the median that leaves the band.
        inverted: The logarithms are those of the inverse of the number.

    Attributes:
        usual: The running median.
        leaving: The layers that left their band in the latest row.
    """

    def __init__(self, layers: int, what: str, factor: float, inverted: bool = False) -> None:
        self.usual, self._what, self._factor = RunningMedian(layers), what, factor
        self._inverted = inverted
        self.leaving: list[int] = []
        # Rows without a break.
        self._above = np.zeros(layers, np.int64)
        # By layer the row at which it left, and its departure, until that is reported.
        self._pending: dict[int, tuple[int, Departure]] = {}
        self._row = 0

    def judge(self, logs: np.ndarray, step: int) -> list[Departure]:
        """Add a row of logarithms, and return the departures that have lasted."""
        median, deviation = self.usual.measure()
        scale = np.maximum(deviation, FLOOR)
        with np.errstate(invalid="ignore"):
            excess = logs - median
            above = excess > np.maximum(math.log(self._factor), DEVIATIONS * scale)
        above &= self.usual.is_warm & np.isfinite(logs)
        self.usual.add(logs)
        self._above = np.where(above, self._above + 1, 0)
        self.leaving = np.flatnonzero(self._above == 1).tolist()
        sign = -1 if self._inverted else 1
        for place in self.leaving:
            number, usual = math.exp(sign * logs[place]), math.exp(sign * median[place])
            deviations = float(excess[place] / scale[place])
            departure = Departure(step, place, self._what, number, usual, deviations)
            self._pending[place] = (self._row, departure)
        self._row += 1
        lasted = np.flatnonzero(self._above == SPIKE_ROWS).tolist()
        return [self._pending.pop(place)[1] for place in lasted if place in self._pending]

    def take_recent(self) -> list[Departure]:
        """Remove and return the unreported departures of the last rows."""
        recent = [departure for row, departure in self._pending.values()
                  if self._row - row <= RECENT_ROWS]  # fmt: skip
        self._pending.clear()
        return recent
