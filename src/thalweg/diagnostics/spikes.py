"""What in a training is unusual, and which layer began it, by the diagnostics of its steps.

Each number is compared with what it was before in the same layer: with the running median of its
logarithm, in units of the running deviation from it. No layer is compared with another, but for the
first weights, which have no past.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from thalweg.diagnostics.reading import UNMEASURED, Reader
from thalweg.diagnostics.table import Table

# What is usual.
WINDOW = 50  # rows that the median and the deviation are of
WARM_UP = 20  # rows before anything is usual
RENEWED = 5  # rows between two looks at them, once the window is full
FLOOR = 0.10  # the least deviation, in natural logarithms: quiet layers are not held to their noise
DEVIATIONS = 8.0  # a number is a spike beyond this, and beyond its factor
FACTORS = {"ratio": 4.0, "gradient_norm": 8.0, "nonzero": 8.0}
# One alone is noise, of which gradients have long tails: it is reported once it has lasted, or
# once the loss leaves its band soon after, or already has.
SPIKE_ROWS, RECENT_ROWS = 3, 10
LOSS_DEVIATIONS, LOSS_SHARE = 8.0, 0.25  # a loss beyond its median by both has left its band
EMPTY_SHARE = 0.8  # of layers that had a momentum and have none: all of them have lost it
# First weights have no past: their root mean square beside 1 and that of all other layers.
LARGE_WEIGHTS = 3.0
# What is silent has lasted for so many rows, and so many steps.
LASTING_ROWS, LASTING_STEPS = 8, 50
LOST_SHARE = 0.5  # of a layer's elements, whose updates their dtype cannot hold
GROWTH = 2.0  # of weights in the last LASTING_STEPS, and faster than in the steps before

COLUMNS = ("ratio", "gradient_norm", "update_norm", "weight_norm", "unchanged", "cosine", "zero",
           "nonfinite")  # fmt: skip
KINDS = ("spike", "silent", "loss")


class Warned(NamedTuple):
    """One thing that is not usual.

    Attributes:
        name: Of the parameter; "" for the loss.
        step: At which it was seen.
        what: In words.
        number: What was measured.
        usual: What it is usually, NaN where nothing is.
        kind: One of `KINDS`.
    """

    name: str
    step: int
    what: str
    number: float
    usual: float
    kind: str

    def __str__(self) -> str:
        number = "" if math.isnan(self.number) else f" {self.number:.3g}"
        usual = "" if math.isnan(self.usual) else f", usually {self.usual:.3g}"
        return f"step {self.step:,}: {self.name or 'loss'}: {self.what}{number}{usual}"


class Spikes:
    """Warns of what is not usual, one step at a time.

    The file that a training has left is read afterwards by `read`.

    Example:
        >>> import numpy as np
        >>> spikes, usual = Spikes(), np.random.default_rng(0)
        >>> for step in range(1, 101):
        ...     ratio = 0.001 * np.exp(usual.normal(0, 0.1, 2))
        ...     if step >= 90:
        ...         ratio[1] *= 30
        ...     for each in spikes.feed({"ratio": ratio}, ("a", "b"), step):
        ...         print(each.name, each.step, each.what)
        b 90 update beside weight
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._layers = _Layers(0)
        self._loss = _Usual(1)
        self._loss_left = False

    @staticmethod
    def read(path: str | Path) -> list[Warned]:
        """All warnings of a file of diagnostics.

        Raises:
            MissingFileError: There is no such file.
            DataLossError: It is none of diagnostics.
        """
        spikes = Spikes()
        with Reader(path) as reader:
            return [
                each
                for step in reader.read_all()
                for each in spikes.feed(
                    step.rows, step.header.names, step.step, step.loss, step.header.sizes
                )
            ]

    def feed(
        self, rows: Mapping[str, np.ndarray], names: Sequence[str], step: int,
        loss: float | None = None, sizes: Sequence[int] = (),
    ) -> list[Warned]:  # fmt: skip
        """What is not usual in this step; the one that is farthest from usual first.

        Args:
            rows: A number per parameter, by column; those that are missing are not judged.
            names: Of the parameters. Where they change, all begins anew.
            step: Its number.
            loss: If it is known.
            sizes: How many elements each parameter has; without it first weights are not judged.
        """
        found = [] if loss is None else self._judge_loss(step, loss)
        seen: list[_Seen] = []
        if rows:
            if tuple(names) != self._names:
                self._names, self._layers = tuple(names), _Layers(len(names))
            by_column = {key: np.asarray(each, np.float64) for key, each in rows.items()}
            seen = self._layers.judge(by_column, step, np.asarray(sizes, np.float64))
        if self._loss_left:
            seen += self._layers.take_recent()
        seen.sort(key=lambda each: (each.step, -each.excess))
        return [each.name_by(self._names) for each in seen] + found

    def feed_table(self, table: Table, loss: float | None = None) -> list[Warned]:
        """What is not usual in the step of a table, as `feed` returns it."""
        own = table.parameters
        rows = {
            key: np.where(table.measured[key], table.records[key], UNMEASURED) for key in COLUMNS
        }
        return self.feed(rows, own.names, table.step, loss, own.sizes)

    def _judge_loss(self, step: int, loss: float) -> list[Warned]:
        usual, deviation = (float(each[0]) for each in self._loss.measure())
        limit = usual + max(LOSS_DEVIATIONS * deviation, LOSS_SHARE * abs(usual))
        has_left = not math.isfinite(loss) or (self._loss.rows >= WARM_UP and loss > limit)
        is_new, self._loss_left = has_left and not self._loss_left, has_left
        if math.isfinite(loss):
            self._loss.add(np.array([loss]))
        return [Warned("", step, "loss left its band", loss, usual, "loss")] if is_new else []


class _Seen(NamedTuple):
    """A warning of the layer at a place; `excess` says how far it is from usual, in deviations."""

    step: int
    place: int
    what: str
    number: float
    usual: float
    excess: float
    kind: str = "spike"

    def name_by(self, names: Sequence[str]) -> Warned:
        """As it is reported."""
        return Warned(names[self.place], self.step, self.what, self.number, self.usual, self.kind)


class _Usual:
    """The running median of a number per layer, and the deviation from it."""

    def __init__(self, layers: int) -> None:
        self._ring = np.zeros((WINDOW, layers))
        self.rows = 0
        self._known = np.zeros(layers, np.int64)
        self._measured: tuple[np.ndarray, np.ndarray] | None = None

    def add(self, values: np.ndarray) -> None:
        """Add a row; what is no finite number counts as the usual one."""
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
        """The median, and the deviation as of a normal distribution; NaN of what has no past."""
        if self._measured is None:
            ring = self._ring[: max(1, min(self.rows, WINDOW))]
            with np.errstate(over="ignore", invalid="ignore"):  # a loss may be as large as any
                median = np.median(ring, 0)
                deviation = 1.4826 * np.median(np.abs(ring - median), 0)
            known = self._known > 0
            self._measured = (
                np.where(known, median, np.nan), np.where(known, deviation, np.nan)
            )  # fmt: skip
        return self._measured

    @property
    def is_warm(self) -> np.ndarray:
        """Which layers have a past that is long enough."""
        return self._known >= WARM_UP


class _Lasting:
    """Since when something has been so, without a break."""

    def __init__(self, layers: int) -> None:
        self._rows = np.zeros(layers, np.int64)
        self._since = np.zeros(layers, np.int64)
        self._reported = np.zeros(layers, bool)

    def find_new(self, holds: np.ndarray, step: int) -> np.ndarray:
        """Where it has lasted long enough, and was not reported before."""
        self._since[self._rows == 0] = step
        self._since = np.minimum(self._since, step)  # which is an earlier one after a resume
        self._rows = np.where(holds, self._rows + 1, 0)
        lasted = (self._rows >= LASTING_ROWS) & (step - self._since >= LASTING_STEPS)
        is_new = lasted & ~self._reported
        self._reported = lasted | (self._reported & holds)
        return np.flatnonzero(is_new)


class _Spiking:
    """A number per layer that rises far above what it was."""

    def __init__(self, layers: int, what: str, factor: float) -> None:
        self.usual, self._what, self._factor = _Usual(layers), what, factor
        self._above = np.zeros(layers, np.int64)  # rows without a break
        self._begun: dict[
            int, tuple[int, _Seen]
        ] = {}  # row and warning of each that is not reported yet
        self._row = 0

    def judge(self, logs: np.ndarray, step: int) -> list[_Seen]:
        """Those that have lasted."""
        median, deviation = self.usual.measure()
        scale = np.maximum(deviation, FLOOR)
        with np.errstate(invalid="ignore"):
            excess = logs - median
            above = excess > np.maximum(math.log(self._factor), DEVIATIONS * scale)
        above &= self.usual.is_warm & np.isfinite(logs)
        self.usual.add(logs)
        self._above = np.where(above, self._above + 1, 0)
        for place in np.flatnonzero(self._above == 1).tolist():
            number, usual = math.exp(logs[place]), math.exp(median[place])
            if self._what == _FEW:
                number, usual = 1 / number, 1 / usual
            self._begun[place] = (
                self._row,
                _Seen(step, place, self._what, number, usual, float(excess[place] / scale[place])),
            )
        self._row += 1
        lasted = np.flatnonzero(self._above == SPIKE_ROWS).tolist()
        return [self._begun.pop(place)[1] for place in lasted if place in self._begun]

    def take_recent(self) -> list[_Seen]:
        """Those of the last rows that were not reported."""
        recent = [seen for row, seen in self._begun.values() if self._row - row <= RECENT_ROWS]
        self._begun.clear()
        return recent


class _Layers:
    """What is known of all layers."""

    def __init__(self, count: int) -> None:
        self._count, self._rows = count, 0
        self._spiking = {key: _Spiking(count, _WORDS[key], each) for key, each in FACTORS.items()}
        self._cosine = _Usual(count)
        self._lasting = {key: _Lasting(count) for key in _SILENT}
        self._was_bad = self._has_grown = np.zeros(count, bool)
        self._weights: list[tuple[int, np.ndarray]] = []

    def judge(self, rows: dict[str, np.ndarray], step: int, sizes: np.ndarray) -> list[_Seen]:
        """All that is not usual in a row, but for spikes that are not sure yet."""
        found = self._judge_first(rows, step, sizes) if self._rows == 0 else []
        found += self._judge_nonfinite(rows, step)
        with np.errstate(divide="ignore", invalid="ignore"):
            for key in ("ratio", "gradient_norm"):
                if key in rows:
                    found += self._spiking[key].judge(np.log(rows[key]), step)
            if "zero" in rows:
                found += self._spiking["nonzero"].judge(-np.log1p(-rows["zero"]), step)
        found += self._judge_moments(rows, step)
        found += self._judge_silent(rows, step, sizes)
        found += self._judge_growth(rows, step)
        self._rows += 1
        return found

    def take_recent(self) -> list[_Seen]:
        """Spikes that the loss makes sure."""
        return [seen for each in self._spiking.values() for seen in each.take_recent()]

    def _judge_first(
        self, rows: dict[str, np.ndarray], step: int, sizes: np.ndarray
    ) -> list[_Seen]:
        """Weights that begin far larger than those of all other layers."""
        if "weight_norm" not in rows or len(sizes) != self._count:
            return []
        size = rows["weight_norm"] / np.sqrt(np.maximum(sizes, 1))
        size[~np.isfinite(size)] = 0
        found: list[_Seen] = []
        for place in np.flatnonzero((size > LARGE_WEIGHTS) & (sizes > 1)).tolist():
            others = max(1.0, float(np.delete(size, place).max(initial=0)))
            if size[place] > LARGE_WEIGHTS * others:
                what = "first weights are large, root mean square"
                found.append(_Seen(step, place, what, size[place], others, math.inf))
        return found

    def _judge_nonfinite(self, rows: dict[str, np.ndarray], step: int) -> list[_Seen]:
        norms = rows.get("gradient_norm", np.zeros(self._count))
        # NaN of a norm alone is no proof: a table has it for what was not measured, too.
        counts = rows.get("nonfinite", np.isnan(norms).astype(np.float64))
        bad = (counts > 0) | (norms == np.inf)
        # A loss scale that was too high is found by such gradients, and the step is not taken.
        bad &= rows.get("update_norm", np.ones(self._count)) != 0
        is_new, self._was_bad = bad & ~self._was_bad, bad
        return [_Seen(step, place, "gradient is not finite, elements", float(counts[place]), 0.0,
                      math.inf)
                for place in np.flatnonzero(is_new).tolist()]  # fmt: skip

    def _judge_moments(self, rows: dict[str, np.ndarray], step: int) -> list[_Seen]:
        """Momentum that is empty: its angle to a gradient, which was a number, is NaN."""
        if "cosine" not in rows:
            return []
        cosine, usual = rows["cosine"], self._cosine
        judged = usual.is_warm & (cosine != UNMEASURED)
        judged &= rows.get("gradient_norm", np.ones(self._count)) > 0
        empty = judged & np.isnan(cosine)
        usual.add(cosine)
        if not empty.any() or empty.sum() < EMPTY_SHARE * judged.sum():
            return []
        # All of them are equally so: the one that moves farthest for it stands for all.
        place = int(np.argmax(np.where(empty, rows.get("ratio", cosine * 0), -np.inf)))
        what = f"momentum is empty, here and in {empty.sum() - 1:,} others"
        return [_Seen(step, place, what, math.nan, math.nan, math.inf)]

    def _judge_silent(
        self, rows: dict[str, np.ndarray], step: int, sizes: np.ndarray
    ) -> list[_Seen]:
        if "gradient_norm" not in rows:
            return []
        gradient = rows["gradient_norm"]
        has_none = (gradient == UNMEASURED) | np.isnan(gradient)
        has_none &= ~(rows.get("nonfinite", np.zeros(self._count)) > 0)
        if len(sizes) == self._count:
            has_none &= sizes > 0  # of one without elements nothing is ever measured
        update = rows.get("update_norm", np.full(self._count, np.nan))
        lost = rows.get("unchanged", np.zeros(self._count))
        holds = {
            "no gradient": has_none & ~has_none.all(),
            "gradient is all 0": (gradient == 0) & (gradient > 0).any(),
            "no update, though there is a gradient": (gradient > 0) & (update == 0)
                & (update > 0).any(),
            _LOST: (lost > LOST_SHARE) & (update > 0),
        }  # fmt: skip
        usual = np.exp(self._spiking["gradient_norm"].usual.measure()[0])
        found: list[_Seen] = []
        for what, told in holds.items():
            for place in self._lasting[what].find_new(told, step).tolist():
                numbers = (float(lost[place]), 0.0)
                if what != _LOST:
                    numbers = math.nan, float(usual[place])
                found.append(_Seen(step, place, what, *numbers, 0.0, "silent"))
        return found

    def _judge_growth(self, rows: dict[str, np.ndarray], step: int) -> list[_Seen]:
        """Weights that have grown by `GROWTH`, and faster than before."""
        if "weight_norm" not in rows:
            return []
        with np.errstate(divide="ignore", invalid="ignore"):
            now = np.log(rows["weight_norm"])
        kept = self._weights
        while kept and kept[-1][0] >= step:  # a training that was resumed takes steps again
            kept.pop()
        kept.append((step, now))
        while len(kept) > 2 and kept[1][0] <= step - 2 * LASTING_STEPS:
            kept.pop(0)
        if kept[0][0] > step - 2 * LASTING_STEPS or len(kept) < LASTING_ROWS:
            return []
        middle = max((each for each in kept if each[0] <= step - LASTING_STEPS), key=_step_of)[1]
        with np.errstate(invalid="ignore"):
            growth, before = now - middle, middle - kept[0][1]
            grown = (growth > math.log(GROWTH)) & (growth > before)
        is_new = grown & ~self._has_grown
        self._has_grown = grown | self._has_grown & (growth > math.log(GROWTH) / 2)
        return [
            _Seen(step, place, f"weights grow, in {LASTING_STEPS} steps by a factor of",
                  math.exp(growth[place]), math.exp(before[place]), 0.0, "silent")
            for place in np.flatnonzero(is_new).tolist()
        ]  # fmt: skip


def _step_of(kept: tuple[int, np.ndarray]) -> int:
    return kept[0]


_FEW = "gradient of few elements alone, share"
_WORDS = {"ratio": "update beside weight", "gradient_norm": "gradient norm", "nonzero": _FEW}
_LOST = "updates lost by the dtype, share of elements"
_SILENT = ("no gradient", "gradient is all 0", "no update, though there is a gradient", _LOST)
