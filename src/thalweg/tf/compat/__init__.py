"""`tf.compat`: TensorFlow 1's API as `v1`."""

import importlib
from typing import Any

from thalweg.tf.missing import not_provided


def __getattr__(name: str) -> Any:
    if name == "v1":  # imported late: it needs all of `tf`
        return importlib.import_module("thalweg.tf.compat.v1")
    raise not_provided("compat", name)
