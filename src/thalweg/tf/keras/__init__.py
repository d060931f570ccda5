"""`tf.keras`: thalweg's optimizers; all further names are from Keras 3 with the torch backend.

The first use of a name of Keras imports Keras. `compile` of models takes the optimizers of
`tf.keras.optimizers`, or names of optimizers.
"""

import importlib
import sys
from typing import Any

from thalweg.tf.keras import backend, optimizers
from thalweg.tf.keras.lookup import Later as _Later
from thalweg.tf.keras.lookup import namespace as _namespace
from thalweg.tf.module_views import View as _View

_MODEL_NAMES = ("Model", "Sequential", "models")
_MODULES = (
    "activations applications callbacks constraints datasets initializers layers losses metrics"
    " mixed_precision ops preprocessing random regularizers utils"
)
# For `from thalweg.tf.keras.layers import Dense`.
for _name in _MODULES.split():
    sys.modules[f"{__name__}.{_name}"] = _View(f"{__name__}.{_name}", _Later(_name))


def __getattr__(name: str) -> Any:
    # Introspection reads such names and must not import Keras.
    if name.startswith("_"):
        raise AttributeError(name)
    namespace = _namespace()
    if name in _MODEL_NAMES:
        models = importlib.import_module("thalweg.tf.keras.models")
        return models if name == "models" else getattr(models, name)
    return sys.modules.get(f"{__name__}.{name}") or getattr(namespace, name)
