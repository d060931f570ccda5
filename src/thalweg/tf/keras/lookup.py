"""Keras 3 under the names that `tf.keras` has."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


def namespace() -> ModuleType:
    """The module that TensorFlow shows as `tf.keras`; it has old names such as `losses.mse` that
    `keras` itself does not have.
    """
    importlib.import_module("thalweg.integrations.keras3.backend").import_keras()
    importlib.import_module("thalweg.tf.keras.in_graph").lend()
    return importlib.import_module("keras._tf_keras.keras")


class Later:
    """What `tf.keras` has under a name, of which Keras is imported when something is asked.

    Args:
        name: A module, such as "layers".
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        old = getattr(namespace(), self._name)
        # Names that did not change, such as `losses.mean_squared_error`, are in `keras` alone.
        now = getattr(importlib.import_module("keras"), self._name, None)
        return getattr(old if hasattr(old, name) or not hasattr(now, name) else now, name)

    def __dir__(self) -> list[str]:
        return dir(getattr(namespace(), self._name))
