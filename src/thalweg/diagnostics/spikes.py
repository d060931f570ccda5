"""Unusual events in a training and the layers that began them, found in its diagnostics.

Each number is compared with its own past in the same layer: with the running median of its
logarithm, in units of the running deviation. Layers are compared with one another in two cases
alone: first weights have no past, and where most layers leave their band in one step, the cause is
the batch of that step and not one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from thalweg.diagnostics.bands import (
    LASTING_ROWS,
    LASTING_STEPS,
    RECENT_ROWS,
    SPIKE_ROWS,
    WARM_UP,
    Band,
    Departure,
    Duration,
    RunningMedian,
)
from thalweg.diagnostics.jsonl_reader import UNMEASURED, JsonLinesReader
from thalweg.diagnostics.table import Table

# The least factor above the median at which a number leaves its band.
FACTORS = {"ratio": 4.0, "gradient_norm": 8.0, "nonzero": 8.0}
# A loss that is above its median by both has left its band.
LOSS_DEVIATIONS, LOSS_SHARE = 8.0, 0.25
# Where more than this share of the measured layers leave in one step, the batch is reported.
BATCH_SHARE = 0.5
# The share of the layers with momentum that lose it together after a resume without moments.
EMPTY_SHARE = 0.8
# First weights have no past: their root mean square is compared with 1 and all other layers.
LARGE_WEIGHTS = 3.0
# The share of a layer's elements whose updates are lost by the dtype.
LOST_SHARE = 0.5
# Weights grow by this factor in LASTING_STEPS, and faster than in the steps before.
GROWTH = 2.0

COLUMNS = ("ratio", "gradient_norm", "update_norm", "weight_norm", "unchanged", "cosine", "zero",
           "nonfinite")  # fmt: skip
KINDS = ("spike", "silent", "loss", "batch")


class Warned(NamedTuple):
    """A warning of something unusual.

    Attributes:
        name: The parameter; "" for the loss and for a batch.
        step: The step at which it began.
        what: What is unusual, in words.
        number: The measured number; of a batch that of the layer farthest from its band.
        usual: The usual number; NaN where there is none.
        kind: One of `KINDS`.
        layers: The parameters that left their band, if the kind is "batch".
    """

    name: str
    step: int
    what: str
    number: float
    usual: float
    kind: str
    layers: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The name of the parameter, or "loss" or "batch"."""
        return self.name or self.kind

    def __str__(self) -> str:
        number = "" if math.isnan(self.number) else f" {self.number:.3g}"
        usual = "" if math.isnan(self.usual) else f", usually {self.usual:.3g}"
        return f"step {self.step:,}: {self.title}: {self.what}{number}{usual}"


class Spikes:
    """Warnings of unusual events, one step at a time.

    `read` judges the file of a training afterwards.

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
        self._loss = RunningMedian(1)
        self._loss_left = False

    @staticmethod
    def read(path: str | Path) -> list[Warned]:
        """Return all warnings of a file of diagnostics.

        Raises:
            MissingFileError: There is no such file.
            DataLossError: It is none of diagnostics.
        """
        spikes = Spikes()
        with JsonLinesReader(path) as reader:
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
        """Return the warnings of this step; the one that is farthest from usual first.

        Where more than half of the layers left their band in one step, one warning of kind "batch"
        stands for them.

        Args:
            rows: A number per parameter, by column; missing columns are not judged.
            names: The names of the parameters. If they change, all layers lose their past.
            step: The number of the step.
            loss: The loss, if it is known.
            sizes: The number of elements of each parameter; without it first weights are not
                judged.
        """
        of_loss = [] if loss is None else self._judge_loss(step, loss)
        departures: list[Departure] = []
        if rows:
            if tuple(names) != self._names:
                self._names, self._layers = tuple(names), _Layers(len(names))
            by_column = {key: np.asarray(each, np.float64) for key, each in rows.items()}
            departures = self._layers.judge(by_column, step, np.asarray(sizes, np.float64))
        if self._loss_left:
            departures += self._layers.take_recent()
        departures.sort(key=lambda departure: (departure.step, -departure.excess))
        return [*self._layers.warn(departures, self._names), *of_loss]

    def feed_table(self, table: Table, loss: float | None = None) -> list[Warned]:
        """Return the warnings of the step of a table, as `feed` does."""
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


class _Layers:
    """The past of all layers, and what was reported of them."""

    def __init__(self, count: int) -> None:
        self._count, self._rows = count, 0
        self._bands = {key: Band(count, _WORDS[key], factor, inverted=key == "nonzero")
                       for key, factor in FACTORS.items()}  # fmt: skip
        self._cosine = RunningMedian(count)
        self._durations = {key: Duration(count) for key in _SILENT}
        self._was_bad = self._has_grown = np.zeros(count, bool)
        self._weights: list[tuple[int, np.ndarray]] = []
        # By step the layers that left their band, if they are most of the measured ones, and the
        # steps whose batch was reported.
        self._crowds: dict[int, list[int]] = {}
        self._reported_batches: set[int] = set()

    def judge(self, rows: dict[str, np.ndarray], step: int, sizes: np.ndarray) -> list[Departure]:
        """Return everything unusual in a row, except spikes that are not certain yet."""
        found = self._judge_first(rows, step, sizes) if self._rows == 0 else []
        not_finite = self._judge_nonfinite(rows, step)
        leaving = {departure.place for departure in not_finite}
        found += not_finite
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = {key: np.log(rows[key]) for key in ("ratio", "gradient_norm") if key in rows}
            if "zero" in rows:
                logs["nonzero"] = -np.log1p(-rows["zero"])
        for key, values in logs.items():
            found += self._bands[key].judge(values, step)
            leaving.update(self._bands[key].leaving)
        self._keep_crowd(rows, step, leaving)
        found += self._judge_moments(rows, step)
        found += self._judge_silent(rows, step, sizes)
        found += self._judge_growth(rows, step)
        self._rows += 1
        return found

    def take_recent(self) -> list[Departure]:
        """Remove and return the recent spikes, which are certain once the loss left its band."""
        return [departure for band in self._bands.values() for departure in band.take_recent()]

    def warn(self, departures: Sequence[Departure], names: Sequence[str]) -> Iterable[Warned]:
        """Yield a warning for each departure, or one for all that left with most layers."""
        for step, place, what, number, usual, _, kind in departures:
            crowd = self._crowds.get(step, []) if what in _LEAVES_BAND else []
            if not crowd:
                yield Warned(names[place], step, what, number, usual, kind)
            elif step not in self._reported_batches:
                self._reported_batches.add(step)
                what = f"{len(crowd):,} layers left their band, farthest {names[place]}: {what}"
                layers = tuple(names[place] for place in crowd)
                yield Warned("", step, what, number, usual, "batch", layers)

    def _keep_crowd(self, rows: dict[str, np.ndarray], step: int, leaving: set[int]) -> None:
        """Keep the layers that leave in this step, if they are most of the measured ones."""
        # A resumed training takes earlier steps again.
        self._crowds.pop(step, None)
        self._reported_batches.discard(step)
        is_measured = np.any([row != UNMEASURED for row in rows.values()], axis=0)
        if len(leaving) > max(1, BATCH_SHARE * is_measured.sum()):
            self._crowds[step] = sorted(leaving)
        for earlier in list(self._crowds)[: -SPIKE_ROWS - RECENT_ROWS]:
            del self._crowds[earlier]
            self._reported_batches.discard(earlier)

    def _judge_first(
        self, rows: dict[str, np.ndarray], step: int, sizes: np.ndarray
    ) -> list[Departure]:
        """Return the layers whose first weights are far larger than those of all others."""
        if "weight_norm" not in rows or len(sizes) != self._count:
            return []
        size = rows["weight_norm"] / np.sqrt(np.maximum(sizes, 1))
        size[~np.isfinite(size)] = 0
        found: list[Departure] = []
        for place in np.flatnonzero((size > LARGE_WEIGHTS) & (sizes > 1)).tolist():
            others = max(1.0, float(np.delete(size, place).max(initial=0)))
            if size[place] > LARGE_WEIGHTS * others:
                what = "first weights are large, root mean square"
                found.append(Departure(step, place, what, size[place], others, math.inf))
        return found

    def _judge_nonfinite(self, rows: dict[str, np.ndarray], step: int) -> list[Departure]:
        """Return the layers whose gradient is not finite and was before."""
        norms = rows.get("gradient_norm", np.zeros(self._count))
        # NaN of a norm alone is not a proof: tables also have it for unmeasured numbers.
        counts = rows.get("nonfinite", np.isnan(norms).astype(np.float64))
        bad = (counts > 0) | (norms == np.inf)
        # A loss scale that is too high makes such gradients, and the step is not taken.
        bad &= rows.get("update_norm", np.ones(self._count)) != 0
        is_new, self._was_bad = bad & ~self._was_bad, bad
        return [
            Departure(step, place, _NOT_FINITE, float(counts[place]), 0.0, math.inf)
            for place in np.flatnonzero(is_new).tolist()
        ]

    def _judge_moments(self, rows: dict[str, np.ndarray], step: int) -> list[Departure]:
        """Return a layer of those that lost their momentum, whose angle to the gradient is NaN."""
        if "cosine" not in rows:
            return []
        cosine, usual = rows["cosine"], self._cosine
        judged = usual.is_warm & (cosine != UNMEASURED)
        judged &= rows.get("gradient_norm", np.ones(self._count)) > 0
        empty = judged & np.isnan(cosine)
        usual.add(cosine)
        if not empty.any() or empty.sum() < EMPTY_SHARE * judged.sum():
            return []
        # The layer with the largest update stands for all of them.
        place = int(np.argmax(np.where(empty, rows.get("ratio", cosine * 0), -np.inf)))
        what = f"momentum is empty, here and in {empty.sum() - 1:,} others"
        return [Departure(step, place, what, math.nan, math.nan, math.inf)]

    def _judge_silent(
        self, rows: dict[str, np.ndarray], step: int, sizes: np.ndarray
    ) -> list[Departure]:
        """Return the layers without gradients or updates for a long time."""
        if "gradient_norm" not in rows:
            return []
        gradient = rows["gradient_norm"]
        has_none = (gradient == UNMEASURED) | np.isnan(gradient)
        has_none &= ~(rows.get("nonfinite", np.zeros(self._count)) > 0)
        if len(sizes) == self._count:
            # A parameter without elements is never measured.
            has_none &= sizes > 0
        update = rows.get("update_norm", np.full(self._count, np.nan))
        lost = rows.get("unchanged", np.zeros(self._count))
        holds = {
            "no gradient": has_none & ~has_none.all(),
            "gradient is all 0": (gradient == 0) & (gradient > 0).any(),
            "no update, though there is a gradient": (gradient > 0) & (update == 0)
                & (update > 0).any(),
            _LOST: (lost > LOST_SHARE) & (update > 0),
        }  # fmt: skip
        usual = np.exp(self._bands["gradient_norm"].usual.measure()[0])
        found: list[Departure] = []
        for what, told in holds.items():
            for place in self._durations[what].find_new(told, step).tolist():
                numbers = (float(lost[place]), 0.0)
                if what != _LOST:
                    numbers = math.nan, float(usual[place])
                found.append(Departure(step, place, what, *numbers, 0.0, "silent"))
        return found

    def _judge_growth(self, rows: dict[str, np.ndarray], step: int) -> list[Departure]:
        """Return the layers whose weights grew by `GROWTH`, and faster than before."""
        if "weight_norm" not in rows:
            return []
        with np.errstate(divide="ignore", invalid="ignore"):
            now = np.log(rows["weight_norm"])
        kept = self._weights
        # A resumed training takes earlier steps again.
        while kept and kept[-1][0] >= step:
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
            Departure(step, place, f"weights grow, in {LASTING_STEPS} steps by a factor of",
                      math.exp(growth[place]), math.exp(before[place]), 0.0, "silent")
            for place in np.flatnonzero(is_new).tolist()
        ]  # fmt: skip


def _step_of(kept: tuple[int, np.ndarray]) -> int:
    return kept[0]


_WORDS = {
    "ratio": "update beside weight",
    "gradient_norm": "gradient norm",
    "nonzero": "gradient of few elements alone, share",
}
_NOT_FINITE = "gradient is not finite, elements"
_LEAVES_BAND = (*_WORDS.values(), _NOT_FINITE)
_LOST = "updates lost by the dtype, share of elements"
_SILENT = ("no gradient", "gradient is all 0", "no update, though there is a gradient", _LOST)
