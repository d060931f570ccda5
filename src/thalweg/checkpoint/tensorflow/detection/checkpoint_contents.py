"""Contents of a TensorFlow file: variables, optimizers, mixed precision, unknown tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from thalweg._formats.bundle import ObjectGraph
from thalweg._formats.keras_files import KerasFile
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.checkpoint.tensorflow.detection.scalars import SCALE, count_of
from thalweg.checkpoint.tensorflow.detection.slot_families import Family
from thalweg.errors import InvalidArgumentError

# OpenSeq2Seq calls the master of `w` `Loss_Optimization/FP32-master-copy/w`; the variables of its
# loss scaler have default names, `Loss_Optimization/Variable`, `Variable_1` and so on.
_MASTER = "FP32-master-copy/"
_HALVES = ("F16", "BF16")
_NUMBERED = re.compile(r"(.*/)?Variable(?:_([1-9][0-9]{0,3}))?", re.DOTALL)
_AVERAGE = re.compile(r"(?:.*/)?nvgrad2_ema([0-9]{1,6})", re.DOTALL)

# Dtypes of the variables of each algorithm, in order of creation.
_SCALERS = {
    "Backoff": {"iteration": "I64", "last_overflow_iteration": "I64", "scale": "F32"},
    "LogMax": {"iteration": "I64"}
    | dict.fromkeys(
        ("scale", "x_hat", "slow_x_hat", "xsquared_hat", "b1_correction", "b2_correction"), "F32"
    ),
}


@dataclass(frozen=True)
class MixedPrecision:
    """State of OpenSeq2Seq's mixed precision: masters, loss scale and averages.

    Attributes:
        masters: {name of a float16 variable: float32 master}.
        names: {name of a master: name of its variable}.
        scaler: The loss scaler's algorithm, "Backoff" or "LogMax"; "" if the scale is fixed.
        scale: The loss scaler's state by the names of `thalweg.openseq2seq`.
        averages: NovoGrad's averages of squared norms, in the order of its variables.
    """

    masters: dict[str, StoredTensor] = field(default_factory=dict[str, StoredTensor])
    names: dict[str, str] = field(default_factory=dict[str, str])
    scaler: str = ""
    scale: dict[str, StoredTensor] = field(default_factory=dict[str, StoredTensor])
    averages: list[StoredTensor] = field(default_factory=list[StoredTensor])


def split_mixed_precision(
    stored_tensors: Mapping[str, StoredTensor],
) -> tuple[MixedPrecision | None, dict[str, StoredTensor]]:
    """Return (the file's `MixedPrecision` or None, {name: tensor} of all other tensors)."""
    names = {
        name: variable
        for name, tensor in stored_tensors.items()
        for variable in [name.partition(_MASTER)[2]]
        if tensor.dtype == "F32"
        and variable in stored_tensors
        and stored_tensors[variable].dtype in _HALVES
    }
    averages = {
        int(match[1]): name for name in stored_tensors if (match := _AVERAGE.fullmatch(name))
    }
    if not names and not averages:
        return None, dict(stored_tensors)
    scaler, scale = _find_scaler(stored_tensors) if names else ("", {})
    used_names = {*names, *averages.values(), *scale.values()}
    mixed = MixedPrecision(
        masters={variable: stored_tensors[name] for name, variable in names.items()},
        names=names,
        scaler=scaler,
        scale={kind: stored_tensors[name] for kind, name in scale.items()},
        averages=[stored_tensors[averages[index]] for index in sorted(averages)],
    )
    unused = stored_tensors.keys() - used_names
    return mixed, {name: tensor for name, tensor in stored_tensors.items() if name in unused}


def _find_scaler(stored_tensors: Mapping[str, StoredTensor]) -> tuple[str, dict[str, str]]:
    """Return (loss scaler's algorithm, {name of state: name of variable}).

    Return ("", {}) if there is no loss scaler.
    """
    scopes: dict[str, dict[int, str]] = {}
    for name, tensor in stored_tensors.items():
        match = _NUMBERED.fullmatch(name)
        if match is not None and not tensor.shape:
            scopes.setdefault(match[1] or "", {})[int(match[2] or 0)] = name
    for numbered in scopes.values():
        names = [numbered[index] for index in sorted(numbered)]
        for algorithm, kinds in _SCALERS.items():
            if [stored_tensors[name].dtype for name in names] == list(kinds.values()):
                return algorithm, dict(zip(kinds, names, strict=True))
    return "", {}


GLOBAL_STEP, SAVE_COUNTER = "global_step", "save_counter"

Slots = dict[str, dict[str, StoredTensor]]


@dataclass(frozen=True)
class FoundOptimizer:
    """Description of an optimizer, as detected in a file.

    Attributes:
        name: The name in its slots, such as "Adam"; in an object checkpoint its path there.
        face: The front end: "v1", "keras" or "openseq2seq".
        family: The class and its slots; None if the file matches several, or none.
        candidates: The possible classes, if `family` is None.
        evidence: The reason for the detection: "slots Adam, Adam_1, powers beta1_power=0.59049".
        slots: {variable: {kind: slot}}; a slot of an unknown kind has its name in the file.
        scalars: {TensorFlow's short name, such as "beta1_power" or "iter": scalar}.
        hyperparameters: Values that the file has, or that follow from its contents to the bit.
        steps: The step count, or None if the file does not have it.
        notes: Descriptions of contradictions.
        refused: Options that this library does not have, as text.
        title: The name argument of the optimizer; "" if the file does not have it.
        unclear: Hyperparameters for which several values fit the file, so the user must give them.
        lost: Reasons why slots cannot be assigned to variables; if any, restoring raises.
        loss_scale: State of the optimizer's loss scale: "current_loss_scale" and "good_steps"; {}
            if there is none.
    """

    name: str
    face: str
    family: Family | None
    candidates: tuple[str, ...]
    evidence: str
    slots: Slots
    scalars: dict[str, StoredTensor]
    hyperparameters: dict[str, Any] = field(default_factory=dict[str, Any])
    steps: int | None = None
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    title: str = ""
    unclear: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    loss_scale: dict[str, StoredTensor] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        class_text = self.family.cls if self.family else f"unknown ({' or '.join(self.candidates)})"
        values = ", ".join(f"{name}={hyper}" for name, hyper in self.hyperparameters.items())
        steps = "" if self.steps is None else f"; {self.steps} steps"
        return f"{class_text}: {self.evidence}{steps}{f'; {values}' if values else ''}"


def with_loss_scale(optimizer: FoundOptimizer, scale: dict[str, StoredTensor]) -> FoundOptimizer:
    """Return a copy of an optimizer with a loss scale and a note; for {} the optimizer itself."""
    if not scale:
        return optimizer
    note = (
        f"the loss was scaled, at the end by {scale[SCALE].array().item()}; here it is not, unless"
        " restore(..., loss_scale=DynamicLossScale()) takes it over"
    )
    return replace(optimizer, loss_scale=scale, notes=(*optimizer.notes, note))


@dataclass(frozen=True)
class TensorFlowCheckpoint:
    """A TensorFlow file, read and sorted. Returned by `load`.

    Attributes:
        kind: "saver" (`tf.train.Saver`), "object" (`tf.train.Checkpoint`), "keras" (`.keras`),
            "weights.h5" or "h5".
        variables: {name in TensorFlow: variable}.
        optimizers: The optimizers; most files have one.
        counters: Integers that belong to no optimizer: "global_step", "save_counter".
        averages: {variable: moving average}, of `tf.train.ExponentialMovingAverage`.
        mixed: OpenSeq2Seq's masters, loss scale and averages, or None.
        unknown: {name: tensor} of unidentified tensors.
        texts: The names of string tensors and iterator states, which are skipped.
        other_names: {variable: second name}; in object checkpoints such as "layer1/kernel".
        source: The unsorted contents: tensors by name, or a file of Keras.
        graph: The object graph, or None.
    """

    path: str
    kind: str
    variables: dict[str, StoredTensor]
    optimizers: tuple[FoundOptimizer, ...] = ()
    counters: dict[str, StoredTensor] = field(default_factory=dict[str, Any])
    averages: dict[str, StoredTensor] = field(default_factory=dict[str, Any])
    mixed: MixedPrecision | None = None
    unknown: dict[str, StoredTensor] = field(default_factory=dict[str, Any])
    texts: tuple[str, ...] = ()
    other_names: Mapping[str, str] = field(default_factory=dict[str, str])
    source: Any = None
    graph: ObjectGraph | None = None

    @property
    def optimizer(self) -> FoundOptimizer | None:
        """The file's only optimizer; None if the file has none.

        Raises:
            InvalidArgumentError: The file has several optimizers.
        """
        if len(self.optimizers) > 1:
            raise InvalidArgumentError(
                f"{self.path} has {len(self.optimizers)} optimizers, see `optimizers`:"
                f" {', '.join(optimizer.name for optimizer in self.optimizers)}."
            )
        return self.optimizers[0] if self.optimizers else None

    @property
    def slots(self) -> Slots:
        """Slots of the only optimizer, by variable and kind; {} if there is none."""
        return self.optimizer.slots if self.optimizer else {}

    @property
    def step(self) -> int | None:
        """Number of steps taken; None if the file does not have it."""
        return self.steps_of(self.optimizers)

    def steps_of(self, optimizers: Iterable[FoundOptimizer]) -> int | None:
        """Return the step count in the file; None if it is missing, or if counts differ.

        Counters called "global_step" decide; if there are none, all counters except "save_counter".
        Without counters, the step counts of `optimizers` decide.
        """
        counter_values = {name: count_of(counter) for name, counter in self.counters.items()}
        exact = {name for name in counter_values if name.rpartition("/")[2] == GLOBAL_STEP}
        for counts in (
            {counter_values[name] for name in exact or counter_values.keys() - {SAVE_COUNTER}},
            {optimizer.steps for optimizer in optimizers if optimizer.steps is not None},
        ):
            # Counters that differ are not overruled by the optimizers.
            if counts:
                return counts.pop() if len(counts) == 1 else None
        return None

    def tensors(self) -> dict[str, StoredTensor]:
        """Return {name in the file: tensor} of all tensors that were read."""
        if isinstance(self.source, KerasFile):
            return {**self.source.variables, **self.source.optimizer}
        return self.source or {}

    def summary(self) -> str:
        """Return a description of the file's contents, in a few lines."""
        size = sum(len(tensor.data) for tensor in self.variables.values())
        lines = [f"{self.path}: {len(self.variables)} variables, {size:,} bytes"]
        lines += [str(optimizer) for optimizer in self.optimizers]
        lines += [f"  {note}" for optimizer in self.optimizers for note in optimizer.notes]
        counts = [(name, count_of(counter)) for name, counter in sorted(self.counters.items())]
        lines += [f"{name} = {count}" for name, count in counts]
        if self.averages:
            lines.append(f"moving averages of {len(self.averages)} variables")
        if self.mixed is not None:
            scale = f", loss scale by {self.mixed.scaler}" if self.mixed.scaler else ""
            lines.append(f"float32 masters of {len(self.mixed.masters)} variables{scale}")
        lines += [f"unknown: {name}" for name in (*self.unknown, *self.texts)]
        return "\n".join(lines)
