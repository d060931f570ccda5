"""`tf.keras.backend`: values of variables and the session of graph mode; settings are Keras 3's."""

from __future__ import annotations

import importlib
from typing import Any

from thalweg.keras.backend import (
    batch_get_value,
    batch_set_value,
    get_session,
    get_value,
    set_session,
    set_value,
)
from thalweg.tf.control import name_scope
from thalweg.tf.elementwise import cast
from thalweg.tf.missing import not_provided

__all__ = [
    "batch_get_value", "batch_set_value", "clear_session", "get_session", "get_value",
    "moving_average_update", "name_scope", "set_session", "set_value",
]  # fmt: skip

_SETTINGS = (
    "epsilon", "floatx", "get_uid", "image_data_format", "set_epsilon", "set_floatx",
    "set_image_data_format",
)  # fmt: skip


def clear_session() -> None:
    """Drop the session of `get_session`, and the global state of Keras 3."""
    set_session(None)
    _of_keras("clear_session")()


def moving_average_update(x: Any, value: Any, momentum: Any) -> Any:
    """Move the variable `x` towards `value` by the fraction 1 - momentum; return `x`."""
    fraction = 1 - cast(momentum, x.dtype)
    return x.assign_sub((x - cast(value, x.dtype)) * fraction)


def _of_keras(name: str) -> Any:
    # `namespace` imports Keras on its torch backend.
    importlib.import_module("thalweg.tf.keras.lookup").namespace()
    return getattr(importlib.import_module("keras.backend"), name)


def __getattr__(name: str) -> Any:
    if name in _SETTINGS:
        return _of_keras(name)
    raise not_provided("keras.backend", name)
