"""Step and arguments of a thalweg file, for listings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from thalweg._formats import container
from thalweg._formats.atomic_write import Path
from thalweg._formats.header import Description
from thalweg._formats.json_text import as_object
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.checkpoint import json_encoding as kinds
from thalweg.checkpoint import optimizer_config
from thalweg.checkpoint.step_inference import steps_of
from thalweg.errors import DataLossError

_INTEGER_DTYPES, _POWER_DTYPES = ("I64", "I32"), {"F32": np.float32, "F64": np.float64}
# The beta that is closer to 1 first: its power underflows later.
_POWERS = {"beta2_power": "beta2", "beta1_power": "beta1"}
_COUNTERS = ("iterations", "global_step")


def step_of(path: Path, description: Description) -> int | None:
    """Return the step count that a file records, or None.

    The first count that exists is returned, of these: "step" in the header, from a
    `CheckpointManager`; the integer scalar `iterations`, from Keras; the integer scalar
    `global_step`; the exponent of a saved power of beta2 or beta1, whose base is an argument of the
    optimizer in the header. No other tensors are read. Damaged tensors give None.

    Args:
        path: The file.
        description: The header of the file.
    """
    document = description.document
    if type(document.get("step")) is int:
        return document["step"]
    state, variables = as_object(document.get("state")), as_object(document.get("variables"))
    names = [_tensor_name(part, name) for name in _COUNTERS for part in (state, variables)]
    counters = [name for name in (*names, *_COUNTERS) if name in description.tensors]
    powers = {_tensor_name(state, power): beta for power, beta in _POWERS.items()}
    scalars = {name for name in (*counters, *powers) if name in description.tensors}
    scalars = {name for name in scalars if not description.tensors[name].shape}
    if not scalars:
        return None
    try:
        tensors = container.read(path, scalars).tensors
    except DataLossError:  # Listing needs only the header, which is intact.
        return None
    count = _first_count(tensors, counters)
    return _steps_from_powers(document, tensors, powers) if count is None else count


def _first_count(stored_tensors: Mapping[str, StoredTensor], counters: Sequence[str]) -> int | None:
    """Return the first integer among the tensors called `counters`, or None if there is none."""
    for name in counters:
        if name in stored_tensors and stored_tensors[name].dtype in _INTEGER_DTYPES:
            return int(stored_tensors[name].tensor())
    return None


def _steps_from_powers(
    document: Mapping[str, object], scalars: Mapping[str, StoredTensor], powers: Mapping[str, str]
) -> int | None:
    """Return the step count that a beta power implies, or None.

    `powers` maps the argument of each beta to the name of its power.
    """
    arguments = as_object(as_object(document.get("optimizer")).get("arguments"))
    for name, beta in powers.items():
        dtype = _POWER_DTYPES.get(scalars[name].dtype) if name in scalars else None
        argument = _find_argument(arguments, beta)
        if dtype is not None and type(argument) in (int, float):
            count = steps_of(dtype(scalars[name].tensor().item()), dtype(argument))
            if count is not None:
                return count
    return None


def _tensor_name(fields: Mapping[str, object], name: str) -> str:
    """Return the name of the tensor at a key of nested JSON objects; "" if there is none."""
    tensor_name = as_object(fields.get(name)).get(kinds.TENSOR)
    if isinstance(tensor_name, str):
        return tensor_name
    names = (_tensor_name(as_object(nested), name) for nested in fields.values())
    return next(filter(None, names), "")


def _find_argument(arguments: Mapping[str, object], name: str) -> Any:
    """Return an argument of an optimizer, or of one that it wraps; None if neither has it."""
    if name in arguments:
        return arguments[name]
    nested_arguments = [
        as_object(as_object(as_object(argument).get(optimizer_config.OPTIMIZER)).get("arguments"))
        for argument in arguments.values()
    ]
    candidates = (_find_argument(arguments, name) for arguments in nested_arguments)
    return next((candidate for candidate in candidates if candidate is not None), None)


def format_arguments(encoded: Any) -> str:
    """Return arguments as text: "learning_rate=0.1, beta_1=0.9"; without those that are None."""
    arguments = as_object(encoded).items()
    return ", ".join(f"{name}={in_words(x)}" for name, x in arguments if x is not None)


def in_words(encoded: Any) -> str:
    """Return a value of an optimizer description as text, such as "ExponentialDecay(...)"."""
    if isinstance(encoded, list):
        return f"[{', '.join(map(in_words, cast(list[Any], encoded)))}]"
    fields = as_object(encoded)
    mark = next(iter(fields), "")
    content = fields.get(mark)
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
            return f"{{{format_arguments(encoded)}}}" if isinstance(encoded, dict) else str(encoded)
