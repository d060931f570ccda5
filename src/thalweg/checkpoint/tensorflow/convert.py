"""`convert`: conversion between TensorFlow and thalweg checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core import state
from thalweg._formats import bundle, container
from thalweg._formats.atomic_write import Path, Progress
from thalweg._formats.format_detection import TRAINING
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
from thalweg.checkpoint.tensorflow.mapping.mapped_tensors import TargetTensors, with_axes
from thalweg.checkpoint.tensorflow.mapping.mapping_rules import SAME, Place, Rules
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
# The key in `extra` of a converted file.
_ORIGIN = "tensorflow"
_AVERAGES, _LOSS_SCALE = "averages", "loss_scale"
# The key of names and axes from the rules.
_NAMES = "names"


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
    """Write a checkpoint in another format; no module is needed.

    With `to="thalweg"`, a file of TensorFlow or Keras becomes a file for
    `thalweg.checkpoint.restore`. The new file has the names from the rules; without rules, it has
    TensorFlow's names. With "tf", a thalweg file becomes a checkpoint for `tf.train.Checkpoint`,
    with "tf1" for `tf.train.Saver`.

    Moving averages are converted, too, except to "tf". `thalweg.checkpoint.restore` returns them in
    `extra["tensorflow"]["averages"]`, by variable.

    Args:
        path: The file; for TensorFlow the prefix of the file names.
        out: The new file; for TensorFlow the prefix of the file names.
        rules: Optional. As in `restore`; for "tf" and "tf1" as in `save`.
        to: "thalweg", "tf" or "tf1".
        optimizer, which: As in `restore`; only with `to="thalweg"`.
        progress: `progress(bytes_read, total_bytes)` is called during reading.
        **hyperparameters: Arguments of the optimizer that the file lacks, as in `restore`.

    Returns:
        The names of entries that were not converted, such as omitted variables or unknown tensors.

    Raises:
        OptionError: A required hyperparameter is not in the file; the message names it.
        CheckpointMismatchError: The optimizer of the file cannot be identified, or the rules do not
            match. Nothing was written.
        UnsupportedCheckpointError: The file is a mixed-precision training of OpenSeq2Seq.
        See `restore`, `save` and `thalweg.checkpoint.restore`, too.
    """
    if to not in FORMS:
        raise InvalidArgumentError(f"to must be one of {', '.join(FORMS)}, not {show_value(to)}.")
    options = [*hyperparameters, *["optimizer"] * (optimizer is not None)]
    options += ["which"] * (which is not None)
    if to != "thalweg":
        if options:
            raise InvalidArgumentError(
                f"{listed(options)} would be of a new optimizer; {os.fspath(path)}, which is turned"
                " into a checkpoint of TensorFlow, has its own."
            )
        kind = "tf1" if to == "tf1" else "tf2"
        arguments, omitted = _export_arguments(path, Rules.of(rules), kind, progress)
        save(out, **arguments)
        return omitted
    location = locate_checkpoint(path)
    if location.kind is PathKind.OURS:
        raise UnsupportedCheckpointError(
            f'{location.path} is a checkpoint of thalweg already: to="tf" turns it into one'
            ' that tf.train.Checkpoint restores, to="tf1" tf.train.Saver.'
        )
    checkpoint = load(path, progress)
    counter = _step_counter(checkpoint)
    new_arguments = (optimizer, which, counter, hyperparameters)
    snapshot, omitted = _import(checkpoint, Rules.of(rules) or SAME, *new_arguments)
    snapshot.write(out)
    return omitted


def compare_converted(
    tf_path: Path, path: Path, rules: Any = None, progress: Progress | None = None
) -> tuple[dict[str, StoredTensor], dict[str, StoredTensor], list[str]] | None:
    """Convert one of two files in memory; return the tensors of both under equal names.

    If `path` was converted from TensorFlow, `tf_path` is converted. Both then have the names of a
    thalweg file. If not, `path` is converted, and both have TensorFlow's names.

    Args:
        tf_path: A file of TensorFlow or Keras.
        path: A thalweg file.
        rules: Optional. The rules of `convert`; by default the rules in a converted file.
        progress: `progress(bytes_read, total_bytes)` is called during reading.

    Returns:
        {name: tensor} of `tf_path`, {name: tensor} of `path`, and lines about entries that cannot
        be converted and about different step counts. None if `path` has no training, or if `path`
        was not converted and `tf_path` is a Keras file.

    Raises:
        ThalwegError: The files are damaged, or cannot be converted.
    """
    contents = container.read(path, progress=progress)
    document = contents.document
    if document.get("kind") != TRAINING:
        return None
    origin, mapping = as_object(document.get("extra")).get(_ORIGIN), Rules.of(rules)
    if isinstance(origin, dict):
        checkpoint = load(tf_path, progress)
        counter, optimizer = _step_counter(checkpoint), None
        variables = {} if counter is None else {GLOBAL_STEP: counter}
        if "optimizer" in document:
            optimizer = optimizer_config.make_optimizer(document["optimizer"], variables)
        if mapping is None and isinstance(document.get(_NAMES), dict):
            names = as_object(document[_NAMES])
            mapping = Rules(function=lambda name: _rule_result(names.get(name)))
        snapshot, omitted = _import(checkpoint, mapping or SAME, optimizer, None, counter, {})
        lines = [f"{name!r} is in {os.fspath(tf_path)} only" for name in omitted]
        steps = as_object(snapshot.document["extra"])[_ORIGIN][GLOBAL_STEP]
        if steps != as_object(origin).get(GLOBAL_STEP):
            lines.append(f"{GLOBAL_STEP} is {steps} and {as_object(origin).get(GLOBAL_STEP)}")
        return snapshot.stored_tensors(), contents.tensors, lines
    if locate_checkpoint(tf_path).check_readable().writer != "tensorflow":
        return None
    tf_contents = bundle.read(tf_path, progress=progress)
    arguments, omitted = _export_arguments(
        path, mapping, "tf1" if tf_contents.graph is None else "tf2", progress
    )
    return (
        tf_contents.tensors,
        tensors_of(**arguments)[0],
        [f"{name!r} is in {os.fspath(path)} only" for name in omitted],
    )


def _step_counter(checkpoint: TensorFlowCheckpoint) -> Variable | None:
    """Return a new variable for the file's step count; None if the file has none."""
    if checkpoint.step is None:
        return None
    return Variable(np.int64(0), GLOBAL_STEP, trainable=False)


def _rule_result(entry: Any) -> str | tuple[str, str] | None:
    """Return [target, axes] of a converted file in the form of a rule function's result."""
    match entry:
        case [str() as target, None]:
            return target
        case [str() as target, [*axes]]:
            return target, " ".join(("transpose", *map(str, axes)))
        case _:
            return None


def _import(
    checkpoint: TensorFlowCheckpoint,
    rules: Rules,
    optimizer: Any,
    index: int | None,
    counter: Variable | None,
    hyperparameters: dict[str, object],
) -> tuple[save_restore.Snapshot, tuple[str, ...]]:
    """Return (snapshot of a TensorFlow file's contents, names of omitted entries).

    `optimizer`, `index` and `hyperparameters` are `optimizer`, `which` and keywords of `restore`.
    Names in the snapshot are from `rules`. If `counter` is not None, it is set to the step count.
    """
    targets = _find_destinations(checkpoint, rules)
    variables = _empty_variables(checkpoint, targets)
    checkpoint, detected = choose_optimizer(
        checkpoint, TargetTensors.of(variables), optimizer, index, hyperparameters
    )
    choice = False if optimizer is None and detected is None else optimizer
    opt = restore(
        checkpoint, variables, rules, choice, which=index, global_step=counter, **hyperparameters
    )
    if counter is not None and getattr(opt, "_global_step", None) is counter:
        variables[GLOBAL_STEP] = counter
    step = None if counter is None else counter.item()
    origin: dict[str, Any] = {"kind": checkpoint.kind, GLOBAL_STEP: step}
    if detected is not None and detected.loss_scale:
        values = detected.loss_scale.items()
        origin[_LOSS_SCALE] = {name: tensor.array().item() for name, tensor in values}
    if averages := _carried_averages(checkpoint, targets):
        origin[_AVERAGES] = {
            str(targets[name].target): with_axes(tensor.tensor(), targets[name].axes)
            for name, tensor in averages.items()
        }
    omitted = _omitted_names(checkpoint, targets, detected, has_steps=counter is not None)
    snapshot = save_restore.take_snapshot(
        optimizer=opt, variables=variables, extra={_ORIGIN: origin}, copies=False
    )
    # `thalweg diff` needs the names to find the variables.
    if not rules.keep_names:
        names = {
            name: [destination.target, destination.axes] for name, destination in targets.items()
        }
        snapshot = replace(snapshot, document={**snapshot.document, _NAMES: names})
    return snapshot, omitted


def _carried_averages(
    checkpoint: TensorFlowCheckpoint, destinations: Mapping[str, Place]
) -> dict[str, StoredTensor]:
    """Return {name of the variable in TensorFlow: moving average} of the converted averages."""
    return {
        name: tensor
        for name, tensor in checkpoint.averages.items()
        if name in destinations and tensor.shape == checkpoint.variables[name].shape
    }


def _omitted_names(
    checkpoint: TensorFlowCheckpoint,
    destinations: Mapping[str, Place],
    detected: FoundOptimizer | None,
    has_steps: bool,
) -> tuple[str, ...]:
    """Return the names of tensors that are not converted, except "save_counter".

    The variables in `destinations` and the optimizer `detected` are converted; step counters, too,
    if `has_steps` is True. If the file has an optimizer's class but no state, the last element is a
    text with this class.
    """
    tensors, notes = checkpoint.tensors(), tuple[str, ...]()
    class_name = getattr(checkpoint.source, "class_name", None)
    if detected is None and class_name is not None:
        notes = (f"{class_name}, of which there is no state",)
    variables = checkpoint.variables.items()
    carried = [tensor for name, tensor in variables if name in destinations]
    carried += _carried_averages(checkpoint, destinations).values()
    if has_steps:
        counters = checkpoint.counters
        exact = [name for name in counters if name.rpartition("/")[2] == GLOBAL_STEP]
        carried += [counters[name] for name in exact or counters]
    if detected is not None:
        carried += _carried_of_optimizer(checkpoint, destinations, detected)
    if checkpoint.mixed is not None:
        carried += checkpoint.mixed.averages
    carried_ids = set(map(id, carried))
    names = (name for name, tensor in tensors.items() if id(tensor) not in carried_ids)
    names = (name for name in names if not name.startswith(SAVE_COUNTER))
    return (*names, *checkpoint.texts, *notes)


def _carried_of_optimizer(
    checkpoint: TensorFlowCheckpoint, destinations: Mapping[str, Place], detected: FoundOptimizer
) -> list[StoredTensor]:
    """Return the tensors in the file that belong to the optimizer `detected` and are converted.

    Only slots of variables that `destinations` lacks are not converted. Scalars, such as powers of
    betas, count as converted: the arguments of the new optimizer replace them.
    """
    source, slots = checkpoint.source, detected.slots
    tensors = source.optimizer if isinstance(source, KerasFile) else checkpoint.tensors()
    carried = [*detected.loss_scale.values(), *detected.scalars.values()]
    prefix = {"object": f"{detected.name}/", "saver": None}.get(checkpoint.kind, "")
    if prefix is not None:
        carried += [tensors[name] for name in tensors if name.startswith(prefix)]
    # The prefix is also that of slots of omitted variables.
    omitted_ids: set[int] = set()
    for name, by_kind in slots.items():
        if name in destinations:
            carried += by_kind.values()
        else:
            omitted_ids |= {id(slot) for slot in by_kind.values()}
    return [tensor for tensor in carried if id(tensor) not in omitted_ids]


def _find_destinations(checkpoint: TensorFlowCheckpoint, rules: Rules) -> dict[str, Place]:
    """Return {name in TensorFlow: destination} of all variables that rules do not omit.

    Raises:
        CheckpointMismatchError: No rule matches a variable, or the variable's axes do not fit.
        UnsupportedCheckpointError: The file has float32 masters.
    """
    if checkpoint.mixed is not None and checkpoint.mixed.masters:
        raise UnsupportedCheckpointError(
            f"{checkpoint.path} has float32 masters, which belong to a step of optimize_loss: make"
            " it, give it to thalweg.checkpoint.tensorflow.restore(..., optimizer=step), and save"
            " with thalweg.checkpoint.save."
        )
    destinations: dict[str, Place] = {}
    missing: list[str] = []
    for name, tensor in checkpoint.variables.items():
        alias = checkpoint.other_names.get(name)
        destination = rules.place(name) or (rules.place(alias) if alias else None)
        shape = None if destination is None else permute_shape(tensor.shape, destination.axes)
        if shape is None or destination is None:
            advice = "" if destination else f" ('{name} -> {name}' keeps its name)"
            missing.append(f"no rule that fits is for {name!r}{advice}")
        elif destination.target is not None:
            destinations[name] = destination
    state.raise_mismatch(missing, checkpoint.path, "Nothing was written.")
    return destinations


def _empty_variables(
    checkpoint: TensorFlowCheckpoint, destinations: Mapping[str, Place]
) -> dict[str, Tensor]:
    """Return {target name: new variable of zeros}. Axes are permuted as in `destinations`."""
    variables: dict[str, Tensor] = {}
    for name, destination in destinations.items():
        tensor, target = checkpoint.variables[name], str(destination.target)
        shape = permute_shape(tensor.shape, destination.axes) or ()
        zeros = torch.zeros(shape, dtype=dtype_of(tensor.dtype), device="cpu")
        variables[target] = Variable(zeros, target)
    return variables


def _export_arguments(
    path: Path, rules: Rules | None, kind: object, progress: Progress | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read a thalweg file; return (keyword arguments of `save`, names of omitted parts).

    The arguments lack `prefix` and `progress`. The optimizer and the variables are new objects with
    the contents of the file. `rules` and `kind` are as for `save`.
    """
    variables, is_exportable = _empty_from_file(path)
    choice: Any = None if is_exportable else False
    training = save_restore.restore(path, variables=variables, optimizer=choice, progress=progress)
    opt, extra = training.optimizer, as_object(training.extra)
    origin = as_object(extra.get(_ORIGIN))
    steps, averages = origin.get(GLOBAL_STEP), as_object(origin.get(_AVERAGES))
    step = variables.pop(GLOBAL_STEP, None)
    if step is None and isinstance(steps, int):
        step = Variable(np.int64(steps), GLOBAL_STEP, trainable=False)
    if rules is None and _ORIGIN in extra:
        # The variables have TensorFlow's names already.
        rules = SAME
    omitted = [*training.left, *(f"metrics/{name}" for name in training.metrics)]
    omitted += [f"extra/{name}" for name in extra if name != _ORIGIN]
    omitted += ["extra"] * (training.extra is not None and not isinstance(training.extra, dict))
    if kind != "tf1":
        omitted += [f"extra/{_ORIGIN}/{_AVERAGES}/{name}" for name in averages]
        averages = {}
    arguments = {"optimizer": opt, "variables": variables, "rules": rules, "kind": kind}
    step = step if kind == "tf1" else None
    return {**arguments, "global_step": step, "averages": averages}, tuple(omitted)


def _empty_from_file(path: Path) -> tuple[dict[str, Variable], bool]:
    """Return ({name: variable filled with zeros}, True if the optimizer can be exported)."""
    location = locate_checkpoint(path).check_readable()
    if location.kind is not PathKind.OURS:
        raise UnsupportedCheckpointError(
            f"{location.path} is a checkpoint of {location.of}, and only one of thalweg is turned"
            ' into one of TensorFlow: convert it to="thalweg" first.'
        )
    description = container.describe(location.path)
    tensors = {
        name: torch.zeros(header.shape, dtype=dtype_of(header.dtype), device="cpu")
        for name, header in description.tensors.items()
    }
    decoded: Any = JsonReader(tensors)(description.document.get("variables", {}))
    variables = as_object(decoded)
    are_tensors = all(isinstance(tensor, Tensor) for tensor in variables.values())
    if not isinstance(decoded, dict) or not are_tensors:
        raise InvalidConfigError(
            f"{os.fspath(path)} is no checkpoint of a training: its 'variables' are no tensors by"
            " name."
        )
    optimizer = as_object(description.document.get("optimizer")).get("class")
    is_torchs = isinstance(optimizer, str) and optimizer.startswith(OF_TORCH)
    return {name: Variable(tensor, name) for name, tensor in variables.items()}, not is_torchs
