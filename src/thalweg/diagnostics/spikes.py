"""Detection of unusual events in a training, and of the layers (parameters) that began them.

The logarithm of each number of a layer is compared with the layer's running median. Layers are
compared with one another in two cases only: initial weights have no history, and if most layers
leave their band (range of usual numbers) in one step, the cause is the batch of that step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from thalweg._base.showing import show_value
from thalweg._core.atomic_section import run
from thalweg.diagnostics.bands import (
    LASTING_ROWS,
    LASTING_STEPS,
    LOSS_FRACTION,
    RECENT_ROWS,
    SPIKE_ROWS,
    Band,
    Departure,
    Duration,
    NumberBand,
    RunningMedian,
)
from thalweg.diagnostics.jsonl_reader import UNMEASURED, JsonLinesReader
from thalweg.diagnostics.spike_judge import (
    ACTIONS,
    Action,
    SpikeAction,
    SpikeJudge,
    Warned,
    attach_judge,
)
from thalweg.diagnostics.table import Table
from thalweg.errors import (
    CheckpointMismatchError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
)

# Minimum factor above the median at which a number leaves its band.
FACTORS = {"ratio": 4.0, "gradient_norm": 8.0, "nonzero": 8.0}
# If more than this fraction of the measured layers leave in one step, the batch is reported.
BATCH_FRACTION = 0.5
# Minimum fraction of the layers with momentum that lose it after a resume without moments.
EMPTY_FRACTION = 0.8
# Maximum root mean square of first weights, absolute and relative to all other layers.
LARGE_WEIGHTS = 3.0
# Fraction of a layer's elements whose updates are lost in rounding to the dtype.
LOST_FRACTION = 0.5
# Growth of weights within LASTING_STEPS that is reported if it exceeds the growth before.
GROWTH = 2.0

COLUMNS = ("ratio", "gradient_norm", "update_norm", "weight_norm", "unchanged", "cosine", "zero",
           "nonfinite")  # fmt: skip


class Spikes:
    """Detector of unusual events. `feed` takes one step, `read` takes a file.

    With an action, pass it to an optimizer as `spikes=`. The optimizer then skips steps whose
    gradient norm or loss is outside of its band. All ranks make the same decision.

    Args:
        action: Optional. "skip" skips the step. "rollback" also restores parameters and state of up
            to `keep` steps ago, and warns with the numbers of the batches. A function
            `action(warning)` is called before the step, and returns "skip", "rollback", or None to
            take the step.
        keep: Optional. The maximum number of steps that a rollback takes back; by default 20 for
            "rollback". Two copies of parameters and state are kept. Required for a function that
            may return "rollback".

    Attributes:
        judge: The `SpikeJudge`; None without an action.

    Raises:
        InvalidTypeError, InvalidArgumentError: An argument is invalid.

    Example:
        >>> import numpy as np
        >>> spikes, rng = Spikes(), np.random.default_rng(0)
        >>> for step in range(1, 101):
        ...     ratio = 0.001 * np.exp(rng.normal(0, 0.1, 2))
        ...     if step >= 90:
        ...         ratio[1] *= 30
        ...     for warning in spikes.feed({"ratio": ratio}, ("a", "b"), step):
        ...         print(warning.name, warning.step, warning.what)
        b 90 update beside weight
    """

    def __init__(self, action: Action | None = None, *, keep: int | None = None) -> None:
        self._names: tuple[str, ...] = ()
        self._layers = _Layers(0)
        self._losses = NumberBand(LOSS_FRACTION)
        self._is_loss_outside = False
        if action is None and keep is not None:
            raise InvalidArgumentError(f"keep is {keep}; expected None without an action.")
        self.judge = None if action is None else SpikeJudge(action, _check_action(action, keep))

    def __repr__(self) -> str:
        judge = self.judge
        return f"Spikes({'' if judge is None else f'{judge.action!r}, keep={judge.keep or None}'})"

    def __reduce__(self) -> Any:
        # A copy belongs to another optimizer.
        if (judge := self.judge) is None:
            return Spikes, ()
        return _make, (judge.action, judge.keep or None, self.state_dict())

    def attach(self, optimizer: Any) -> None:
        """Apply the action to unusual steps of an optimizer of Keras or TensorFlow 1 from now on.

        Args:
            optimizer: As for `thalweg.diagnostics.attach`.

        Raises:
            InvalidTypeError: `optimizer` has another type.
            FailedPreconditionError: This object has no action, or the optimizer has a `Spikes`.
            NotImplementedError: A rollback of the optimizer is not supported.
        """
        attach_judge(self._require_judge(), optimizer)

    @property
    def actions(self) -> list[SpikeAction]:
        """Steps that were not taken, in their order."""
        return [] if self.judge is None else list(self.judge.actions)

    def log_loss(self, loss: Any) -> None:
        """Set the loss of the next step to the mean over all ranks.

        All ranks call this method before `step`. `step(closure)` logs the closure's loss itself.

        Args:
            loss: A number, or a tensor with one element, which synchronizes with its device.

        Raises:
            FailedPreconditionError: This object has no action, or does not belong to an optimizer.
            InvalidTypeError: `loss` is not a number.
        """
        self._require_judge().log_loss(loss)

    def state_dict(self) -> dict[str, Any]:
        """Return {"history": numbers}. The state of an optimizer of `thalweg.optim` includes it."""
        return {"history": self._require_judge().history}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`; drop the copies for rollbacks.

        Raises:
            CheckpointMismatchError: The state is invalid.
        """
        judge = self._require_judge()
        if "history" not in state_dict:
            raise CheckpointMismatchError(
                f"A state of Spikes has the key 'history', and this one has {list(state_dict)}."
            )
        run(judge.loading_calls(state_dict["history"]))

    def _require_judge(self) -> SpikeJudge:
        """Return the judge; raise FailedPreconditionError without an action."""
        if self.judge is None:
            raise FailedPreconditionError(
                "These Spikes have no action: make them with Spikes('skip'), or call feed."
            )
        return self.judge

    @staticmethod
    def read(path: str | Path) -> list[Warned]:
        """Feed a diagnostics file to a new `Spikes`; return all warnings.

        Raises:
            MissingFileError: The file does not exist.
            DataLossError: The file is not a diagnostics file.
        """
        spikes = Spikes()
        with JsonLinesReader(path) as reader:
            return [
                warning
                for record in reader.read_all()
                for warning in spikes.feed(
                    record.rows, record.header.names, record.step, record.loss, record.header.sizes
                )
            ]

    def feed(
        self, rows: Mapping[str, np.ndarray], names: Sequence[str], step: int,
        loss: float | None = None, sizes: Sequence[int] = (),
    ) -> list[Warned]:  # fmt: skip
        """Add a step to the history; return warnings about layers, then about the loss.

        Layer warnings are sorted by first step, then by deviation. If most layers leave their band
        in one step, one warning of kind "batch" replaces the warnings about their spikes.

        Args:
            rows: {column: one number per parameter}; missing columns are not judged.
            names: The names of the parameters. Other names than before clear the history.
            step: The number of the step.
            loss: The loss; None if unknown.
            sizes: The number of elements of each parameter; () to omit checks of initial weights.
        """
        loss_warnings = [] if loss is None else self._judge_loss(step, loss)
        departures: list[Departure] = []
        if rows:
            if tuple(names) != self._names:
                self._names, self._layers = tuple(names), _Layers(len(names))
            by_column = {key: np.asarray(row, np.float64) for key, row in rows.items()}
            departures = self._layers.judge(by_column, step, np.asarray(sizes, np.float64))
        if self._is_loss_outside:
            departures += self._layers.take_recent()
        departures.sort(key=lambda departure: (departure.step, -departure.excess))
        return [*self._layers.warn(departures, self._names), *loss_warnings]

    def feed_table(self, table: Table, loss: float | None = None) -> list[Warned]:
        """Call `feed` with the numbers of a table, and return the warnings."""
        params = table.parameters
        rows = {
            key: np.where(table.measured[key], table.records[key], UNMEASURED) for key in COLUMNS
        }
        return self.feed(rows, params.names, table.step, loss, params.sizes)

    def _judge_loss(self, step: int, loss: float) -> list[Warned]:
        """Add a loss. Return [warning] if it has just left its band, else []."""
        median_loss, is_outside = self._losses.measure()[0], loss not in self._losses
        is_new, self._is_loss_outside = is_outside and not self._is_loss_outside, is_outside
        if math.isfinite(loss):
            self._losses.values.append(loss)
        return [Warned("", step, "loss left its band", loss, median_loss, "loss")] if is_new else []


def _make(action: Action, keep: int | None, state_dict: dict[str, Any]) -> Spikes:
    """Return a `Spikes` with an action and a history, for copies and pickles."""
    spikes = Spikes(action, keep=keep)
    spikes.load_state_dict(state_dict)
    return spikes


def _check_action(action: object, keep: object) -> int:
    """Return `keep`; for None, 20 if `action` is "rollback", else 0.

    Raises:
        InvalidTypeError: `action` is no action, or `keep` is neither None nor an integer.
        InvalidArgumentError: `keep` is below 1, or is not None with `action="skip"`.
    """
    if not (action in ACTIONS if isinstance(action, str) else callable(action)):
        raise InvalidTypeError(
            f"action must be 'skip', 'rollback' or a function, not {show_value(action)}."
        )
    if keep is None:
        return 20 if action == "rollback" else 0
    if type(keep) is not int:
        raise InvalidTypeError(f"keep must be an integer from 1 on, not {show_value(keep)}.")
    if keep < 1 or action == "skip":
        raise InvalidArgumentError(
            f"keep is {keep}; expected 1 or more, and an action other than 'skip'."
        )
    return keep


class _Layers:
    """History of all layers.

    `rows` of a step are {column: one number per layer}, with the columns of diagnostics. A
    `Departure` describes a layer whose number is unusual.
    """

    def __init__(self, count: int) -> None:
        self._count, self._rows = count, 0
        self._bands = {key: Band(count, _DESCRIPTIONS[key], factor, inverted=key == "nonzero")
                       for key, factor in FACTORS.items()}  # fmt: skip
        self._cosine = RunningMedian(count)
        self._durations = {key: Duration(count) for key in _SILENT}
        self._was_nonfinite = self._was_growing = np.zeros(count, bool)
        self._log_weight_norms: list[tuple[int, np.ndarray]] = []
        # By step, the layers that left their band together, if they are most of the measured ones.
        self._crowds: dict[int, list[int]] = {}
        self._reported_batches: set[int] = set()

    def judge(self, rows: dict[str, np.ndarray], step: int, sizes: np.ndarray) -> list[Departure]:
        """Add the rows of a step to the history; return the departures to report now.

        A spike (number above its band) is returned after `SPIKE_ROWS` steps above the band. `sizes`
        has the number of elements of each layer, or is empty.
        """
        departures = self._judge_first(rows, step, sizes) if self._rows == 0 else []
        not_finite = self._judge_nonfinite(rows, step)
        leaving = {departure.layer for departure in not_finite}
        departures += not_finite
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = {key: np.log(rows[key]) for key in ("ratio", "gradient_norm") if key in rows}
            if "zero" in rows:
                logs["nonzero"] = -np.log1p(-rows["zero"])
        for key, values in logs.items():
            departures += self._bands[key].judge(values, step)
            leaving.update(self._bands[key].leaving)
        self._keep_crowd(rows, step, leaving)
        departures += self._judge_moments(rows, step)
        departures += self._judge_silent(rows, step, sizes)
        departures += self._judge_growth(rows, step)
        self._rows += 1
        return departures

    def take_recent(self) -> list[Departure]:
        """Drop all unconfirmed spikes; return the recent spikes."""
        return [departure for band in self._bands.values() for departure in band.take_recent()]

    def warn(self, departures: Sequence[Departure], names: Sequence[str]) -> Iterable[Warned]:
        """Yield one warning per departure; `names` are those of all layers.

        Spikes of a step in which most layers left their band share a warning of kind "batch".
        """
        for step, layer, description, measurement, baseline, _, warning_kind in departures:
            crowd = self._crowds.get(step, []) if description in _BAND_DESCRIPTIONS else []
            if not crowd:
                yield Warned(names[layer], step, description, measurement, baseline, warning_kind)
            elif step not in self._reported_batches:
                self._reported_batches.add(step)
                text = f"{len(crowd):,} layers left their band, farthest {names[layer]}"
                layers = tuple(names[layer] for layer in crowd)
                yield Warned(
                    "", step, f"{text}: {description}", measurement, baseline, "batch", layers
                )

    def _keep_crowd(self, rows: dict[str, np.ndarray], step: int, leaving: set[int]) -> None:
        """Store `leaving`, the layers that left their band, if most measured layers did.

        `rows` tell which layers are measured. Layers stored for much earlier steps are dropped.
        """
        # A resumed training repeats earlier steps.
        self._crowds.pop(step, None)
        self._reported_batches.discard(step)
        measured_layers = np.any([row != UNMEASURED for row in rows.values()], axis=0)
        if len(leaving) > max(1, BATCH_FRACTION * measured_layers.sum()):
            self._crowds[step] = sorted(leaving)
        for earlier in list(self._crowds)[: -SPIKE_ROWS - RECENT_ROWS]:
            del self._crowds[earlier]
            self._reported_batches.discard(earlier)

    def _judge_first(
        self, rows: dict[str, np.ndarray], step: int, sizes: np.ndarray
    ) -> list[Departure]:
        """Return departures of layers whose weights far exceed the weights of all other layers.

        Weights are compared by root mean square. Return [] if `sizes`, the numbers of elements, is
        empty, or if there is no column "weight_norm".
        """
        if "weight_norm" not in rows or len(sizes) != self._count:
            return []
        rms = rows["weight_norm"] / np.sqrt(np.maximum(sizes, 1))
        rms[~np.isfinite(rms)] = 0
        departures: list[Departure] = []
        for layer in np.flatnonzero((rms > LARGE_WEIGHTS) & (sizes > 1)).tolist():
            largest_other = max(1.0, float(np.delete(rms, layer).max(initial=0)))
            if rms[layer] > LARGE_WEIGHTS * largest_other:
                description = "first weights are large, root mean square"
                values = rms[layer], largest_other
                departures.append(Departure(step, layer, description, *values, math.inf))
        return departures

    def _judge_nonfinite(self, rows: dict[str, np.ndarray], step: int) -> list[Departure]:
        """Return departures of layers whose gradient is not finite, but was finite before."""
        norms = rows.get("gradient_norm", np.zeros(self._count))
        # Prefers counts to NaN norms: tables also have NaN for unmeasured numbers.
        counts = rows.get("nonfinite", np.isnan(norms).astype(np.float64))
        is_nonfinite = (counts > 0) | (norms == np.inf)
        # A loss scale that is too high causes nonfinite gradients, and the step is skipped.
        is_nonfinite &= rows.get("update_norm", np.ones(self._count)) != 0
        is_new, self._was_nonfinite = is_nonfinite & ~self._was_nonfinite, is_nonfinite
        return [
            Departure(step, layer, _NOT_FINITE, float(counts[layer]), 0.0, math.inf)
            for layer in np.flatnonzero(is_new).tolist()
        ]

    def _judge_moments(self, rows: dict[str, np.ndarray], step: int) -> list[Departure]:
        """Return [departure] if most layers have lost their momentum, else [].

        A lost momentum makes the cosine of gradient and momentum NaN. The departure names only one
        of these layers: the one with the largest ratio of update to weight.
        """
        if "cosine" not in rows:
            return []
        cosine, running_median = rows["cosine"], self._cosine
        comparable = running_median.is_warm & (cosine != UNMEASURED)
        comparable &= rows.get("gradient_norm", np.ones(self._count)) > 0
        empty = comparable & np.isnan(cosine)
        running_median.add(cosine)
        if not empty.any() or empty.sum() < EMPTY_FRACTION * comparable.sum():
            return []
        # One cause empties all momenta, such as a resume without them: one warning suffices.
        layer = int(np.argmax(np.where(empty, rows.get("ratio", cosine * 0), -np.inf)))
        description = f"momentum is empty, here and in {empty.sum() - 1:,} others"
        return [Departure(step, layer, description, math.nan, math.nan, math.inf)]

    def _judge_silent(
        self, rows: dict[str, np.ndarray], step: int, sizes: np.ndarray
    ) -> list[Departure]:
        """Return departures of layers that have had no gradient or no update for many steps.

        A lack is reported only if another layer has a gradient or an update. Updates that rounding
        loses in most elements of a layer count as no update.
        """
        if "gradient_norm" not in rows:
            return []
        gradient = rows["gradient_norm"]
        lacks_gradient = (gradient == UNMEASURED) | np.isnan(gradient)
        lacks_gradient &= ~(rows.get("nonfinite", np.zeros(self._count)) > 0)
        if len(sizes) == self._count:
            # A parameter without elements is never measured.
            lacks_gradient &= sizes > 0
        update = rows.get("update_norm", np.full(self._count, np.nan))
        lost_fractions = rows.get("unchanged", np.zeros(self._count))
        conditions = {
            "no gradient": lacks_gradient & ~lacks_gradient.all(),
            "gradient is all 0": (gradient == 0) & (gradient > 0).any(),
            "no update, though there is a gradient": (gradient > 0) & (update == 0)
                & (update > 0).any(),
            _LOST_UPDATES: (lost_fractions > LOST_FRACTION) & (update > 0),
        }  # fmt: skip
        medians = np.exp(self._bands["gradient_norm"].running_median.measure()[0])
        departures: list[Departure] = []
        for description, condition in conditions.items():
            for layer in self._durations[description].find_new(condition, step).tolist():
                values = (float(lost_fractions[layer]), 0.0)
                if description != _LOST_UPDATES:
                    values = math.nan, float(medians[layer])
                departures.append(Departure(step, layer, description, *values, 0.0, "silent"))
        return departures

    def _judge_growth(self, rows: dict[str, np.ndarray], step: int) -> list[Departure]:
        """Return departures of layers whose weight norm grew by the factor `GROWTH`.

        The growth in the last `LASTING_STEPS` steps must exceed the growth in the `LASTING_STEPS`
        steps before. A layer is returned again only after its growth has ended.
        """
        if "weight_norm" not in rows:
            return []
        with np.errstate(divide="ignore", invalid="ignore"):
            log_norms = np.log(rows["weight_norm"])
        history = self._log_weight_norms
        # A resumed training repeats earlier steps.
        while history and history[-1][0] >= step:
            history.pop()
        history.append((step, log_norms))
        while len(history) > 2 and history[1][0] <= step - 2 * LASTING_STEPS:
            history.pop(0)
        if history[0][0] > step - 2 * LASTING_STEPS or len(history) < LASTING_ROWS:
            return []
        middle = [norms for at, norms in history if at <= step - LASTING_STEPS][-1]
        with np.errstate(invalid="ignore"):
            growth, earlier_growth = log_norms - middle, middle - history[0][1]
            is_growing = (growth > math.log(GROWTH)) & (growth > earlier_growth)
        is_new = is_growing & ~self._was_growing
        self._was_growing = is_growing | self._was_growing & (growth > math.log(GROWTH) / 2)
        return [
            Departure(step, layer, f"weights grow, in {LASTING_STEPS} steps by a factor of",
                      math.exp(growth[layer]), math.exp(earlier_growth[layer]), 0.0, "silent")
            for layer in np.flatnonzero(is_new).tolist()
        ]  # fmt: skip


_DESCRIPTIONS = {
    "ratio": "update beside weight",
    "gradient_norm": "gradient norm",
    "nonzero": "gradient of few elements alone, share",
}
_NOT_FINITE = "gradient is not finite, elements"
_BAND_DESCRIPTIONS = (*_DESCRIPTIONS.values(), _NOT_FINITE)
_LOST_UPDATES = "updates lost by the dtype, share of elements"
_SILENT = ("no gradient", "gradient is all 0", "no update, though there is a gradient",
           _LOST_UPDATES)  # fmt: skip
