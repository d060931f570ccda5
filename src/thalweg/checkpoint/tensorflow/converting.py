"""`convert`: from a file of TensorFlow to one of the library, and back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.checkpoint import saving
from thalweg.checkpoint.of_torch import OF_TORCH
from thalweg.checkpoint.plain import Reader
from thalweg.checkpoint.tensorflow.loading import load
from thalweg.checkpoint.tensorflow.placing.mapping import turned
from thalweg.checkpoint.tensorflow.placing.placed import with_axes
from thalweg.checkpoint.tensorflow.placing.rules import SAME, Place, Rules
from thalweg.checkpoint.tensorflow.placing.targets import Targets
from thalweg.checkpoint.tensorflow.restoring import chosen, restore
from thalweg.checkpoint.tensorflow.saving import save
from thalweg.checkpoint.tensorflow.sorting.contents import (
    GLOBAL_STEP,
    SAVE_COUNTER,
    FoundOptimizer,
    TensorFlowCheckpoint,
)
from thalweg.core import state
from thalweg.errors import (
    InvalidArgumentError,
    InvalidConfigError,
    UnsupportedCheckpointError,
    listed,
)
from thalweg.storage import container
from thalweg.storage.json_text import table
from thalweg.storage.keras_files import KerasFile
from thalweg.storage.located import Kind, located
from thalweg.storage.stored import Stored, dtype_of
from thalweg.variable import Variable

FORMS = ("thalweg", "tf", "tf1")
_ORIGIN = "tensorflow"  # of what a file has as `extra`
_AVERAGES = "averages"

Path = str | os.PathLike[str]
Progress = Callable[[int, int], None]


def convert(
    path: Path,
    out: Path,
    rules: Any = None,
    to: str = "thalweg",
    *,
    optimizer: Any = None,
    which: int | None = None,
    progress: Progress | None = None,
    **hyperparameters: Any,
) -> tuple[str, ...]:
    """Write a checkpoint in another form; nothing is trained, and no module is needed.

    To "thalweg": a file of TensorFlow or Keras becomes one that `thalweg.checkpoint.restore` reads,
    with the variables by the names that the rules give them, or by TensorFlow's. To "tf": a file
    of the library becomes one that `tf.train.Checkpoint` restores, to "tf1": `tf.train.Saver`.

    Moving averages of variables are in what `restore` returns as `extra["tensorflow"]["averages"]`,
    by the names of the variables; "tf1" has a place for them again.

    Args:
        path: The file; of TensorFlow's the prefix.
        out: The new file; of TensorFlow's the prefix.
        rules: Optional. As in `restore`; for "tf" and "tf1" as in `save`.
        to: "thalweg", "tf" or "tf1".
        optimizer, which: As in `restore`; to "thalweg" alone.
        progress: Called with the bytes that are read and those there are.
        **hyperparameters: As in `restore`: what the optimizer needs and the file does not hold.

    Returns:
        The names of what the file holds and the new one does not: slots of other optimizers, what
        rules leave out, what is unknown.

    Raises:
        OptionError: A hyperparameter is needed that the file does not hold; names it.
        CheckpointMismatchError: The file does not tell what its optimizer is, or the rules do not
            fit. Nothing was written.
        UnsupportedCheckpointError: It is a mixed-precision training of OpenSeq2Seq, which is more
            than an optimizer.
        See `restore`, `save` and `thalweg.checkpoint.restore`, too.
    """
    if to not in FORMS:
        raise InvalidArgumentError(f"to must be one of {', '.join(FORMS)}, not {to!r}.")
    options = [*hyperparameters, *["optimizer"] * (optimizer is not None)]
    options += ["which"] * (which is not None)
    if to != "thalweg" and options:
        raise InvalidArgumentError(
            f"{listed(options)} would be of a new optimizer; {os.fspath(path)}, which is turned"
            " into a checkpoint of TensorFlow, has its own."
        )
    if to == "thalweg":
        place = located(path)
        if place.kind is Kind.OURS:
            raise UnsupportedCheckpointError(
                f'{place.path} is a checkpoint of thalweg already: to="tf" turns it into one that'
                ' tf.train.Checkpoint restores, to="tf1" tf.train.Saver.'
            )
        file = load(path, progress)
        return _to_thalweg(file, out, Rules.of(rules) or SAME, optimizer, which, hyperparameters)
    return _to_tensorflow(path, out, Rules.of(rules), "tf1" if to == "tf1" else "tf2", progress)


def _to_thalweg(
    file: TensorFlowCheckpoint,
    out: Path,
    rules: Rules,
    optimizer: Any,
    which: int | None,
    hyperparameters: dict[str, Any],
) -> tuple[str, ...]:
    if file.mixed is not None and file.mixed.masters:
        raise UnsupportedCheckpointError(
            f"{file.path} has float32 masters, which belong to a step of optimize_loss: make it,"
            " give it to thalweg.checkpoint.tensorflow.restore(..., optimizer=step), and save with"
            " thalweg.checkpoint.save."
        )
    places = _places(file, rules)
    own = _variables(file, places)
    steps = file.step
    counter = None
    if steps is not None:
        counter = Variable(np.int64(0), GLOBAL_STEP, trainable=False)
    file, found = chosen(file, Targets.of(own), optimizer, which, hyperparameters)
    opt = restore(file, own, rules, optimizer, which=which, global_step=counter, **hyperparameters)
    if counter is not None and getattr(opt, "_global_step", None) is counter:
        own[GLOBAL_STEP] = counter  # what it reads
    origin: dict[str, Any] = {
        "kind": file.kind,
        GLOBAL_STEP: None if counter is None else counter.item(),
    }
    if averages := _averages(file, places):
        origin[_AVERAGES] = {
            str(places[name].target): with_axes(value.tensor(), places[name].axes)
            for name, value in averages.items()
        }
    left = _left(file, places, found, has_steps=counter is not None)
    saving.save(out, optimizer=opt, variables=own, extra={_ORIGIN: origin})
    return left


def _averages(file: TensorFlowCheckpoint, places: Mapping[str, Place]) -> dict[str, Stored]:
    """The moving averages that are carried over, by variable."""
    return {
        name: value
        for name, value in file.averages.items()
        if name in places and value.shape == file.variables[name].shape
    }


def _left(
    file: TensorFlowCheckpoint,
    places: Mapping[str, Place],
    found: FoundOptimizer | None,
    has_steps: bool,
) -> tuple[str, ...]:
    """The names of what is not carried over."""
    every, notes = file.tensors(), tuple[str, ...]()
    taken = {id(each): name in places for name, each in file.variables.items()}
    taken |= {id(each): True for each in _averages(file, places).values()}
    counters = {name for name in file.counters if name.rpartition("/")[2] == GLOBAL_STEP}
    counters = (counters or {*file.counters}) if has_steps else set[str]()
    taken |= {id(each): name in counters for name, each in file.counters.items()}
    if found is not None:
        # Its numbers are arguments of the new one, or follow from them.
        is_keras = isinstance(file.source, KerasFile)
        own = file.source.optimizer if is_keras else every
        notes = found.notes * is_keras  # of a loss scale
        start = {"object": f"{found.name}/", "saver": None}.get(file.kind, "")
        if start is not None:
            taken |= {id(each): True for name, each in own.items() if name.startswith(start)}
        taken |= {id(each): True for each in found.scalars.values()}
        for name, slots in found.slots.items():
            taken |= {id(each): name in places for each in slots.values()}
    if file.mixed is not None:
        taken |= {id(each): True for each in file.mixed.averages}
    names = (name for name, each in every.items() if not taken.get(id(each)))
    return (*(name for name in names if not name.startswith(SAVE_COUNTER)), *file.texts, *notes)


def _places(file: TensorFlowCheckpoint, rules: Rules) -> dict[str, Place]:
    """Where variables go; those that the rules leave out are not there."""
    found: dict[str, Place] = {}
    missing: list[str] = []
    for name, value in file.variables.items():
        other = file.other_names.get(name)
        place = rules.place(name) or (rules.place(other) if other else None)
        shape = None if place is None else turned(value.shape, place.axes)
        if shape is None or place is None:
            hint = "" if place else f" ('{name} -> {name}' keeps its name)"
            missing.append(f"no rule that fits is for {name!r}{hint}")
        elif place.target is not None:
            found[name] = place
    if missing:
        raise state.mismatch(missing, file.path, "Nothing was written.")
    return found


def _variables(file: TensorFlowCheckpoint, places: Mapping[str, Place]) -> dict[str, Tensor]:
    """Variables for all of them, by their new names."""
    found: dict[str, Tensor] = {}
    for name, place in places.items():
        value, target = file.variables[name], str(place.target)
        zeros = torch.zeros(turned(value.shape, place.axes) or (), dtype=dtype_of(value.dtype))
        found[target] = Variable(zeros, target)
    return found


def _to_tensorflow(
    path: Path, out: Path, rules: Rules | None, kind: Any, progress: Progress | None
) -> tuple[str, ...]:
    own, has_place = _zeros(path)
    given: Any = None if has_place else False
    restored = saving.restore(path, variables=own, optimizer=given, progress=progress)
    opt, extra = restored.optimizer, table(restored.extra)
    origin = table(extra.get(_ORIGIN))
    steps, averages = origin.get(GLOBAL_STEP), table(origin.get(_AVERAGES))
    step = own.pop(GLOBAL_STEP, None)
    if step is None and isinstance(steps, int):
        step = Variable(np.int64(steps), GLOBAL_STEP, trainable=False)
    if rules is None and _ORIGIN in extra:
        rules = SAME  # the names are TensorFlow's
    left = [*restored.left, *(f"metrics/{name}" for name in restored.metrics)]
    left += [f"extra/{name}" for name in extra if name != _ORIGIN]
    left += ["extra"] * (restored.extra is not None and not isinstance(restored.extra, dict))
    if kind != "tf1":
        left += [f"extra/{_ORIGIN}/{_AVERAGES}/{name}" for name in averages]
        averages = {}
    save(out, opt, own, rules, kind, global_step=step if kind == "tf1" else None, averages=averages)
    return tuple(left)


def _zeros(path: Path) -> tuple[dict[str, Any], bool]:
    """Variables as those of a file of ours, not read yet; whether TensorFlow has its optimizer."""
    place = located(path).checked()
    if place.kind is not Kind.OURS:
        raise UnsupportedCheckpointError(
            f"{place.path} is a checkpoint of {place.of}, and only one of thalweg is turned"
            ' into one of TensorFlow: convert it to="thalweg" first.'
        )
    found = container.describe(place.path)
    tensors = {
        name: torch.zeros(each.shape, dtype=dtype_of(each.dtype))
        for name, each in found.tensors.items()
    }
    given: Any = Reader(tensors)(found.document.get("variables", {}))
    own = table(given)
    if not isinstance(given, dict) or not all(isinstance(each, Tensor) for each in own.values()):
        raise InvalidConfigError(f"{os.fspath(path)} is no checkpoint of a training.")
    optimizer = table(found.document.get("optimizer")).get("class")
    is_torchs = isinstance(optimizer, str) and optimizer.startswith(OF_TORCH)
    return {name: Variable(value, name) for name, value in own.items()}, not is_torchs
