"""`get`, `serialize` and `deserialize`: optimizers by name and by configuration."""

from __future__ import annotations

from typing import Any

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


def serialize(optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer's class name and configuration.

    Returns:
        {"class_name": ..., "config": ...}, which `deserialize` reads.
    """
    return {"class_name": type(optimizer).__name__, "config": optimizer.get_config()}


def deserialize(config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Optimizer:
    """An optimizer from what `serialize` returned.

    Args:
        config: {"class_name": ..., "config": ...}; the built-in names in any case.
        custom_objects: Your own classes, by name.

    Raises:
        ValueError: The class is unknown, or the dictionary is not one that `serialize` returns.
    """
    if not isinstance(config, dict) or "class_name" not in config:
        raise ValueError(f"Expected a dictionary with 'class_name' and 'config', not {config!r}.")
    name = config["class_name"]
    cls = (custom_objects or {}).get(name) or _BY_LOWER.get(str(name).lower())
    if cls is None:
        raise ValueError(f"Unknown optimizer: {name}. Known: {', '.join(CLASSES)}.")
    return cls.from_config(dict(config.get("config") or {}), custom_objects)


def get(identifier: Any) -> Optimizer:
    """An optimizer by name, by configuration, or itself.

    Args:
        identifier: A name such as "adam" (any case; default arguments), a dictionary as
            `serialize` returns it, or an optimizer.

    Raises:
        ValueError: It is none of these.

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
    raise ValueError(f"Could not interpret optimizer identifier: {identifier!r}")
