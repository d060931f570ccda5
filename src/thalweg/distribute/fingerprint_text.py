"""Text of optimizer arguments that is equal on all ranks for equal arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from thalweg.formula import Rule


def in_words(arguments: Mapping[str, object]) -> list[str]:
    """Return one line "name: value" per argument, for comparison between ranks.

    Floats are rounded to float32, in which steps compute. Functions are described by name, objects
    with `get_config` by their configuration.
    """
    return [f"{name}: {_describe_value(value)}" for name, value in arguments.items()]


def _describe_value(argument: object) -> str:
    """Return an argument as text: functions by name, objects with `get_config` by that."""
    if isinstance(argument, float | np.floating):
        return repr(float(np.float32(argument)))
    if argument is None or isinstance(argument, bool | int | str | np.integer):
        return str(argument)
    if isinstance(argument, Tensor):
        return (
            _describe_value(argument.item())
            if not argument.dim()
            else f"a tensor of {tuple(argument.shape)}"
        )
    if isinstance(argument, Rule):
        return argument.name
    if isinstance(argument, Mapping):
        pairs = (f"{name}: {_describe_value(entry)}" for name, entry in argument.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(argument, frozenset | set):
        return f"[{', '.join(sorted(map(_describe_value, argument)))}]"
    if isinstance(argument, Sequence):
        return f"[{', '.join(map(_describe_value, argument))}]"
    config = getattr(argument, "get_config", None)
    if config is not None and not isinstance(argument, type):
        return f"{type(argument).__name__} {_describe_value(config())}"
    return getattr(argument, "__qualname__", type(argument).__qualname__)
