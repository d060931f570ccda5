"""A file of ours at a glance: the step of its training, and its arguments in words."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from thalweg._formats import container
from thalweg._formats.header import Description
from thalweg._formats.json_text import as_object
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.checkpoint import json_encoding as kinds
from thalweg.checkpoint import optimizer_config
from thalweg.checkpoint.step_inference import steps_of
from thalweg.errors import DataLossError

_WHOLE, _OF_POWERS = ("I64", "I32"), {"F32": np.float32, "F64": np.float64}
_POWERS = {"beta2_power": "beta2", "beta1_power": "beta1"}  # the slower one tells for longer
_COUNTERS = ("iterations", "global_step")


def step_of(path: str | os.PathLike[str], found: Description) -> int | None:
    """Return the step of a file: what a manager was told, or else what counts in it; None if
    nothing does.

    That is a Keras optimizer's `iterations`, the variable `global_step`, or how often the powers of
    beta were multiplied, where they still tell. No other tensors are read.

    Args:
        path: The file.
        found: What it says about itself.
    """
    document = found.document
    if type(document.get("step")) is int:
        return document["step"]
    state, variables = as_object(document.get("state")), as_object(document.get("variables"))
    places = [_tensor_name(each, name) for name in _COUNTERS for each in (state, variables)]
    counters = [name for name in (*places, *_COUNTERS) if name in found.tensors]
    powers = {_tensor_name(state, power): beta for power, beta in _POWERS.items()}
    scalars = {name for name in (*counters, *powers) if name in found.tensors}
    scalars = {name for name in scalars if not found.tensors[name].shape}
    if not scalars:
        return None
    try:
        tensors = container.read(path, scalars).tensors
    except DataLossError:  # the header is whole, and that is what was asked for
        return None
    count = _first_count(tensors, counters)
    return _steps_from_powers(document, tensors, powers) if count is None else count


def _first_count(tensors: Mapping[str, StoredTensor], counters: Sequence[str]) -> int | None:
    """The first of the counters that is a whole number."""
    for name in counters:
        if name in tensors and tensors[name].dtype in _WHOLE:
            return int(tensors[name].tensor())
    return None


def _steps_from_powers(
    document: Mapping[str, object], tensors: Mapping[str, StoredTensor], powers: Mapping[str, str]
) -> int | None:
    """How often one of the powers was multiplied by what the optimizer was given as beta."""
    arguments = as_object(as_object(document.get("optimizer")).get("arguments"))
    for name, beta in powers.items():
        kind = _OF_POWERS.get(tensors[name].dtype) if name in tensors else None
        value = _find_argument(arguments, beta)
        if kind is not None and type(value) in (int, float):
            count = steps_of(kind(tensors[name].tensor().item()), kind(value))
            if count is not None:
                return count
    return None


def _tensor_name(plain: Mapping[str, object], name: str) -> str:
    """The tensor behind a name, there or in what is wrapped; "" if there is none."""
    found = as_object(plain.get(name)).get(kinds.TENSOR)
    if isinstance(found, str):
        return found
    return next(filter(None, (_tensor_name(as_object(each), name) for each in plain.values())), "")


def _find_argument(arguments: Mapping[str, object], name: str) -> Any:
    """An argument of an optimizer, or of one that it wraps."""
    if name in arguments:
        return arguments[name]
    inner = [
        as_object(as_object(as_object(each).get(optimizer_config.OPTIMIZER)).get("arguments"))
        for each in arguments.values()
    ]
    return next(
        (found for each in inner if (found := _find_argument(each, name)) is not None), None
    )


def format_arguments(plain: Any) -> str:
    """Arguments in words: "learning_rate=0.1, beta_1=0.9"; those that are None are left out."""
    given = as_object(plain).items()
    return ", ".join(f"{name}={in_words(each)}" for name, each in given if each is not None)


def in_words(plain: Any) -> str:
    """Return a value of a description as one would write it."""
    if isinstance(plain, list):
        return f"[{', '.join(map(in_words, cast(list[Any], plain)))}]"
    own = as_object(plain)
    mark = next(iter(own), "")
    content = own.get(mark)
    inner = as_object(content)
    match mark:
        case optimizer_config.SCHEDULE:
            return f"{inner.get('class_name')}({format_arguments(inner.get('config'))})"
        case optimizer_config.RATE:
            return f"{inner.get('function')}({format_arguments(inner.get('arguments'))})"
        case optimizer_config.OPTIMIZER:
            return f"{inner.get('class')}({format_arguments(inner.get('arguments'))})"
        case optimizer_config.LOSS_SCALER:
            return f"AutomaticLossScaler({format_arguments(content)})"
        case optimizer_config.NUMBER | kinds.SCALAR if isinstance(content, list):
            return in_words(cast(list[Any], content)[-1]) if content else "[]"
        case (
            optimizer_config.RULE
            | optimizer_config.VARIABLE
            | optimizer_config.YOURS
            | kinds.FLOAT
            | kinds.TUPLE
        ):
            return in_words(content)
        case _:
            return f"{{{format_arguments(plain)}}}" if isinstance(plain, dict) else str(plain)
