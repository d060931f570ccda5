"""Names of `tf` that are found elsewhere: in Keras, or in TensorFlow 1."""

from __future__ import annotations

import importlib
from typing import Any

from thalweg.tf.missing import not_provided

_OF_KERAS = ("initializers", "losses", "metrics", "optimizers")


def anything_else(name: str) -> Any:
    """`tf.name`, where `tf` itself has no such name.

    Raises:
        AttributeError: It is not provided; says what to use instead.
    """
    if name in _OF_KERAS:
        return getattr(importlib.import_module("thalweg.tf.keras"), name)
    if not name.startswith("_"):
        old = importlib.import_module("thalweg.tf.compat.v1")  # imported late: it needs `tf`
        if name in vars(old):
            return getattr(old, name)  # code for TensorFlow 1 has no compat.v1
    raise not_provided("", name)
