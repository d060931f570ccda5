"""Bands (accepted ranges above running medians), and departures (unusual numbers of layers)."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

import numpy as np

# A loss leaves its band if it exceeds the median by this share of it, and by DEVIATIONS.
LOSS_FRACTION = 0.1
# Number of rows in the running median.
WINDOW = 50
# Number of rows before a layer is judged.
WARM_UP = 20
# Number of rows between updates of the median, once the window is full.
UPDATE_ROWS = 5
# Minimum deviation, in natural logarithms, so that noise of quiet layers is not a departure.
FLOOR = 0.10
# A spike exceeds the median by this many deviations and by the factor of its band.
DEVIATIONS = 8.0
# A single row may be noise, since gradients have long tails: a spike is reported after SPIKE_ROWS
# rows, or earlier if the loss leaves its band within RECENT_ROWS rows.
SPIKE_ROWS, RECENT_ROWS = 3, 10
# A silent layer is reported after this many rows and this many steps.
LASTING_ROWS, LASTING_STEPS = 8, 50
# The least positive float, and an exponent below that of the largest one.
_TINY, _LARGEST_EXPONENT = 5e-324, 709.0


class Departure(NamedTuple):
    """Unusual number of one layer.

    Attributes:
        step: The first step with an unusual number.
        layer: The index of the layer.
        description: A text that says which number is unusual.
        measurement: The measured number.
        baseline: The usual number; NaN if there is none.
        excess: The distance from the baseline, in deviations.
        kind: "spike" or "silent".
    """

    step: int
    layer: int
    description: str
    measurement: float
    baseline: float
    excess: float
    kind: str = "spike"


class NumberBand:
    """Band of one number: up to a margin above the median of the last `WINDOW` numbers.

    Args:
        fraction: The minimum margin, divided by the median.
        is_log: True to compute median and deviation of logarithms.

    Attributes:
        values: The last finite numbers, the oldest first.
    """

    def __init__(self, fraction: float, is_log: bool = False, values: Iterable[float] = ()) -> None:
        self._fraction, self._is_log = fraction, is_log
        self.values = deque(values, maxlen=WINDOW)
        self.update_limit()

    def measure(self) -> tuple[float, float]:
        """Return (median of `values`, upper limit of the band).

        The median is NaN if `values` is empty. The limit is the largest float if there are fewer
        than `WARM_UP` values.
        """
        values = list(self.values)
        if self._is_log:
            values = [math.log(max(measurement, _TINY)) for measurement in values]
        middle = median(values) if values else math.nan
        deviation = 1.4826 * median([abs(measurement - middle) for measurement in values] or [0.0])
        least_margin = math.log1p(self._fraction) if self._is_log else self._fraction * abs(middle)
        limit = middle + max(DEVIATIONS * deviation, least_margin)
        if self._is_log:
            middle, limit = math.exp(middle), math.exp(min(limit, _LARGEST_EXPONENT))
        return middle, limit if len(values) >= WARM_UP else sys.float_info.max

    def update_limit(self) -> None:
        """Compute `safe_limit`. Call this method again after `UPDATE_ROWS` further numbers."""
        self._safe_limit = -math.inf
        if len(self.values) >= WARM_UP - UPDATE_ROWS:
            # `UPDATE_ROWS` new numbers move the median by at most so many positions.
            low = sorted(self.values)[(len(self.values) - 1) // 2 - UPDATE_ROWS]
            self._safe_limit = low + self._fraction * abs(low)

    @property
    def safe_limit(self) -> float:
        """Lower bound of the band's upper limit."""
        return self._safe_limit if len(self.values) >= WARM_UP else sys.float_info.max

    def __contains__(self, measurement: float) -> bool:
        is_safe = measurement <= self.safe_limit
        return math.isfinite(measurement) and (is_safe or measurement <= self.measure()[1])


class RunningMedian:
    """Running median and deviation of one number per layer."""

    def __init__(self, layers: int) -> None:
        self._ring = np.zeros((WINDOW, layers))
        self.rows = 0
        self._counts = np.zeros(layers, np.int64)
        self._statistics: tuple[np.ndarray, np.ndarray] | None = None

    def add(self, values: np.ndarray) -> None:
        """Append a row with one value per layer; keep the last `WINDOW` rows.

        A value that is not finite is replaced by the layer's median. The first finite value of a
        layer also fills the layer's earlier rows.
        """
        usable = np.isfinite(values)
        if not usable.all():
            values = np.where(usable, values, self.measure()[0])
        # So the median needs no mask: every row has a number for each layer with a history.
        first = usable & (self._counts == 0)
        self._ring[:, first] = values[first]
        self._ring[self.rows % WINDOW] = values
        self._counts += usable
        self.rows += 1
        if self.rows < WINDOW or self.rows % UPDATE_ROWS == 0:
            self._statistics = None

    def measure(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (medians, deviations), arrays over layers; NaN for a layer without finite values.

        A deviation is 1.4826 times the median absolute deviation. After `WINDOW` rows, both arrays
        are computed anew only every `UPDATE_ROWS` rows; other calls return the last ones.
        """
        if self._statistics is None:
            ring = self._ring[: max(1, min(self.rows, WINDOW))]
            # A difference of large losses may overflow.
            with np.errstate(over="ignore", invalid="ignore"):
                median = np.median(ring, 0)
                deviation = 1.4826 * np.median(np.abs(ring - median), 0)
            has_history = self._counts > 0
            self._statistics = (
                np.where(has_history, median, np.nan), np.where(has_history, deviation, np.nan)
            )  # fmt: skip
        return self._statistics

    @property
    def is_warm(self) -> np.ndarray:
        """True for each layer with a history of `WARM_UP` values."""
        return self._counts >= WARM_UP


class Duration:
    """Duration of a condition for each layer: the number of rows and the first step."""

    def __init__(self, layers: int) -> None:
        self._rows = np.zeros(layers, np.int64)
        self._start_steps = np.zeros(layers, np.int64)
        self._is_reported = np.zeros(layers, bool)

    def find_new(self, condition: np.ndarray, step: int) -> np.ndarray:
        """Add a row of flags, one per layer; return indices of layers whose flag stayed true.

        A flag must stay true for `LASTING_ROWS` rows and `LASTING_STEPS` steps. A layer is returned
        again only after its flag was false.
        """
        self._start_steps[self._rows == 0] = step
        # A resumed training repeats earlier steps.
        self._start_steps = np.minimum(self._start_steps, step)
        self._rows = np.where(condition, self._rows + 1, 0)
        lasted = (self._rows >= LASTING_ROWS) & (step - self._start_steps >= LASTING_STEPS)
        is_new = lasted & ~self._is_reported
        self._is_reported = lasted | (self._is_reported & condition)
        return np.flatnonzero(is_new)


class Band:
    """Bands of one number of all layers, with detection of layers above their band.

    Args:
        layers: The number of layers.
        description: A text for departures that says which number is unusual.
        factor: The minimum ratio of a number above the band to the median.
        inverted: True if rows are logarithms of the inverse of the number.

    Attributes:
        running_median: The running median of the logarithms.
        leaving: The layers that left their band in the latest row.
    """

    def __init__(
        self, layers: int, description: str, factor: float, inverted: bool = False
    ) -> None:
        self.running_median, self._inverted = RunningMedian(layers), inverted
        self._description, self._factor = description, factor
        self.leaving: list[int] = []
        # Number of consecutive rows above the band.
        self._rows_above = np.zeros(layers, np.int64)
        # By layer, the row and the departure that are not reported yet.
        self._pending: dict[int, tuple[int, Departure]] = {}
        self._row = 0

    def judge(self, logs: np.ndarray, step: int) -> list[Departure]:
        """Add a row of logarithms, one per layer; return departures that are now confirmed.

        A departure begins in a layer's first row above its band, and is confirmed after
        `SPIKE_ROWS` consecutive rows. Set `leaving` to the layers that begin one in this row.
        """
        median, deviation = self.running_median.measure()
        scale = np.maximum(deviation, FLOOR)
        with np.errstate(invalid="ignore"):
            excess = logs - median
            is_above = excess > np.maximum(math.log(self._factor), DEVIATIONS * scale)
        is_above &= self.running_median.is_warm & np.isfinite(logs)
        self.running_median.add(logs)
        self._rows_above = np.where(is_above, self._rows_above + 1, 0)
        self.leaving = np.flatnonzero(self._rows_above == 1).tolist()
        sign = -1 if self._inverted else 1
        for layer in self.leaving:
            measurement, baseline = math.exp(sign * logs[layer]), math.exp(sign * median[layer])
            deviations = float(excess[layer] / scale[layer])
            departure = Departure(step, layer, self._description, measurement, baseline, deviations)
            self._pending[layer] = (self._row, departure)
        self._row += 1
        lasted = np.flatnonzero(self._rows_above == SPIKE_ROWS).tolist()
        return [self._pending.pop(layer)[1] for layer in lasted if layer in self._pending]

    def take_recent(self) -> list[Departure]:
        """Drop all unconfirmed departures; return those of the last `RECENT_ROWS` rows."""
        recent = [departure for row, departure in self._pending.values()
                  if self._row - row <= RECENT_ROWS]  # fmt: skip
        self._pending.clear()
        return recent
