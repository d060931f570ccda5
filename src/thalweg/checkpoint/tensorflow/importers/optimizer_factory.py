"""Creation of an optimizer from the file's and the user's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core import state
from thalweg._core.hyperparameters import is_number
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import (
    FoundOptimizer,
    TensorFlowCheckpoint,
)
from thalweg.checkpoint.tensorflow.detection.keras_config import EPSILON_NOTE
from thalweg.checkpoint.tensorflow.detection.slot_families import V1, Family
from thalweg.errors import (
    CheckpointMismatchError,
    InvalidConfigError,
    NumericsWarning,
    OptionError,
    UnsupportedCheckpointError,
    did_you_mean,
    listed,
    warn,
)
from thalweg.keras import optimizers as keras
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.v1 import train
from thalweg.v1.contrib import opt as contrib
from thalweg.v1.train.slot_creator import base_name
from thalweg.variable import name_of

_SCALING = ("loss_scale", "loss_scaling_params")


def class_of(detected: FoundOptimizer, path: str) -> type[Any]:
    """Return the class of this library for a detected optimizer.

    Raises:
        CheckpointMismatchError: The class cannot be determined.
        UnsupportedCheckpointError: The optimizer had options that this library lacks.
    """
    if detected.family is None:
        guesses = f": {' or '.join(detected.candidates)}" if detected.candidates else ""
        reasons = "".join(f"; {reason}" for reason in detected.lost)
        raise CheckpointMismatchError(
            f"{detected.name!r} ({detected.evidence}) fits no optimizer for certain"
            f"{guesses}{reasons}. Give restore(..., optimizer=...), a class or an optimizer;"
            " optimizer=False reads the variables alone. Nothing was loaded."
        )
    check_options(detected, path)
    name = detected.family.cls
    if EPSILON_NOTE in detected.notes:
        warn(f"{path}: {EPSILON_NOTE}.", NumericsWarning)
    if detected.face == "keras":
        return getattr(keras, name)
    if name == "NovoGrad":
        return NovoGrad
    return getattr(train if name in train.__all__ else contrib, name)


def check_options(detected: FoundOptimizer, path: str) -> None:
    """Raise UnsupportedCheckpointError if the file's optimizer had unsupported options."""
    if detected.refused:
        raise UnsupportedCheckpointError(
            f"{path}: {detected.name!r} had {', '.join(detected.refused)}, which the optimizers of"
            " thalweg.keras do not do. Make an optimizer and give it to restore as optimizer=, to"
            " go on without that. Nothing was loaded."
        )


def check_lost(detected: FoundOptimizer) -> None:
    """Raise CheckpointMismatchError with the reasons if slots cannot be assigned to variables."""
    if detected.lost:
        raise CheckpointMismatchError(
            f"{detected.name!r} ({detected.evidence}): {'; '.join(detected.lost)}. Give"
            " restore(..., optimizer=False), which reads the variables alone. Nothing was loaded."
        )


def families_of(cls: type[object], arguments: Mapping[str, object]) -> list[Family]:
    """Return the `Family` objects of a `thalweg.v1` class, then of its nearest known base class.

    Slots are named after the `title` of a `Family`: the argument `name`, or the class's default.
    """
    class_name, *base_names = (base.__name__ for base in cls.__mro__)
    known_bases = [name for name in base_names if any(family.cls == name for family in V1)]
    optimizer_name = arguments.get("name") or _default_name(cls)
    return [
        replace(family, title=optimizer_name or family.title)
        for name in (class_name, *known_bases[:1])
        for family in V1
        if family.cls == name
    ]


def family_of(optimizer: train.Optimizer, var: Tensor) -> Family:
    """Return the class and slot names of a `thalweg.v1` optimizer, for the variable `var`."""
    # Slots are created on a copy: only their names are needed.
    copy: Any = state.staged(optimizer)
    copy._create_slots([var])
    names: dict[str, str] = {}
    for kind, slot in copy._slots.all_of(var).items():
        slot_name = name_of(slot).split(":")[0].removeprefix(f"{base_name(var)}/")
        stem, _, suffix = slot_name.rpartition("_")
        names[kind] = stem if suffix.isdecimal() and stem in names.values() else slot_name
    names = {kind: slot_name for kind, slot_name in names.items() if "/" not in slot_name}
    powers = tuple(sorted({name for name, _ in copy._non_slots}))
    return Family(type(optimizer).__name__, optimizer.get_name(), tuple(names), powers, names=names)


def make_optimizer(
    cls: type[object], detected: FoundOptimizer | None, arguments: Mapping[str, object], path: str
) -> Any:
    """Return a new optimizer of a class.

    Args:
        detected: The optimizer in the file, whose hyperparameters become arguments, or None.
        arguments: The user's arguments of the constructor.

    Raises:
        OptionError: A required argument is missing, or an argument is unknown.
        CheckpointMismatchError: An argument differs from the file's.
        InvalidConfigError: The constructor rejects an argument.
    """
    file_arguments = {} if detected is None else _arguments_in_file(cls, detected)
    check_contradictions(file_arguments, arguments)
    all_arguments = {**file_arguments, **arguments}
    accepted = _accepted_arguments(cls)
    for name in arguments.keys() - accepted:
        advice = did_you_mean(name, accepted)
        accepts = f"It takes {listed(sorted(accepted))}."
        raise OptionError(f"{cls.__name__} takes no {name!r}. {advice or accepts}")
    required = dict.fromkeys(_needed_arguments(cls, detected, accepted))
    missing = [name for name in required if name not in all_arguments]
    if missing:
        example = ", ".join(f"{name}=..." for name in missing)
        notes = "".join(f"; {note}" for note in (detected.notes if detected else ()))
        raise OptionError(
            f"{path} does not hold {' and '.join(missing)} of {cls.__name__}{notes}: give"
            f" restore(..., {example})."
        )
    try:
        return cls(**all_arguments)
    except (TypeError, ValueError) as error:
        family = None if detected is None else detected.family
        kind = cls.__name__ if family is None else family.cls
        class_note = f" The file's is {kind}." if kind != cls.__name__ else ""
        raise InvalidConfigError(
            f"{path}: {cls.__name__} cannot be made: {error}{class_note}"
        ) from error


def _needed_arguments(
    cls: type[object], detected: FoundOptimizer | None, accepted: set[str]
) -> Iterator[str]:
    """Yield names of arguments in `accepted` that the file or the user must provide.

    These are arguments of `cls` without a default, `learning_rate`, `momentum` if a Keras file has
    slots for it, and arguments for which several values fit the file.
    """
    defaults = _constructor_defaults(cls).items()
    yield from (name for name, default in defaults if default is inspect.Parameter.empty)
    if "learning_rate" in accepted:
        yield "learning_rate"
    if detected is None:
        return
    slots = () if detected.family is None else detected.family.slots
    if issubclass(cls, keras.Optimizer) and "momentum" in slots and "momentum" in accepted:
        yield "momentum"
    yield from (name for name in detected.unclear if name in accepted)


def make_wrapped(
    cls: type[object],
    detected: FoundOptimizer | None,
    arguments: Mapping[str, Any],
    checkpoint: TensorFlowCheckpoint,
) -> Any:
    """Return a new optimizer. For a file with float32 masters, wrap it for mixed precision.

    Raises:
        OptionError: The file has masters but no loss scale, and `loss_scale` is not given.
    """
    mixed = checkpoint.mixed
    if mixed is None or not mixed.masters:
        return make_optimizer(cls, detected, arguments, checkpoint.path)
    inner_arguments = {name: arguments[name] for name in arguments if name not in _SCALING}
    params = arguments.get("loss_scaling_params")
    if not mixed.scaler and "loss_scale" not in arguments:
        raise OptionError(
            f"{checkpoint.path} has masters and no loss scale: give restore(..., loss_scale=...)."
        )
    scale = AutomaticLossScaler(mixed.scaler, params) if mixed.scaler else arguments["loss_scale"]
    optimizer = make_optimizer(cls, detected, inner_arguments, checkpoint.path)
    return MixedPrecisionOptimizerWrapper(optimizer, scale)


def check_contradictions(
    file_arguments: Mapping[str, object], arguments: Mapping[str, object]
) -> None:
    """Raise CheckpointMismatchError, with a list, if arguments differ from those in the file.

    Only numbers, booleans and text are compared.
    """
    problems = [
        f"{name} is {show_value(file_value)} in the file, not {show_value(arguments[name])}"
        for name, file_value in file_arguments.items()
        if name in arguments and _are_different(file_value, arguments[name])
    ]
    state.raise_mismatch(problems)


def _are_different(first: object, second: object) -> bool:
    """Return True if two arguments differ; schedules and callables equal everything."""
    if isinstance(first, bool | str) or isinstance(second, bool | str):
        return first != second
    # Files hold float32, so a difference beyond its digits does not count.
    with np.errstate(over="ignore"):
        return is_number(first) and is_number(second) and np.float32(first) != np.float32(second)


def _arguments_in_file(cls: type[object], detected: FoundOptimizer) -> dict[str, object]:
    """Return {constructor argument: value} of the file's hyperparameters."""
    arguments = dict(detected.hyperparameters)
    if issubclass(cls, keras.Nadam) and "decay" in arguments:
        arguments["schedule_decay"] = arguments.pop("decay")
    if detected.title and detected.title != _default_name(cls):
        arguments["name"] = detected.title
    return arguments


def _constructor_defaults(cls: type[object]) -> dict[str, object]:
    """Return {argument: default} of a constructor, without `*args` and `**kwargs`.

    The default of a required argument is `inspect.Parameter.empty`.
    """
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(cls).parameters.items()
    return {
        name: parameter.default for name, parameter in parameters if parameter.kind not in kinds
    }


def _default_name(cls: type[object]) -> str | None:
    """Return the default of a constructor's argument `name`; None if there is no default."""
    default = _constructor_defaults(cls).get("name")
    return default if isinstance(default, str) else None


def _accepted_arguments(cls: type[object]) -> set[str]:
    """Return the names of arguments that the constructor accepts."""
    names = {*_constructor_defaults(cls)}
    # Keras optimizers accept these as `**kwargs`, which a signature does not list.
    options = {"clipnorm", "clipvalue", "global_clipnorm", "decay", "schedule_decay"}
    return names | options if issubclass(cls, keras.Optimizer) else names
