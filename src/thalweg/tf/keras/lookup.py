"""Keras 3 under the names that `tf.keras` has."""

from __future__ import annotations

import importlib
from types import ModuleType

from thalweg.integrations.keras3.backend import import_keras


def namespace() -> ModuleType:
    """The module that TensorFlow shows as `tf.keras`; it has old names such as `losses.mse` that
    `keras` itself does not have.
    """
    import_keras()
    return importlib.import_module("keras._tf_keras.keras")
