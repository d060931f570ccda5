"""Arguments of optimizers in words, the same on all ranks if the arguments are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

from thalweg.formula import Rule


def in_words(arguments: Mapping[str, object]) -> list[str]:
    """Return a line for each argument; numbers as float32, which is what steps compute with.

    Functions count by their names, and what has a `get_config` by that.
    """
    return [f"{name}: {_describe_value(value)}" for name, value in arguments.items()]


def _describe_value(value: object) -> str:
    if isinstance(value, float | np.floating):
        return repr(float(np.float32(value)))
    if value is None or isinstance(value, bool | int | str | np.integer):
        return str(value)
    if isinstance(value, Tensor):
        return (
            _describe_value(value.item())
            if not value.dim()
            else f"a tensor of {tuple(value.shape)}"
        )
    if isinstance(value, Rule):
        return value.name
    if isinstance(value, Mapping):
        return f"{{{', '.join(_describe_pairs(value))}}}"
    if isinstance(value, frozenset | set):
        return f"[{', '.join(sorted(map(_describe_value, value)))}]"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_describe_value, value))}]"
    config = getattr(value, "get_config", None)
    if config is not None and not isinstance(value, type):
        return f"{type(value).__name__} {_describe_value(config())}"
    return getattr(value, "__qualname__", type(value).__qualname__)


def _describe_pairs(value: Mapping[object, object]) -> Iterator[str]:
    return (f"{name}: {_describe_value(each)}" for name, each in value.items())
