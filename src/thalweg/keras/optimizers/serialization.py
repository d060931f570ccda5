"""`get`, `serialize` and `deserialize`: optimizers by name and by configuration."""

from __future__ import annotations

import sys
from typing import Any

from thalweg._base.showing import show_value
from thalweg.keras.optimizers.adadelta import Adadelta
from thalweg.keras.optimizers.adagrad import Adagrad
from thalweg.keras.optimizers.adam import Adam
from thalweg.keras.optimizers.adamax import Adamax
from thalweg.keras.optimizers.ftrl import Ftrl
from thalweg.keras.optimizers.nadam import Nadam
from thalweg.keras.optimizers.optimizer import Optimizer
from thalweg.keras.optimizers.rmsprop import RMSprop
from thalweg.keras.optimizers.sgd import SGD

CLASSES: dict[str, type[Optimizer]] = {
    cls.__name__: cls for cls in (SGD, Adagrad, Adadelta, RMSprop, Adamax, Adam, Nadam, Ftrl)
}
_BY_LOWER = {name.lower(): cls for name, cls in CLASSES.items()}


def serialize(optimizer: Optimizer, use_legacy_format: bool = False) -> dict[str, Any]:
    """Return a dict that describes an optimizer and that `deserialize` reads.

    Args:
        optimizer: The optimizer.
        use_legacy_format: Ignored; there is one format.

    Returns:
        {"class_name": ..., "config": ...}. A class registered by Keras'
        `register_keras_serializable` has the name "package>name".
    """
    # Names in Keras' registry count only in programs that have imported Keras.
    cls, keras = type(optimizer), sys.modules.get("keras.saving")
    name = cls.__name__ if keras is None else keras.get_registered_name(cls)
    return {"class_name": name, "config": optimizer.get_config()}


def deserialize(
    config: dict[str, Any],
    custom_objects: dict[str, Any] | None = None,
    use_legacy_format: bool = False,
    use_legacy_optimizer: bool = False,
) -> Optimizer:
    """Return a new optimizer from a dict that `serialize` returned.

    Args:
        config: {"class_name": ..., "config": ...}; case is ignored in names of built-in classes.
        custom_objects: {name: custom class}. Classes in Keras' registry or `custom_object_scope`
            need no entry.
        use_legacy_format, use_legacy_optimizer: Accepted for compatibility.

    Raises:
        ValueError: The class is unknown, or `config` has no "class_name".
    """
    if not isinstance(config, dict) or "class_name" not in config:
        raise ValueError(
            f"Expected a dictionary with 'class_name' and 'config', not {show_value(config)}."
        )
    name = config["class_name"]
    cls = (custom_objects or {}).get(name) or _BY_LOWER.get(str(name).lower())
    keras = sys.modules.get("keras.saving")
    if cls is None and keras is not None:
        cls = keras.get_registered_object(name, custom_objects)
    if cls is None:
        raise ValueError(f"Unknown optimizer: {name}. Known: {', '.join(CLASSES)}.")
    return cls.from_config(dict(config.get("config") or {}), custom_objects)


def get(identifier: object, use_legacy_optimizer: bool = False) -> Optimizer:
    """Return a new optimizer by name or configuration; return an optimizer itself unchanged.

    Args:
        identifier: A name such as "adam" in any case (default arguments), a dict that `serialize`
            returned, or an optimizer.
        use_legacy_optimizer: Accepted for compatibility.

    Raises:
        ValueError: `identifier` has another type, or names an unknown class.

    Example:
        >>> get("adam").get_config()["beta_1"]
        0.9
    """
    if isinstance(identifier, Optimizer):
        return identifier
    if isinstance(identifier, dict):
        return deserialize(identifier)
    if isinstance(identifier, str):
        return deserialize({"class_name": identifier, "config": {}})
    raise ValueError(f"Could not interpret optimizer identifier: {show_value(identifier)}")
