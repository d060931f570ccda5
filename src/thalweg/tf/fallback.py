"""Names of `tf` from TensorFlow 1 or Keras."""

from __future__ import annotations

import importlib
from typing import Any

from thalweg._base.execution_context import executing_eagerly
from thalweg.tf.compat.deferred import find
from thalweg.tf.missing import not_provided
from thalweg.v1.summary.protos import PUBLIC as MESSAGES

# In graph mode these names are TensorFlow 1's modules.
_KERAS_MODULES = ("initializers", "losses", "metrics")


def anything_else(name: str) -> Any:
    """Return the attribute `name` of Keras or TensorFlow 1, for names that `tf` does not define.

    Raises:
        AttributeError: There is no such name; the message suggests a replacement.
    """
    if name == "optimizers" or (name in _KERAS_MODULES and executing_eagerly()):
        return getattr(importlib.import_module("thalweg.tf.keras"), name)
    if not name.startswith("_"):
        old = find("v1")
        if name in vars(old) or name in MESSAGES:
            # Code for TensorFlow 1 has these names on `tf`, without compat.v1.
            return getattr(old, name)
    raise not_provided("", name)
