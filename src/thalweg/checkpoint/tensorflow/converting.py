"""`convert`: from a file of TensorFlow to one of the library, and back."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.checkpoint import saving
from thalweg.checkpoint.plain import Reader
from thalweg.checkpoint.tensorflow.loading import load
from thalweg.checkpoint.tensorflow.placing.mapping import turned
from thalweg.checkpoint.tensorflow.placing.rules import SAME, Rules
from thalweg.checkpoint.tensorflow.restoring import restore
from thalweg.checkpoint.tensorflow.saving import save
from thalweg.checkpoint.tensorflow.sorting.contents import GLOBAL_STEP, TensorFlowCheckpoint
from thalweg.core import state
from thalweg.errors import (
    InvalidArgumentError,
    InvalidConfigError,
    UnsupportedCheckpointError,
    listed,
)
from thalweg.storage import container
from thalweg.storage.json_text import table
from thalweg.storage.located import Kind, located
from thalweg.storage.stored import dtype_of
from thalweg.variable import Variable

FORMS = ("thalweg", "tf", "tf1")
_ORIGIN = "tensorflow"  # of what a file has as `extra`

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
) -> None:
    """Write a checkpoint in another form; nothing is trained, and no module is needed.

    To "thalweg": a file of TensorFlow or Keras becomes one that `thalweg.checkpoint.restore` reads,
    with the variables by the names that the rules give them, or by TensorFlow's. To "tf": a file
    of the library becomes one that `tf.train.Checkpoint` restores, to "tf1": `tf.train.Saver`.

    Args:
        path: The file; of TensorFlow's the prefix.
        out: The new file; of TensorFlow's the prefix.
        rules: Optional. As in `restore`; for "tf" and "tf1" as in `save`.
        to: "thalweg", "tf" or "tf1".
        optimizer, which: As in `restore`; to "thalweg" alone.
        progress: Called with the bytes that are read and those there are.
        **hyperparameters: As in `restore`: what the optimizer needs and the file does not hold.

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
        file = load(path, progress)
        _to_thalweg(file, out, Rules.of(rules) or SAME, optimizer, which, hyperparameters)
    else:
        _to_tensorflow(path, out, Rules.of(rules), "tf1" if to == "tf1" else "tf2", progress)


def _to_thalweg(
    file: TensorFlowCheckpoint,
    out: Path,
    rules: Rules,
    optimizer: Any,
    which: int | None,
    hyperparameters: dict[str, Any],
) -> None:
    if file.mixed is not None and file.mixed.masters:
        raise UnsupportedCheckpointError(
            f"{file.path} has float32 masters, which belong to a step of optimize_loss: make it,"
            " give it to thalweg.checkpoint.tensorflow.restore(..., optimizer=step), and save with"
            " thalweg.checkpoint.save."
        )
    own = _variables(file, rules)
    steps = file.step
    counter = None
    if steps is not None:
        counter = Variable(np.int64(0), GLOBAL_STEP, trainable=False)
    opt = restore(file, own, rules, optimizer, which=which, global_step=counter, **hyperparameters)
    if counter is not None and getattr(opt, "_global_step", None) is counter:
        own[GLOBAL_STEP] = counter  # what it reads
    origin = {"kind": file.kind, GLOBAL_STEP: None if counter is None else counter.item()}
    saving.save(out, optimizer=opt, variables=own, extra={_ORIGIN: origin})


def _variables(file: TensorFlowCheckpoint, rules: Rules) -> dict[str, Tensor]:
    """Variables for all that the rules do not leave out, by their new names."""
    found: dict[str, Tensor] = {}
    missing: list[str] = []
    for name, value in file.variables.items():
        other = file.other_names.get(name)
        place = rules.place(name) or (rules.place(other) if other else None)
        shape = None if place is None else turned(value.shape, place.axes)
        if shape is None or place is None:
            missing.append(f"no rule that fits is for {name!r}")
        elif place.target is not None:
            zeros = torch.zeros(shape, dtype=dtype_of(value.dtype))
            found[place.target] = Variable(zeros, place.target)
    if missing:
        raise state.mismatch(missing, file.path, "Nothing was written.")
    return found


def _to_tensorflow(
    path: Path, out: Path, rules: Rules | None, kind: Any, progress: Progress | None
) -> None:
    own = _zeros(path)
    restored = saving.restore(path, variables=own, progress=progress)
    opt, extra = restored.optimizer, restored.extra
    origin = table(extra).get(_ORIGIN)
    steps = table(origin).get(GLOBAL_STEP)
    step = own.pop(GLOBAL_STEP, None)
    if step is None and isinstance(steps, int):
        step = Variable(np.int64(steps), GLOBAL_STEP, trainable=False)
    if rules is None and isinstance(origin, dict):
        rules = SAME  # the names are TensorFlow's
    save(out, opt, own, rules, kind, global_step=step if kind == "tf1" else None)


def _zeros(path: Path) -> dict[str, Any]:
    """Variables as those of a file of ours, whose values are not read yet."""
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
    return {name: Variable(value, name) for name, value in own.items()}
