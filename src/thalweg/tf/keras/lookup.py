"""Keras 3 under the names of `tf.keras`."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

from thalweg._base.execution_context import process, thread


def namespace() -> ModuleType:
    """Return Keras' module for `tf.keras`, which has old names such as `losses.mse`."""
    importlib.import_module("thalweg.integrations.keras3.backend").import_keras()
    importlib.import_module("thalweg.tf.keras.in_graph").lend()
    return importlib.import_module("keras._tf_keras.keras")


class Later:
    """Module of `tf.keras` that imports Keras at the first access to an attribute.

    Args:
        name: A module, such as "layers".
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        old = getattr(namespace(), self._name)
        # Names that did not change, such as `losses.mean_squared_error`, are in `keras` alone.
        modern = getattr(importlib.import_module("keras"), self._name, None)
        attribute = getattr(
            old if hasattr(old, name) or not hasattr(modern, name) else modern, name
        )
        # In eager mode Keras' own: it knows a loss that a model is saved with by its identity.
        builds_graph = thread.graphs or not process.eager
        if self._name == "losses" and builds_graph and inspect.isfunction(attribute):
            return importlib.import_module("thalweg.tf.keras.in_graph").recording(attribute)
        return attribute

    def __dir__(self) -> list[str]:
        return dir(getattr(namespace(), self._name))
