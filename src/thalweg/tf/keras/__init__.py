"""`tf.keras`: thalweg's optimizers, and everything else from Keras 3 on its torch backend.

Keras is imported when one of its names is first used. `compile` of models takes the optimizers
of `tf.keras.optimizers`, or their names.
"""

import importlib
from typing import Any

from thalweg.tf.keras import optimizers

_OWN = ("Model", "Sequential", "models")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _OWN:
        models = importlib.import_module("thalweg.tf.keras.models")
        return models if name == "models" else getattr(models, name)
    from thalweg.tf.keras.lookup import namespace

    return getattr(namespace(), name)
