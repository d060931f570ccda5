"""An optimizer made of what a file tells, and of what its user tells."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
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
from thalweg.checkpoint.tensorflow.detection.keras_config import INSIDE
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


def class_of(found: FoundOptimizer, path: str) -> type[Any]:
    """Return the class of an optimizer that was found.

    Raises:
        CheckpointMismatchError: The file does not tell what it is.
        UnsupportedCheckpointError: It did what none here does.
    """
    if found.family is None:
        likely = f": {' or '.join(found.candidates)}" if found.candidates else ""
        why = "".join(f"; {each}" for each in found.lost)
        raise CheckpointMismatchError(
            f"{found.name!r} ({found.evidence}) fits no optimizer for certain{likely}{why}. Give"
            " restore(..., optimizer=...), a class or an optimizer; optimizer=False reads the"
            " variables alone. Nothing was loaded."
        )
    refuse_options(found, path)
    name = found.family.cls
    if INSIDE in found.notes:
        warn(f"{path}: {INSIDE}.", NumericsWarning)
    if found.face == "keras":
        return getattr(keras, name)
    if name == "NovoGrad":
        return NovoGrad
    return getattr(train if name in train.__all__ else contrib, name)


def refuse_options(found: FoundOptimizer, path: str) -> None:
    """Refuse to make an optimizer that would leave out what the file's did.

    Raises:
        UnsupportedCheckpointError: It did what none here does.
    """
    if found.refused:
        raise UnsupportedCheckpointError(
            f"{path}: {found.name!r} had {', '.join(found.refused)}, which the optimizers of"
            " thalweg.keras do not do. Make an optimizer and give it to restore as optimizer=, to"
            " go on without that. Nothing was loaded."
        )


def refuse_lost(found: FoundOptimizer) -> None:
    """Refuse to go on with an optimizer of whose slots some would be left behind.

    Raises:
        CheckpointMismatchError: Says which.
    """
    if found.lost:
        raise CheckpointMismatchError(
            f"{found.name!r} ({found.evidence}): {'; '.join(found.lost)}. Give restore(...,"
            " optimizer=False), which reads the variables alone. Nothing was loaded."
        )


def families_of(cls: type[object], given: Mapping[str, object]) -> list[Family]:
    """Return the slot families of a class of `thalweg.v1`, titled with its name argument."""
    known = [base.__name__ for base in cls.__mro__]
    title = given.get("name") or _default_arguments(cls).get("name")
    return [
        replace(family, title=title or family.title)
        for name in known[:1] + [each for each in known[1:] if _is_known(each)][:1]
        for family in V1
        if family.cls == name
    ]


def family_of(optimizer: train.Optimizer, var: Tensor) -> Family:
    """Return the slots that an optimizer of `thalweg.v1` keeps for a variable, with their names."""
    twin: Any = state.staged(optimizer)
    twin._create_slots([var])
    names: dict[str, str] = {}
    for kind, slot in twin._slots.all_of(var).items():
        part = name_of(slot).split(":")[0].removeprefix(f"{base_name(var)}/")
        stem, _, number = part.rpartition("_")
        names[kind] = stem if number.isdecimal() and stem in names.values() else part
    names = {kind: part for kind, part in names.items() if "/" not in part}
    powers = tuple(sorted({name for name, _ in twin._non_slots}))
    return Family(type(optimizer).__name__, optimizer.get_name(), tuple(names), powers, names=names)


def make_optimizer(
    cls: type[object], found: FoundOptimizer | None, given: Mapping[str, object], path: str
) -> Any:
    """Return an optimizer of a class.

    Args:
        cls: The class.
        found: What the file has of it.
        given: Arguments of its constructor that the user gave.
        path: The file.

    Raises:
        OptionError: An argument is needed that neither the file nor the user gives, or unknown.
        CheckpointMismatchError: The user gives another value than the file has.
        InvalidConfigError: A value is none that the optimizer takes.
    """
    known = {} if found is None else _arguments_in_file(cls, found)
    refuse_contradictions(known, given)
    arguments = {**known, **given}
    accepted = _accepted_arguments(cls)
    for name in given.keys() - accepted:
        hint = did_you_mean(name, accepted)
        takes = f"It takes {listed(sorted(accepted))}."
        raise OptionError(f"{cls.__name__} takes no {name!r}. {hint or takes}")
    needed = dict.fromkeys(_needed_arguments(cls, found, accepted))
    missing = [name for name in needed if name not in arguments]
    if missing:
        wanted = ", ".join(f"{name}=..." for name in missing)
        notes = "".join(f"; {note}" for note in (found.notes if found else ()))
        raise OptionError(
            f"{path} does not hold {' and '.join(missing)} of {cls.__name__}{notes}: give"
            f" restore(..., {wanted})."
        )
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        kind = found.family.cls if found is not None and found.family is not None else cls.__name__
        other = f" The file's is {kind}." if kind != cls.__name__ else ""
        raise InvalidConfigError(
            f"{path}: {cls.__name__} cannot be made: {error}{other}"
        ) from error


def _needed_arguments(
    cls: type[object], found: FoundOptimizer | None, accepted: set[str]
) -> Iterator[str]:
    """What neither a default nor a guess may stand for."""
    yield from _required_arguments(cls)
    if "learning_rate" in accepted:
        yield "learning_rate"
    if found is None:
        return
    slots = () if found.family is None else found.family.slots
    if issubclass(cls, keras.Optimizer) and "momentum" in slots and "momentum" in accepted:
        yield "momentum"
    yield from (name for name in found.unclear if name in accepted)


def make_wrapped(
    cls: type[object],
    found: FoundOptimizer | None,
    given: Mapping[str, Any],
    file: TensorFlowCheckpoint,
) -> Any:
    """Return the optimizer that `make_optimizer` makes; for a file with masters, the masters'
    optimizer.

    Raises:
        OptionError: The loss scale is fixed and not given as `loss_scale`.
    """
    mixed = file.mixed
    if mixed is None or not mixed.masters:
        return make_optimizer(cls, found, given, file.path)
    own = {name: given[name] for name in given if name not in _SCALING}
    params = given.get("loss_scaling_params")
    if not mixed.scaler and "loss_scale" not in given:
        raise OptionError(
            f"{file.path} has masters and no loss scale: give restore(..., loss_scale=...)."
        )
    scale = AutomaticLossScaler(mixed.scaler, params) if mixed.scaler else given["loss_scale"]
    return MixedPrecisionOptimizerWrapper(make_optimizer(cls, found, own, file.path), scale)


def refuse_contradictions(known: Mapping[str, object], given: Mapping[str, object]) -> None:
    """Refuse values that differ from the file's, where they can be compared.

    Raises:
        CheckpointMismatchError: Lists them.
    """
    found = [
        f"{name} is {show_value(known[name])} in the file, not {show_value(given[name])}"
        for name in known
        if name in given and _are_different(known[name], given[name])
    ]
    if found:
        raise state.mismatch(found)


def _are_different(one: object, other: object) -> bool:
    if isinstance(one, bool | str) or isinstance(other, bool | str):
        return one != other
    with np.errstate(over="ignore"):  # a file may have any number
        return is_number(one) and is_number(other) and np.float32(one) != np.float32(other)


def _arguments_in_file(cls: type[object], found: FoundOptimizer) -> dict[str, object]:
    """What the file has, by the names of the constructor."""
    known = dict(found.hyperparameters)
    if issubclass(cls, keras.Nadam) and "decay" in known:
        known["schedule_decay"] = known.pop("decay")
    if found.title and found.title != _default_arguments(cls).get("name"):
        known["name"] = found.title
    return known


def _parameters_of(cls: type[object]) -> Sequence[inspect.Parameter]:
    return list(inspect.signature(cls).parameters.values())


def _accepted_arguments(cls: type[object]) -> set[str]:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    own = {each.name for each in _parameters_of(cls) if each.kind not in kinds}
    options = {"clipnorm", "clipvalue", "global_clipnorm", "decay", "schedule_decay"}
    return own | options if issubclass(cls, keras.Optimizer) else own


def _required_arguments(cls: type[object]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        each.name
        for each in _parameters_of(cls)
        if each.kind in kinds and each.default is inspect.Parameter.empty
    ]


def _default_arguments(cls: type[object]) -> dict[str, object]:
    return {
        each.name: each.default
        for each in _parameters_of(cls)
        if each.default is not inspect.Parameter.empty
    }


def _is_known(name: str) -> bool:
    return any(family.cls == name for family in V1)
