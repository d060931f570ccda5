"""Class names of optimizers in files of Keras."""

from __future__ import annotations

from thalweg.checkpoint.tensorflow.detection.slot_families import KERAS

# Classes of Keras that thalweg.keras does not have.
UNSUPPORTED = {name.lower(): name for name in ("AdamW", "Adafactor", "Lamb", "Lion", "Muon")}
# Optimizers that scale the loss around another one; the second is of Keras 2.11 to 2.15.
SCALING = ("LossScaleOptimizer", "LossScaleOptimizerV3")
# Keras 2.11 to 2.15 registers its own optimizers under "Custom", the default package;
# thalweg.integrations.keras3 registers the classes of the same names under "thalweg".
_PACKAGES = ("Custom", "thalweg")
_NAMES = (*(family.cls for family in KERAS), *SCALING, *UNSUPPORTED.values())
_BY_LOWER_NAME = {name.lower(): name for name in _NAMES}


def keras_class(name: str | None) -> str | None:
    """Return the plain name of an optimizer class of Keras; None for any other class.

    "Custom>Adam" and "adam" are "Adam". A class of another package, "mine>Adam", is not a Keras
    class, even with the same name.
    """
    package, _, plain_name = (name or "").rpartition(">")
    return _BY_LOWER_NAME.get(plain_name.lower()) if package in ("", *_PACKAGES) else None


def base_class_name(cls: type[object]) -> str:
    """Return the name of the first Keras class among a class and its bases, else of the class."""
    names = [base.__name__ for base in cls.__mro__]
    return next((name for name in names if name in _NAMES), cls.__name__)
