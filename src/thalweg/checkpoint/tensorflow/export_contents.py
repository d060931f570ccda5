"""Contents to export: variables with TensorFlow's names and axes, and their optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._base.showing import show_value
from thalweg._core import state
from thalweg._core.hyperparameters import is_number
from thalweg._formats.stored_tensor import StoredTensor, of_tensor
from thalweg.checkpoint.tensorflow.mapping.mapped_tensors import TargetTensors, with_axes
from thalweg.checkpoint.tensorflow.mapping.mapping_rules import Axes, Rules
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.keras.optimizers import Optimizer as KerasOptimizer
from thalweg.v1.train import Optimizer as V1Optimizer
from thalweg.v1.train.wrapping_optimizer import WrappingOptimizer
from thalweg.variable import check_held, to_tensor

KINDS = ("tf2", "tf1")


@dataclass(frozen=True)
class ExportContents:
    """Content of an exported checkpoint.

    Attributes:
        variables: {name in TensorFlow: variable}.
        slots: {name in TensorFlow: {slot name: slot}}, in order of creation.
        scalars: {TensorFlow's short name: scalar} of the optimizer.
        global_step: The step count, or None.
        averages: {name of the variable in TensorFlow: moving average}.
    """

    optimizer: Any
    variables: dict[str, StoredTensor]
    slots: dict[str, dict[str, StoredTensor]]
    scalars: dict[str, StoredTensor]
    global_step: StoredTensor | None
    averages: dict[str, StoredTensor]


def _copy_averages(
    averages: Mapping[str, Tensor], exported: Mapping[str, Any], kind: str
) -> dict[str, StoredTensor]:
    """Return {TensorFlow name of the variable: copy of its moving average}.

    `exported` is {variable: (TensorFlow name, axes)}. Raise CheckpointMismatchError if an average
    belongs to no variable, or if there are averages and `kind` is not "tf1".
    """
    copies: dict[str, StoredTensor] = {}
    for target, average in averages.items():
        if kind != "tf1" or target not in exported:
            why = "is of no variable" if kind == "tf1" else "has no place in a tf.train.Checkpoint"
            raise state.mismatch([f"the average {target!r} {why}"], outcome="Nothing was written.")
        name, axes = exported[target]
        copies[name] = _stored_copy(average, axes, f"The average of '{target}'")
    return copies


def copy_contents(
    optimizer: Any,
    targets: TargetTensors,
    rules: Rules | None,
    kind: str,
    global_step: Any,
    averages: Mapping[str, Tensor] | None = None,
) -> ExportContents:
    """Return copies of the variables and optimizer state to export.

    Args:
        targets: The variables to export, by name.
        rules: The rules for TensorFlow's names. With None, names are derived from `targets`.
        kind, global_step, averages: As for `save`.

    Raises:
        CheckpointMismatchError: A variable has no name in TensorFlow, two variables share a name,
            or a slot or an average belongs to a variable that is not in `targets`.
        InvalidTypeError: TensorFlow has no checkpoint of this class of optimizer.
        InvalidArgumentError: `kind` is unknown.
    """
    _check_kind(optimizer, kind)
    scope = "model/" if kind == "tf2" and rules is None else ""
    exported = _names_of_targets(targets, rules, scope)
    with nullcontext() if optimizer is None else optimizer._locked(), no_grad():
        by_id = {id(targets.tensors[target]): named for target, named in exported.items()}
        variables = {
            name: _stored_copy(targets.tensors[target], axes, f"'{target}'")
            for target, (name, axes) in exported.items()
        }
        # Slots follow their variables, found by identity: their names here may differ.
        slots: dict[str, dict[str, StoredTensor]] = {}
        missing: list[str] = []
        for var, kinds in _slots_by_variable(optimizer):
            if id(var) in by_id:
                name, axes = by_id[id(var)]
                slots[name] = {
                    kind: _stored_copy(slot, axes, f"'{name}/{kind}'")
                    for kind, slot in kinds.items()
                }
            else:
                missing.append(f"the optimizer has slots of {state.keys_of([var])[0]!r}")
        state.raise_mismatch(missing, outcome="It is not among the variables. Nothing was written.")
        ordered_slots = {name: slots[name] for name in variables if name in slots}
        scalars = {} if optimizer is None else _stored_scalars(optimizer)
    step = None if global_step is None else _stored_copy(global_step, None, "global_step")
    means = _copy_averages(averages or {}, exported, kind)
    return ExportContents(optimizer, variables, ordered_slots, scalars, step, means)


def _check_kind(optimizer: Any, kind: str) -> None:
    """Raise unless `kind` is "tf2" or "tf1", and this kind of checkpoint supports the optimizer."""
    if kind not in KINDS:
        raise InvalidArgumentError(
            f"kind must be one of {', '.join(KINDS)}, not {show_value(kind)}."
        )
    if isinstance(optimizer, WrappingOptimizer):
        raise InvalidTypeError(
            f"{type(optimizer).__name__} wraps another optimizer, which has the state: give that."
        )
    if not isinstance(optimizer, V1Optimizer | KerasOptimizer | None):
        raise InvalidTypeError(
            f"optimizer must be one of thalweg.v1 or thalweg.keras, not {show_value(optimizer)}."
        )
    if kind == "tf1" and isinstance(optimizer, KerasOptimizer):
        raise InvalidTypeError(
            "A tf.train.Saver is for optimizers of tf.train: write an optimizer of Keras as 'tf2'."
        )


def _names_of_targets(
    targets: TargetTensors, rules: Rules | None, scope: str
) -> dict[str, tuple[str, Axes | None]]:
    """Return {variable: (TensorFlow name, axes)}; without rules, names begin with `scope`."""
    exported: dict[str, tuple[str, Axes | None]] = {}
    differences: list[str] = []
    for target, tensor in targets.tensors.items():
        if rules is None:
            if target not in targets.optional:
                exported[target] = scope + target.replace(".", "/"), None
            continue
        named = rules.name(target)
        if named is not None and named[1] is not None and len(named[1]) != tensor.dim():
            differences.append(f"{target!r} has {tensor.dim()} axes, its rule {len(named[1])}")
        elif named is not None:
            exported[target] = named
        elif target not in targets.optional:
            differences.append(f"no rule says what {target!r} is called in TensorFlow")
    names = [name for name, _ in exported.values()]
    differences += [
        f"{name!r} would be several variables"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    state.raise_mismatch(differences, outcome="Nothing was written.")
    return exported


def _stored_copy(tensor: Tensor, axes: Axes | None, label: str) -> StoredTensor:
    """Return a copy with TensorFlow's order of axes; `label` names the tensor in errors."""
    inverse = None if axes is None else tuple(axes.index(axis) for axis in range(len(axes)))
    check_held(tensor, label)
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return of_tensor(with_axes(copy, inverse))


def _slots_by_variable(optimizer: Any) -> list[tuple[Tensor, dict[str, Any]]]:
    """Return (variable, {slot name: slot}) pairs of an optimizer; [] for None."""
    store = None if optimizer is None else optimizer._slots
    if store is not None:
        store.check_whole("written as a checkpoint of TensorFlow's")
    return [] if store is None else [(var, store.all_of(var)) for var in store.owners()]


def _stored_scalars(optimizer: Any) -> dict[str, StoredTensor]:
    """Return {TensorFlow's name: copy} of an optimizer's scalars."""
    if isinstance(optimizer, KerasOptimizer):
        return _keras_scalars(optimizer)
    return {entry.name: of_tensor(entry.read()) for entry in optimizer._own_entries()}


def _keras_scalars(optimizer: Any) -> dict[str, StoredTensor]:
    """Return {name: tensor} of "iter", constant hyperparameters and Nadam's "momentum_cache"."""
    scalars = {"iter": of_tensor(optimizer.iterations.detach().to(torch.int64))}
    for name in optimizer._hyper:
        variable = _hyper_variable(optimizer._hyper.raw(name))
        if variable is not None:
            scalars[name] = of_tensor(variable)
    for name, variable in optimizer._extra_weights().items():
        scalars[name] = of_tensor(variable.detach().clone())
    return scalars


def _hyper_variable(hyper: object) -> Tensor | None:
    """Return a hyperparameter as a scalar tensor; None for a schedule, callable or bool."""
    if isinstance(hyper, Tensor):
        return hyper.detach().clone() if hyper.dim() == 0 else None
    if isinstance(hyper, bool) or not is_number(hyper):
        return None
    return to_tensor(hyper)
