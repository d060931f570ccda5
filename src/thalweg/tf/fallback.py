"""Names of `tf` that are found elsewhere: in TensorFlow 1, or in Keras."""

from __future__ import annotations

import importlib
from typing import Any

from thalweg._base.execution_context import executing_eagerly
from thalweg.tf.compat.deferred import find
from thalweg.tf.missing import not_provided
from thalweg.v1.summary.protos import PUBLIC as MESSAGES

_OF_BOTH = ("initializers", "losses", "metrics")  # in graph mode TensorFlow 1's


def anything_else(name: str) -> Any:
    """`tf.name`, where `tf` itself has no such name.

    Raises:
        AttributeError: It is not provided; says what to use instead.
    """
    if name == "optimizers" or (name in _OF_BOTH and executing_eagerly()):
        return getattr(importlib.import_module("thalweg.tf.keras"), name)
    if not name.startswith("_"):
        old = find("v1")
        if name in vars(old) or name in MESSAGES:
            return getattr(old, name)  # code for TensorFlow 1 has no compat.v1
    raise not_provided("", name)
