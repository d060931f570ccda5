"""`convert`: from a file of TensorFlow to one of the library, and back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core import state
from thalweg._formats import bundle, container
from thalweg._formats.json_text import as_object
from thalweg._formats.keras_files import KerasFile
from thalweg._formats.path_resolution import PathKind, locate_checkpoint
from thalweg._formats.stored_tensor import StoredTensor, dtype_of
from thalweg.checkpoint import optimizer_config, save_restore
from thalweg.checkpoint.json_encoding import JsonReader
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import (
    GLOBAL_STEP,
    SAVE_COUNTER,
    FoundOptimizer,
    TensorFlowCheckpoint,
)
from thalweg.checkpoint.tensorflow.load import load
from thalweg.checkpoint.tensorflow.mapping.mapped_tensors import with_axes
from thalweg.checkpoint.tensorflow.mapping.mapping_rules import SAME, Place, Rules
from thalweg.checkpoint.tensorflow.mapping.targets import TargetTensors
from thalweg.checkpoint.tensorflow.mapping.variable_mapping import permute_shape
from thalweg.checkpoint.tensorflow.restore import choose_optimizer, restore
from thalweg.checkpoint.tensorflow.save import save, tensors_of
from thalweg.checkpoint.torch_adapter import OF_TORCH
from thalweg.errors import (
    InvalidArgumentError,
    InvalidConfigError,
    UnsupportedCheckpointError,
    listed,
)
from thalweg.variable import Variable

FORMS = ("thalweg", "tf", "tf1")
_ORIGIN = "tensorflow"  # of what a file has as `extra`
_AVERAGES, _LOSS_SCALE = "averages", "loss_scale"
_NAMES = "names"  # where rules put the variables: a name and axes for each

Path = str | os.PathLike[str]
Progress = Callable[[int, int], None]


def convert(
    path: Path,
    out: Path,
    rules: object = None,
    to: str = "thalweg",
    *,
    optimizer: object = None,
    which: int | None = None,
    progress: Progress | None = None,
    **hyperparameters: object,
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
        raise InvalidArgumentError(f"to must be one of {', '.join(FORMS)}, not {show_value(to)}.")
    options = [*hyperparameters, *["optimizer"] * (optimizer is not None)]
    options += ["which"] * (which is not None)
    if to != "thalweg" and options:
        raise InvalidArgumentError(
            f"{listed(options)} would be of a new optimizer; {os.fspath(path)}, which is turned"
            " into a checkpoint of TensorFlow, has its own."
        )
    if to == "thalweg":
        place = locate_checkpoint(path)
        if place.kind is PathKind.OURS:
            raise UnsupportedCheckpointError(
                f'{place.path} is a checkpoint of thalweg already: to="tf" turns it into one that'
                ' tf.train.Checkpoint restores, to="tf1" tf.train.Saver.'
            )
        file = load(path, progress)
        given, counter = Rules.of(rules) or SAME, _step_counter(file)
        made, left = _convert_to_ours(file, given, optimizer, which, counter, hyperparameters)
        made.write(out)
        return left
    kind: Any = "tf1" if to == "tf1" else "tf2"
    arguments, left = _convert_to_theirs(path, Rules.of(rules), kind, progress)
    save(out, **arguments)
    return left


def compare_converted(
    theirs: Path, ours: Path, rules: Any = None, progress: Progress | None = None
) -> tuple[dict[str, StoredTensor], dict[str, StoredTensor], list[str]] | None:
    """Return the tensors of two files, by the names that `convert` gives them; None if it has none.

    A file of ours that was made of one of TensorFlow's is compared with what would be made of
    `theirs`; any other as `convert` would write it.

    Args:
        theirs: A file of TensorFlow or Keras.
        ours: A training in a file of ours.
        rules: Optional. The rules that were given to `convert`; a file that it made has them.
        progress: Called with the bytes that are read of a file and those there are.

    Returns:
        Those of `theirs` and of `ours`, and what one has and the other has no place for, in words.

    Raises:
        ThalwegError: The files are damaged, or one is nothing that `convert` makes of the other.
    """
    contents = container.read(ours, progress=progress)
    document = contents.document
    if document.get("kind") != save_restore.KIND:
        return None
    origin, given = as_object(document.get("extra")).get(_ORIGIN), Rules.of(rules)
    if isinstance(origin, dict):
        file = load(theirs, progress)
        counter, optimizer = _step_counter(file), None
        variables = {} if counter is None else {GLOBAL_STEP: counter}
        if "optimizer" in document:
            optimizer = optimizer_config.make_optimizer(document["optimizer"], variables)
        if given is None and isinstance(document.get(_NAMES), dict):
            names = as_object(document[_NAMES])
            given = Rules(function=lambda name: _rule_result(names.get(name)))
        made, left = _convert_to_ours(file, given or SAME, optimizer, None, counter, {})
        found = [f"{name!r} is in {os.fspath(theirs)} only" for name in left]
        steps = as_object(made.document["extra"])[_ORIGIN][GLOBAL_STEP]
        if steps != as_object(origin).get(GLOBAL_STEP):
            found.append(f"{GLOBAL_STEP} is {steps} and {as_object(origin).get(GLOBAL_STEP)}")
        return made.stored_tensors(), contents.tensors, found
    if locate_checkpoint(theirs).check_readable().writer != "tensorflow":
        return None
    read = bundle.read(theirs, progress=progress)
    arguments, left = _convert_to_theirs(
        ours, given, "tf1" if read.graph is None else "tf2", progress
    )
    return (
        read.tensors,
        tensors_of(**arguments)[0],
        [f"{name!r} is in {os.fspath(ours)} only" for name in left],
    )


def _step_counter(file: TensorFlowCheckpoint) -> Variable | None:
    """The counter of a file's steps; None if it has none."""
    if file.step is None:
        return None
    return Variable(np.int64(0), GLOBAL_STEP, trainable=False)


def _rule_result(recorded: Any) -> str | tuple[str, str] | None:
    """What a function of rules returns for a name that has this place in a file of ours."""
    match recorded:
        case [str() as target, None]:
            return target
        case [str() as target, [*axes]]:
            return target, " ".join(("transpose", *map(str, axes)))
        case _:
            return None


def _convert_to_ours(
    file: TensorFlowCheckpoint,
    rules: Rules,
    optimizer: object,
    which: int | None,
    counter: Variable | None,
    hyperparameters: dict[str, object],
) -> tuple[save_restore.Snapshot, tuple[str, ...]]:
    """A file of TensorFlow as one of ours, and the names of what this has no place for."""
    if file.mixed is not None and file.mixed.masters:
        raise UnsupportedCheckpointError(
            f"{file.path} has float32 masters, which belong to a step of optimize_loss: make it,"
            " give it to thalweg.checkpoint.tensorflow.restore(..., optimizer=step), and save with"
            " thalweg.checkpoint.save."
        )
    places = _places_of(file, rules)
    own = _empty_variables(file, places)
    file, found = choose_optimizer(file, TargetTensors.of(own), optimizer, which, hyperparameters)
    given = False if optimizer is None and found is None else optimizer
    opt = restore(file, own, rules, given, which=which, global_step=counter, **hyperparameters)
    if counter is not None and getattr(opt, "_global_step", None) is counter:
        own[GLOBAL_STEP] = counter  # what it reads
    origin: dict[str, Any] = {
        "kind": file.kind,
        GLOBAL_STEP: None if counter is None else counter.item(),
    }
    if found is not None and found.loss_scale:
        values = found.loss_scale.items()
        origin[_LOSS_SCALE] = {name: each.array().item() for name, each in values}
    if averages := _carried_averages(file, places):
        origin[_AVERAGES] = {
            str(places[name].target): with_axes(value.tensor(), places[name].axes)
            for name, value in averages.items()
        }
    left = _names_left_out(file, places, found, has_steps=counter is not None)
    made = save_restore.take_snapshot(
        optimizer=opt, variables=own, extra={_ORIGIN: origin}, copies=False
    )
    if not rules.are_none:  # `thalweg diff` finds the variables by them
        names = {name: [place.target, place.axes] for name, place in places.items()}
        made = replace(made, document={**made.document, _NAMES: names})
    return made, left


def _carried_averages(
    file: TensorFlowCheckpoint, places: Mapping[str, Place]
) -> dict[str, StoredTensor]:
    """The moving averages that are carried over, by variable."""
    return {
        name: value
        for name, value in file.averages.items()
        if name in places and value.shape == file.variables[name].shape
    }


def _names_left_out(
    file: TensorFlowCheckpoint,
    places: Mapping[str, Place],
    found: FoundOptimizer | None,
    has_steps: bool,
) -> tuple[str, ...]:
    """The names of what is not carried over."""
    every, notes = file.tensors(), tuple[str, ...]()
    class_name = getattr(file.source, "class_name", None)
    if found is None and class_name is not None:
        notes = (f"{class_name}, of which there is no state",)
    taken = {id(each): name in places for name, each in file.variables.items()}
    taken |= {id(each): True for each in _carried_averages(file, places).values()}
    counters = {name for name in file.counters if name.rpartition("/")[2] == GLOBAL_STEP}
    counters = (counters or {*file.counters}) if has_steps else set[str]()
    taken |= {id(each): name in counters for name, each in file.counters.items()}
    if found is not None:
        taken |= _taken_of_optimizer(file, places, found)
    if file.mixed is not None:
        taken |= {id(each): True for each in file.mixed.averages}
    names = (name for name, each in every.items() if not taken.get(id(each)))
    return (*(name for name in names if not name.startswith(SAVE_COUNTER)), *file.texts, *notes)


def _taken_of_optimizer(
    file: TensorFlowCheckpoint, places: Mapping[str, Place], found: FoundOptimizer
) -> dict[int, bool]:
    """Which values of an optimizer are carried over, by their `id`.

    Its numbers are: they are arguments of the new one, or follow from them.
    """
    own = file.source.optimizer if isinstance(file.source, KerasFile) else file.tensors()
    taken = {id(each): True for each in found.loss_scale.values()}
    start = {"object": f"{found.name}/", "saver": None}.get(file.kind, "")
    if start is not None:
        taken |= {id(each): True for name, each in own.items() if name.startswith(start)}
    taken |= {id(each): True for each in found.scalars.values()}
    for name, slots in found.slots.items():
        taken |= {id(each): name in places for each in slots.values()}
    return taken


def _places_of(file: TensorFlowCheckpoint, rules: Rules) -> dict[str, Place]:
    """Where variables go; those that the rules leave out are not there."""
    found: dict[str, Place] = {}
    missing: list[str] = []
    for name, value in file.variables.items():
        other = file.other_names.get(name)
        place = rules.place(name) or (rules.place(other) if other else None)
        shape = None if place is None else permute_shape(value.shape, place.axes)
        if shape is None or place is None:
            hint = "" if place else f" ('{name} -> {name}' keeps its name)"
            missing.append(f"no rule that fits is for {name!r}{hint}")
        elif place.target is not None:
            found[name] = place
    if missing:
        raise state.mismatch(missing, file.path, "Nothing was written.")
    return found


def _empty_variables(file: TensorFlowCheckpoint, places: Mapping[str, Place]) -> dict[str, Tensor]:
    """Variables for all of them, by their new names."""
    found: dict[str, Tensor] = {}
    for name, place in places.items():
        value, target = file.variables[name], str(place.target)
        zeros = torch.zeros(
            permute_shape(value.shape, place.axes) or (), dtype=dtype_of(value.dtype), device="cpu"
        )
        found[target] = Variable(zeros, target)
    return found


def _convert_to_theirs(
    path: Path, rules: Rules | None, kind: object, progress: Progress | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The arguments that `save` is given for a file of ours, and the names of what they lack."""
    own, has_place = _empty_of_ours(path)
    given: Any = None if has_place else False
    restored = save_restore.restore(path, variables=own, optimizer=given, progress=progress)
    opt, extra = restored.optimizer, as_object(restored.extra)
    origin = as_object(extra.get(_ORIGIN))
    steps, averages = origin.get(GLOBAL_STEP), as_object(origin.get(_AVERAGES))
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
    arguments = {"optimizer": opt, "variables": own, "rules": rules, "kind": kind}
    step = step if kind == "tf1" else None
    return {**arguments, "global_step": step, "averages": averages}, tuple(left)


def _empty_of_ours(path: Path) -> tuple[dict[str, Variable], bool]:
    """Variables as those of a file of ours, not read yet; whether TensorFlow has its optimizer."""
    place = locate_checkpoint(path).check_readable()
    if place.kind is not PathKind.OURS:
        raise UnsupportedCheckpointError(
            f"{place.path} is a checkpoint of {place.of}, and only one of thalweg is turned"
            ' into one of TensorFlow: convert it to="thalweg" first.'
        )
    found = container.describe(place.path)
    tensors = {
        name: torch.zeros(each.shape, dtype=dtype_of(each.dtype), device="cpu")
        for name, each in found.tensors.items()
    }
    given: Any = JsonReader(tensors)(found.document.get("variables", {}))
    own = as_object(given)
    if not isinstance(given, dict) or not all(isinstance(each, Tensor) for each in own.values()):
        raise InvalidConfigError(
            f"{os.fspath(path)} is no checkpoint of a training: its 'variables' are no tensors by"
            " name."
        )
    optimizer = as_object(found.document.get("optimizer")).get("class")
    is_torchs = isinstance(optimizer, str) and optimizer.startswith(OF_TORCH)
    return {name: Variable(value, name) for name, value in own.items()}, not is_torchs
