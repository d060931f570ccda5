"""Import of Keras 3 with its torch backend."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from thalweg._base.showing import show_value
from thalweg.errors import FailedPreconditionError

_REQUIREMENT = "thalweg.integrations.keras3 needs"


def import_keras() -> ModuleType:
    """Import Keras 3 and return the module; set KERAS_BACKEND to "torch" if it is unset.

    Raises:
        ImportError: Keras 3 is not installed.
        FailedPreconditionError: Another backend was chosen.
    """
    # Keras reads KERAS_BACKEND once, at its first import.
    if "keras" not in sys.modules:
        backend = os.environ.setdefault("KERAS_BACKEND", "torch")
        if backend != "torch":
            raise FailedPreconditionError(_advice(backend))
    try:
        keras = importlib.import_module("keras")
    except ModuleNotFoundError as error:
        # Keras is installed, but a module that it imports is not.
        if error.name != "keras":
            raise
        message = f"{_REQUIREMENT} Keras 3. Install it with: pip install 'thalweg[keras]'"
        raise ImportError(message, name="keras") from error
    version = getattr(keras, "__version__", "0")
    if int(version.split(".")[0]) < 3:
        raise ImportError(f"{_REQUIREMENT} Keras 3, not Keras {version}.", name="keras")
    if keras.backend.backend() != "torch":
        raise FailedPreconditionError(_advice(keras.backend.backend()))
    return keras


def _advice(backend: str) -> str:
    """Return a sentence on how to choose the torch backend instead of `backend`."""
    return (
        f"{_REQUIREMENT} Keras' torch backend, but the backend is"
        f" {show_value(backend)}. Set the environment"
        " variable KERAS_BACKEND=torch before keras is imported."
    )
