"""Contents of a TensorFlow file: variables, their optimizers, and unknown tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thalweg._formats.keras_files import KerasFile
from thalweg.checkpoint.tensorflow.detection.mixed_precision import MixedPrecision
from thalweg.checkpoint.tensorflow.detection.scalars import count_of
from thalweg.checkpoint.tensorflow.detection.slot_families import Family
from thalweg.errors import InvalidArgumentError

if TYPE_CHECKING:
    from thalweg._formats.bundle import ObjectGraph
    from thalweg._formats.stored_tensor import StoredTensor

GLOBAL_STEP, SAVE_COUNTER = "global_step", "save_counter"

Slots = dict[str, dict[str, "StoredTensor"]]


@dataclass(frozen=True)
class FoundOptimizer:
    """An optimizer, as far as a file tells it.

    Attributes:
        name: What slots are called after it, "Adam"; in an object checkpoint its place there.
        face: Whose it is: "v1", "keras" or "openseq2seq".
        family: What kind it is; None if the file fits several, or none.
        candidates: The kinds that it may be, if that is not certain.
        evidence: How the file tells: "slots Adam, Adam_1, powers beta1_power=0.59049".
        slots: By variable and kind. Where the kind is unknown, by their own names in the file.
        scalars: What belongs to no variable, by TensorFlow's short names: "beta1_power", "iter".
        hyperparameters: Those that the file has or that follow from it to the bit.
        steps: How many steps it has taken, or None where the file does not tell.
        notes: What does not go together, in words.
        refused: What it did that nothing here does, in words.
        title: The name that it was given; "" if the file does not tell.
        unclear: Hyperparameters for which several values fit the file; they have to be given.
        lost: Why slots of it belong to no variable for certain, in words: it cannot go on.
        loss_scale: What a dynamic loss scale around it remembers: "current_loss_scale" and
            "good_steps"; {} if there is none.
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
        title = self.family.cls if self.family else f"unknown ({' or '.join(self.candidates)})"
        known = ", ".join(f"{name}={value}" for name, value in self.hyperparameters.items())
        steps = "" if self.steps is None else f"; {self.steps} steps"
        return f"{title}: {self.evidence}{steps}{f'; {known}' if known else ''}"


@dataclass(frozen=True)
class TensorFlowCheckpoint:
    """A file of TensorFlow, read and sorted. Made by `load`.

    Attributes:
        path: Where it was read.
        kind: "saver" (`tf.train.Saver`), "object" (`tf.train.Checkpoint`), "keras" (`.keras`),
            "weights.h5" or "h5".
        variables: The variables by name, as TensorFlow has them.
        optimizers: The optimizers; most files have one.
        counters: Integers of no optimizer: "global_step", "save_counter".
        averages: Moving averages of variables (`tf.train.ExponentialMovingAverage`), by variable.
        mixed: OpenSeq2Seq's masters, loss scale and averages, or None.
        unknown: What belongs to nothing that is known, by name.
        texts: The names of tensors of strings and of states of iterators, which are skipped.
        other_names: Second names of variables: in object checkpoints "layer1/kernel".
        source: What it was sorted from: tensors by name, or a file of Keras.
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
        """The optimizer, or None.

        Raises:
            InvalidArgumentError: There are several.
        """
        if len(self.optimizers) > 1:
            raise InvalidArgumentError(
                f"{self.path} has {len(self.optimizers)} optimizers, see `optimizers`:"
                f" {', '.join(each.name for each in self.optimizers)}."
            )
        return self.optimizers[0] if self.optimizers else None

    @property
    def slots(self) -> Slots:
        """The slots of the one optimizer, by variable and kind; {} if there is none."""
        return self.optimizer.slots if self.optimizer else {}

    @property
    def step(self) -> int | None:
        """Number of steps taken; None if the file does not have it."""
        return self.steps_of(self.optimizers)

    def steps_of(self, optimizers: Iterable[FoundOptimizer]) -> int | None:
        """Return the number of steps taken: from the counter of the file, else from its optimizers.

        A counter is called "global_step", or is the only one besides "save_counter".
        """
        named = {name: count_of(each) for name, each in self.counters.items()}
        exact = {name for name in named if name.rpartition("/")[2] == GLOBAL_STEP}
        for counts in (
            {named[name] for name in exact or named.keys() - {SAVE_COUNTER}},
            {each.steps for each in optimizers if each.steps is not None},
        ):
            if counts:
                return counts.pop() if len(counts) == 1 else None
        return None

    def tensors(self) -> dict[str, StoredTensor]:
        """Return all tensors by their names in the file; of Keras files those that the library
        reads.
        """
        if isinstance(self.source, KerasFile):
            return {**self.source.variables, **self.source.optimizer}
        return self.source or {}

    def summary(self) -> str:
        """Return a description of the file's contents, in a few lines."""
        size = sum(len(each.data) for each in self.variables.values())
        lines = [f"{self.path}: {len(self.variables)} variables, {size:,} bytes"]
        lines += [str(each) for each in self.optimizers]
        lines += [f"  {note}" for each in self.optimizers for note in each.notes]
        lines += [f"{name} = {count_of(each)}" for name, each in sorted(self.counters.items())]
        if self.averages:
            lines.append(f"moving averages of {len(self.averages)} variables")
        if self.mixed is not None:
            scale = f", loss scale by {self.mixed.scaler}" if self.mixed.scaler else ""
            lines.append(f"float32 masters of {len(self.mixed.masters)} variables{scale}")
        lines += [f"unknown: {name}" for name in (*self.unknown, *self.texts)]
        return "\n".join(lines)
